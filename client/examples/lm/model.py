# SPDX-License-Identifier: Apache-2.0
"""Decoders of the Llama, Gemma 3 and Qwen 2 families in numpy: forward over a chunk, a KV cache.

The forward pass is a worker's engine in miniature. Two habits make results comparable bit for bit:

* K and V are rounded to bf16 the moment they are made: attention reads what a cache can hold;
* every caller cuts the tokens into the same chunks (`chunks_of`), because a matrix product over 128
  rows need not round like the same product over 64. Callers fix the number of BLAS threads for the
  same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .weights import Weights

CHUNK_TOKENS = 128  # also the tokens per block of the spaces that the demo and the harness open

# Called with (layer, q): the queries [heads, tokens, dim] of a chunk as they meet K, after RoPE.
Tap = Callable[[int, np.ndarray], None]


def chunks_of(begin: int, end: int, step: int = CHUNK_TOKENS) -> Iterator[tuple[int, int]]:
    """Cuts [begin, end) at multiples of `step` counted from `begin`."""
    for first in range(begin, end, step):
        yield first, min(first + step, end)


@dataclass(frozen=True)
class LayerKind:
    """What attention layers of one model may differ in."""

    rope_base: float
    window_tokens: int = 0  # a query sees itself and the window_tokens - 1 before it; 0: all


@dataclass(frozen=True)
class Geometry:
    heads: int
    kv_heads: int
    dim: int  # of one head
    rope_pairs: str  # "interleaved": (2c, 2c + 1); "half": (c, c + dim/2)
    kinds: tuple[LayerKind, ...]  # one per layer

    @property
    def layers(self) -> int:
        return len(self.kinds)

    def layers_by_kind(self) -> dict[LayerKind, list[int]]:
        """The groups of a space: layers of one kind, in the order of their first layers."""
        groups: dict[LayerKind, list[int]] = {}
        for layer, kind in enumerate(self.kinds):
            groups.setdefault(kind, []).append(layer)
        return groups


class KvCache:
    """K and V of one sequence, [layers, kv_heads, capacity, dim]: bf16 values in float32."""

    def __init__(self, geometry: Geometry, capacity: int) -> None:
        shape = (geometry.layers, geometry.kv_heads, capacity, geometry.dim)
        self.k = np.zeros(shape, np.float32)
        self.v = np.zeros(shape, np.float32)
        self.tokens = 0
        # [layers, kv_heads, capacity]: False for tokens that attention leaves out; None: no token.
        self.kept: np.ndarray | None = None

    def bits(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V of tokens [first, last) as contiguous bf16 bit patterns (uint16)."""
        return _to_bits(self.k[:, :, first:last]), _to_bits(self.v[:, :, first:last])

    def load(self, first: int, k_bits: np.ndarray, v_bits: np.ndarray) -> None:
        """Puts bf16 bit patterns [layers, kv_heads, n, dim] at tokens [first, first + n)."""
        last = first + k_bits.shape[2]
        self.k[:, :, first:last] = from_bits(k_bits)
        self.v[:, :, first:last] = from_bits(v_bits)
        self.tokens = last


def _to_bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.ascontiguousarray(x).view(np.uint32) >> 16, dtype=np.uint16)


def from_bits(bits: np.ndarray) -> np.ndarray:
    """bf16 bit patterns as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest bf16, ties to even, still as float32 (no NaN comes here)."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def rotation(base: float, dim: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [count, dim / 2] of RoPE at positions first, first + 1, …"""
    frequency = base ** (-np.arange(0, dim, 2) / dim)
    angle = np.arange(first, first + count)[:, None] * frequency[None]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray, pairs: str) -> np.ndarray:
    """RoPE of x [..., tokens, dim]."""
    out = np.empty(x.shape, np.float32)
    half = x.shape[-1] // 2
    if pairs == "interleaved":
        one, two = np.s_[..., 0::2], np.s_[..., 1::2]
    else:
        one, two = np.s_[..., :half], np.s_[..., half:]
    out[one] = x[one] * cosine - x[two] * sine
    out[two] = x[one] * sine + x[two] * cosine
    return out


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first: int,
    window_tokens: int,
    kept: np.ndarray | None = None,
) -> np.ndarray:
    """Causal attention of q [heads, count, dim], whose first query is token `first`, over k and v
    [kv_heads, first + count, dim], of which a head sees its kept [kv_heads, first + count];
    [heads, count, dim]."""
    heads, count, dim = q.shape
    shared, end = heads // len(k), first + count  # query heads per KV head
    begin = max(0, first - window_tokens + 1) if window_tokens else 0
    behind = np.arange(first, end)[:, None] - np.arange(begin, end)[None]
    unseen = behind < 0
    if window_tokens:
        unseen |= behind >= window_tokens
    out = np.empty_like(q)
    for head in range(len(k)):
        group = slice(head * shared, (head + 1) * shared)
        score = q[group].reshape(shared * count, dim) @ k[head, begin:end].T
        score = score.reshape(shared, count, -1) * np.float32(dim**-0.5)
        score[:, unseen] = -np.inf
        if kept is not None:
            score[..., ~kept[head, begin:end]] = -np.inf
        np.exp(score - score.max(-1, keepdims=True), out=score)
        score /= score.sum(-1, keepdims=True)
        out[group] = (score.reshape(shared * count, -1) @ v[head, begin:end]).reshape(
            shared, count, dim
        )
    return out


class Model:
    """RMS norm, grouped-query attention, RoPE, a gated MLP. Gemma 3 adds: norms of q and k and of
    what attention and MLP return, layers with a sliding window and a RoPE base of their own, a
    scaled embedding, GELU for SiLU. Qwen 2 adds: biases of q, k and v."""

    def __init__(self, weights: Weights) -> None:
        family = weights.field("general.architecture")
        if family not in ("llama", "gemma3", "qwen2"):
            raise ValueError(f"{weights.path}: the architecture {family} is not handled")
        self._is_gemma = family == "gemma3"
        self._weights = weights.tensors
        self.weights_path = weights.path
        self.width = weights.field(f"{family}.embedding_length")
        self._epsilon = np.float32(
            weights.field(f"{family}.attention.layer_norm_rms_epsilon", 1e-5)
        )
        self.geometry = _geometry_of(weights, family)
        self._embedding = self._weights["token_embd.weight"]
        self._head = self._weights.get("output.weight", self._embedding)

    def forward(self, tokens: np.ndarray, cache: KvCache, tap: Tap | None = None) -> np.ndarray:
        """Runs a chunk after `cache.tokens` tokens, appends its K and V; its hidden states."""
        first, count = cache.tokens, len(tokens)
        x = self._embedding[tokens]
        if self._is_gemma:
            x = x * np.float32(self.width**0.5)
        for layer in range(self.geometry.layers):
            h = self._normalize(x, layer, "attn_norm")
            attended = self._attention(h, layer, cache, tap)
            x = x + self._normalize(attended, layer, "post_attention_norm", optional=True)
            h = self._normalize(x, layer, "ffn_norm")
            gated = self._activate(h @ self._of(layer, "ffn_gate").T)
            out = (gated * (h @ self._of(layer, "ffn_up").T)) @ self._of(layer, "ffn_down").T
            x = x + self._normalize(out, layer, "post_ffw_norm", optional=True)
        cache.tokens = first + count
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Next-token logits of some rows: the head is the largest matrix, so ask for few."""
        gain = self._weights["output_norm.weight"]
        return _rms_norm(hidden, gain, self._epsilon) @ self._head.T

    def _of(self, layer: int, name: str) -> np.ndarray:
        return self._weights[f"blk.{layer}.{name}.weight"]

    def _normalize(
        self, x: np.ndarray, layer: int, name: str, optional: bool = False
    ) -> np.ndarray:
        gain = self._weights.get(f"blk.{layer}.{name}.weight")
        if gain is None and optional:
            return x
        return _rms_norm(x, gain, self._epsilon)

    def _project(self, h: np.ndarray, layer: int, name: str) -> np.ndarray:
        """[heads, tokens, dim]."""
        out = h @ self._of(layer, name).T
        bias = self._weights.get(f"blk.{layer}.{name}.bias")
        return _split(out if bias is None else out + bias, self.geometry.dim)

    def _activate(self, x: np.ndarray) -> np.ndarray:
        if self._is_gemma:
            inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
            return np.float32(0.5) * x * (1 + np.tanh(inner))
        return x / (1 + np.exp(-x))

    def _attention(
        self, h: np.ndarray, layer: int, cache: KvCache, tap: Tap | None
    ) -> np.ndarray:
        geometry, kind = self.geometry, self.geometry.kinds[layer]
        first, end = cache.tokens, cache.tokens + len(h)
        turn = rotation(kind.rope_base, geometry.dim, first, len(h))
        q, k, v = (self._project(h, layer, f"attn_{x}") for x in "qkv")
        q = self._normalize(q, layer, "attn_q_norm", optional=True)
        k = self._normalize(k, layer, "attn_k_norm", optional=True)
        q = rotate(q, *turn, geometry.rope_pairs)
        cache.k[layer, :, first:end] = round_to_bf16(rotate(k, *turn, geometry.rope_pairs))
        cache.v[layer, :, first:end] = round_to_bf16(v)
        if tap is not None:
            tap(layer, q)
        kept = None if cache.kept is None else cache.kept[layer, :, :end]
        k, v = cache.k[layer, :, :end], cache.v[layer, :, :end]
        out = attend(q, k, v, first, kind.window_tokens, kept)
        return out.transpose(1, 0, 2).reshape(len(h), -1) @ self._of(layer, "attn_output").T


def _geometry_of(weights: Weights, family: str) -> Geometry:
    heads = weights.field(f"{family}.attention.head_count")
    width = weights.field(f"{family}.embedding_length")
    dim = weights.field(f"{family}.rope.dimension_count", width // heads)
    dim = weights.field(f"{family}.attention.key_length", dim)
    everywhere = LayerKind(float(weights.field(f"{family}.rope.freq_base", 10000.0)))
    kinds = [everywhere] * weights.field(f"{family}.block_count")
    if family == "gemma3":  # five layers with a window, one without, and so on
        nearby = LayerKind(10000.0, weights.field("gemma3.attention.sliding_window"))
        kinds = [kind if layer % 6 == 5 else nearby for layer, kind in enumerate(kinds)]
    return Geometry(
        heads=heads,
        kv_heads=weights.field(f"{family}.attention.head_count_kv", heads),
        dim=dim,
        rope_pairs="interleaved" if family == "llama" else "half",
        kinds=tuple(kinds),
    )


def _rms_norm(x: np.ndarray, gain: np.ndarray, epsilon: np.float32) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def _split(x: np.ndarray, dim: int) -> np.ndarray:
    """[tokens, heads * dim] to [heads, tokens, dim]."""
    return x.reshape(len(x), -1, dim).transpose(1, 0, 2)
