# SPDX-License-Identifier: Apache-2.0
"""Every relative link of a Markdown file leads to a file."""

import re
import sys

import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def main():
    findings = []
    for path, text in tree.texts([".md"]).items():
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for match in LINK.finditer(text):
            target = match.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            if not ((tree.ROOT / path).parent / target).exists():
                findings.append(f"{path}: link to {target} leads nowhere")
    return tree.report(findings)


if __name__ == "__main__":
    sys.exit(main())
