# SPDX-License-Identifier: Apache-2.0
"""The quality harness by way of a daemon: the codec's bytes and values, side objects included."""

import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "quality"), str(ROOT / "client" / "examples")]

from cairn.profile import GroupSamples, Rotation, build  # noqa: E402
from coder import Codec  # noqa: E402
from lm.model import Geometry, LayerKind, from_bits  # noqa: E402
from product import Product  # noqa: E402

KIND = LayerKind(rope_base=10000.0, window_tokens=0)
GEOMETRY = Geometry(heads=2, kv_heads=2, dim=32, rope_pairs="half", kinds=(KIND, KIND))
TOKENS = 640


def make_bits(seed):
    """[layers, heads, tokens, dim] of bf16."""
    values = np.random.default_rng(seed).normal(0, 1, (2, 2, TOKENS, 32)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def kv():
    return make_bits(1), make_bits(2)


@pytest.fixture(scope="module")
def profiles(kv):
    frequencies = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    rotation = Rotation.of("half", frequencies)
    return build([GroupSamples([tuple(map(from_bits, kv))], rotation)], (2.3, 4.3))


@pytest.mark.parametrize("recipe", ["cairn:2.3", "kivi:2"])
def test_a_daemon_codes_as_the_codec_does(bin_dir, kv, profiles, recipe):
    made = profiles if recipe.startswith("cairn") else None
    codec = Codec().code(GEOMETRY, "r1", recipe, *kv, made)
    with Product(bin_dir) as product:
        daemon = product.code(GEOMETRY, "r1", recipe, *kv, made)
    assert daemon.image_bytes == codec.image_bytes and daemon.bits < 3
    assert np.array_equal(daemon.k_bits, codec.k_bits)
    assert np.array_equal(daemon.v_bits, codec.v_bits)


def test_a_daemon_without_the_profile_is_an_error(bin_dir, kv):
    with Product(bin_dir) as product, pytest.raises(RuntimeError, match="stored exact"):
        product.code(GEOMETRY, "r1", "cairn:2.3", *kv)


def test_what_a_daemon_mines_codes_elsewhere(bin_dir, kv):
    with Product(bin_dir) as product:
        (mined,) = product.mine(GEOMETRY, "r1", *kv)
    coded = Codec().code(GEOMETRY, "r1", "cairn:2.3", *kv, [mined])
    assert 2 < coded.bits < 3
