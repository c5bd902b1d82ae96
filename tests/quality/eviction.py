# SPDX-License-Identifier: Apache-2.0
"""What it costs to attend to some tokens: readers of `arkv` within a budget, and `arkv:paper`.

Tokens are scored by the prefix's last 32 queries, which come before what is scored; those 32 rank
first, behind token 0.

half kept     of `arkv`: every head keeps half of its tokens, all in 4 bits but token 0. Bits are of
              the images without the scores, which a reader is done with, and without the codes and
              the parameters of V of what it drops; parameters of K it needs as before
quarter kept  of `arkv:paper`: every head keeps a quarter, of which three tenths at full precision
"""

from __future__ import annotations

import functools

import numpy as np
from cairn import arkv
from cairn.evaluate.code import Inputs
from cairn.evaluate.recipes import Candidate
from coder import Codec, Coded
from lm.model import from_bits
from protocol import Experiment

WINDOW = 32
LARGEST = 65504.0  # of finite scores
HALF, QUARTER = Candidate("arkv", "half kept"), Candidate("arkv:paper", "quarter kept")
READERS = (HALF, QUARTER)
ONLY_PLANNED = (QUARTER.recipe,)
ORIGINALS = 0.3  # of the quarter


def code(one: Candidate, experiment: Experiment) -> Coded:
    engine, case = experiment.engine, experiment.case
    geometry, tokens = engine.model.geometry, case.prefix_tokens
    dim = geometry.dim
    scores = scores_of(experiment)
    if one == HALF:
        inputs = Inputs(token_scores=scores)
        costs = {"budget": tokens // 2, "original_bytes": 1, "low_bytes": 1}
    else:
        original, low = 4 * dim + 4, 2 * dim + 4  # K and V, with a position or a scale each
        parts = ORIGINALS * original, (1 - ORIGINALS) * low
        costs = {"original_bytes": original, "low_bytes": low}
        costs |= {"budget": int(tokens / 4 * sum(parts)), "original_share": parts[0] / sum(parts)}
    states = {layer: arkv.plan(found, **costs) for layer, found in scores.items()}
    if one == QUARTER:
        inputs = Inputs(token_states=states)
    kv = experiment.k_bits, experiment.v_bits
    coded = Codec().code(geometry, engine.revision, one.recipe, *kv, inputs=inputs)
    kept = np.stack([states[layer] != arkv.EVICTED for layer in range(geometry.layers)])
    held = coded.image_bytes
    if one == HALF:
        row_bytes = (dim * 4 + 7) // 8
        held -= int((~kept).sum()) * (2 * row_bytes + 4 * -(-dim // 64)) + 2 * kept.size
    return Coded(coded.k_bits, coded.v_bits, held, coded.element_count, kept)


@functools.lru_cache(maxsize=1)  # both readers want those of one experiment
def scores_of(experiment: Experiment) -> dict[int, np.ndarray]:
    """By layer, [kv_heads, tokens]."""
    engine, case = experiment.engine, experiment.case
    queries = engine.last_queries(case, experiment.k_bits, experiment.v_bits, WINDOW)
    found = {}
    for layer, kind in enumerate(engine.model.geometry.kinds):
        k = from_bits(experiment.k_bits[layer])
        seen = min(k.shape[1], kind.window_tokens + WINDOW if kind.window_tokens else k.shape[1])
        scores, _ = arkv.score_tokens(q=queries[layer], k=k[:, -seen:])
        found[layer] = np.zeros(k.shape[:2], np.float32)
        found[layer][:, -seen:] = np.minimum(scores, np.float32(LARGEST))
        found[layer] = found[layer].astype(np.float16).astype(np.float32)  # as they are stored
        found[layer][:, 0] = np.inf
    return found
