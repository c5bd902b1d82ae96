# SPDX-License-Identifier: Apache-2.0
"""Caches of 8-bit floats, through the package and a real cairnd."""

import sys

import cairn
import numpy as np
import pytest
from cairn.image import ImageSpec, decode, encode, inspect, verify
from conftest import DIM, HEADS, LAYERS, ROOT, TOKENS, open_space

sys.path.insert(0, str(ROOT / "tests" / "quality"))
import eight  # noqa: E402

KINDS = tuple(eight.KINDS)
SHAPE = (LAYERS, HEADS, TOKENS, DIM)


def rounded(dtype, seed=0, shape=SHAPE):
    """KV as an engine's cache has it: channels of unlike spread."""
    rng = np.random.default_rng(seed)
    spread = 2.0 ** (np.arange(shape[-1]) % 7 - 4)
    values = (rng.standard_normal(shape) * spread).astype(np.float32)
    return eight.from_bf16(dtype, (values.view(np.uint32) >> 16).astype(np.uint16))


def every(seed):
    return np.random.default_rng(seed).integers(0, 256, SHAPE, np.uint8)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("recipe", ["raw", "exact", "exact:fast"])
@pytest.mark.parametrize("make", [rounded, every])
def test_every_bit_comes_back(client, dtype, recipe, make):
    space = open_space(client, recipe, dtype=dtype)
    kv = [make(dtype, i) if make is rounded else make(i) for i in range(2)]
    (key,) = space.keys(range(TOKENS))
    result = space.put(key, *kv)
    out = [np.zeros(SHAPE, np.uint8) for _ in range(2)]
    assert space.get(key, *out)
    assert all(np.array_equal(a, b) for a, b in zip(kv, out, strict=True))
    if recipe != "raw" and make is rounded:
        assert result.image_bytes < sum(plane.nbytes for plane in kv)


@pytest.mark.parametrize("dtype", KINDS)
def test_what_exact_gains(dtype):
    """Blocks as they are by default; values with a spread of their own in each channel."""
    shape = (2, 2, 128, 128)
    spec = ImageSpec("exact", *shape[:3], 128, 128, dtype)
    kv = [rounded(dtype, i, shape) for i in range(2)]
    image = encode(spec, *kv)
    assert sum(plane.nbytes for plane in kv) / len(image) > {3: 1.15, 2: 1.3}[eight.KINDS[dtype][0]]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("recipe", cairn.image.recipes())
def test_a_recipe_codes_the_values(dtype, recipe):
    """As it codes the same values in bf16, and then rounds them."""
    kv = [rounded(dtype, i) for i in range(2)]
    wide = [eight.to_bf16(dtype, plane) for plane in kv]
    spec = ImageSpec(recipe, *SHAPE[:3], DIM, DIM, dtype)
    image = encode(spec, *kv)
    verify(image)
    assert inspect(image).dtype == dtype
    out = [np.zeros(SHAPE, np.uint8) for _ in range(2)]
    decode(image, *out)
    of_bf16 = [np.zeros(SHAPE, np.uint16) for _ in range(2)]
    decode(encode(ImageSpec(recipe, *SHAPE[:3], DIM, DIM, "bf16"), *wide), *of_bf16)
    raw = inspect(image)
    for ours, theirs, source in zip(out, of_bf16, kv, strict=True):
        # A tile that would not be smaller than 8 bits an element is kept as it is.
        assert np.array_equal(ours, eight.from_bf16(dtype, theirs)) or np.array_equal(ours, source), raw


def test_a_number_that_is_none_is_refused_by_name(client):
    with pytest.raises(cairn.InvalidArgumentError, match="fp8_e4m3, fp8_e5m2"):
        open_space(client, dtype="fp6")
    space = open_space(client, dtype="fp8_e4m3")
    (key,) = space.keys(range(TOKENS))
    with pytest.raises(cairn.InvalidArgumentError, match="has dtype float32, expected one of float8"):
        space.put(key, *[np.zeros(SHAPE, np.float32)] * 2)


def test_another_kind_of_float_is_another_space(client):
    given = {"model": "of 8 bits", "weights_revision": "the same"}
    groups = [cairn.KvGroup(LAYERS, HEADS, DIM)]
    ids = {
        dtype: client.open_space(groups=groups, dtype=dtype, tokens_per_block=TOKENS, **given).fingerprint
        for dtype in ("bf16", *KINDS)
    }
    assert len(set(ids.values())) == 3
