# SPDX-License-Identifier: Apache-2.0
"""What a profile is made from: a model's KV and queries over calibration texts, and how sensitive
its predictions are to each plane of each layer. None of these texts is ever scored."""

from __future__ import annotations

import hashlib
import pathlib
from dataclasses import dataclass

import metrics
import numpy as np
from cairn.evaluate.dump import Kv
from cairn.evaluate.losses import Losses, measure_losses
from cairn._profile import Rotation
from lm.model import Geometry, KvCache, chunks_of
from protocol import PREFILL_TOKENS, Case, Engine

# Texts and tokens of each.
CALIBRATION = (("perl", 1536), ("vim", 1024), ("python", 1024), ("essay", 1024))
LOSS_SCORED = 128  # tokens read on behind the first text


@dataclass(frozen=True)
class Measured:
    """texts: K (after RoPE) and V [layers, kv_heads, tokens, dim] of each, bf16 bits."""

    texts: list[tuple[np.ndarray, np.ndarray]]
    q_squares: np.ndarray  # mean of q² after RoPE [layers, kv_heads, dim]
    k_loss: np.ndarray  # KL [layers] where K of that layer alone is coarse
    v_loss: np.ndarray


def measure(engine: Engine, cache: pathlib.Path) -> Measured:
    """Measured once and kept in `cache`."""
    digests = "".join(engine.text_digest(text, count) for text, count in CALIBRATION)
    digest = hashlib.sha256(digests.encode()).hexdigest()[:16]
    kept = cache / f"{engine.name}-{engine.revision[:8]}-calibration-{digest}.npz"
    if not kept.exists():
        arrays: dict[str, np.ndarray] = {}
        squares, total = 0.0, 0
        for text, count in CALIBRATION:
            k, v, q_squares = _run(engine, text, count)
            arrays |= {f"k.{text}": k, f"v.{text}": v}
            squares, total = squares + q_squares * count, total + count
        arrays["q"] = (squares / total).astype(np.float32)
        text, _ = CALIBRATION[0]
        planes = arrays[f"k.{text}"], arrays[f"v.{text}"]
        arrays["k_loss"], arrays["v_loss"] = _losses(engine, text, *planes, arrays["q"])
        np.savez(kept.with_suffix(".partial.npz"), **arrays)
        kept.with_suffix(".partial.npz").rename(kept)
    with np.load(kept) as arrays:
        texts = [(arrays[f"k.{text}"], arrays[f"v.{text}"]) for text, _ in CALIBRATION]
        return Measured(texts, arrays["q"], arrays["k_loss"], arrays["v_loss"])


def _run(engine: Engine, text: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K and V of a text, and the mean of q² by KV head."""
    geometry = engine.model.geometry
    tokens = engine.text_tokens(text, count)
    cache = KvCache(geometry, count)
    squares = np.zeros((geometry.layers, geometry.kv_heads, geometry.dim))

    def tap(layer: int, q: np.ndarray) -> None:
        by_kv_head = q.reshape(geometry.kv_heads, -1, geometry.dim)
        shared = geometry.heads // geometry.kv_heads
        squares[layer] += np.square(by_kv_head).sum(1, dtype=np.float64) / shared

    for first, last in chunks_of(0, count, PREFILL_TOKENS):
        engine.model.forward(tokens[first:last], cache, tap)
    k, v = cache.bits(0, count)
    return k, v, squares / count


def _losses(
    engine: Engine, text: str, k: np.ndarray, v: np.ndarray, q_squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Those of cairn.evaluate, reading on behind a text."""
    geometry, count = engine.model.geometry, k.shape[2]
    inputs = engine.tokens(Case(engine.name, text, count, LOSS_SCORED))[count:-1]
    exact = engine.read_on(k, v, inputs)

    def kl_of(kv: Kv) -> float:
        planes = (np.stack([plane[i] for i in range(geometry.layers)]) for plane in (kv.k, kv.v))
        return float(metrics.divergence(exact, engine.read_on(*planes, inputs)).mean())

    kv, found = Kv("bf16", dict(enumerate(k)), dict(enumerate(v))), Losses()
    rotations = {layer: rotation_of(geometry, layer) for layer in range(geometry.layers)}

    def show() -> None:
        layer = max(found.v)
        print(f"{engine.name} layer {layer}: K {found.k[layer]:.5f} V {found.v[layer]:.5f}")

    measure_losses(kv, rotations, dict(enumerate(q_squares)), kl_of, found, show)
    by_layer = (np.array([plane[i] for i in rotations], np.float32) for plane in (found.k, found.v))
    return tuple(by_layer)


def rotation_of(geometry: Geometry, layer: int) -> Rotation:
    base = geometry.kinds[layer].rope_base
    return Rotation.of(geometry.rope_pairs, base ** (-np.arange(0, geometry.dim, 2) / geometry.dim))
