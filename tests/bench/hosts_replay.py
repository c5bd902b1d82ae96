# SPDX-License-Identifier: Apache-2.0
"""The hits of three members of a cluster by those of one daemon with all of their memory, in a replay of a trace.

    python tests/bench/hosts_replay.py TRACE [--bin-dir DIR] [--requests N] [--share S] [--json FILE]

TRACE is in the format of docs/guides/sizing.md. The memory holds a share of the distinct blocks. Each request goes to a random
member. Members have TLS between them, and the default --peer-match-ms.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any

from hosts import start_members
from tls import Daemon

BLOCK_BYTES, IMAGE_BYTES = "16KiB", 20 << 10  # of a block of recipe raw
MEMBERS = "abc"


def replay(arguments: argparse.Namespace, daemons: dict[str, Daemon]) -> dict[str, Any]:
    command = [arguments.bin_dir / "cairnctl", "replay", arguments.trace, "--json", "--recipe", "raw"]
    command += ["--block-bytes", BLOCK_BYTES, "--requests", arguments.requests]
    command += ["--daemons", ",".join(daemon.found["control"] for daemon in daemons.values())]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    for daemon in daemons.values():
        daemon.close()
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    with open(arguments.trace, encoding="utf-8") as lines:
        asked = [json.loads(line)["hash_ids"] for line, _ in zip(lines, range(arguments.requests), strict=False)]
    distinct = len({one for ids in asked for one in ids})
    mib = int(arguments.share * distinct * IMAGE_BYTES) >> 20
    each = mib // len(MEMBERS)
    load_before = os.getloadavg()[0]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cairn-hosts-replay-") as name:
        folder = pathlib.Path(name)
        own = f"unix:{folder / 'one.control'}"
        one = Daemon(arguments.bin_dir, folder / "one", control=own, host_bytes=f"{each * len(MEMBERS)}MiB")
        found["one"] = replay(arguments, {"one": one})
        daemons, _ = start_members(arguments.bin_dir, folder / "three", MEMBERS, f"{each}MiB", match_ms=20)
        found["members"] = replay(arguments, daemons)
    print(f"{len(asked)} requests, {distinct} distinct blocks, {each * len(MEMBERS)} MiB in all")
    for name, figures in found.items():
        calls = {call: figures["calls"][call] for call in ("match", "get")}
        times = ", ".join(f"{call} p50 {one['p50_us'] / 1e3:.2f} p99 {one['p99_us'] / 1e3:.2f} max {one['max_us'] / 1e3:.1f} ms" for call, one in calls.items())
        of_others = figures["hits"].get("peer", {}).get("block_rate", 0)
        print(f"{name:8} hits {figures['hits']['all']['block_rate']:.4f} (of others {of_others:.4f}), late calls {figures['late_calls']}, wrong bytes {figures['wrong_bytes']}; {times}")
    ratio = found["members"]["hits"]["all"]["blocks"] / found["one"]["hits"]["all"]["blocks"]
    print(f"hits of three members by those of one daemon {ratio:.4f}  goal 0.97 {'met' if ratio >= 0.97 else 'MISSED'}")
    print(f"load average: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
