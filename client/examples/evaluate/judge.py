# SPDX-License-Identifier: Apache-2.0
"""A judge for cairn.evaluate: the model of dump.py reads on behind coded KV.

    cairnctl evaluate DUMP --calibration OTHER --judge client/examples/evaluate/judge.py:make

A judge of another engine does the same three things: put kv.k and kv.v into its cache, read the
tokens that follow, return the logits and the tokens that did come next. make() is called for DUMP,
and for OTHER, behind which it says what layers lose.
"""

from __future__ import annotations

import functools
import json
import pathlib

import numpy as np
from dump import load_weights  # this folder's; it names the folder of the package lm
from lm.model import KvCache, Model, chunks_of

CHUNK_TOKENS = 128


@functools.cache
def load_model(name: str) -> Model:
    return Model(load_weights(name))


def make(folder: pathlib.Path):
    """judge(kv) for a dump of dump.py."""
    scored = json.loads((folder / "scored.json").read_text())
    model = load_model(scored["model"])
    inputs, targets = np.array(scored["tokens"][:-1]), np.array(scored["tokens"][1:])

    def judge(kv) -> tuple[np.ndarray, np.ndarray]:
        cache = KvCache(model.geometry, kv.token_count + len(inputs))
        layers = range(model.geometry.layers)
        cache.load(0, *(np.stack([plane[layer] for layer in layers]) for plane in (kv.k, kv.v)))
        chunks = chunks_of(0, len(inputs), CHUNK_TOKENS)
        hidden = [model.forward(inputs[first:last], cache) for first, last in chunks]
        return model.logits(np.concatenate(hidden)), targets

    return judge
