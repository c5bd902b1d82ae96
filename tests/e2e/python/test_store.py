# SPDX-License-Identifier: Apache-2.0
"""The package against a real cairnd."""

import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time

import cairn
import numpy as np
import pytest
from cairn import _ffi
from conftest import DIM, HEADS, LAYERS, TOKENS, as_float, make_kv, open_space


def empty(shape=(LAYERS, HEADS, TOKENS, DIM), dtype=np.uint16):
    return np.zeros(shape, dtype), np.zeros(shape, dtype)


def put_chain(space, count, seed=0):
    keys = space.keys(range(seed, seed + count * TOKENS))
    blocks = [make_kv(seed + i) for i in range(count)]
    for i, kv in enumerate(blocks):
        parent = keys[i - 1] if i else None
        space.put(keys[i], *kv, parent=parent, first_position=i * TOKENS)
    return keys, blocks


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", "u2"), ("fp16", "u2"), ("fp32", "u4")])
def test_raw_is_bit_exact(client, dtype, bits):
    space = open_space(client, dtype=dtype)
    rng = np.random.default_rng(3)
    shape = (LAYERS, HEADS, TOKENS, DIM)
    kv = [rng.integers(0, 2 ** (8 * int(bits[1])), shape, bits) for _ in range(2)]
    (key,) = space.keys(range(TOKENS))
    result = space.put(key, *kv)
    assert not result.is_duplicate and result.image_bytes >= 2 * kv[0].nbytes
    assert space.put(key, *kv).is_duplicate
    out = empty(dtype=bits)
    assert space.get(key, *out)
    assert all(np.array_equal(a, b) for a, b in zip(kv, out, strict=True))


def test_prefetch_says_where_the_blocks_are(client):
    space = open_space(client)
    keys, _ = put_chain(space, 3)
    found = space.prefetch([*keys, bytes(31) + b"x"])
    assert found == cairn.Prefetched(in_memory=3, on_their_way=0, absent=1, refused=0)
    assert space.prefetch(keys, part=cairn.Part(layers=range(1))).in_memory == 3
    with pytest.raises(cairn.InvalidArgumentError):
        space.prefetch([b"short"])


def test_a_durable_put_says_why_it_is_not(client):
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    kv, out = make_kv(5), empty()
    with pytest.raises(cairn.NotDurableError, match="not durable: no_tier") as raised:
        space.put(key, *kv, is_durable=True)
    assert raised.value.durability == "no_tier" and raised.value.code == 10
    (result,) = space.put_batch([cairn.Put(key, *kv, is_durable=True)])
    assert isinstance(result.error, cairn.NotDurableError) and result.durability == "no_tier"
    assert result.is_duplicate and result.image_bytes > 0
    assert space.get(key, *out), "it is stored"
    assert space.put(key, *kv).durability == "not_asked"


@pytest.mark.parametrize("encode", ["daemon", "client"])
@pytest.mark.parametrize("decode", ["daemon", "client"])
@pytest.mark.parametrize(
    ("recipe", "step"), [("kivi:8", 1 / 255), ("kivi:4", 1 / 15), ("kivi:2", 1 / 3)]
)
def test_kivi_is_within_half_a_step(client, recipe, step, encode, decode):
    space = open_space(client, recipe)
    assert space.recipe == recipe
    kv, out = make_kv(5), empty()
    (key,) = space.keys(range(TOKENS))
    space.put(key, *kv, encode=encode)
    result = space.get(key, *out, decode=decode)
    assert result and result.tier == "host"
    for source, target, axis in zip(kv, out, (2, 3), strict=True):  # K by channel, V by token
        source, target = as_float(source), as_float(target)
        half = (source.max(axis, keepdims=True) - source.min(axis, keepdims=True)) * step / 2
        # bf16 results and fp16 parameters round once each.
        assert (abs(source - target) <= half * 1.02 + abs(target) * 2**-8 + 0.01).all()


def test_a_space_without_a_recipe_keeps_every_bit_in_less(client):
    space = open_space(client, recipe=None)
    assert space.recipe == "exact"
    kv, out = make_kv(6), empty()
    (key,) = space.keys(range(TOKENS))
    assert space.put(key, *kv).image_bytes < 0.8 * sum(x.nbytes for x in kv)
    assert space.get(key, *out)
    assert all(np.array_equal(a, b) for a, b in zip(kv, out, strict=True))


def test_match_and_lease(client):
    space = open_space(client)
    keys, blocks = put_chain(space, 3, seed=100)
    wanted = keys + space.keys(range(9000, 9000 + TOKENS))
    with space.match(wanted) as match:
        assert match.block_count == 3 and match.token_count == 3 * TOKENS
        assert match.keys == keys and match.lease and match.lease_seconds > 0
        assert [block.tier for block in match.blocks] == ["host"] * 3
        k, v = empty((LAYERS, HEADS, 3 * TOKENS + 5, DIM))
        assert match.get(k, v) == 3 * TOKENS
        for i, (block_k, block_v) in enumerate(blocks):
            assert np.array_equal(k[:, :, i * TOKENS : (i + 1) * TOKENS], block_k)
            assert np.array_equal(v[:, :, i * TOKENS : (i + 1) * TOKENS], block_v)
        assert not k[:, :, 3 * TOKENS :].any()
        with pytest.raises(cairn.InvalidArgumentError, match="k holds"):
            match.get(*empty())
    assert match.lease is None
    assert space.match(wanted, token_limit=2 * TOKENS, lease=False).block_count == 2
    assert space.match(wanted[3:]).block_count == 0
    assert space.contains(wanted) == [True] * 3 + [False]


def test_a_miss_is_not_an_error(client):
    space = open_space(client)
    result = space.get(bytes(31) + b"x", *empty())
    assert not result and result.error is None


def test_parts_of_two_ranks_become_one_block(client, daemon):
    space = open_space(client)
    kv = make_kv(8)
    (key,) = space.keys(range(TOKENS))
    heads = [range(0, 1), range(1, 2)]
    space.put(key, *(plane[:, :1] for plane in kv), part=cairn.Part(heads=heads[0]))
    assert space.match([key]).block_count == 0
    space.put(key, *(plane[:, 1:] for plane in kv), part=cairn.Part(heads=heads[1]))
    out = empty()
    assert space.get(key, *out) and np.array_equal(out[0], kv[0]) and np.array_equal(out[1], kv[1])
    layers = empty((2, HEADS, TOKENS, DIM))
    assert space.get(key, *layers, part=cairn.Part(layers=range(1, 3)))
    assert np.array_equal(layers[0], kv[0][1:3]) and np.array_equal(layers[1], kv[1][1:3])


def test_strided_and_per_layer_arrays(client):
    space = open_space(client)
    kv = make_kv(9)
    (key,) = space.keys(range(TOKENS))
    token_first = [np.ascontiguousarray(plane.transpose(0, 2, 1, 3)) for plane in kv]
    space.put(key, *(plane.transpose(0, 2, 1, 3) for plane in token_first))
    per_layer = [[np.zeros((HEADS, TOKENS, DIM), np.uint16) for _ in range(LAYERS)] for _ in "kv"]
    assert space.get(key, *per_layer)
    assert np.array_equal(np.stack(per_layer[0]), kv[0])
    assert np.array_equal(np.stack(per_layer[1]), kv[1])


def test_torch(client):
    torch = pytest.importorskip("torch")
    space = open_space(client)
    k, v = torch.randn(2, LAYERS, HEADS, TOKENS, DIM).to(torch.bfloat16)
    (key,) = space.keys(range(TOKENS))
    space.put(key, k, v)
    out = torch.zeros(2, LAYERS, HEADS, TOKENS, DIM, dtype=torch.bfloat16)
    assert space.get(key, out[0], out[1])
    assert torch.equal(out[0], k) and torch.equal(out[1], v)


def test_batches(client):
    space = open_space(client)
    keys = space.keys(range(20 * TOKENS))
    blocks = [make_kv(50 + i) for i in range(20)]
    puts = [cairn.Put(key, *kv) for key, kv in zip(keys, blocks, strict=True)]
    assert all(result.error is None for result in space.put_batch(puts, timeout=10))
    outs = [empty() for _ in range(21)]
    gets = [
        cairn.Get(key, *out) for key, out in zip([*keys, bytes(32)[:31] + b"z"], outs, strict=True)
    ]
    results = space.get_batch(gets, timeout=10)
    assert [bool(result) for result in results] == [True] * 20 + [False]
    for kv, out in zip(blocks, outs, strict=False):
        assert np.array_equal(kv[0], out[0]) and np.array_equal(kv[1], out[1])


def test_wait(client, daemon):
    space = open_space(client)
    keys = space.keys(range(2 * TOKENS))
    begin = time.monotonic()
    assert space.match(keys, wait=0.3).block_count == 0
    assert 0.25 < time.monotonic() - begin < 3

    def put_late():
        time.sleep(0.3)
        for i, key in enumerate(keys):
            parent = keys[i - 1] if i else None
            space.put(key, *make_kv(i), parent=parent, first_position=i * TOKENS)

    thread = threading.Thread(target=put_late)
    begin = time.monotonic()
    thread.start()
    with space.match(keys, wait=20) as match:
        assert match.block_count == 2 and time.monotonic() - begin < 10
    thread.join()


def test_wrong_arrays(client):
    space = open_space(client)
    kv, key = make_kv(1), bytes(32)[:31] + b"k"
    for bad, what in [
        ((kv[0][:, :, 1:], kv[1]), "k has shape"),
        ((kv[0], kv[1][:2]), "v has shape"),
        ((kv[0].astype(np.float32), kv[1]), "k has dtype float32"),
        ((kv[0], None), "v is a NoneType"),
    ]:
        with pytest.raises(cairn.InvalidArgumentError, match=what):
            space.put(key, *bad)
    with pytest.raises(cairn.InvalidArgumentError, match="key has 3 bytes"):
        space.put(b"abc", *kv)
    with pytest.raises(cairn.InvalidArgumentError, match="layers is"):
        space.put(key, *kv, part=cairn.Part(layers=range(0, 4, 2)))
    with pytest.raises(ValueError, match="timeout"):
        space.put(key, *kv, timeout=61)


def test_names_agree_with_the_daemon(client):
    space = open_space(client)
    assert space.fingerprint == cairn.keys.fingerprint("test", space.spec)
    assert space.was_created


def test_delete_and_invalidate(client):
    space = open_space(client)
    keys, _ = put_chain(space, 3, seed=700)
    assert space.delete(keys[2:]) == 1
    assert space.contains(keys) == [True, True, False]
    assert space.invalidate() == 2
    assert space.contains(keys) == [False] * 3


def test_tenants_do_not_meet(client, daemon):
    space = open_space(client)
    keys, _ = put_chain(space, 1, seed=800)
    with cairn.connect(daemon.control, data=daemon.data, tenant="other") as stranger:
        spec = space.spec
        other = stranger.open_space(
            spec.model, spec.weights_revision, spec.groups, tokens_per_block=TOKENS, recipe="raw"
        )
        assert other.fingerprint != space.fingerprint
        assert not other.get(keys[0], *empty())
        assert other.match(keys).block_count == 0


def test_figures(client):
    space = open_space(client)
    keys, _ = put_chain(space, 1, seed=900)
    assert space.get(keys[0], *empty())
    stats, counters = client.stats(), client.counters()
    assert stats.block_count >= 1 and stats.source_bytes > 0 and not stats.is_draining
    assert any(tier.tier == "host" and tier.used_bytes > 0 for tier in stats.tiers)
    assert counters.puts == 1 and counters.gets == counters.hits == 1
    assert counters.breaker_state == "closed"
    client.recomputed(1000, 1.0)
    assert isinstance(client.should_fetch(1000, 1 << 20), bool)
    assert isinstance(client.should_fetch(1000, 0, peer_bytes=1 << 20), bool)


def test_closed_and_unreachable(daemon):
    client = cairn.connect(daemon.control, data=daemon.data)
    space = open_space(client)
    client.close()
    client.close()
    for call in (client.stats, lambda: space.match([bytes(31) + b"1"])):
        with pytest.raises(cairn.FailedPreconditionError, match="is closed"):
            call()
    begin = time.monotonic()
    with pytest.raises((cairn.UnavailableError, cairn.DeadlineExceededError)):
        cairn.connect("127.0.0.1:1", timeout=1)
    assert time.monotonic() - begin < 5


def test_a_space_that_is_dropped_is_closed_before_its_client(daemon, monkeypatch):
    closed = []
    for name in ("cairn_space_close", "cairn_close"):
        real = getattr(_ffi.library(), name)
        monkeypatch.setattr(
            _ffi.library(), name, lambda address, name=name, real=real: (closed.append(name), real(address))
        )
    client = cairn.connect(daemon.control, data=daemon.data)
    space = open_space(client)
    del space
    gc.collect()
    assert closed == ["cairn_space_close"]
    client.close()
    assert closed == ["cairn_space_close", "cairn_close"]


def test_fork_is_refused(client, daemon):
    space = open_space(client)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (
                lambda: space.match([bytes(31) + b"1"]),
                client.stats,
                lambda: cairn.connect(daemon.control),
            ):
                with pytest.raises(cairn.FailedPreconditionError, match="fork"):
                    call()
            client.close()  # only forgets
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert space.match([bytes(31) + b"1"]).block_count == 0


@pytest.mark.parametrize("variable", ["CAIRN_CODEC_BACKEND", "CAIRN_CRC_BACKEND"])
def test_a_forced_backend_that_is_none_is_an_error_by_name(daemon, variable):
    program = "import cairn, sys\ntry: cairn.connect(sys.argv[1])\nexcept ValueError as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.control],
        env=os.environ | {variable: "foo", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert f"{variable}=foo" in done.stdout


def test_numbers_that_do_not_fit_are_refused_by_name(client, daemon):
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    refused = cairn.InvalidArgumentError
    for wait in (-0.001, -1, 60, float("nan"), 2.0**32):
        with pytest.raises(refused, match="wait is"):
            space.match([key], wait=wait)
    for token_limit in (-1, 2**32):
        with pytest.raises(refused, match="token_limit is"):
            space.match([key], token_limit=token_limit)
    for first_position in (-TOKENS, 2**64):
        with pytest.raises(refused, match="first_position is"):
            space.put(key, *make_kv(1), first_position=first_position)
    with pytest.raises(refused, match="layers is"):
        space.match([key], part=cairn.Part(layers=range(2**32, 2**32 + 1)))
    for name in ("connections", "window", "region_bytes"):
        with pytest.raises(refused, match=f"{name} is"):
            cairn.connect(daemon.control, **{name: -1})


def test_a_match_that_fails_midway_says_what_it_delivered(client, monkeypatch):
    space = open_space(client)
    keys, blocks = put_chain(space, 3)
    out = empty((LAYERS, HEADS, 3 * TOKENS, DIM))
    get_batch = space.get_batch

    def break_the_third(gets, **options):
        results = get_batch(gets, **options)
        late = cairn.DeadlineExceededError("late")
        return [*results[:2], dataclasses.replace(results[2], is_hit=False, error=late)]

    monkeypatch.setattr(space, "get_batch", break_the_third)
    with space.match(keys) as match:
        with pytest.raises(cairn.DeadlineExceededError) as failed:
            match.get(*out)
    assert failed.value.delivered_tokens == 2 * TOKENS
    for i in range(2):
        assert np.array_equal(out[0][:, :, i * TOKENS : (i + 1) * TOKENS], blocks[i][0])


def test_ott_of_an_encoding_client_goes_on_with_the_block_before(client):
    space = open_space(client, "ott:2")
    keys = space.keys(range(3 * TOKENS))
    room = bytearray(space.image_bytes_max())
    for i, key in enumerate(keys):
        parent = keys[i - 1] if i else None
        space.put(key, *make_kv(i), parent=parent, first_position=i * TOKENS, encode="client")
        assert space.get(key, image=room)
        assert cairn.image.inspect(room).recipe == "ott:2"
