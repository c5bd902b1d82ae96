# SPDX-License-Identifier: Apache-2.0
"""cairn.image: encoding and decoding without a daemon."""

import dataclasses

import cairn
import numpy as np
import pytest
from cairn.image import ImageSpec, bytes_max, decode, encode, inspect, thin, verify
from cairn.profile import GroupSamples, Rotation, build
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space

SPEC = ImageSpec("kivi:4", LAYERS, HEADS, TOKENS, DIM, DIM)


def as_source(k, v):
    return np.stack([k, v], axis=2)


@pytest.mark.parametrize("recipe", cairn.image.recipes())
def test_arrays_and_source_make_one_image_and_come_back_alike(recipe):
    spec, kv = dataclasses.replace(SPEC, recipe=recipe), make_kv(1)
    source = as_source(*kv)
    assert spec.source_bytes == source.nbytes
    image = encode(spec, *kv)
    room = bytearray(len(image))
    assert encode(spec, source=source, target=room) == image == room
    verify(image)
    info = inspect(image)
    assert (info.recipe, info.tokens, info.k_dim) == (recipe, TOKENS, DIM)
    assert info.image_bytes == len(image) <= bytes_max(spec)
    planes, flat = [np.zeros_like(plane) for plane in kv], np.zeros_like(source)
    decode(image, *planes)
    decode(image, source=flat)
    np.testing.assert_array_equal(as_source(*planes), flat)
    # logquant keeps each token of so short a chain.
    assert np.array_equal(flat, source) == recipe.startswith(("raw", "exact", "logquant"))


def test_it_is_the_image_that_a_daemon_keeps(client):
    space, kv = open_space(client, "kivi:2+"), make_kv(2)
    (key,) = space.keys(range(TOKENS))
    space.put(key, *kv)
    room = bytearray(space.image_bytes_max())
    kept = room[: space.get(key, image=room).target_bytes]
    spec = dataclasses.replace(SPEC, recipe="kivi:2+", key=key, fingerprint=space.fingerprint)
    assert encode(spec, *kv) == kept and bytes_max(spec) == len(room)
    assert encode(dataclasses.replace(spec, first_position=TOKENS), *kv) != kept


def test_a_latent_has_one_plane():
    spec = dataclasses.replace(SPEC, heads=1, v_dim=0)
    latent = make_kv(3, (LAYERS, 1, TOKENS, DIM))[0]
    out = np.zeros_like(latent)
    assert decode(encode(spec, latent), out).v_dim == 0 and out.any()


def test_a_profile_makes_cairn_of_it():
    random = np.random.default_rng(5)
    shape = (LAYERS, HEADS, 512, DIM)
    k, v = (random.normal(size=shape).astype(np.float32) for _ in "kv")
    rotation = Rotation.of("half", 100.0 ** -np.linspace(0, 1, DIM // 2))
    (profile,) = build([GroupSamples([(k, v)], rotation)], (4.3, 8.0))
    kv = [x[:, :, :TOKENS].astype(np.float16).view(np.uint16) for x in (k, v)]
    spec = dataclasses.replace(SPEC, recipe="cairn:8.0", dtype="fp16", profile=profile)
    image = encode(spec, *[x.view(np.float16) for x in kv])
    verify(image)
    assert inspect(image).recipe == "cairn:8.0"
    out = [np.zeros(x.shape, np.float16) for x in kv]
    decode(image, *out, profile=profile)
    for found, exact in zip(out, (k, v), strict=True):
        np.testing.assert_allclose(found, exact[:, :, :TOKENS], atol=0.05)
    with pytest.raises(cairn.InvalidArgumentError, match="cairn_image_decode_with"):
        decode(image, *out)
    (other,) = build([GroupSamples([(v, k)], rotation)], (8.0,))
    with pytest.raises(cairn.InvalidArgumentError, match="the image names another one"):
        decode(image, *out, profile=other)
    for change, text in (
        ({"profile": None}, "needs spec.profile"),
        ({"recipe": "cairn:4.4"}, "a rate that the profile has"),
        ({"profile": profile[:-16]}, "profile: truncated"),
        ({"heads": HEADS + 1}, "no fitting profile"),
    ):
        with pytest.raises(cairn.InvalidArgumentError, match=text):
            changed = dataclasses.replace(spec, **change)
            encode(changed, source=bytes(changed.source_bytes))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"recipe": "zip"}, "spec.recipe is 'zip', expected one of raw"),
        ({"layers": 0}, "spec.slice.layer_count is 0"),
        ({"layer_first": 1 << 20}, "spec.slice.layer_first"),
        ({"tokens": 1025}, "spec.tokens is 1025"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"key": b"short"}, "key has 5 bytes"),
        ({"k_dim": 1 << 20}, "spec: "),
    ],
)
def test_a_spec_that_cannot_be_is_named(change, text):
    with pytest.raises(cairn.InvalidArgumentError, match=text):
        bytes_max(dataclasses.replace(SPEC, **change))


def test_memory_that_does_not_fit_is_named():
    kv = make_kv(4)
    with pytest.raises(cairn.InvalidArgumentError, match="k has shape"):
        encode(SPEC, kv[0][:, :, 1:], kv[1])
    with pytest.raises(cairn.InvalidArgumentError, match="source has 2 bytes"):
        encode(SPEC, source=bytes(2))
    with pytest.raises(cairn.InvalidArgumentError, match="exclude"):
        encode(SPEC, *kv, source=bytes(2))
    with pytest.raises(cairn.InvalidArgumentError, match="target too small"):
        encode(SPEC, *kv, target=bytearray(64))
    with pytest.raises(cairn.InvalidArgumentError, match="read-only"):
        encode(SPEC, *kv, target=bytes(1 << 20))


def test_a_chain_goes_on_from_the_image_of_its_parent():
    spec, kv = dataclasses.replace(SPEC, recipe="ott:2"), make_kv(9)
    first = encode(spec, *kv)
    later = dataclasses.replace(spec, first_position=TOKENS)
    alone = encode(later, *kv)
    behind = encode(dataclasses.replace(later, parent=bytes(first)), *kv)
    assert [inspect(x).recipe for x in (first, alone, behind)] == ["ott:2", "ott:2/local", "ott:2"]
    damaged = bytearray(first)
    damaged[-1] ^= 1
    for parent in (damaged, b"no image"):
        with pytest.raises(cairn.InvalidArgumentError, match="parent_image"):
            encode(dataclasses.replace(later, parent=bytes(parent)), *kv)


def test_a_longer_chain_keeps_fewer_rows():
    spec, kv = dataclasses.replace(SPEC, recipe="logquant:4"), make_kv(9)
    alone = encode(spec, *kv)
    assert encode(dataclasses.replace(spec, chain_tokens=TOKENS - 1), *kv) == alone
    shorter = encode(dataclasses.replace(spec, chain_tokens=TOKENS + 42), *kv)
    behind = encode(dataclasses.replace(spec, chain_tokens=500), *kv)
    assert len(behind) < len(alone)
    for image in (alone, shorter, behind):
        assert thin(image, 500) == behind
    assert thin(shorter, 0) == shorter
    damaged = bytearray(behind)
    damaged[-1] ^= 1
    with pytest.raises(cairn.DataLossError, match="image: "):
        thin(damaged, 500)
    with pytest.raises(cairn.InvalidArgumentError, match="image: "):
        thin(encode(SPEC, *kv), 500)


def test_what_comes_beside_elements_has_a_shape():
    kv = make_kv(9)
    for name, channels in (("query_magnitudes", DIM), ("token_scores", TOKENS)):
        fits = np.ones((LAYERS, HEADS, channels), np.float32)
        assert encode(dataclasses.replace(SPEC, **{name: fits}), *kv) == encode(SPEC, *kv)
        for wrong in (fits[:1], fits.astype(np.float64)):
            with pytest.raises(cairn.InvalidArgumentError, match=f"{name} is float"):
                encode(dataclasses.replace(SPEC, **{name: wrong}), *kv)
