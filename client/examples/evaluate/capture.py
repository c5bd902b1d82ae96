# SPDX-License-Identifier: Apache-2.0
"""A worker with a tap: what it puts into cairnd becomes dumps that cairn.evaluate reads.

    build/release/bin/cairnd &
    python client/examples/evaluate/capture.py /tmp/capture [--model smollm2] [--text FILE]
    cairnctl evaluate /tmp/capture/0 --calibration /tmp/capture/1 --out /tmp/report

The worker puts two sequences, as any does. The three lines that are about the tap are marked.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from dump import EXAMPLES, load_weights  # this folder's; it names the folder of the package lm

sys.path.append(str(EXAMPLES.parent / "python"))

import cairn
import numpy as np
from lm import weights as lm_weights
from lm.model import CHUNK_TOKENS, Geometry, KvCache, Model
from lm.tokenizer import make_tokenizer
from lm.weights import revision_of

SEQUENCES = 2


def groups_of(geometry: Geometry) -> list[cairn.Group]:
    """One group for each kind of layer."""
    return [
        cairn.KvGroup(
            layers,
            geometry.kv_heads,
            geometry.dim,
            window_tokens=kind.window_tokens,
            rope=cairn.Rope(geometry.rope_pairs, geometry.dim, kind.rope_base),
        )
        for kind, layers in geometry.layers_by_kind().items()
    ]


def serve(model: Model, tokens: np.ndarray, space: cairn.Space, capture: cairn.Capture) -> None:
    """Computes the KV of a sequence, and puts each block when it is full."""
    cache, keys = KvCache(model.geometry, len(tokens)), space.keys(tokens.astype(np.uint32))
    for index, key in enumerate(keys):
        first, queries = index * CHUNK_TOKENS, {}
        model.forward(tokens[first : first + CHUNK_TOKENS], cache, queries.__setitem__)
        k, v = cache.bits(first, first + CHUNK_TOKENS)
        for group_index, group in enumerate(space.spec.groups):
            layers = list(group.layer_indices)
            space.put(
                key,
                k[layers],
                v[layers],
                parent=keys[index - 1] if index else None,
                first_position=first,
                part=cairn.Part(group=group_index),
            )
        capture.add_queries(key, queries)  # the tap: better profiles, and attention's error


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="for the dumps; new or empty")
    parser.add_argument("--control", help="of cairnd [$CAIRN_CONTROL, else 127.0.0.1:50151]")
    parser.add_argument("--data", help="unix:PATH or HOST:PORT (UCX) of its data plane (a socket that it names)")
    models = (lm_weights.SMOLLM2, lm_weights.GEMMA3)
    parser.add_argument("--model", choices=models, default=lm_weights.SMOLLM2)
    parser.add_argument("--text", type=pathlib.Path, default=EXAMPLES / "demo" / "text.txt")
    parser.add_argument("--tokens", type=int, default=1024, help="of a sequence (1024)")
    wanted = parser.parse_args()
    weights = load_weights(wanted.model)
    model, tokenizer = Model(weights), make_tokenizer(weights)
    ids = np.array(tokenizer.encode(wanted.text.read_text(encoding="utf-8")))
    with (
        cairn.connect(wanted.control, data=wanted.data) as client,
        client.open_space(
            wanted.model,
            revision_of(weights.path),
            groups_of(model.geometry),
            tokens_per_block=CHUNK_TOKENS,
        ) as space,
        cairn.Capture(space, wanted.folder, tokens_max=wanted.tokens) as capture,  # the tap
    ):
        for index in range(SEQUENCES):
            serve(model, ids[index * wanted.tokens :][: wanted.tokens], space, capture)
        folders = capture.close()  # the tap: writes what there is
    print(f"cairnctl evaluate {folders[0]} --calibration {folders[-1]} --out /tmp/report")
    return 0


if __name__ == "__main__":
    sys.exit(main())
