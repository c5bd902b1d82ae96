# SPDX-License-Identifier: Apache-2.0
"""Writes a model's KV as files that cairn.evaluate reads."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import numpy as np

from .model import KvCache, Model, chunks_of

PREFILL_TOKENS = 512  # at once
QUERIES = 64


def write_kv_dump(
    model: Model,
    tokens: np.ndarray,
    folder: pathlib.Path,
    queries: int = QUERIES,
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Reads `tokens` and writes FOLDER/kv.safetensors: k and v [layers, kv heads, tokens, dim] as
    bf16, K after RoPE; q.0, q.1, …, the queries of the last tokens [heads, queries, dim], float32;
    window [layers], the tokens that a query sees, 0 for all; and FOLDER/model.json, which says how
    K turns with position."""
    geometry = model.geometry
    cache = KvCache(geometry, len(tokens))
    found: dict[int, np.ndarray] = {}
    before = len(tokens) - queries
    for first, last in chunks_of(0, before, PREFILL_TOKENS):
        model.forward(tokens[first:last], cache)
        progress(last / len(tokens))
    model.forward(tokens[before:], cache, found.__setitem__)
    k, v = cache.bits(0, len(tokens))
    windows = np.array([kind.window_tokens for kind in geometry.kinds], np.int32)
    tensors = {"k": ("BF16", k), "v": ("BF16", v), "window": ("I32", windows)}
    tensors |= {f"q.{layer}": ("F32", q) for layer, q in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(folder / "kv.safetensors", tensors)
    groups = [
        {
            "layers": layers,
            "rope": {
                "kind": geometry.rope_pairs,
                "rotary_dims": geometry.dim,
                "base": kind.rope_base,
            },
        }
        for kind, layers in geometry.layers_by_kind().items()
    ]
    (folder / "model.json").write_text(json.dumps({"groups": groups}) + "\n")
    progress(1.0)


def _write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """tensors: {name: (dtype as safetensors calls it, elements)}."""
    header, first = {}, 0
    for name, (dtype, array) in tensors.items():
        last = first + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [first, last]}
        first = last
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
