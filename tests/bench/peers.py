# SPDX-License-Identifier: Apache-2.0
"""Other stores beside Cairn, in one run: Redis, LMCache's server and Mooncake (two processes, TCP).

Every store gets the same blocks from the same arrays, by its own Python client, over loopback; rounds
alternate over all of them. `make bench-peers` installs them and runs this in a network namespace that
has nothing but loopback, because some of them listen on every interface.

    python tests/bench/peers.py [--bin-dir DIR] [--rounds N] [--quick] [--json FILE]

Their puts and gets are flattered: what they return may lie in memory of their own, and none of them
checks what it returns. Redis gets 16 at once as a pipeline, Mooncake as its batch calls; LMCache's
protocol has one request at a time.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import arrays
from arrays import BATCH, SIZES_MIB, Block

START_SECONDS_MAX = 60
REDIS_PORT, LMCACHE_PORT, MOONCAKE_PORT = 16379, 16380, 16381
BLOCK_BYTES_MAX = max(SIZES_MIB) << 20
STORAGE_NODE = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1:16383", "P2PHANDSHAKE", 3 << 30, 64 << 20, "tcp", "", sys.argv[1])
print("ready" if code == 0 else f"failed {code}", flush=True)
sys.stdin.read()
"""


def bytes_of(block: Block) -> memoryview:
    return memoryview(block.kv.reshape(-1).view(np.uint8))


def take(block: Block, value: Any) -> None:
    """What a store returned is now the block's array: no copy is charged to it."""
    block.kv = np.frombuffer(value, np.uint16).reshape(block.kv.shape)


class Redis:
    name, is_lossless, batches = "redis", True, (1, BATCH)

    def __init__(self, pid: int) -> None:
        import redis

        self.pids = [pid]
        self._client = redis.Redis(host="127.0.0.1", port=REDIS_PORT)

    def put(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name, block in zip(names, blocks, strict=True):
            pipeline.set(name, bytes_of(block))
        pipeline.execute()

    def get(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.get(name)
        for block, value in zip(blocks, pipeline.execute(), strict=True):
            take(block, value)

    def clear(self, names: Sequence[str]) -> None:
        self._client.flushdb()


class LmCache:
    name, is_lossless, batches = "lmcache server", True, (1,)

    def __init__(self, pid: int) -> None:
        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1 import memory_management, protocol

        self.pids = [pid]
        self._socket = socket.create_connection(("127.0.0.1", LMCACHE_PORT))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol, self._torch, self._key_of = protocol, torch, CacheEngineKey
        self._format = memory_management.MemoryFormat.KV_2LTD

    def _ask(self, command: Any, name: str, count: int, shape: list[int]) -> None:
        key = self._key_of("m", 1, 0, zlib.crc32(name.encode()), self._torch.bfloat16)
        message = self._protocol.ClientMetaMessage(
            command, key, count, self._format, self._torch.bfloat16, self._torch.Size(shape)
        )
        self._socket.sendall(message.serialize())

    def _receive(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            count = self._socket.recv_into(target[done:])
            if count == 0:
                raise SystemExit("lmcache server: it closed the connection")
            done += count

    def put(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        data = bytes_of(blocks[0])
        self._ask(self._protocol.ClientCommand.PUT, names[0], len(data), [2, 1, 1, len(data) // 4])
        self._socket.sendall(data)

    def get(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        self._ask(self._protocol.ClientCommand.GET, names[0], 0, [0, 0, 0, 0])
        head = bytearray(self._protocol.ServerMetaMessage.packlength())
        self._receive(memoryview(head))
        reply = self._protocol.ServerMetaMessage.deserialize(bytes(head))
        if reply.code != self._protocol.ServerReturnCode.SUCCESS:
            raise SystemExit(f"lmcache server: {names[0]} is a miss")
        self._receive(bytes_of(blocks[0])[: reply.length])

    def clear(self, names: Sequence[str]) -> None:
        """It has no delete: later rounds overwrite."""


class Mooncake:
    name, is_lossless, batches = "mooncake tcp", True, (1, BATCH)

    def __init__(self, pids: Sequence[int]) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.pids = list(pids)
        self._store = MooncakeDistributedStore()
        master = f"127.0.0.1:{MOONCAKE_PORT}"
        code = self._store.setup("127.0.0.1:16384", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master)
        if code != 0:
            raise SystemExit(f"mooncake: setup says {code}")
        # Its calls want registered memory: arrays are copied into and out of it.
        self._buffers = [np.zeros(BLOCK_BYTES_MAX, np.uint8) for _ in range(BATCH)]
        for buffer in self._buffers:
            self._store.register_buffer(buffer.ctypes.data, buffer.size)
        self._round = 0

    def _names(self, names: Sequence[str]) -> list[str]:
        return [f"{self._round}/{name}" for name in names]

    def put(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        sizes = [block.kv.nbytes for block in blocks]
        for buffer, block in zip(self._buffers, blocks, strict=False):
            np.copyto(buffer[: block.kv.nbytes], np.frombuffer(bytes_of(block), np.uint8))
        places = [buffer.ctypes.data for buffer in self._buffers[: len(names)]]
        codes = self._store.batch_put_from(self._names(names), places, sizes)
        if any(codes):
            raise SystemExit(f"mooncake: put says {codes}")

    def get(self, names: Sequence[str], blocks: Sequence[Block]) -> None:
        sizes = [block.kv.nbytes for block in blocks]
        places = [buffer.ctypes.data for buffer in self._buffers[: len(names)]]
        counts = self._store.batch_get_into(self._names(names), places, sizes)
        if list(counts) != sizes:
            raise SystemExit(f"mooncake: get says {counts}")
        for buffer, block in zip(self._buffers, blocks, strict=False):
            np.copyto(np.frombuffer(bytes_of(block), np.uint8), buffer[: block.kv.nbytes])

    def clear(self, names: Sequence[str]) -> None:
        self._store.remove_all()
        self._round += 1


@contextlib.contextmanager
def process(command: list[str], log: pathlib.Path, **options: Any) -> Iterator[subprocess.Popen]:
    with open(log, "w", encoding="utf-8") as output:
        options = {"stdout": output, "stderr": subprocess.STDOUT} | options
        child = subprocess.Popen(command, **options)
        try:
            yield child
        finally:
            child.kill()
            child.wait()


def await_port(child: subprocess.Popen, port: int, log: pathlib.Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        if child.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{child.args[0]} does not listen on {port}:\n{log.read_text()}")
        time.sleep(0.1)


def program(name: str) -> str:
    """Of the environment that runs this, else of the system."""
    beside = pathlib.Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is missing: make bench-peers installs it")
    return found


def start_redis(stack: contextlib.ExitStack, folder: pathlib.Path) -> Redis:
    log = folder / "redis.log"
    flags = ["--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    flags += ["--maxmemory", "3gb", "--maxmemory-policy", "allkeys-lru", "--dir", str(folder)]
    child = stack.enter_context(process([program("redis-server"), *flags], log))
    await_port(child, REDIS_PORT, log)
    return Redis(child.pid)


def start_lmcache(stack: contextlib.ExitStack, folder: pathlib.Path) -> LmCache:
    log = folder / "lmcache.log"
    command = [program("lmcache_server"), "127.0.0.1", str(LMCACHE_PORT), "cpu"]
    child = stack.enter_context(process(command, log))
    await_port(child, LMCACHE_PORT, log)
    return LmCache(child.pid)


def start_mooncake(stack: contextlib.ExitStack, folder: pathlib.Path) -> Mooncake:
    log = folder / "mooncake.log"
    command = [program("mooncake_master"), f"--rpc_port={MOONCAKE_PORT}"]
    command += ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--metrics_port=16382"]
    master = stack.enter_context(process(command, log))
    await_port(master, MOONCAKE_PORT, log)
    node = stack.enter_context(
        process(
            [sys.executable, "-c", STORAGE_NODE, f"127.0.0.1:{MOONCAKE_PORT}"],
            folder / "mooncake-node.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    for line in node.stdout:
        if line.startswith("ready"):
            return Mooncake([master.pid, node.pid])
        if line.startswith("failed"):
            break
    raise SystemExit("mooncake: the storage node did not start")


def main() -> None:
    arguments = arrays.parse_arguments(__doc__)
    cairn, start = arrays.import_cairn(arguments.bin_dir)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-peers-")))
        stores: list[Any] = []
        for transport in ("local", "ucx"):
            inner = folder / transport
            inner.mkdir(mode=0o700)
            daemon = stack.enter_context(start(arguments.bin_dir, transport, inner, "2GiB"))
            client = cairn.connect(daemon.control, data=daemon.data)
            for recipe in ("raw", "exact"):
                stores.append(arrays.Cairn(cairn, client, daemon.process.pid, transport, recipe))
        for start_peer in (start_redis, start_lmcache, start_mooncake):
            stores.append(start_peer(stack, folder))
        cases = arrays.run(stores, arguments.rounds, arrays.total_bytes(arguments.quick))
        arrays.report("peers: Python clients", cases, arguments.rounds, arguments.json)


if __name__ == "__main__":
    main()
