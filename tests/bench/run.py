#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks that are built, one after the other, and keeps their figures.

usage: run.py [--bin-dir build/release/bin] [--out build/bench] [--rounds 5] [--quick] [NAME ...]
"""

import argparse
import pathlib
import subprocess
import sys

NAMES = ["codec", "transport", "index", "index_scale", "ssd", "tier", "client", "arrays", "arrays.py", "steps", "steps.py", "idle", "members", "hostile.py", "explain.py", "event_names.py", "tls.py", "hosts.py"]
HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that they run")
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names:
        if name.endswith(".py"):
            command = [sys.executable, str(HERE / name), "--bin-dir", str(args.bin_dir)]
        else:
            command = [str(args.bin_dir / f"cairn_{name}_bench")]
            if not pathlib.Path(command[0]).exists():
                print(f"== {name}: not built ({command[0]})", flush=True)
                failed.append(name)
                continue
        command += ["--rounds", str(args.rounds), "--json", str(args.out / f"{name}.json")]
        if args.quick:
            command.append("--quick")
        print(f"== {' '.join(command)}", flush=True)
        if subprocess.run(command).returncode != 0:
            failed.append(name)
    print(f"figures in {args.out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
