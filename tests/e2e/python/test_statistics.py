# SPDX-License-Identifier: Apache-2.0
"""What comes with a put besides KV."""

import re
import urllib.request

import cairn
import numpy as np
import pytest
from cairn import arkv
from conftest import DIM, HEADS, LAYERS, TOKENS, make_kv, open_space


def added(daemon):
    text = urllib.request.urlopen(f"http://{daemon.http}/metrics").read().decode()
    return float(re.search(r"^cairn_query_squares_added_total (\S+)$", text, re.M).group(1))


def test_puts_carry_squares_of_either_float(client, daemon):
    space = open_space(client, "exact")
    k, v = make_kv(1)
    before = added(daemon)
    squares = np.full((LAYERS, HEADS, DIM), 0.25, np.float32)
    for index, given in enumerate((squares, squares.astype(np.float16))):
        key = space.keys(range(index, index + TOKENS))[0]
        space.put(key, k, v, query_squares=given)
        got = np.zeros_like(k), np.zeros_like(v)
        assert space.get(key, *got)
        assert np.array_equal(got[0], k) and np.array_equal(got[1], v)
    part = cairn.Part(heads=range(1, 2))
    key = space.keys(range(7, 7 + TOKENS))[0]
    space.put(key, k[:, 1:], v[:, 1:], part=part, query_squares=squares[:, 1:].copy())
    assert added(daemon) - before == 3


def test_what_is_wrong_is_refused_by_name(client):
    space = open_space(client, "exact")
    k, v = make_kv(1)
    key = space.keys(range(TOKENS))[0]
    good = np.ones((LAYERS, HEADS, DIM), np.float32)
    bad = good.copy()
    bad[1, 1, 3] = np.nan
    for squares, text in (
        (good[1:], "query_squares has shape"),
        (good.astype(np.float64), "query_squares has dtype float64, expected float32 or float16"),
        (good[:, :, ::2], "query_squares is not one contiguous piece"),
        (bad, "at layer 1, head 1, channel 3: finite and not negative"),
    ):
        with pytest.raises(cairn.InvalidArgumentError, match=text):
            space.put(key, k, v, query_squares=squares)
    assert space.contains([key]) == [False]
    space.put(key, k, v, query_squares=good)


def test_scores_and_magnitudes_reach_the_encoder(client):
    scores = np.arange(1, LAYERS * HEADS * TOKENS + 1, dtype=np.float32).reshape(
        LAYERS, HEADS, TOKENS
    )
    space = open_space(client, "arkv")
    k, v = make_kv(1)
    key = space.keys(range(TOKENS))[0]
    space.put(key, k, v, first_position=TOKENS, token_scores=scores.astype(np.float16))
    stored = np.zeros(space.image_bytes_max(), np.uint8)
    stored = stored[: space.get(key, image=stored).target_bytes]
    assert np.array_equal(arkv.image_scores(stored), scores)
    with pytest.raises(cairn.InvalidArgumentError, match="token_scores: the source is an image"):
        space.put(key, image=stored, token_scores=scores)
    with pytest.raises(cairn.InvalidArgumentError, match="expected .*: layers, heads, tokens"):
        space.put(key, k, v, token_scores=scores[:, :, 1:].copy())
    magnitudes = np.full((LAYERS, HEADS, DIM), 0.25, np.float32)
    mixed = open_space(client, "mixkvq")
    assert not mixed.put(key, k, v, query_magnitudes=magnitudes).is_duplicate
