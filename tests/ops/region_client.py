# SPDX-License-Identifier: Apache-2.0
"""A client with regions of its own: region_client.py CONTROL DATA. For each line that it reads it moves MOVED bytes there and back
over both of its connections, and says so."""

import concurrent.futures
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

import cairn  # noqa: E402
from cairn.transfer import Get, Put  # noqa: E402

MIB = 1 << 20
CONNECTIONS, REGION_BYTES = 2, 96 * MIB
LAYERS, HEADS, TOKENS, DIM = 8, 16, 128, 128
BLOCK_BYTES = 2 * LAYERS * HEADS * TOKENS * DIM * 2  # 8 MiB
BATCH = 4  # blocks that a connection moves at once: a third of its region
TURNS = 6
MOVED = CONNECTIONS * BATCH * TURNS * BLOCK_BYTES  # 384 MiB, and as much back


def move(space, index):
    """Of keys that no other thread has. Each batch is got as soon as it is put: the host tier holds few."""
    source = np.full((BATCH, BLOCK_BYTES), index + 1, np.uint8)
    for turn in range(TURNS):
        keys = [space.opaque_key(f"{index} {turn} {i}".encode()) for i in range(BATCH)]
        target = np.zeros_like(source)
        puts = [Put(key, source=row) for key, row in zip(keys, source, strict=True)]
        assert all(put.error is None for put in space.put_batch(puts, timeout=30))
        gets = [Get(key, source=row) for key, row in zip(keys, target, strict=True)]
        assert all(space.get_batch(gets, timeout=30))
        assert np.array_equal(source, target)


def open_space(client):
    """As soon as the daemon is there: it may have been started again just now."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return client.open_space("regions", "1", [cairn.KvGroup(LAYERS, HEADS, DIM)], recipe="raw")
        except cairn.UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    control, data = sys.argv[1:]
    options = {"data": data, "connections": CONNECTIONS, "region_bytes": REGION_BYTES}
    with cairn.connect(control, **options) as client:
        for _ in sys.stdin:
            space = open_space(client)
            with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
                list(pool.map(lambda index: move(space, index), range(CONNECTIONS)))
            space.invalidate(timeout=10)
            print("moved", flush=True)


if __name__ == "__main__":
    main()
