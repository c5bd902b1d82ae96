# SPDX-License-Identifier: Apache-2.0
"""Every relative link of a Markdown file leads to a file, and links lead from README.md to each page."""

import re
import sys

import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def main():
    findings = []
    pages = {}  # each one's links to other pages
    for path, text in tree.texts([".md"]).items():
        pages[(tree.ROOT / path).resolve()] = links = set()
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for match in LINK.finditer(text):
            target = match.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            place = ((tree.ROOT / path).parent / target).resolve()
            links.add(place)
            if not place.exists():
                findings.append(f"{path}: link to {target} leads nowhere")
    start = (tree.ROOT / "README.md").resolve()
    found, queue = {start}, [start]
    while queue:
        for page in (pages[queue.pop()] & pages.keys()) - found:
            found.add(page)
            queue.append(page)
    for page in sorted(pages.keys() - found):
        if page.relative_to(tree.ROOT).parts[0].startswith("."):
            continue  # forms
        findings.append(f"{page.relative_to(tree.ROOT)}: no link leads to it from README.md")
    return tree.report(findings)


if __name__ == "__main__":
    sys.exit(main())
