# SPDX-License-Identifier: Apache-2.0
"""Every relative link of a Markdown file leads to a file, and to a heading there, and links lead from README.md
to each page."""

import collections
import re
import sys

import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(text):
    """What GitHub makes of the headings: of two alike, the second gets -1."""
    found, seen = set(), collections.Counter()
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def main():
    findings = []
    pages = {}  # each one's links to other pages
    texts = {(tree.ROOT / path).resolve(): text for path, text in tree.texts([".md"]).items()}
    for path, text in texts.items():
        name = path.relative_to(tree.ROOT)
        pages[path] = links = set()
        for target, anchor in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if re.match(r"[a-z]+:", target):
                continue
            place = (path.parent / target).resolve() if target else path
            links.add(place)
            if not place.exists():
                findings.append(f"{name}: link to {target} leads nowhere")
            elif anchor and place in texts and anchor[1:] not in anchors(texts[place]):
                findings.append(f"{name}: {target}{anchor}: no such heading")
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
