# SPDX-License-Identifier: Apache-2.0
"""cairn.arkv: scores, plans, and readers that attend to what they keep."""

import dataclasses

import cairn
import numpy as np
import pytest
from cairn import arkv
from cairn.image import ImageSpec, decode, encode
from conftest import open_space

LAYERS, HEADS, TOKENS, DIM = 2, 2, 64, 32
QUERY_HEADS, WINDOW, BLOCKS = 4, 8, 3
KEYS = BLOCKS * TOKENS
SPEC = ImageSpec("arkv", LAYERS, HEADS, TOKENS, DIM, DIM, dtype="fp16")


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def make_chain(seed):
    random = np.random.default_rng(seed)
    k, v = random.normal(size=(2, LAYERS, HEADS, KEYS, DIM)).astype(np.float16)
    q = random.normal(size=(LAYERS, QUERY_HEADS, WINDOW, DIM)).astype(np.float32)
    return q * 2, k, v


def attention_of(q, k):
    """[query_heads, queries, keys], causal, in numpy."""
    logits = np.einsum("hqd,hkd->hqk", q, np.repeat(k, QUERY_HEADS // HEADS, axis=0)) / DIM**0.5
    seen = np.arange(KEYS) <= np.arange(WINDOW)[:, None] + KEYS - WINDOW
    return softmax(np.where(seen, logits, -np.inf))


def expected_scores(weights, gamma=arkv.GAMMA):
    past = weights[:, :, : KEYS - WINDOW].astype(np.float64)
    of_head = past.mean(axis=1) + gamma * past.var(axis=1, ddof=1)
    of_kv = of_head.reshape(HEADS, -1, past.shape[2]).mean(axis=1)
    count = np.convolve(np.ones(past.shape[2]), np.ones(5), "same")
    smooth = np.stack([np.convolve(row, np.ones(5), "same") / count for row in of_kv])
    return np.concatenate([smooth, np.full((HEADS, WINDOW), np.inf)], axis=1)


def images_of(spec, k, v, **beside):
    """A chain's images: blocks of TOKENS, with what comes beside each token cut alike."""
    images = []
    for first in range(0, KEYS, TOKENS):
        cut = slice(first, first + TOKENS)
        own = {name: np.ascontiguousarray(array[:, :, cut]) for name, array in beside.items()}
        block = dataclasses.replace(spec, first_position=first, **own)
        images.append(encode(block, *[np.ascontiguousarray(x[:, :, cut]) for x in (k, v)]))
    return images


def decoded(images):
    k, v = np.zeros((2, LAYERS, HEADS, KEYS, DIM), np.float16)
    for index, image in enumerate(images):
        parts = [np.zeros((LAYERS, HEADS, TOKENS, DIM), np.float16) for _ in range(2)]
        decode(image, *parts)
        for whole, part in zip((k, v), parts, strict=True):
            whole[:, :, index * TOKENS : (index + 1) * TOKENS] = part
    return k.astype(np.float32), v.astype(np.float32)


def test_scores_from_q_and_k_are_those_of_their_attention():
    q, k, _ = make_chain(1)
    for layer in range(LAYERS):
        weights = attention_of(q[layer], k[layer].astype(np.float32))
        from_qk, of_qk = arkv.score_tokens(q=q[layer], k=k[layer])
        from_weights, of_weights = arkv.score_tokens(weights, kv_heads=HEADS)
        np.testing.assert_allclose(from_weights, expected_scores(weights), rtol=1e-4)
        np.testing.assert_allclose(from_qk, from_weights, rtol=1e-4)
        found = [dataclasses.astuple(statistics) for statistics in (of_qk, of_weights)]
        np.testing.assert_allclose(*found, rtol=1e-4)
        p = weights[:, :, : KEYS - WINDOW].sum(axis=(0, 1)).astype(np.float64)
        p /= p.sum()
        spread = p - p.mean()
        variance = (spread**2).mean()
        wanted = (-(p * np.log(p)).sum(), variance, (spread**4).mean() / variance**2)
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4)
    assert arkv.layer_shares([of_qk, arkv.LayerStatistics(0, 0, 0)]) == [1, 0]
    assert arkv.layer_shares([arkv.LayerStatistics(0, 0, 0)] * 2) == [1, 1]


def test_a_reader_that_keeps_some_attends_as_if_the_others_were_masked():
    q, k, v = make_chain(2)
    scores = np.stack([arkv.score_tokens(q=q[layer], k=k[layer])[0] for layer in range(LAYERS)])
    images = images_of(SPEC, k, v, token_scores=scores)
    found = np.concatenate([arkv.image_scores(image) for image in images], axis=2)
    stored = scores.astype(np.float16).astype(np.float32)
    stored[:, :, 0] = np.inf
    np.testing.assert_array_equal(found, stored)
    k_hat, v_hat = decoded(images)
    for uniform in (False, True):
        for layer in range(LAYERS):
            held = {"original_bytes": 64, "low_bytes": 40}
            states = arkv.plan(found[layer], budget=60 * 40, uniform=uniform, **held)
            keep = states != arkv.EVICTED
            costs = np.array([0, 40, 64])[states].sum(axis=1)
            assert (costs <= 60 * 40).all() and (costs > 58 * 40).all()
            assert keep[:, -WINDOW:].all() and keep[:, 0].all()
            assert (keep[0] == keep[1]).all() == uniform
            for head in range(QUERY_HEADS):
                kv_head = head * HEADS // QUERY_HEADS
                at = np.flatnonzero(keep[kv_head])
                logits = q[layer, head] @ k_hat[layer, kv_head].T / DIM**0.5
                masked = softmax(np.where(keep[kv_head], logits, -np.inf)) @ v_hat[layer, kv_head]
                compact = softmax(logits[:, at]) @ v_hat[layer, kv_head][at]
                np.testing.assert_allclose(compact, masked, rtol=1e-4, atol=1e-6)


def test_paper_images_have_three_states_and_tell_what_is_gone():
    q, k, v = make_chain(3)
    layers = [arkv.score_tokens(q=q[layer], k=k[layer]) for layer in range(LAYERS)]
    shares = arkv.layer_shares([statistics for _, statistics in layers])
    costs = {"original_bytes": 4 * DIM + 4, "low_bytes": 2 * DIM + 4}
    states = np.stack(
        [
            arkv.plan(scores, budget=80 * costs["low_bytes"], original_share=share / 2, **costs)
            for (scores, _), share in zip(layers, shares, strict=True)
        ]
    )
    images = images_of(dataclasses.replace(SPEC, recipe="arkv:paper"), k, v, token_states=states)
    kept = np.concatenate([arkv.kept(image) for image in images], axis=2)
    np.testing.assert_array_equal(kept, states != arkv.EVICTED)
    k_hat, v_hat = decoded(images)
    assert not k_hat[~kept].any() and not v_hat[~kept].any()
    original = states == arkv.ORIGINAL
    np.testing.assert_array_equal(k_hat[original], k.astype(np.float32)[original])
    low = states == arkv.LOW
    assert original.any() and low.any() and (~kept).any()
    np.testing.assert_allclose(k_hat[low], k.astype(np.float32)[low], atol=0.3)
    assert arkv.kept(images_of(SPEC, k, v)[0]).all()
    assert not arkv.image_scores(images[0]).any()


def test_a_daemon_keeps_arkv_without_scores_and_no_plan(client):
    space = open_space(client, "arkv")
    assert space.recipe == "arkv"
    with pytest.raises(cairn.InvalidArgumentError, match="recipe"):
        open_space(client, "arkv:paper")


def test_what_is_wrong_is_named():
    q, k, v = make_chain(4)
    with pytest.raises(cairn.InvalidArgumentError, match="expected weights, or q and k"):
        arkv.score_tokens(q=q[0])
    with pytest.raises(cairn.InvalidArgumentError, match="exclude q"):
        arkv.score_tokens(q[0], q=q[0], kv_heads=2)
    with pytest.raises(cairn.InvalidArgumentError, match="query heads"):
        arkv.score_tokens(np.zeros((3, 2, 5)), kv_heads=2)
    with pytest.raises(cairn.InvalidArgumentError, match="3 axes"):
        arkv.score_tokens(q=q, k=k[0])
    with pytest.raises(cairn.InvalidArgumentError, match="low_bytes"):
        arkv.plan(np.ones((1, 4)), budget=10, original_bytes=4, low_bytes=5)
    with pytest.raises(cairn.InvalidArgumentError, match="token_states is int64"):
        spec = dataclasses.replace(SPEC, token_states=np.ones((LAYERS, HEADS, TOKENS), np.int64))
        encode(spec, k[:, :, :TOKENS].copy(), v[:, :, :TOKENS].copy())
    damaged = bytearray(images_of(SPEC, k, v)[0])
    damaged[-20] ^= 1
    with pytest.raises(cairn.DataLossError):
        arkv.image_scores(damaged)
