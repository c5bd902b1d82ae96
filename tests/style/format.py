# SPDX-License-Identifier: Apache-2.0
"""All C++ is as clang-format 14 writes it (`make fmt`)."""

import re
import shutil
import subprocess
import sys

import tree


def main():
    binary = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout if binary else ""
    if not re.search(r"version 14\.", version):
        print(f"skipped: needs clang-format 14, found: {version.strip() or 'none'}")
        return 77
    files = [p for p in tree.paths() if p.endswith((".h", ".cc", ".inl", ".cu", ".c"))]
    bad = []
    for first in range(0, len(files), 50):
        result = subprocess.run(
            [binary, "--dry-run", "--ferror-limit=1", *files[first:first + 50]],
            cwd=tree.ROOT, capture_output=True, text=True,
        )
        bad += re.findall(r"^(.+?):\d+:\d+: (?:warning|error): code should be", result.stderr, re.MULTILINE)
    return tree.report([f"{path}: not formatted; run make fmt" for path in sorted(set(bad))])


if __name__ == "__main__":
    sys.exit(main())
