# SPDX-License-Identifier: Apache-2.0
"""The map of the ways in docs/internals/architecture.md is true.

Each way is a table below a line "**N functions in M files, K changes of file.**". A row names a file and the functions
there, in the order in which the way comes to them. Each named function must be defined in its file, and the three numbers
must be those of the table.
"""

import re
import sys

import tree

PAGE = "docs/internals/architecture.md"
COUNTS = re.compile(r"^\*\*(\d+) functions in (\d+) files, (\d+) changes of file\.\*\*$")
ROW = re.compile(r"^\|[^|]*\| `([^`]+)` \|(.*)\|$")
FUNCTION = re.compile(r"`([\w:~]+)\(\)`")
SUFFIX = re.compile(r"(?:\s|const\b|noexcept\b|override\b|final\b|mutable\b|ABSL_\w+\([^)]*\)|->\s*[\w:<>*& ]+)*")


def strip_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def closing(code, start):
    """The place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place + 1
    return len(code)


def defines(code, name):
    """Whether the code, free of comments, defines the function: `Name` or `Class::Name`."""
    short = name.split("::")[-1]
    for found in re.finditer(rf"(?:^|[\w>*&\]:]\s+|[*&]|\b\w+::)({re.escape(name)}|{re.escape(short)})\(", code, re.MULTILINE):
        if re.search(r"\b(return|new|throw|else|case)\s+(\w+::)*$", code[: found.start(1)]):
            continue
        if "::" in name and found.group(1) == short:  # within its class, or another's
            owner = re.search(r"(\w+)::$", code[: found.start(1)])
            inside = re.search(rf"\b(class|struct) {name.split('::')[-2]}\b", code[: found.start(1)])
            if (owner and owner.group(1) != name.split("::")[-2]) or (not owner and not inside):
                continue
        end = closing(code, found.end() - 1)
        after = code[end + SUFFIX.match(code[end:]).end() :]
        if after.startswith("{") or re.match(r":[^:]", after):
            return True
    return False


def ways(page):
    """Yields (heading, counts, rows) for each way; a row is (file, functions)."""
    heading, counts, rows = "", None, []
    for line in page.splitlines() + ["#"]:
        if line.startswith("#"):
            if counts:
                yield heading, counts, rows
            heading, counts, rows = line.lstrip("# "), None, []
        elif found := COUNTS.match(line):
            if counts:
                yield heading, counts, rows
            counts, rows = tuple(map(int, found.groups())), []
        elif counts and (row := ROW.match(line)):
            rows.append((row.group(1), FUNCTION.findall(row.group(2))))


def check(page, files):
    findings, codes = [], {}
    found_one = False
    for heading, counts, rows in ways(page):
        found_one = True
        seen = set()
        for path, functions in rows:
            if path not in files:
                findings.append(f"{heading}: {path} does not exist")
                continue
            code = codes.setdefault(path, strip_comments(files[path]))
            if not functions:
                findings.append(f"{heading}: {path}: names no function")
            for name in functions:
                if (path, name) in seen:
                    findings.append(f"{heading}: {path}: {name}() is named twice")
                seen.add((path, name))
                if not defines(code, name):
                    findings.append(f"{heading}: {path} does not define {name}()")
        names = [path for path, _ in rows]
        changes = sum(a != b for a, b in zip(names, names[1:]))
        real = (sum(len(functions) for _, functions in rows), len(set(names)), changes)
        if real != counts:
            findings.append("{}: the table has {} functions in {} files, {} changes of file; the page says {}, {} and {}".format(heading, *real, *counts))
    return findings if found_one else [f"{PAGE}: no map of a way"]


def main():
    files = tree.texts((".h", ".cc"))
    return tree.report(check((tree.ROOT / PAGE).read_text(encoding="utf-8"), files))


if __name__ == "__main__":
    sys.exit(main())
