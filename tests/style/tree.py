# SPDX-License-Identifier: Apache-2.0
"""The files of the repository as {path: text}, for the checks beside this file."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def paths():
    """Tracked files and new ones that git does not ignore; without git, everything but build/."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith(("build/", ".git/"))]
    return sorted(n for n in set(names) if (ROOT / n).is_file())


def texts(suffixes):
    return {n: (ROOT / n).read_text(encoding="utf-8") for n in paths() if n.endswith(tuple(suffixes))}


def report(findings):
    """Prints findings, one a line, and returns the exit status."""
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0
