# SPDX-License-Identifier: Apache-2.0
"""`cairnd --help` and docs/operations.md name the same flags.

usage: config_docs.py CAIRND
"""

import pathlib
import re
import subprocess
import sys

import tree


def main():
    daemon = pathlib.Path(sys.argv[1])
    if not daemon.exists():
        print(f"skipped: {daemon} is not built")
        return 77
    text = subprocess.run([daemon, "--help"], capture_output=True, text=True, timeout=20, check=True).stdout
    flags = set(re.findall(r"^\s*(--[a-z][a-z0-9-]*)", text, re.MULTILINE))
    document = (tree.ROOT / "docs/operations.md").read_text()
    # A documented flag is one that opens a table row: | `--socket PATH` | …
    documented = set(re.findall(r"^\|\s*`(--[a-z][a-z0-9-]*)", document, re.MULTILINE))
    findings = [f"docs/operations.md: no row for {flag}" for flag in sorted(flags - documented)]
    findings += [f"docs/operations.md: {flag} is not a flag of cairnd" for flag in sorted(documented - flags)]
    if not flags:
        findings.append("cairnd --help names no flags")
    return tree.report(findings)


if __name__ == "__main__":
    sys.exit(main())
