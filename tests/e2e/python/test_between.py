# SPDX-License-Identifier: Apache-2.0
"""What one tenant had in memory is never shown to the next.

The first tenant fills every tier, the staging memory and the buffers of the connections with a secret
word, in whole puts, torn puts and gets, and deletes it all. Then the other tenant looks at everything
that it can get: no answer has the word. Before each answer, the first tenant leaves the word again in
the memory that is used next. between_mutations.py shows that the test finds what is handed on.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time

import cairn
import pytest
from certificates import Ca

SECRET = bytes.fromhex("c3a1b577e9d2084f6b1e93f05ad84c27")
RECIPES = ["raw", "exact", "kivi:2+", "ott:2", "cairn:8.0"]
SHAPES = [(3, 5, 24, 17), (4, 4, 64, 256)]  # layers, heads, dims, tokens: odd sizes leave gaps


class Daemon:
    def __init__(self, bin_dir, folder, *flags):
        self._log = folder / "log"
        command = [bin_dir / "cairnd", "--control", "127.0.0.1:0", "--http", "off", "--map", "off"]
        command += ["--socket", folder / "s", "--host-bytes", "64MiB", "--drain-ms", "0"]
        command += ["--ssd", f"{folder}/tier=256MiB", "--event-tokens", "on", *flags]
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while (ready := re.search(r"cairnd ready .*", self._log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        self.control = dict(re.findall(r"(\w+)=(\S+)", ready[0]))["control"]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture(params=["local", "stream"])
def connect(request, bin_dir, tmp_path):
    """Connects a tenant."""
    if request.param == "local":
        with Daemon(bin_dir, tmp_path) as daemon:
            yield lambda tenant: cairn.connect(daemon.control, tenant=tenant, timeout=30.0)
        return
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    ca = Ca(tmp_path)
    server = ca.issue("server", "DNS:localhost,IP:127.0.0.1", use="serverAuth")
    client = ca.issue("client", "URI:spiffe://prod.example/ns/a/sa/engine")
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    with Daemon(bin_dir, tmp_path, *flags, "--stream", "127.0.0.1:0") as daemon:
        tls = {"tls_ca": str(ca.pem), "tls_cert": client[0], "tls_key": client[1]}
        yield lambda tenant: cairn.connect(daemon.control, tenant=tenant, timeout=30.0, **tls)


def open_space(client, shape, recipe):
    layers, heads, dims, tokens = shape
    group = cairn.KvGroup(layers, heads, dims)
    return client.open_space(f"m{dims}", recipe, [group], tokens_per_block=tokens, recipe=recipe)


def fill(client):
    """Leaves the secret wherever this tenant's bytes pass."""
    space = open_space(client, SHAPES[1], "raw")
    source = SECRET * (space.source_bytes() // len(SECRET))
    count = (192 << 20) // len(source)  # three times the host tier: much of it on the drive
    keys = [space.keys(range(i * 1000, i * 1000 + 256))[0] for i in range(count)]
    for i, key in enumerate(keys):
        space.put(key, source=source, timeout=30)
        if i % 16 == 0:  # torn: staging memory and the lane's buffers have part of it
            try:
                torn = space.keys(range(i * 1000 + 500, i * 1000 + 756))[0]
                space.put(torn, source=source, timeout=0.0005)
            except cairn.Error:
                pass
    target = bytearray(len(source))
    for key in keys[:: max(1, count // 32)]:  # and the memory of answers, from both tiers
        space.get(key, source=target, timeout=30)
    assert SECRET in target
    space.delete(keys, timeout=60)


def check(text):
    assert SECRET not in bytes(text)


class Soiler:
    """Leaves the secret in the staging memory for a source of a shape, and in the arena. Otherwise, what is
    handed on would be what the looking tenant has left itself."""

    def __init__(self, client):
        self._spaces = {shape: open_space(client, shape, "exact") for shape in SHAPES}

    def __call__(self, shape):
        space = self._spaces[shape]
        keys = space.keys(range(shape[3]))
        source = (SECRET * (space.source_bytes() // len(SECRET) + 1))[: space.source_bytes()]
        space.put(keys[0], source=source, timeout=30)
        target = bytearray(len(source))
        assert space.get(keys[0], source=target, decode="daemon", timeout=30) and target == source
        space.delete(keys[:1], timeout=30)


def look(client, soil, rng):
    for shape in SHAPES:
        for recipe in RECIPES:
            space = open_space(client, shape, recipe)
            tokens = shape[3]
            sources = {}
            for i in range(8):
                (key,) = space.keys(range(i * 1000, i * 1000 + tokens))
                sources[key] = rng.randbytes(space.source_bytes() // 2) + bytes(
                    space.source_bytes() - space.source_bytes() // 2
                )
                try:  # a put that is cut short, then the whole one
                    space.put(key, source=sources[key], timeout=0.0005)
                except cairn.Error:
                    pass
                soil(shape)
                space.put(key, source=sources[key], timeout=30)
            for key, source in sources.items():
                for decode in ("client", "daemon"):
                    target = bytearray(space.source_bytes())
                    soil(shape)
                    assert space.get(key, source=target, decode=decode, timeout=30)
                    check(target)
                    if recipe in ("raw", "exact"):
                        assert target == source
                image = bytearray(space.image_bytes_max() + 4096)
                soil(shape)
                assert space.get(key, image=image, timeout=30)
                check(image)
                part = cairn.Part(layers=range(1, 2), heads=range(1, 3))
                target = bytearray(space.source_bytes(part))
                soil(shape)
                assert space.get(key, source=target, part=part, timeout=30)
                check(target)
                target = bytearray(space.source_bytes())
                try:  # an answer that does not come in time
                    space.get(key, source=target, timeout=0.0005)
                except cairn.Error:
                    pass
                check(target)
            (missing,) = space.keys(range(900_000, 900_000 + tokens))
            target = bytearray(space.source_bytes())
            soil(shape)
            assert not space.get(missing, source=target, timeout=30)
            check(target)
            check(repr(space.explain([missing], timeout=30)).encode())
            check(repr(space.where([missing], timeout=30)).encode())


def test_no_byte_of_a_tenant_is_in_anothers_answer(connect, request):
    # Over stream, a buffer is ordinary memory of this process, which both tenants share here.
    is_shared = "local" in request.node.callspec.id
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    with connect("first") as first, connect("second") as second:
        buffer = second.allocate_buffer(1 << 20, timeout=30)
        fill(first)
        with second.allocate_buffer(1 << 20, timeout=30) as new:
            if is_shared:
                check(buffer.memory)
                check(new.memory)
        buffer.close()
        look(second, Soiler(first), random.Random(seed))


def test_what_a_tenant_learns_of_others(connect):
    """Their blocks, sessions, events and keys change nothing that a tenant is told."""
    with connect("quiet") as quiet:
        space = open_space(quiet, SHAPES[0], "raw")
        (key,) = space.keys(range(17))
        space.put(key, source=bytes(space.source_bytes()), timeout=30)
        (other_key,) = space.keys(range(100, 117))

        def told():
            stats = quiet.stats(timeout=30)
            return (
                stats.block_count,
                stats.session_count,
                stats.lease_count,
                [(tier.used_bytes, tier.capacity_bytes) for tier in stats.tiers],
                space.match([other_key], timeout=30).block_count,
                space.contains([key, other_key], timeout=30),
                repr(space.explain([other_key], timeout=30).blocks),
                space.where([other_key], timeout=30),
            )

        deadline = time.monotonic() + 30
        while len({tier[0] for tier in told()[3]}) > 1:  # until the drive has a copy, too
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = told()
        with connect("busy") as busy, connect("busy"):
            theirs = open_space(busy, SHAPES[0], "raw")
            for i in range(16):
                (one,) = theirs.keys(range(i * 100, i * 100 + 17))
                theirs.put(one, source=bytes(theirs.source_bytes()), timeout=30)
            theirs.delete([other_key], timeout=30)
            assert told() == before
            assert theirs.keys(range(17)) != [key], "the same tokens have another key"
        assert told() == before
