# SPDX-License-Identifier: Apache-2.0
"""No two files define the same class.

A program that links both halves, as a test of the SDK beside the daemon does, would hold two meanings of one name, and
the linker keeps one of them in silence (the one-definition rule).
"""

import re
import sys

import tree

CLASS = re.compile(
    r"^(?:template\s*<.*>\s*)?(?:class|struct|enum class|enum|union)\s+"
    r"(?:[A-Z_]+\([^)]*\)\s+|\[\[\w+\]\]\s+)*(\w+)(?:\s+final)?\s*(?::(?!:)[^;]*)?\{"
)
OPEN = re.compile(r"^(?:inline )?namespace\s*([\w:]*)\s*\{")
CLOSE = re.compile(r"^\}\s*//.*namespace")
FOLDERS = ("base/", "codecs/", "kernels/", "proto/", "transport/", "service/", "client/")


def classes(text):
    """Qualified names of the classes that the text defines in namespaces with a name."""
    inside = []
    for line in text.splitlines():
        if opened := OPEN.match(line):
            inside.append(opened.group(1))
        elif CLOSE.match(line):
            inside = inside[:-1]
        elif (found := CLASS.match(line)) and "" not in inside:
            yield "::".join([*inside, found.group(1)])


def check(files):
    homes = {}
    for path, text in sorted(files.items()):
        for name in classes(text):
            homes.setdefault(name, []).append(path)
    return [f"{name}: defined in {' and in '.join(p)}" for name, p in sorted(homes.items()) if len(p) > 1]


def main():
    return tree.report(check({p: t for p, t in tree.texts((".h", ".cc")).items() if p.startswith(FOLDERS)}))


if __name__ == "__main__":
    sys.exit(main())
