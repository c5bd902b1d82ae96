# SPDX-License-Identifier: Apache-2.0
"""The decode worker: fetches the prompt's KV from the store and goes on writing.

Every recipe, and no cache at all, goes through the same steps with the same chunk shapes: what
differs afterwards differs because of the KV alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import cairn
import numpy as np
from lm.model import KvCache, Model, chunks_of
from lm.tokenizer import Tokenizer, make_tokenizer
from lm.weights import revision_of

from common import (
    HAND_OFF_SECONDS_MAX,
    LOSSLESS,
    RECIPES,
    WAIT_SECONDS,
    Plan,
    Terminal,
    load_weights,
    open_spaces,
    parse_worker_arguments,
    write_result,
)
from text import encode


@dataclass
class Run:
    """One way to the next tokens; logits [forced_tokens, vocabulary] where text is forced."""

    first_token_seconds: float
    prefix_seconds: float  # of first_token_seconds: to fetch the prefix, or to compute it
    logits: np.ndarray
    written: str
    image_bytes: int = 0
    tiers: tuple[str, ...] = ()  # that the prefix came from


class DecodeWorker:
    def __init__(
        self,
        model: Model,
        plan: Plan,
        tokens: np.ndarray,
        tokenizer: Tokenizer,
        terminal: Terminal,
    ) -> None:
        self._terminal = terminal
        self._model = model
        self._plan = plan
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._cache = KvCache(model.geometry, plan.capacity)  # one for all runs: same addresses

    def recompute(self) -> Run:
        """No cache: the whole prompt is computed here."""
        begin = time.perf_counter()
        self._cache.tokens = 0
        for first, last in chunks_of(0, self._plan.cached_tokens):
            self._model.forward(self._tokens[first:last], self._cache)
            self._terminal.bar("computing the prompt", last / self._plan.cached_tokens)
        return self._continue_from(begin, time.perf_counter())

    def hit(self, space: cairn.Space) -> Run:
        """The full blocks come from the store; the tokens past the last one are computed."""
        begin = time.perf_counter()
        keys = space.keys(self._tokens[: self._plan.cached_tokens])
        shape = self._cache.k[:, :, : self._plan.cached_tokens].shape
        k, v = np.empty(shape, np.uint16), np.empty(shape, np.uint16)
        with space.match(keys) as match:
            delivered = match.get(k, v)
            if delivered != self._plan.cached_tokens:
                raise SystemExit(f"a miss: {delivered} tokens of {shape[2]} were delivered")
            self._cache.load(0, k, v)
            image_bytes = sum(block.image_bytes for block in match.blocks)
            tiers = tuple(sorted({block.tier for block in match.blocks}))
        run = self._continue_from(begin, time.perf_counter())
        run.image_bytes, run.tiers = image_bytes, tiers
        return run

    def _continue_from(self, begin: float, prefix_end: float) -> Run:
        plan, model, cache = self._plan, self._model, self._cache
        for first, last in chunks_of(plan.cached_tokens, plan.prompt_tokens):
            hidden = model.forward(self._tokens[first:last], cache)
        first_logits = model.logits(hidden[-1:])
        end = time.perf_counter()
        rows = [first_logits]
        for first, last in chunks_of(plan.prompt_tokens, plan.text_tokens):
            rows.append(model.logits(model.forward(self._tokens[first:last], cache)))
            share = (last - plan.prompt_tokens) / plan.forced_tokens
            self._terminal.bar("reading on, for comparison", share)
        return Run(
            first_token_seconds=end - begin,
            prefix_seconds=prefix_end - begin,
            logits=np.concatenate(rows)[: plan.forced_tokens],
            written=self._write(first_logits),
        )

    def _write(self, first_logits: np.ndarray) -> str:
        """The likeliest token, again and again, from the end of the prompt."""
        self._cache.tokens = self._plan.prompt_tokens
        written = [int(first_logits[0].argmax())]
        while len(written) < self._plan.written_tokens:
            hidden = self._model.forward(np.array(written[-1:]), self._cache)
            written.append(int(self._model.logits(hidden)[0].argmax()))
        return self._tokenizer.decode(written)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(exact: Run, run: Run) -> dict[str, object]:
    """KL(exact || run) in nats over the forced tokens, and the other columns of the table."""
    p, q = log_probabilities(exact.logits), log_probabilities(run.logits)
    divergence = (np.exp(p) * (p - q)).sum(-1)
    return {
        "first_token_seconds": run.first_token_seconds,
        "prefix_seconds": run.prefix_seconds,
        "image_bytes": run.image_bytes,
        "tiers": run.tiers,
        "written": run.written,
        "divergence": float(divergence.mean()),
        "divergence_error": float(divergence.std(ddof=1) / len(divergence) ** 0.5),
        "same_top": float((exact.logits.argmax(-1) == run.logits.argmax(-1)).mean()),
        "bit_identical": bool(
            np.array_equal(exact.logits.view(np.uint32), run.logits.view(np.uint32))
        ),
    }


def wait_for_prefill(
    spaces: dict[str, cairn.Space], tokens: np.ndarray, terminal: Terminal
) -> float:
    """Asks for blocks that may not be there yet. The prefill worker's last put answers."""
    terminal.say(f"asking for {len(tokens)} tokens of prefix, and waiting for them")
    begin = time.perf_counter()
    for recipe, space in spaces.items():
        keys, found = space.keys(tokens), 0
        while found < len(tokens):
            with space.match(keys, wait=WAIT_SECONDS) as match:
                found = match.token_count
            if time.perf_counter() - begin > HAND_OFF_SECONDS_MAX:
                raise SystemExit(f"{recipe}: {found} tokens of {len(tokens)} came in time")
            if found < len(tokens):
                terminal.say(f"{recipe}: {found} tokens are there")
    waited = time.perf_counter() - begin
    terminal.say(f"all blocks of all recipes are there, after {waited:.1f} s of waiting")
    return waited


def main() -> None:
    arguments = parse_worker_arguments()
    plan, terminal = arguments.plan, Terminal("decode")
    weights = load_weights(terminal)
    model, tokenizer = Model(weights), make_tokenizer(weights)
    tokens = encode(tokenizer, plan.text_tokens)
    worker = DecodeWorker(model, plan, tokens, tokenizer, terminal)
    result: dict[str, object] = {
        "prompt_tail": tokenizer.decode(tokens[: plan.prompt_tokens][-24:])
    }
    with cairn.connect(
        arguments.control, data=arguments.data, tenant="demo", client_name="decode worker"
    ) as client:
        spaces = open_spaces(client, model.geometry, revision_of(weights.path))
        recipes = LOSSLESS if arguments.restarted else RECIPES
        spaces = {recipe: spaces[recipe] for recipe in recipes}
        result["waited_seconds"] = wait_for_prefill(spaces, tokens[: plan.cached_tokens], terminal)
        exact = worker.recompute()
        terminal.say(f"no cache: first token after {exact.first_token_seconds:.2f} s")
        runs = {"no cache": compare(exact, exact)}
        for recipe in recipes:
            terminal.say(f"{recipe}: fetching the prefix, going on from there")
            run = worker.hit(spaces[recipe])
            runs[recipe] = compare(exact, run)
            terminal.say(
                f"{recipe}: first token after {run.first_token_seconds:.2f} s, of them"
                f" {run.prefix_seconds * 1e3:.0f} ms to match, fetch and decode the prefix"
            )
    result["runs"] = runs
    write_result(arguments.result, result)


if __name__ == "__main__":
    main()
