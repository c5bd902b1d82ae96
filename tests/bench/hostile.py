#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an honest client's gets take while others attack the daemon, beside the same client alone. The attacks are
those of tests/fault/hostile, which is run as it is.

usage: hostile.py [--bin-dir build/release/bin] [--rounds 5] [--quick] [--json FILE]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

QUIET = "Nobody"
GOAL = 3.0  # times the quiet p99


def run(binary, names):
    """The victim's p99 in microseconds beside each attack."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [str(binary.resolve()), f"--gtest_output=json:{report}", f"--gtest_filter={names}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=folder, check=False)
        suites = json.loads(report.read_text())["testsuites"]
    tests = [test for suite in suites for test in suite["testsuite"]]
    failed = [test["name"] for test in tests if "failures" in test]
    if failed:
        print(f"failed, so its times say little: {', '.join(failed)}", file=sys.stderr)
    return {test["name"]: int(test["victim_get_p99_us"]) for test in tests if "victim_get_p99_us" in test}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of three attacks: shows that it runs")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    binary = args.bin_dir / "fault_hostile_test"
    if not binary.exists():
        sys.exit(f"not built: {binary}")
    names = f"*.{QUIET}:*BadTickets:*MatchesOfBlocksInSlivers" if args.quick else "*"
    rounds = [run(binary, names) for _ in range(1 if args.quick else args.rounds)]
    quiet = statistics.median(found[QUIET] for found in rounds)
    rows = []
    print(f"p99 of a get: {quiet / 1000:.2f} ms alone; goal {GOAL:.0f} x")
    for name in rounds[0]:
        beside = statistics.median(found[name] for found in rounds if name in found)
        rows.append({"attack": name, "p99_us": beside, "quiet_p99_us": quiet, "ratio": beside / quiet})
        met = "" if beside <= GOAL * quiet else "  over the goal"
        print(f"{name:34} {beside / 1000:9.2f} ms  {beside / quiet:6.2f} x{met}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
