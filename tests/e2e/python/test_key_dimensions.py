# SPDX-License-Identifier: Apache-2.0
"""What a block's name depends on, one by one: with any of it changed, nothing of what is stored hits.

What an engine's configuration adds (rotations, media processors, quantization, …) is in a space's
weights_revision; tests/connectors/test_vllm_names.py changes each field of it."""

import dataclasses

import cairn
import numpy as np
import pytest
from cairn.keys import Group, KeyExtra, Rope, SpaceSpec
from conftest import TOKENS

ROPE = Rope("half", 64, 10000.0, tuple(float(i + 1) for i in range(32)))
KV = Group("kv", 4, kv_heads=2, k_dim=64, v_dim=64, window_tokens=64, rope=ROPE)
STATE = Group("state", 1, state_bytes=64)
ROWS = Group("opaque_rows", 1, row_bytes=16)
SPEC = SpaceSpec("a model", "r1", (KV, STATE, ROWS), "bf16", TOKENS)

# By field, values that are not SPEC's. A field without a row fails below.
SPEC_CHANGES = {
    "model": ["another model", "a modeL"],
    "weights_revision": ["r2"],
    "groups": [(KV, STATE), (KV, ROWS, STATE), (KV, STATE, ROWS, STATE)],
    "dtype": ["fp16", "fp32", "fp8_e4m3", "fp8_e5m2"],
    "tokens_per_block": [2 * TOKENS, 16],
}
GROUP_CHANGES = {
    "kind": [dataclasses.replace(KV, kind="latent", kv_heads=1, v_dim=0)],
    "layers": [3, 5, (0, 1, 2, 4)],
    "kv_heads": [1, 4],
    "k_dim": [128],
    "v_dim": [32],
    "window_tokens": [0, 128],
    "rope": [],  # below
    "state_bytes": [dataclasses.replace(STATE, state_bytes=65)],
    "row_bytes": [dataclasses.replace(ROWS, row_bytes=17)],
}
ROPE_CHANGES = {
    "kind": ["interleaved", Rope()],
    "rotary_dims": [Rope("half", 32, 10000.0, ROPE.inverse_frequencies[:16])],
    "base": [500000.0],
    "inverse_frequencies": [(), (*ROPE.inverse_frequencies[:-1], 0.5)],
}


def changed_specs():
    def of(whole, place, values, name):
        for value in values:
            is_whole = isinstance(value, type(whole))
            yield place, value if is_whole else dataclasses.replace(whole, **{name: value})

    def with_group(group):
        at = {"state": 1, "opaque_rows": 2}.get(group.kind, 0)
        return dataclasses.replace(SPEC, groups=tuple(
            group if i == at else one for i, one in enumerate(SPEC.groups)
        ))

    for name, values in SPEC_CHANGES.items():
        yield from of(SPEC, f"space.{name}", values, name)
    for name, values in GROUP_CHANGES.items():
        for place, group in of(KV, f"group.{name}", values, name):
            yield place, with_group(group)
    for name, values in ROPE_CHANGES.items():
        for place, rope in of(ROPE, f"rope.{name}", values, name):
            yield place, with_group(dataclasses.replace(KV, rope=rope))


CHANGED = [(f"{name}-{i}", spec) for i, (name, spec) in enumerate(changed_specs())]


@pytest.mark.parametrize(
    ("kind", "changes"), [(SpaceSpec, SPEC_CHANGES), (Group, GROUP_CHANGES), (Rope, ROPE_CHANGES)]
)
def test_every_field_has_a_row(kind, changes):
    assert {field.name for field in dataclasses.fields(kind)} == set(changes)


@pytest.fixture(scope="module")
def stored(daemon):
    """A chain of two blocks, whole, and the client and the space that have it."""
    with cairn.connect(daemon.control, data=daemon.data, tenant="dimensions") as client:
        space = open_spec(client, SPEC)
        keys = space.keys(range(2 * TOKENS))
        put_all(space, keys)
        assert space.match(keys).block_count == 2
        yield client, space, keys


def open_spec(client, spec):
    return client.open_space(
        spec.model,
        spec.weights_revision,
        spec.groups,
        dtype=spec.dtype,
        tokens_per_block=spec.tokens_per_block,
        recipe="raw",
    )


def put_all(space, keys):
    for i, key in enumerate(keys):
        for group in range(len(space.spec.groups)):
            part = cairn.Part(group=group)
            result = space.put(
                key,
                source=np.zeros(space.source_bytes(part), np.uint8),
                parent=keys[i - 1] if i else None,
                first_position=i * TOKENS,
                part=part,
                timeout=20,
            )
            assert not result.is_duplicate


@pytest.mark.parametrize("spec", [spec for _, spec in CHANGED], ids=[name for name, _ in CHANGED])
def test_another_space_has_nothing_of_it(stored, spec):
    client, space, keys = stored
    other = open_spec(client, spec)
    assert other.fingerprint != space.fingerprint
    own = other.keys(range(2 * TOKENS))
    assert not set(own) & set(keys)
    for wanted in (keys, own):
        assert other.match(wanted, timeout=20).block_count == 0
        assert not any(other.contains(wanted, timeout=20))


def test_another_tenant_has_nothing_of_it(stored, daemon):
    _, _, keys = stored
    with cairn.connect(daemon.control, data=daemon.data, tenant="dimension") as client:
        space = open_spec(client, SPEC)
        for wanted in (keys, space.keys(range(2 * TOKENS))):
            assert space.match(wanted, timeout=20).block_count == 0


ADAPTER = KeyExtra("lora", b"adapter 1, bytes ab")
MEDIA = KeyExtra("media", b"digest of an image", 3)
ROTATION = KeyExtra("rotation", b"yarn, factor 4")  # as an engine names one that a request asks for


@pytest.mark.parametrize(
    ("tokens", "extras"),
    [
        ([1, *range(1, 2 * TOKENS)], ()),  # as another tokenizer makes of the same text
        ([*range(TOKENS - 1), 7, *range(TOKENS, 2 * TOKENS)], ()),
        (range(1, 2 * TOKENS + 1), ()),  # the same ones, one place further on
        (range(2 * TOKENS), (ADAPTER,)),
        (range(2 * TOKENS), (dataclasses.replace(ADAPTER, value=b"adapter 1, bytes cd"),)),
        (range(2 * TOKENS), (KeyExtra("salt", ADAPTER.value),)),
        (range(2 * TOKENS), (MEDIA,)),
        (range(2 * TOKENS), (dataclasses.replace(MEDIA, value=b"digest of another"),)),
        (range(2 * TOKENS), (dataclasses.replace(MEDIA, offset=4),)),
        (range(2 * TOKENS), (MEDIA, ADAPTER)),
        (range(2 * TOKENS), (MEDIA, dataclasses.replace(MEDIA, value=b"another image", offset=9))),
        (range(2 * TOKENS), (ROTATION,)),
        (range(2 * TOKENS), (dataclasses.replace(ROTATION, value=b"yarn, factor 8"),)),
    ],
)
def test_other_inputs_of_a_block_hit_nothing(stored, tokens, extras):
    _, space, keys = stored
    own = space.keys(list(tokens), extras)
    seen = SEEN.setdefault(space.fingerprint, set(keys))
    assert not seen & set(own)  # nor any of the other rows
    seen |= set(own)
    assert space.match(own, timeout=20).block_count == 0


SEEN = {}


def test_the_same_tokens_behind_others_are_other_blocks(stored):
    _, space, keys = stored
    behind = space.keys([*range(TOKENS, 2 * TOKENS), *range(TOKENS, 2 * TOKENS)])
    assert behind[1] != keys[1] and space.match(behind, timeout=20).block_count == 0


def test_the_same_in_every_dimension_hits(stored, daemon):
    _, space, keys = stored
    with cairn.connect(daemon.control, data=daemon.data, tenant="dimensions") as client:
        same = open_spec(client, dataclasses.replace(SPEC))
        assert same.fingerprint == space.fingerprint
        assert same.match(same.keys(range(2 * TOKENS)), timeout=20).block_count == 2


def test_weights_that_change_while_an_engine_runs(stored):
    _, space, keys = stored
    trained = space.with_weights("r1, step 100")
    assert (trained.spec, trained.recipe) == (
        dataclasses.replace(SPEC, weights_revision="r1, step 100"),
        space.recipe,
    )
    own = trained.keys(range(2 * TOKENS))
    assert trained.match(own, timeout=20).block_count == 0
    put_all(trained, own)
    back = trained.with_weights(SPEC.weights_revision)
    assert back.fingerprint == space.fingerprint and back.match(keys).block_count == 2
    assert space.with_weights("r1, step 100").match(own, timeout=20).block_count == 2
