# SPDX-License-Identifier: Apache-2.0
"""Clients of all hosts that go on with conversations, each turn at a host of its own choice.

    load.py FILE NAME=CONTROL,DATA…    writes a line of JSON for each request; ends at SIGTERM

A request matches the prompt's blocks, gets what was found and puts the rest. Each block that was
delivered is compared with what the block must be, byte for byte: a block's values follow from its
key.
"""

import json
import pathlib
import random
import signal
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "client" / "python"))

import numpy as np  # noqa: E402

import cairn  # noqa: E402

LAYERS, HEADS, TOKENS, DIM = 4, 2, 16, 64
CONVERSATIONS, SYSTEM_BLOCKS, BLOCKS_MAX = 12, 2, 16
MATCH_SECONDS, GET_SECONDS, PUT_SECONDS = 1.0, 1.0, 2.0
PAUSE_SECONDS = 0.03
JITTER_SECONDS = 0.01


def open_space(client, revision="load"):
    groups = [cairn.KvGroup(LAYERS, HEADS, DIM)]
    return client.open_space(
        "m", revision, groups, dtype="fp16", tokens_per_block=TOKENS, recipe="raw"
    )


def block_values(key):
    """K and V of the block with that key: fp16 bits of finite numbers."""
    rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
    bits = rng.integers(0, 0x7C00, (2, LAYERS, HEADS, TOKENS, DIM), np.uint16)
    return bits.view(np.float16)


def put_blocks(space, keys, first, seconds=PUT_SECONDS):
    """Puts the blocks from `first` on. Raises the first error."""
    puts = []
    for i in range(first, len(keys)):
        k, v = block_values(keys[i])
        puts.append(cairn.Put(keys[i], k, v, keys[i - 1] if i else None, i * TOKENS))
    for result in space.put_batch(puts, timeout=seconds) if puts else []:
        if result.error is not None:
            raise result.error


def count_wrong(keys, k, v, tokens):
    """The number of delivered blocks with a wrong byte."""
    wrong = 0
    for i in range(tokens // TOKENS):
        span = slice(i * TOKENS, (i + 1) * TOKENS)
        want = block_values(keys[i]).view(np.uint16)
        got = [plane[:, :, span].view(np.uint16) for plane in (k, v)]
        wrong += not (np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1]))
    return wrong


class Conversations:
    """Prompts that grow. All begin with the same blocks."""

    def __init__(self, seed, count=CONVERSATIONS):
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._open = [self._new() for _ in range(count)]

    def __len__(self):
        return len(self._open)

    def _new(self):
        return {"id": self._random.getrandbits(28), "blocks": SYSTEM_BLOCKS}

    def next_prompt(self, i=None):
        """The next turn of a conversation: of one at random, or of the i-th. One that has become
        long ends, and another one begins."""
        with self._lock:
            i = self._random.randrange(len(self._open)) if i is None else i
            one = self._open[i]
            one["blocks"] += self._random.randint(1, 2)
            if one["blocks"] > BLOCKS_MAX:
                one = self._open[i] = self._new()
                one["blocks"] += 1
            own = one["blocks"] - SYSTEM_BLOCKS
            first = one["id"] * 16
            return [*range(SYSTEM_BLOCKS * TOKENS), *range(first, first + own * TOKENS)]


class Jitter:
    """How late threads of this process are woken: such time is not the store's."""

    def __init__(self):
        self._worst = []  # time, seconds
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            begin = time.monotonic()
            time.sleep(JITTER_SECONDS)
            now = time.monotonic()
            late = now - begin - JITTER_SECONDS
            if late > 0.02:
                self._worst = [*self._worst[-200:], (now, late)]

    def since(self, begin):
        return sum(late for at, late in list(self._worst) if at >= begin)


class Worker:
    """One engine beside one host. `write` takes a line for each request."""

    def __init__(self, name, control, data, jitter, write):
        self._name, self._write, self._jitter = name, write, jitter
        self._client = cairn.connect(control, data=data, connections=1, timeout=10)
        self._space = open_space(self._client)
        shape = (LAYERS, HEADS, BLOCKS_MAX * TOKENS, DIM)
        self._k, self._v = np.zeros(shape, np.float16), np.zeros(shape, np.float16)

    def _timed(self, line, call, limit):
        begin = time.monotonic()
        try:
            return call()
        finally:
            took = time.monotonic() - begin
            line["took"][line["step"]] = round(took, 6)
            line["over"] = max(line["over"], took - limit - self._jitter.since(begin))

    def request(self, prompt):
        keys = self._space.keys(prompt)
        line = {"at": time.monotonic(), "host": self._name, "asked": len(keys), "own": 0}
        line |= {"peer": 0, "late": 0, "wrong": 0, "over": -10.0, "step": "match", "error": ""}
        line["took"] = {}  # seconds of each call
        try:
            self._ask(line, keys)
        except cairn.Error as error:
            line["error"] = f"{type(error).__name__}: {error}"
        line["end"] = time.monotonic()
        self._write(line)

    def _ask(self, line, keys):
        space = self._space
        with self._timed(
            line, lambda: space.match(keys, timeout=MATCH_SECONDS), MATCH_SECONDS
        ) as match:
            line["is_open"] = match.is_breaker_open
            line["step"], delivered = "get", 0
            if match:
                count = match.block_count
                planes = [plane[:, :, : count * TOKENS] for plane in (self._k, self._v)]
                for plane in planes:
                    plane.fill(-1)
                delivered = self._timed(
                    line, lambda: match.get(*planes, timeout=GET_SECONDS), GET_SECONDS
                )
                line["wrong"] = count_wrong(keys, *planes, delivered)
                tiers = [block.tier for block in match.blocks[: delivered // TOKENS]]
                line["peer"] = tiers.count("peer")
                line["own"] = len(tiers) - line["peer"]
                line["late"] = count - len(tiers)
            line["step"] = "put"
        first = delivered // TOKENS
        self._timed(line, lambda: put_blocks(space, keys, first), PUT_SECONDS)


def main():
    target = open(sys.argv[1], "w", encoding="utf-8", buffering=1)
    lock, is_over = threading.Lock(), threading.Event()

    def write(line):
        with lock:
            target.write(json.dumps(line) + "\n")

    def work(worker):
        while not is_over.is_set():
            worker.request(conversations.next_prompt())
            is_over.wait(PAUSE_SECONDS)

    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    conversations, jitter = Conversations(int(time.time())), Jitter()
    workers = []
    for host in sys.argv[2:]:
        name, ends = host.split("=")
        workers.append(Worker(name, *ends.split(","), jitter, write))
    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
