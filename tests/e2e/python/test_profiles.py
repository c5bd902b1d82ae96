# SPDX-License-Identifier: Apache-2.0
"""Profiles in a daemon: `install_profile`, and blocks that are coded with one."""

import hashlib

import cairn
import numpy as np
import pytest
from cairn import image
from cairn.profile import GroupSamples, Rotation, build
from conftest import DIM, HEADS, LAYERS, TOKENS, as_float, make_kv, open_space

FREQUENCIES = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)


@pytest.fixture(scope="module")
def profile():
    k, v = (as_float(bits) for bits in make_kv(7, (LAYERS, HEADS, 8 * TOKENS, DIM)))
    (made,) = build([GroupSamples([(k, v)], Rotation.of("half", FREQUENCIES))], (4.3, 8.0))
    return made


def stored(space, key):
    target = np.zeros(space.image_bytes_max(), np.uint8)
    result = space.get(key, image=target)
    assert result
    return target[: result.target_bytes]


def test_blocks_are_coded_with_the_profile_once_it_is_there(client, profile):
    space = open_space(client, "cairn:8.0")
    first, second = space.keys(range(2 * TOKENS))
    k, v = make_kv(1)
    assert space.current_profile(0) is None
    space.put(first, k, v)
    assert image.inspect(stored(space, first)).recipe == "exact"
    profile_id = space.install_profile(0, profile)
    assert profile_id == hashlib.sha256(profile).digest() == space.current_profile(0)
    assert space.side_object(profile_id) == profile
    space.put(second, k, v, parent=first, first_position=TOKENS)
    coded = stored(space, second)
    info = image.inspect(coded)
    assert (info.recipe, info.side_object) == ("cairn:8.0", profile_id)
    assert info.image_bytes < 0.7 * info.source_bytes
    expected = np.zeros_like(k), np.zeros_like(v)
    image.decode(coded, *expected, profile=profile)
    got = np.zeros_like(k), np.zeros_like(v)
    for decode in ("client", "daemon"):
        assert space.get(second, *got, decode=decode)
        assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
    assert np.abs(as_float(got[0]) - as_float(k)).max() < 0.2
    assert space.get(first, *got)
    assert np.array_equal(got[0], k) and np.array_equal(got[1], v)


def test_what_does_not_fit_is_refused_by_name(client, profile):
    space = open_space(client, "cairn:2.3")
    with pytest.raises(cairn.InvalidArgumentError, match="it has cairn:BITS for 4.3, 8.0"):
        space.install_profile(0, profile)
    with pytest.raises(cairn.InvalidArgumentError, match="not a profile"):
        space.install_profile(0, b"nothing of the kind")
    with pytest.raises(cairn.InvalidArgumentError, match="the space has 1 groups"):
        space.install_profile(3, profile)
    other = open_space(client, "cairn:8.0", groups=[cairn.KvGroup(LAYERS, HEADS, DIM // 2)])
    with pytest.raises(cairn.InvalidArgumentError, match="dims"):
        other.install_profile(0, profile)
    assert space.side_object(bytes(31) + b"x") is None
    with pytest.raises(cairn.InvalidArgumentError, match="cairn:BITS"):
        open_space(client, "cairn:99")
