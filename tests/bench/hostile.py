#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long an honest client's gets take while others attack the daemon, beside the same client alone; with TLS, its matches
too. The attacks are those of tests/fault/hostile, which is run as it is.

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
# (program, goal: times the quiet p99, attacks of --quick, what is timed)
SUITES = [
    ("fault_hostile_test", 3.0, "*BadTickets:*MatchesOfBlocksInSlivers", ["get"]),
    ("fault_hostile_tls_test", 2.0, "*ControlMutatedHandshakes:*StreamSilentPeers", ["get", "match"]),
]


def run(binary, names):
    """The victim's p99s in microseconds beside each attack, by (attack, call)."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [str(binary.resolve()), f"--gtest_output=json:{report}", f"--gtest_filter={names}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=folder, check=False)
        suites = json.loads(report.read_text())["testsuites"]
    tests = [test for suite in suites for test in suite["testsuite"]]
    failed = [test["name"] for test in tests if "failures" in test]
    if failed:
        print(f"failed, so its times say little: {', '.join(failed)}", file=sys.stderr)
    name_of = {f"victim_{call}_p99_us": call for call in ("get", "match")}
    return {(test["name"], name_of[key]): int(test[key]) for test in tests for key in name_of if key in test}


def measure(binary, goal, names, calls, count):
    rounds = [run(binary, names) for _ in range(count)]
    rows = []
    for call in calls:
        quiet = statistics.median(found[QUIET, call] for found in rounds)
        print(f"{binary.name}: p99 of a {call}: {quiet / 1000:.2f} ms alone; goal {goal:.0f} x")
        for name in dict.fromkeys(name for name, of in rounds[0] if of == call):
            beside = statistics.median(found[name, call] for found in rounds if (name, call) in found)
            row = {"suite": binary.name, "attack": name, "call": call}
            rows.append(row | {"p99_us": beside, "quiet_p99_us": quiet, "ratio": beside / quiet})
            met = "" if beside <= goal * quiet else "  over the goal"
            print(f"{name:34} {beside / 1000:9.2f} ms  {beside / quiet:6.2f} x{met}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few attacks: shows that it runs")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="programs; all of them")
    args = parser.parse_args()
    rows = []
    for program, goal, few, calls in SUITES:
        if args.suites and program not in args.suites:
            continue
        binary = args.bin_dir / program
        if not binary.exists():
            sys.exit(f"not built: {binary}")
        names = f"*.{QUIET}:{few}" if args.quick else "*"
        rows += measure(binary, goal, names, calls, 1 if args.quick else args.rounds)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
