# SPDX-License-Identifier: Apache-2.0
"""Measures the damage to a model's predictions if one plane of one layer is coarse. A profile gives
finer steps to layers with more damage. Needs numpy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .._profile import Rotation
from ..profile import SKIPPED_TOKENS, channel_scale, pair_means, turn
from .dump import Kv, as_float, as_stored


@dataclass
class Losses:
    """By layer: the mean KL of the next token if only K, or only V, of that layer is coarse.
    `is_judged`: measured after the same text whose coded KV is judged."""

    is_judged: bool = True
    k: dict[int, float] = field(default_factory=dict)
    v: dict[int, float] = field(default_factory=dict)


def measure_losses(
    kv: Kv,
    rotations: Mapping[int, Rotation],
    q_squares: Mapping[int, np.ndarray],
    kl_of: Callable[[Kv], float],
    found: Losses,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Adds to `found` the layers of `kv` that it lacks. `kl_of` returns the mean KL after a changed
    copy of `kv`; it is called once for K and once for V of each layer. `q_squares`: the mean of q²,
    after RoPE, for each channel of K [heads, dim]; layers may lack it. `progress` is called after
    each layer."""
    for layer in sorted(kv.k.keys() - found.v.keys()):
        k = coarse_k(as_float(kv.k[layer]), rotations[layer], q_squares.get(layer))
        v = coarse(as_float(kv.v[layer]))
        k, v = as_stored(k, kv.dtype), as_stored(v, kv.dtype)
        found.k[layer] = kl_of(dataclasses.replace(kv, k={**kv.k, layer: k}))
        found.v[layer] = kl_of(dataclasses.replace(kv, v={**kv.v, layer: v}))
        progress()


def coarse_k(k: np.ndarray, rotation: Rotation, q_squares: np.ndarray | None) -> np.ndarray:
    """Rounds K [heads, tokens, dim] after RoPE to coarse steps, before RoPE. Channels that queries
    read more have finer steps."""
    weights = None if q_squares is None else pair_means(q_squares, rotation)
    rounded = turn(coarse(turn(k, rotation, 0, -1), weights), rotation, 0, 1)
    rounded[:, :SKIPPED_TOKENS] = k[:, :SKIPPED_TOKENS]
    return rounded


def coarse(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Rounds [heads, tokens, dim] to steps as large as the spread of all heads about the channel
    means. The first tokens stay, since profiles leave them out."""
    rest = values[:, SKIPPED_TOKENS:]
    mean = rest.mean(1, keepdims=True)
    scale = np.float32(1) if weights is None else channel_scale(weights)[:, None]
    scaled = (rest - mean) * scale
    step = np.sqrt(np.square(scaled).mean(dtype=np.float64)) or 1.0
    rounded = np.rint(scaled / step) * step / scale + mean
    return np.concatenate([values[:, :SKIPPED_TOKENS], rounded], 1).astype(np.float32)
