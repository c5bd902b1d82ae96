# SPDX-License-Identifier: Apache-2.0
"""How long `cairnctl explain` takes for a request of 100,000 blocks, of which the daemon has half: for
token ids as a plain list and as a JSON object, and for the call of the Python SDK. Seconds, medians.

    python tests/bench/explain.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

The goal is one second. Most of it is the file: blocks have 16 tokens, the fewest that a space may have.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any

from arrays import TIMEOUT, import_cairn, parse_arguments

TOKENS = 16  # of a block
PUTS, KEYS = 500, 65536  # of one call
FORMS = ("plain list", "JSON object", "Python SDK")


def put_half(cairn: Any, space: Any, keys: list[bytes]) -> None:
    source = bytearray(space.source_bytes())
    stored = keys[: len(keys) // 2]
    for first in range(0, len(stored), PUTS):
        puts = [cairn.Put(key, source=source) for key in stored[first : first + PUTS]]
        for result in space.put_batch(puts, timeout=TIMEOUT):
            if result.error is not None:
                raise result.error


def write_requests(folder: pathlib.Path, count: int) -> dict[str, pathlib.Path]:
    tokens = list(range(count * TOKENS))
    files = {"plain list": folder / "tokens.txt", "JSON object": folder / "tokens.json"}
    files["plain list"].write_text(" ".join(map(str, tokens)), encoding="utf-8")
    files["JSON object"].write_text(json.dumps({"tokens": tokens}), encoding="utf-8")
    return files


def timed(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> None:
    arguments = parse_arguments(__doc__)
    cairn, start = import_cairn(arguments.bin_dir)
    count = 10_000 if arguments.quick else 100_000
    rounds: dict[str, list[float]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as name:
        folder = pathlib.Path(name) / "local"
        folder.mkdir(mode=0o700)
        daemon = start(arguments.bin_dir, "local", folder, host_bytes="1GiB")
        try:
            client = cairn.connect(daemon.control, data=daemon.data)
            group = cairn.Group("opaque_rows", 1, row_bytes=4)
            space = client.open_space("explain", "r", [group], tokens_per_block=TOKENS, recipe="raw")
            keys = space.keys(range(count * TOKENS))
            put_half(cairn, space, keys)
            files = write_requests(folder, count)

            def ask(form: str) -> None:
                if form not in files:
                    for first in range(0, count, KEYS):
                        space.explain(keys[first : first + KEYS], timeout=TIMEOUT)
                    return
                command = [arguments.bin_dir / "cairnctl", "explain", files[form], "--control", daemon.control]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                if f"finds {count // 2} of {count} blocks" not in done.stdout:
                    raise SystemExit(done.stdout)

            for number in range(arguments.rounds + 1):
                for form in FORMS:
                    seconds = timed(lambda form=form: ask(form))
                    if number > 0:  # the first warms up
                        rounds[form].append(seconds)
        finally:
            daemon.stop()
    print(f"explain: {count} blocks, half of them stored; seconds, medians of {arguments.rounds} rounds")
    medians = {form: statistics.median(rounds[form]) for form in FORMS}
    for form in FORMS:
        print(f"  {form:12} {medians[form]:8.3f}")
    if arguments.json is not None:
        rows = [{"name": form, "seconds": medians[form]} for form in FORMS]
        arguments.json.write_text(json.dumps({"title": "explain.py", "rounds": arguments.rounds, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
