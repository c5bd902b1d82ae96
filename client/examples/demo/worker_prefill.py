# SPDX-License-Identifier: Apache-2.0
"""The prefill worker: computes the prompt's KV and puts each block as soon as it is full."""

from __future__ import annotations

import time

import cairn
import numpy as np
from cairn.profile import GroupSamples, Rotation, build
from lm.model import KvCache, Model, chunks_of, from_bits
from lm.tokenizer import Tokenizer, make_tokenizer
from lm.weights import revision_of

from common import (
    PROFILED,
    RECIPES,
    Plan,
    Terminal,
    load_weights,
    open_spaces,
    parse_worker_arguments,
    write_result,
)
from text import encode


def put_block(
    spaces: dict[str, cairn.Space],
    keys: dict[str, list[bytes]],
    index: int,
    first: int,
    kv: tuple,
    seconds: dict[str, float],
) -> None:
    """One block into every recipe's space; the daemon encodes."""
    for recipe, space in spaces.items():
        parent = keys[recipe][index - 1] if index else None
        begin = time.perf_counter()
        space.put(keys[recipe][index], *kv, parent=parent, first_position=first)
        seconds[recipe] += time.perf_counter() - begin


def make_profile(model: Model, tokens: np.ndarray, terminal: Terminal) -> bytes:
    """Of text that is no part of what is compared: its KV, and its queries for the steps of K."""
    geometry, begin = model.geometry, time.perf_counter()
    cache = KvCache(geometry, len(tokens))
    squares = np.zeros((geometry.layers, geometry.kv_heads, geometry.dim))

    def tap(layer: int, q: np.ndarray) -> None:
        by_kv_head = q.reshape(geometry.kv_heads, -1, geometry.dim)
        squares[layer] += np.square(by_kv_head).mean(1, dtype=np.float64)

    for first, last in chunks_of(0, len(tokens)):
        model.forward(tokens[first:last], cache, tap)
    k, v = (from_bits(plane) for plane in cache.bits(0, len(tokens)))
    base = geometry.kinds[0].rope_base
    frequencies = base ** (-np.arange(0, geometry.dim, 2) / geometry.dim)
    rotation = Rotation.of(geometry.rope_pairs, frequencies)
    samples = GroupSamples([(k, v)], rotation, squares.astype(np.float32))
    (profile,) = build([samples], [float(PROFILED.partition(":")[2])])
    terminal.say(
        f"a profile of {len(tokens)} other tokens for {PROFILED}: {len(profile):,} bytes,"
        f" made in {time.perf_counter() - begin:.1f} s"
    )
    return profile


def prefill(
    model: Model,
    tokenizer: Tokenizer,
    plan: Plan,
    spaces: dict[str, cairn.Space],
    terminal: Terminal,
) -> dict[str, object]:
    whole = encode(tokenizer, plan.all_tokens)
    tokens, calibration = whole[: plan.text_tokens], whole[plan.text_tokens :]
    spaces[PROFILED].install_profile(0, make_profile(model, calibration, terminal))
    prompt = tokenizer.decode(tokens[: plan.prompt_tokens])
    terminal.say(f"the prompt: {plan.prompt_tokens:,} tokens, {len(prompt):,} characters:")
    terminal.say(f"  {' '.join(prompt.split())[:160]}…")
    keys = {r: space.keys(tokens[: plan.cached_tokens]) for r, space in spaces.items()}
    cache = KvCache(model.geometry, plan.capacity)
    compute_seconds, source_bytes = 0.0, 0
    put_seconds = dict.fromkeys(RECIPES, 0.0)
    for index, (first, last) in enumerate(chunks_of(0, plan.cached_tokens)):
        begin = time.perf_counter()
        model.forward(tokens[first:last], cache)
        compute_seconds += time.perf_counter() - begin
        kv = cache.bits(first, last)
        source_bytes += sum(plane.nbytes for plane in kv)
        put_block(spaces, keys, index, first, kv, put_seconds)
        terminal.bar("prefill and put", (index + 1) / plan.block_count)
    terminal.say(
        f"{plan.block_count} blocks of {cache.tokens // plan.block_count} tokens stored"
        f" under each of {len(RECIPES)} recipes: {source_bytes / 1e6:.1f} MB of bf16 KV each,"
        f" computed in {compute_seconds:.1f} s, put in {sum(put_seconds.values()):.1f} s"
    )
    return {
        "source_bytes": source_bytes,
        "compute_seconds": compute_seconds,
        "put_seconds": put_seconds,
    }


def main() -> None:
    arguments = parse_worker_arguments()
    terminal = Terminal("prefill")
    weights = load_weights(terminal)
    model = Model(weights)
    with cairn.connect(
        arguments.control, data=arguments.data, tenant="demo", client_name="prefill worker"
    ) as client:
        spaces = open_spaces(client, model.geometry, revision_of(weights.path))
        tokenizer = make_tokenizer(weights)
        result = prefill(model, tokenizer, arguments.plan, spaces, terminal)
        write_result(arguments.result, result)


if __name__ == "__main__":
    main()
