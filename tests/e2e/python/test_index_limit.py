# SPDX-License-Identifier: Apache-2.0
"""Tiers that the index limits, and not their bytes: what the daemon and `cairnctl` say, and what
`--index-bytes` does about it."""

import json
import subprocess
import time

import cairn
import numpy as np
import pytest
from own_daemon import OwnDaemon

STATE_BYTES = 1024  # with its header and rounding an image of 4 KiB
AUTO = 4096  # blocks that 64 MiB have with `auto`
BLOCKS = 6000  # 24 MiB of them
LOG_SECONDS = 30


class Own(OwnDaemon):
    def cairnctl(self, *words):
        command = [str(self._bin_dir / "cairnctl"), *words, "--control", self.control]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def host(self):
        return next(t for t in json.loads(self.cairnctl("tier", "--json")) if t["tier"] == "host")


@pytest.fixture
def start(bin_dir, request):
    def build(*variables):
        own = Own(bin_dir.resolve(), "64MiB", by=("env", *variables))
        own.__enter__()
        request.addfinalizer(lambda: own.__exit__(None, None, None))
        own.start()
        return own

    return build


def put_tiny_blocks(daemon):
    with cairn.connect(daemon.control, data=daemon.data) as client:
        group = cairn.Group("state", 1, state_bytes=STATE_BYTES)
        space = client.open_space("tiny", "r", [group], tokens_per_block=16, recipe="raw")
        value = np.zeros(STATE_BYTES, np.uint8)
        keys = [space.opaque_key(f"{i}".encode()) for i in range(BLOCKS)]
        for first in range(0, BLOCKS, 500):
            puts = [cairn.Put(key, source=value) for key in keys[first : first + 500]]
            results = space.put_batch(puts, timeout=30)
            assert all(result.error is None for result in results)
        return sum(space.contains(keys, timeout=30))


def test_auto_evicts_for_the_index_and_says_so(start):
    own = start()
    assert put_tiny_blocks(own) == AUTO
    host = own.host()
    assert host["evicted_for_index"] == BLOCKS - AUTO
    assert host["used_bytes"] < host["capacity_bytes"] // 2
    text = own.cairnctl("tier")
    used = percent(host)
    assert f"host index: full before the tier, of which {used} is used: 1904 blocks" in text
    assert "a larger --index-bytes of cairnd keeps more" in text
    deadline = time.monotonic() + LOG_SECONDS
    while "the index is full before the tier is" not in own.log():
        assert time.monotonic() < deadline, "the log does not say it"
        time.sleep(0.02)


def percent(host):
    return f"{100 * host['used_bytes'] / host['capacity_bytes']:.0f} %"


def test_bytes_of_the_index_that_are_named_are_for_blocks_in_memory(start):
    own = start("CAIRN_INDEX_BYTES=32MiB")
    assert put_tiny_blocks(own) == BLOCKS
    assert own.host()["evicted_for_index"] == 0
    assert "host index" not in own.cairnctl("tier")


def test_a_replay_says_that_the_index_was_the_limit(start, tmp_path):
    trace = tmp_path / "trace.jsonl"
    with open(trace, "w", encoding="utf-8") as file:
        for i in range(1500):
            blocks = list(range(4 * i, 4 * i + 4))
            line = {"timestamp": i, "input_length": 2048, "output_length": 1, "hash_ids": blocks}
            file.write(json.dumps(line) + "\n")
    own = start()
    replay = ("replay", str(trace), "--recipe", "kivi:2", "--block-bytes", "8KiB")
    text = own.cairnctl(*replay)
    assert "blocks went because the index was full, and not this tier" in text
    tiers = json.loads(own.cairnctl(*replay, "--json"))["tiers"]
    assert tiers[0]["tier"] == "host" and tiers[0]["evicted_for_index"] > 0
