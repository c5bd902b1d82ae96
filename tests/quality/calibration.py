# SPDX-License-Identifier: Apache-2.0
"""What a profile is made from: a model's KV and queries over calibration texts, and how sensitive
its predictions are to each plane of each layer. None of these texts is ever scored."""

from __future__ import annotations

import hashlib
import pathlib
from dataclasses import dataclass

import metrics
import numpy as np
from lm.model import Geometry, KvCache, chunks_of, from_bits, rotate, rotation
from protocol import PREFILL_TOKENS, Case, Engine

# Texts and tokens of each.
CALIBRATION = (("perl", 1536), ("vim", 1024), ("python", 1024), ("essay", 1024))
SKIPPED_TOKENS = 4  # of each text: attention sinks are no measure of the rest
SENSITIVITY_SCORED = 128  # tokens read on behind the first text


@dataclass(frozen=True)
class Measured:
    """texts: K (after RoPE) and V [layers, kv_heads, tokens, dim] of each, bf16 bits."""

    texts: list[tuple[np.ndarray, np.ndarray]]
    q_squares: np.ndarray  # mean of q² after RoPE [layers, kv_heads, dim]
    k_loss: np.ndarray  # KL [layers] with K of one layer coarsely coded
    v_loss: np.ndarray


def turn_back(k: np.ndarray, geometry: Geometry, layer: int, first: int = 0) -> np.ndarray:
    """K [..., tokens, dim] of a layer before RoPE."""
    kind = geometry.kinds[layer]
    cosine, sine = rotation(kind.rope_base, geometry.dim, first, k.shape[-2])
    return rotate(k, cosine, -sine, geometry.rope_pairs)


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
        text, count = CALIBRATION[0]
        losses = _sensitivity(
            engine, text, count, arrays[f"k.{text}"], arrays[f"v.{text}"], arrays["q"]
        )
        arrays["k_loss"], arrays["v_loss"] = losses
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


def _sensitivity(
    engine: Engine, text: str, count: int, k: np.ndarray, v: np.ndarray, q_squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The loss of reading on when one plane of one layer has a step as large as its own spread."""
    geometry = engine.model.geometry
    inputs = engine.tokens(Case(engine.name, text, count, SENSITIVITY_SCORED))[count:-1]
    exact = engine.read_on(k, v, inputs)
    losses = np.zeros((2, geometry.layers))
    for layer in range(geometry.layers):
        for plane, bits in enumerate((k, v)):
            values = from_bits(bits[layer])
            coarse = values.copy()
            if plane == 0:
                before = turn_back(values, geometry, layer)
                coded = _coarse(before, pair_weights(q_squares[layer], geometry.rope_pairs))
                coarse[:, SKIPPED_TOKENS:] = turn_forth(coded, geometry, layer)[:, SKIPPED_TOKENS:]
            else:
                coded = _coarse(values, np.ones_like(q_squares[layer]))
                coarse[:, SKIPPED_TOKENS:] = coded[:, SKIPPED_TOKENS:]
            replaced = bits.copy()
            replaced[layer] = to_bits(coarse)
            planes = (replaced, v) if plane == 0 else (k, replaced)
            losses[plane, layer] = metrics.divergence(exact, engine.read_on(*planes, inputs)).mean()
        print(f"{engine.name} layer {layer}: K {losses[0, layer]:.5f} V {losses[1, layer]:.5f}")
    return losses[0].astype(np.float32), losses[1].astype(np.float32)


def turn_forth(k: np.ndarray, geometry: Geometry, layer: int, first: int = 0) -> np.ndarray:
    kind = geometry.kinds[layer]
    cosine, sine = rotation(kind.rope_base, geometry.dim, first, k.shape[-2])
    return rotate(k, cosine, sine, geometry.rope_pairs)


def to_bits(values: np.ndarray) -> np.ndarray:
    """The nearest bf16, ties to even; no NaN comes here."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def pair_weights(q_squares: np.ndarray, pairs: str) -> np.ndarray:
    """[..., dim]: the mean of q² over the two channels of a pair, which RoPE mixes, for both."""
    half = q_squares.shape[-1] // 2
    if pairs == "interleaved":
        return np.repeat((q_squares[..., 0::2] + q_squares[..., 1::2]) / 2, 2, axis=-1)
    mean = (q_squares[..., :half] + q_squares[..., half:]) / 2
    return np.concatenate([mean, mean], axis=-1)


def _coarse(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[heads, tokens, dim] in steps of the spread of all heads, each channel weighted."""
    mean = values[:, SKIPPED_TOKENS:].mean(1, keepdims=True)
    scale = np.sqrt(weights / weights.mean(-1, keepdims=True) + 1e-3)[:, None]
    scaled = (values - mean) * scale
    step = np.sqrt(np.square(scaled[:, SKIPPED_TOKENS:]).mean())
    return (np.rint(scaled / step) * step / scale + mean).astype(np.float32)
