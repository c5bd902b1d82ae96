# SPDX-License-Identifier: Apache-2.0
"""Writes a model's KV of a text as cairn.evaluate reads it: for trying that, and for codecs to be.

    build/venv/bin/python tests/quality/dump.py smollm2 A /tmp/dump [--tokens 2048] [--queries 64]

FOLDER/kv.safetensors then has k and v [layers, kv heads, tokens, dim] as bf16, K after RoPE, and
q.0, q.1, …: the queries of the last tokens [heads, queries, dim], float32.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import run  # first: sets the paths and the number of BLAS threads

import numpy as np
import texts
from lm.model import KvCache, chunks_of
from protocol import PREFILL_TOKENS, Engine


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("smollm2", "gemma3"))
    parser.add_argument("text", choices=(*texts.SCORED, *texts.CALIBRATION))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--queries", type=int, default=64, help="of the last tokens (64)")
    parser.add_argument("--cache", type=pathlib.Path, default=run.CACHE)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.cache.resolve())
    tokens = engine.text_tokens(arguments.text, arguments.tokens)
    cache = KvCache(engine.model.geometry, len(tokens))
    queries: dict[int, np.ndarray] = {}
    before = len(tokens) - arguments.queries
    for first, last in chunks_of(0, before, PREFILL_TOKENS):
        engine.model.forward(tokens[first:last], cache)
    engine.model.forward(tokens[before:], cache, queries.__setitem__)
    k, v = cache.bits(0, len(tokens))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tensors = {"k": ("BF16", k), "v": ("BF16", v)}
    tensors |= {f"q.{layer}": ("F32", q) for layer, q in queries.items()}
    write_safetensors(arguments.folder / "kv.safetensors", tensors)


if __name__ == "__main__":
    main()
