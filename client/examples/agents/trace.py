# SPDX-License-Identifier: Apache-2.0
"""Writes a trace of agent sessions for `cairnctl replay`: turns with pauses between them, in which
tools run, among single requests that are not asked again.

    python3 client/examples/agents/trace.py --sessions 200 > agents.jsonl
    cairnctl replay agents.jsonl
    cairnctl replay agents.jsonl --hints

Sessions of an agent begin with its system prompt. Each turn's prompt is the whole session so far.
Pauses are exponential in length. Equal arguments give equal traces. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

BLOCK_TOKENS = 512


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sessions", type=int, default=200, help="agent sessions [200]")
    parser.add_argument("--agents", type=int, default=4, help="system prompts [4]")
    parser.add_argument("--turns", type=float, default=8, help="turns of a session, mean [8]")
    parser.add_argument("--pause", type=float, default=60, help="seconds between turns, mean [60]")
    parser.add_argument("--start", type=float, default=10, help="seconds between sessions [10]")
    parser.add_argument(
        "--single", type=float, default=1.0, help="single requests for each turn [1]"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def requests(given: argparse.Namespace) -> Iterator[tuple[float, list[int], int]]:
    """Yields time in seconds, block ids and tokens of each request, session by session."""
    rng = random.Random(given.seed)
    next_id = 0

    def fresh(count: int) -> list[int]:
        nonlocal next_id
        next_id += count
        return list(range(next_id - count, next_id))

    systems = [fresh(rng.randint(4, 12)) for _ in range(given.agents)]
    begin = 0.0
    for _ in range(given.sessions):
        begin += rng.expovariate(1 / given.start)
        chain, now = list(rng.choice(systems)), begin
        for _ in range(1 + min(50, int(rng.expovariate(1 / given.turns)))):
            chain += fresh(rng.randint(1, 6))
            tail = rng.randint(1, BLOCK_TOKENS - 1)  # of a partial block at the end
            yield now, [*chain, *fresh(1)], len(chain) * BLOCK_TOKENS + tail
            for _ in range(int(given.single + rng.random())):
                blocks = fresh(rng.randint(2, 16))
                yield now + rng.random() * given.pause, blocks, len(blocks) * BLOCK_TOKENS
            now += rng.expovariate(1 / given.pause)


def main() -> None:
    for seconds, blocks, tokens in sorted(requests(arguments())):
        line: dict[str, Any] = {
            "timestamp": round(seconds * 1000),
            "input_length": tokens,
            "output_length": 0,
            "hash_ids": blocks,
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
