# SPDX-License-Identifier: Apache-2.0
"""Banks in a daemon: `install_bank`, and blocks that are coded with one."""

import hashlib

import cairn
import numpy as np
import pytest
from cairn import bank, image
from conftest import DIM, HEADS, LAYERS, TOKENS, as_float, make_kv, open_space
from test_profiles import stored


@pytest.fixture(scope="module")
def mined():
    k, v = (as_float(bits) for bits in make_kv(7, (LAYERS, HEADS, 4 * TOKENS, DIM)))
    return bank.mine(k, v, patterns=8)


def test_blocks_are_coded_with_the_bank_once_it_is_there(client, mined):
    space = open_space(client, "patternkv:4")
    assert space.recipe == "patternkv:4"
    first, second = space.keys(range(2 * TOKENS))
    k, v = make_kv(1)
    assert space.current_bank(0) is None
    space.put(first, k, v, encode="client")
    assert image.inspect(stored(space, first)).recipe == "exact"
    bank_id = space.install_bank(0, mined)
    assert bank_id == hashlib.sha256(mined).digest() == space.current_bank(0)
    assert space.current_profile(0) is None and space.side_object(bank_id) == mined
    images = []
    for encode in ("client", "daemon"):
        space.invalidate()
        space.put(second, k, v, parent=first, first_position=TOKENS, encode=encode)
        images.append(stored(space, second).tobytes())
    assert images[0] == images[1]
    info = image.inspect(images[0])
    assert (info.recipe, info.side_object) == ("patternkv:4", bank_id)
    expected = np.zeros_like(k), np.zeros_like(v)
    image.decode(images[0], *expected, profile=mined)
    got = np.zeros_like(k), np.zeros_like(v)
    for decode in ("client", "daemon"):
        assert space.get(second, *got, decode=decode)
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    assert np.abs(as_float(got[0]) - as_float(k)).max() < 1


def test_what_does_not_fit_is_refused_by_name(client, mined):
    space = open_space(client, "patternkv:2")
    with pytest.raises(cairn.InvalidArgumentError, match="not a bank"):
        space.install_bank(0, b"nothing of the kind")
    with pytest.raises(cairn.InvalidArgumentError, match="not a profile"):
        space.install_profile(0, mined)
    with pytest.raises(cairn.InvalidArgumentError, match="dims"):
        k, v = (as_float(bits) for bits in make_kv(7, (LAYERS, HEADS, TOKENS, DIM // 2)))
        space.install_bank(0, bank.mine(k, v, patterns=2))
