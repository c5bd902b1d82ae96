# SPDX-License-Identifier: Apache-2.0
"""Blocks as contiguous bytes and as images, from and into memory of any kind, buffers among it."""

import gc
import os

import cairn
import numpy as np
import pytest
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space

SHAPE = (LAYERS, HEADS, 2, TOKENS, DIM)


def as_source(kv):
    return np.ascontiguousarray(np.stack(kv, axis=2))


def array_of(buffer, dtype=np.uint16):
    return np.frombuffer(buffer.memory, dtype)


def test_source_and_views_are_the_same_block(client):
    space = open_space(client)
    kv, source = make_kv(1), as_source(make_kv(1))
    assert space.source_bytes() == source.nbytes
    one, two = space.keys(range(2 * TOKENS))
    space.put(one, *kv)
    space.put(two, source=source, parent=one, first_position=TOKENS)
    for decode in ("client", "daemon"):
        for key in (one, two):
            out, target = [np.zeros_like(kv[0]) for _ in "kv"], np.zeros_like(source)
            assert space.get(key, *out, decode=decode)
            assert all(np.array_equal(a, b) for a, b in zip(kv, out, strict=True))
            result = space.get(key, source=target, decode=decode)
            assert result.target_bytes == source.nbytes and np.array_equal(target, source)
    part = cairn.Part(layers=range(1, 3))
    some = bytearray(space.source_bytes(part))
    assert space.get(two, source=some, part=part)
    assert bytes(some) == source[1:3].tobytes()


def test_an_image_is_taken_checked_decoded_and_put_again(client):
    space = open_space(client, "kivi:4")
    kv = make_kv(2)
    (key,) = space.keys(range(TOKENS))
    put = space.put(key, *kv)
    room = bytearray(space.image_bytes_max())
    result = space.get(key, image=room)
    assert result and result.target_bytes == put.image_bytes < len(room)
    image = bytes(room[: result.target_bytes])
    cairn.image.verify(image)
    info = cairn.image.inspect(image)
    assert info.key == key and info.recipe == "kivi:4" and info.fingerprint == space.fingerprint
    decoded, delivered = ([np.zeros_like(kv[0]) for _ in "kv"] for _ in range(2))
    cairn.image.decode(image, *decoded)
    assert space.get(key, *delivered)
    assert all(np.array_equal(a, b) for a, b in zip(decoded, delivered, strict=True))
    space.delete([key])
    assert not space.get(key, image=room)
    assert space.put(key, image=image).image_bytes == len(image)
    assert space.get(key, image=room) and room[: len(image)] == image
    damaged = bytearray(image)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(cairn.DataLossError):
        cairn.image.verify(damaged)
    space.delete([key])
    with pytest.raises(cairn.Error):
        space.put(key, image=damaged)


def test_buffers(client):
    space = open_space(client)
    keys = space.keys(range(4 * TOKENS))
    sources = [as_source(make_kv(10 + i)) for i in range(4)]
    inputs = [client.allocate_buffer(space.source_bytes()) for _ in keys]
    outputs = [client.allocate_buffer(space.source_bytes()) for _ in keys]
    for buffer, source in zip(inputs, sources, strict=True):
        assert len(buffer) == source.nbytes
        array_of(buffer).reshape(SHAPE)[:] = source
    puts = [cairn.Put(key, source=buffer.memory) for key, buffer in zip(keys, inputs, strict=True)]
    assert [result.error for result in space.put_batch(puts)] == [None] * 4
    gets = [
        cairn.Get(key, source=array_of(buffer), decode="daemon")
        for key, buffer in zip(keys, outputs, strict=True)
    ]
    assert all(space.get_batch(gets))
    for buffer, source in zip(outputs, sources, strict=True):
        assert np.array_equal(array_of(buffer).reshape(SHAPE), source)
    with client.allocate_buffer(space.image_bytes_max()) as buffer:
        result = space.get(keys[0], image=buffer.memory)
        cairn.image.verify(buffer.memory[: result.target_bytes])
    with pytest.raises(cairn.FailedPreconditionError, match="buffer is closed"):
        buffer.memory  # noqa: B018


def test_torch_on_a_buffer(client):
    torch = pytest.importorskip("torch")
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    buffer = client.allocate_buffer(space.source_bytes())
    tensor = torch.frombuffer(buffer.memory, dtype=torch.bfloat16)
    tensor[:] = torch.randn(tensor.shape).to(torch.bfloat16)
    space.put(key, source=tensor)
    out = torch.zeros_like(tensor)
    assert space.get(key, source=out) and torch.equal(out, tensor)


def test_a_buffer_lives_as_long_as_what_looks_at_it(daemon):
    count = 3 << 20
    client = cairn.connect(daemon.control, data=daemon.data, region_bytes=4 << 20, connections=1)
    values = array_of(client.allocate_buffer(count), np.uint8)
    values[:] = 7
    gc.collect()
    with pytest.raises(cairn.ResourceExhaustedError):
        client.allocate_buffer(count)
    client.close()
    assert (values == 7).all()
    with pytest.raises(cairn.FailedPreconditionError, match="is closed"):
        client.allocate_buffer(1)
    before = sessions(daemon)
    del values
    gc.collect()
    assert sessions(daemon) == before - 1

    with cairn.connect(
        daemon.control, data=daemon.data, region_bytes=4 << 20, connections=1
    ) as client:
        for _ in range(20):  # memory that nobody looks at is there again
            client.allocate_buffer(count).close()


def sessions(daemon):
    with cairn.connect(daemon.control, data=daemon.data) as client:
        return client.stats().session_count


def test_a_forked_child_leaves_buffers_alone(client):
    buffer = client.allocate_buffer(4096)
    buffer.memory[:4] = b"abcd"
    child = os.fork()
    if child == 0:
        del buffer
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(buffer.memory[:4]) == b"abcd"


def test_what_is_wrong_is_said(client):
    space = open_space(client)
    key = space.opaque_key(b"k")
    kv, source = make_kv(1), as_source(make_kv(1))
    for call, reason in [
        (lambda: space.put(key), "k is a NoneType"),
        (lambda: space.put(key, *kv, source=source), "name one form"),
        (lambda: space.put(key, source=source, image=b"x"), "name one form"),
        (lambda: space.put(key, source=source[1:]), f"source has .* expected {source.nbytes}"),
        (lambda: space.put(key, source=source[:, ::2]), "source is not one contiguous piece"),
        (lambda: space.get(key, source=bytes(source.nbytes)), "source is read-only"),
        (lambda: space.get(key, image=bytearray(8)), "target has 8 bytes"),
        (lambda: space.put(key, image=bytes(400)), "image: "),
        (lambda: client.allocate_buffer(0), "bytes is 0"),
    ]:
        with pytest.raises(cairn.InvalidArgumentError, match=reason):
            call()
