# SPDX-License-Identifier: Apache-2.0
"""Pictures of the dashboards while something happens: a cache fills, evicts, reads old prompts from its drive, is killed and starts again,
and meets damaged bytes. CAIRN_LIVE_PICTURES names the folder, CAIRN_LIVE_SECONDS how long it takes (300). `make test-ops`."""

import contextlib
import os
import pathlib
import random
import subprocess
import time

import numpy as np
import pytest
from conftest import DASHBOARDS, ROOT
from test_live import BIN, Daemon, Prometheus, cairn

SECONDS = int(os.environ.get("CAIRN_LIVE_SECONDS", "300"))
LAYERS, HEADS, TOKENS, DIM = 4, 2, 64, 64  # a block of 128 KiB
HOST_MIB, SSD_MIB = 64, 256
TURNS_A_SECOND = 10
DAMAGE_STEP = 64 << 10
# Shares of the time at which each part begins, and how many of ten turns go on with a prompt of long ago.
STORY = [
    (0.0, "the cache fills, then evicts", 1),
    (0.4, "old prompts come back", 7),
    (0.6, "kill -9, and a restart", 5),
    (0.8, "damage on the drive", 7),
]


class Traffic:
    """Conversations that grow turn by turn: their blocks are asked for, got where they are found, and put where they are not."""

    def __init__(self, client):
        group = cairn.KvGroup(LAYERS, HEADS, DIM, rope=cairn.Rope("half", DIM, 10000.0))
        self._space = client.open_space("synthetic", "pictures", [group], dtype="bf16", tokens_per_block=TOKENS, recipe="exact")
        shape = (LAYERS, HEADS, TOKENS, DIM)
        noise = np.random.default_rng(1).standard_normal((9, *shape), np.float32)
        self._planes = [(of.view(np.uint32) >> 16).astype(np.uint16) for of in noise]
        self._out = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)

    def turn(self, number, blocks, rng):
        """With the first `blocks` blocks of a conversation."""
        space = self._space
        keys = space.keys(range(number * 10**6, number * 10**6 + blocks * TOKENS))
        with space.match(keys) as match:
            found = match.block_count
            for key in keys[:found][-4:]:
                space.get(key, *self._out)
        for at in range(found, blocks):
            k, v = rng.choice(self._planes), rng.choice(self._planes)
            with contextlib.suppress(cairn.ResourceExhaustedError):  # all of the rest is pinned or leased
                space.put(keys[at], k, v, parent=keys[at - 1] if at else None, first_position=at * TOKENS)
        if rng.random() < 0.3:  # somebody asks without a match
            first = 2 * 10**9 + rng.randrange(10**9)
            space.get(space.keys(range(first, first + TOKENS))[0], *self._out)


def play(traffic, end, old_turns, lengths, rng):
    """Until then. lengths: blocks of each conversation so far."""
    while time.monotonic() < end:
        began = time.monotonic()
        if not lengths or rng.random() < 0.25:
            lengths.append(2)
        is_old = rng.randrange(10) < old_turns and len(lengths) > 12
        number = rng.randrange(len(lengths) - 12) if is_old else rng.randrange(max(0, len(lengths) - 12), len(lengths))
        lengths[number] = min(lengths[number] + (0 if is_old else 2), 24)
        with contextlib.suppress(cairn.DeadlineExceededError):  # of a busy machine: the next turn goes on
            traffic.turn(number, lengths[number], rng)
        time.sleep(max(0.0, 1 / TURNS_A_SECOND - (time.monotonic() - began)))


def damage(folder):
    """One byte in each step of what the drive holds."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.stat().st_size < 1 << 20:
            continue
        with open(path, "r+b") as file:
            for at in range(4096 + 123, path.stat().st_size, DAMAGE_STEP):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0xFF]))


@pytest.fixture
def told(tmp_path):
    """A Prometheus that has scraped the story, when it began, and what happened when."""
    disk = ROOT / "build" / f"pictures-{os.getpid()}"  # a temporary folder may be memory, which is no drive
    targets = tmp_path / "targets.json"
    begun, events, lengths, rng = time.monotonic(), [], [], random.Random(1)
    ends = [*(share for share, _, _ in STORY[1:]), 1.0]
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["rm", "-rf", disk])
        prometheus, daemon = None, None
        for (_, what, old_turns), end in zip(STORY, ends, strict=True):
            if daemon is None or "restart" in what:
                if daemon is not None:
                    events.append((time.time(), what))
                    daemon.kill()
                daemon = stack.enter_context(Daemon(BIN, "local", tmp_path, f"{HOST_MIB}MiB", f"{disk}={SSD_MIB}MiB"))
                Prometheus.write_target(targets, daemon.http)
            if prometheus is None:
                prometheus = Prometheus(tmp_path, targets)
                stack.callback(prometheus.close)
                prometheus.await_scrape()
                began = time.time()
                begun = time.monotonic()
            if "restart" not in what:
                events.append((time.time(), what))
            if "damage" in what:
                damage(disk)
            with cairn.connect(daemon.control, data=daemon.data, tenant="live") as client:
                play(Traffic(client), begun + end * SECONDS, old_turns, lengths, rng)
        time.sleep(2)  # two scrapes more, so that Prometheus has all of it
        yield prometheus, began, events


def test_the_dashboards_can_be_looked_at(told):
    from draw import draw  # noqa: PLC0415, takes a second

    prometheus, began, events = told
    folder = pathlib.Path(os.environ["CAIRN_LIVE_PICTURES"])
    draw(prometheus, began, time.time(), folder, events)
    for board in DASHBOARDS.glob("*.json"):
        if board.stem in ("gpu", "members"):
            continue  # nothing to draw
        assert (folder / f"{board.stem}.png").stat().st_size > 10_000, board.stem
    for outcome in ["hit", "miss", "corrupt"]:
        ((_, count),) = prometheus.query(f'sum(max_over_time(cairn_gets_total{{outcome="{outcome}"}}[1h]))')
        assert count > 0, f"the story has no {outcome}"
    ((_, evicted),) = prometheus.query("sum(max_over_time(cairn_evictions_total[1h]))")
    assert evicted > 0
