# SPDX-License-Identifier: Apache-2.0
"""Token scores and token plans, for the recipes `arkv` and `arkv:paper` (docs/recipes/arkv.md).

A writer scores tokens from a window of attention, or from Q and K:

    scores, statistics = score_tokens(q=q, k=k)             # of a layer: the last queries, all keys
    image = encode(ImageSpec("arkv", ..., token_scores=scores_of_all_layers), k, v)

A reader takes the scores from a chain's images and keeps the tokens that fit its budget:

    scores = np.concatenate([image_scores(i) for i in images], axis=2)
    states = plan(scores[layer], budget=2**20, original_bytes=512, low_bytes=160)
    keep = states != EVICTED                                # [heads, tokens]

Needs numpy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _abi, _ffi
from .errors import InvalidArgumentError
from .image import inspect
from .tensors import contiguous

GAMMA = _abi.ARKV_GAMMA  # the paper's weight of the variance
EVICTED, LOW, ORIGINAL = 0, 1, 2


@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of the share of attention that each token before the window gets."""

    entropy: float
    variance: float
    kurtosis: float


def score_tokens(
    weights: Any = None,
    *,
    kv_heads: int | None = None,
    q: Any = None,
    k: Any = None,
    scale: float | None = None,
    gamma: float = GAMMA,
) -> tuple[np.ndarray, LayerStatistics]:
    """Returns the scores [kv_heads, keys] of a layer's tokens and the layer's statistics. The
    scores of the last tokens, to which the queries belong, are infinite. Pass either `weights`
    [query_heads, queries, keys], after the softmax, with kv_heads; or `q` [query_heads, queries,
    dim] and `k` [kv_heads, keys, dim], both after RoPE, with `scale`, by default 1 / sqrt(dim)."""
    native = _abi.Attention(gamma=gamma)
    if weights is not None:
        if kv_heads is None or q is not None or k is not None:
            raise InvalidArgumentError("weights take kv_heads, and exclude q and k")
        weights = _floats("weights", weights, 3)
        native.query_heads, native.queries, native.keys = weights.shape
        native.kv_heads, native.weights = kv_heads, weights.ctypes.data
    else:
        if q is None or k is None:
            raise InvalidArgumentError("expected weights, or q and k")
        q, k = _floats("q", q, 3), _floats("k", k, 3)
        if q.shape[2] != k.shape[2] or kv_heads not in (None, k.shape[0]):
            raise InvalidArgumentError(f"q is {q.shape} and k is {k.shape}: no such heads")
        native.query_heads, native.queries, native.dim = q.shape
        native.kv_heads, native.keys = k.shape[:2]
        native.query_values, native.key_values = q.ctypes.data, k.ctypes.data
        native.scale = q.shape[2] ** -0.5 if scale is None else scale
    scores = np.empty((native.kv_heads, native.keys), np.float32)
    found = _abi.LayerStatistics()
    call = _ffi.library().cairn_token_scores
    _ffi.check(call(ctypes.byref(native), scores.ctypes.data, ctypes.byref(found)))
    return scores, LayerStatistics(found.entropy, found.variance, found.kurtosis)


def layer_shares(layers: Sequence[LayerStatistics]) -> list[float]:
    """Returns rho of each layer: the share of its budget for original tokens, 1 for the largest."""
    given = (_abi.LayerStatistics * len(layers))(
        *[(layer.entropy, layer.variance, layer.kurtosis) for layer in layers]
    )
    shares = (ctypes.c_double * len(layers))()
    _ffi.check(_ffi.library().cairn_layer_shares(given, len(layers), shares))
    return list(shares)


def plan(
    scores: Any,
    *,
    budget: int,
    original_bytes: int,
    low_bytes: int,
    original_share: float = 0.0,
    uniform: bool = False,
) -> np.ndarray:
    """Returns EVICTED, LOW or ORIGINAL, uint8, for each of `scores` [heads, tokens] of a layer,
    within `budget` bytes per head, K and V together. `uniform`: the same tokens for all heads."""
    scores = _floats("scores", scores, 2)
    native = _abi.TokenBudget(
        is_uniform=int(uniform),
        bytes=budget,
        original_bytes=original_bytes,
        low_bytes=low_bytes,
        original_share=original_share,
    )
    states = np.empty(scores.shape, np.uint8)
    call = _ffi.library().cairn_plan_tokens
    _ffi.check(call(ctypes.byref(native), scores.ctypes.data, *scores.shape, states.ctypes.data))
    return states


def image_scores(image: Any) -> np.ndarray:
    """Returns the scores in an image of arkv, float32 [layers, heads, tokens]: infinite for a head
    whose K is raw, 0 in images of other recipes. Verifies the image."""
    return _of_tokens(image, np.float32, _ffi.library().cairn_image_scores)


def kept(image: Any) -> np.ndarray:
    """Returns bool [layers, heads, tokens]: False for tokens that arkv:paper evicted. They decode
    to zeros; exclude them from attention. Verifies the image."""
    return _of_tokens(image, np.uint8, _ffi.library().cairn_image_kept).astype(bool)


def _of_tokens(image: Any, dtype: type, call: Callable[..., int]) -> np.ndarray:
    info, place = inspect(image), contiguous("image", image)
    shape = (len(info.part.layers or ()), len(info.part.heads or ()), info.tokens)
    found = np.empty(shape, dtype)
    _ffi.check(call(place.address, place.bytes, found.ctypes.data))
    return found


def _floats(what: str, array: Any, axes: int) -> np.ndarray:
    made = np.ascontiguousarray(array, np.float32)
    if made.ndim != axes:
        raise InvalidArgumentError(f"{what} has shape {made.shape}, expected {axes} axes")
    return made
