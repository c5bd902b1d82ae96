# SPDX-License-Identifier: Apache-2.0
"""KV in an engine's paged memory: tokens at the slots that slot_mapping names."""

import cairn
import numpy as np
import pytest
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space

SLOTS = 5 * TOKENS
UNTOUCHED = 0x5A5A


def paged():
    """A cache as vLLM has it, [slots, heads, dim] a layer, as [layers, heads, slots, dim]."""
    return np.full((LAYERS, SLOTS, HEADS, DIM), UNTOUCHED, np.uint16).transpose(0, 2, 1, 3)


def some_slots(count, seed=0):
    return np.random.default_rng(seed).permutation(SLOTS)[:count].astype(np.int64)


def expect_holds(cache, slots, tokens, wanted):
    """The cache has `wanted` at the slots of `tokens`, and nothing elsewhere."""
    expected = np.full(cache.shape, UNTOUCHED, np.uint16)
    expected[:, :, slots[tokens]] = wanted[:, :, tokens]
    assert np.array_equal(cache, expected)


@pytest.mark.parametrize("recipe", ["raw", "exact", "kivi:4"])
@pytest.mark.parametrize("decode", ["client", "daemon"])
def test_a_get_scatters_to_slots(client, recipe, decode):
    space = open_space(client, recipe)
    kv = make_kv(1)
    (key,) = space.keys(range(TOKENS))
    space.put(key, *kv)
    dense = [np.zeros_like(kv[0]) for _ in "kv"]
    assert space.get(key, *dense, decode=decode)
    slots, caches = some_slots(TOKENS), [paged(), paged()]
    assert space.get(key, *caches, slot_mapping=slots, decode=decode)
    for cache, wanted in zip(caches, dense, strict=True):
        expect_holds(cache, slots, np.arange(TOKENS), wanted)


def test_slots_of_minus_one_are_skipped_by_a_get_and_refused_by_a_put(client):
    space = open_space(client, "exact")
    kv = make_kv(2)
    (key,) = space.keys(range(TOKENS))
    space.put(key, *kv)
    slots, caches = some_slots(TOKENS), [paged(), paged()]
    slots[::3] = -1
    assert space.get(key, *caches, slot_mapping=slots)
    for cache, wanted in zip(caches, kv, strict=True):
        expect_holds(cache, slots, np.flatnonzero(slots >= 0), wanted)
    with pytest.raises(cairn.InvalidArgumentError, match="skips a token"):
        space.put(bytes(31) + b"x", *caches, slot_mapping=slots)


@pytest.mark.parametrize("encode", ["client", "daemon"])
def test_a_put_gathers_from_slots(client, encode):
    space = open_space(client, "exact")
    kv, slots, caches = make_kv(3), some_slots(TOKENS), [paged(), paged()]
    for cache, plane in zip(caches, kv, strict=True):
        cache[:, :, slots] = plane
    (key,) = space.keys(range(TOKENS))
    space.put(key, *caches, slot_mapping=slots.tolist(), encode=encode)
    out = [np.zeros_like(kv[0]) for _ in "kv"]
    assert space.get(key, *out)
    assert all(np.array_equal(a, b) for a, b in zip(kv, out, strict=True))


def test_a_match_goes_to_the_slots_of_its_tokens_layer_by_layer(client):
    space = open_space(client, "exact")
    keys = space.keys(range(3 * TOKENS))
    blocks = [make_kv(4 + i) for i in range(3)]
    for i, (key, kv) in enumerate(zip(keys, blocks, strict=True)):
        space.put(key, *kv, parent=keys[i - 1] if i else None, first_position=i * TOKENS)
    slots, caches = some_slots(3 * TOKENS), [paged(), paged()]
    with space.match(keys) as match:
        layers = [[cache[i] for i in range(LAYERS)] for cache in caches]
        assert match.get(*layers, slot_mapping=slots.astype(np.int32)) == 3 * TOKENS
    for plane, cache in enumerate(caches):
        wanted = np.concatenate([kv[plane] for kv in blocks], axis=2)
        expect_holds(cache, slots, np.arange(3 * TOKENS), wanted)


def test_slots_outside_the_cache_are_refused_before_a_byte_is_written(client):
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    space.put(key, *make_kv(8))
    for wrong in (SLOTS, -2, 2**40):
        slots, caches = some_slots(TOKENS), [paged(), paged()]
        slots[7] = wrong
        with pytest.raises(cairn.InvalidArgumentError, match=r"slot_mapping\[7\]"):
            space.get(key, *caches, slot_mapping=slots)
        assert all((cache == UNTOUCHED).all() for cache in caches)
    with pytest.raises(cairn.InvalidArgumentError, match="k has shape"):
        space.get(key, paged(), paged(), slot_mapping=some_slots(TOKENS - 1))
    with pytest.raises(cairn.InvalidArgumentError, match="expected int64 or int32"):
        space.get(key, paged(), paged(), slot_mapping=some_slots(TOKENS).astype(np.float32))
    with pytest.raises(cairn.InvalidArgumentError, match="slot_mapping is of k and v"):
        space.get(key, source=bytearray(space.source_bytes()), slot_mapping=some_slots(TOKENS))


def test_the_library_refuses_what_would_leave_the_array(client):
    """The bounds go with the view: a stride that is not the array's is found, not followed."""
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    space.put(key, *make_kv(9))
    caches = [paged(), paged()]
    plane = cairn.transfer.Plane("k", caches[0], list(range(TOKENS)))
    plane._strides = (*plane._strides[:3], 1 << 20)
    with pytest.raises(cairn.InvalidArgumentError, match="outside its memory"):
        space.get(key, plane, caches[1], slot_mapping=range(TOKENS))
    assert all((cache == UNTOUCHED).all() for cache in caches)


@pytest.mark.parametrize("recipe", ["raw", "kivi:4"])
def test_an_image_decodes_into_slots(recipe):
    spec = cairn.image.ImageSpec(recipe, LAYERS, HEADS, TOKENS, DIM, DIM)
    image = cairn.image.encode(spec, *make_kv(3))
    dense = [np.zeros((LAYERS, HEADS, TOKENS, DIM), np.uint16) for _ in "kv"]
    cairn.image.decode(image, *dense)
    slots, caches = some_slots(TOKENS), [paged(), paged()]
    slots[5] = -1
    cairn.image.decode(image, *caches, slot_mapping=slots)
    for cache, wanted in zip(caches, dense, strict=True):
        expect_holds(cache, slots, np.flatnonzero(slots >= 0), wanted)
    slots[7] = SLOTS
    with pytest.raises(cairn.InvalidArgumentError, match=rf"slot_mapping\[7\] is {SLOTS}"):
        cairn.image.decode(image, *caches, slot_mapping=slots)
    with pytest.raises(cairn.InvalidArgumentError, match="not of source"):
        cairn.image.decode(image, source=dense[0], slot_mapping=slots)
