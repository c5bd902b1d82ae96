# SPDX-License-Identifier: Apache-2.0
"""The experiment: a prefix whose KV was coded, and what the model makes of it.

The model computes the KV of a prefix exactly (bf16). A codec replaces it. Then the model reads on:
either the text's own next tokens (or, in the copy test, a passage of the prefix again), or what it
writes itself. The KV of what it reads on is exact in all runs, so a difference is the prefix's.
"""

from __future__ import annotations

import hashlib
import pathlib
from dataclasses import dataclass

import metrics
import models
import numpy as np
import texts
from coder import Coded
from lm import weights as lm_weights
from lm.model import KvCache, Model, chunks_of, from_bits
from lm.tokenizer import Tokenizer, make_tokenizer

PREFILL_TOKENS = 512  # at once
CHARACTERS_PER_TOKEN_MAX = 8


@dataclass(frozen=True)
class Case:
    """copy_first: the scored tokens repeat the prefix from this token on; −1: they are the text's
    next ones."""

    model: str
    text: str
    prefix_tokens: int = 2048
    scored_tokens: int = 256
    copy_first: int = -1

    def __post_init__(self) -> None:
        copied = self.copy_first + self.scored_tokens + 1
        if self.copy_first >= 0 and copied > self.prefix_tokens:
            raise ValueError(f"{copied} tokens cannot be copied from {self.prefix_tokens}")


def copy_test_tokens(prefix: np.ndarray, first: int, count: int) -> np.ndarray:
    """The prefix, then `count` tokens of it again from token `first` on."""
    return np.concatenate([prefix, prefix[first : first + count]])


class Engine:
    """One model with its tokenizer; keeps dequantised weights and texts in `cache`."""

    def __init__(self, name: str, cache: pathlib.Path) -> None:
        self.name = name
        self._cache = cache
        weights = lm_weights.Weights(models.weights_of(name, cache), cache)
        self.revision = lm_weights.revision_of(weights.path)
        self.model = Model(weights)
        self.tokenizer: Tokenizer = make_tokenizer(weights)

    def text_tokens(self, text: str, count: int) -> np.ndarray:
        read = texts.read(text, self._cache)[: count * CHARACTERS_PER_TOKEN_MAX]
        ids = self.tokenizer.encode(read)
        if len(ids) < count:
            raise ValueError(f"text {text} has {len(ids)} tokens, {count} were asked for")
        return np.array(ids[:count])

    def tokens(self, case: Case) -> np.ndarray:
        """Prefix, scored tokens, and the one after them."""
        if case.copy_first < 0:
            return self.text_tokens(case.text, case.prefix_tokens + case.scored_tokens + 1)
        prefix = self.text_tokens(case.text, case.prefix_tokens)
        return copy_test_tokens(prefix, case.copy_first, case.scored_tokens + 1)

    def text_digest(self, text: str, count: int) -> str:
        """Of the first `count` tokens of a text: what caches and rows are of, whatever its name."""
        tokens = np.ascontiguousarray(self.text_tokens(text, count), np.int64)
        return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]

    def prefix_bits(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """The exact KV of the prefix, computed once and kept."""
        digest = self.text_digest(case.text, case.prefix_tokens)
        name = f"{self.name}-{self.revision[:8]}-{case.text}-{digest}-{case.prefix_tokens}.npz"
        kept = self._cache / name
        if kept.exists():
            with np.load(kept) as arrays:
                return arrays["k"], arrays["v"]
        tokens = self.text_tokens(case.text, case.prefix_tokens)
        cache = KvCache(self.model.geometry, len(tokens))
        for first, last in chunks_of(0, len(tokens), PREFILL_TOKENS):
            self.model.forward(tokens[first:last], cache)
        k, v = cache.bits(0, len(tokens))
        np.savez(kept.with_suffix(".partial.npz"), k=k, v=v)
        kept.with_suffix(".partial.npz").rename(kept)
        return k, v

    def last_queries(
        self, case: Case, k_bits: np.ndarray, v_bits: np.ndarray, count: int
    ) -> list[np.ndarray]:
        """Of the prefix's last tokens, by layer [heads, count, dim], as they meet its KV."""
        cache = KvCache(self.model.geometry, case.prefix_tokens)
        cache.load(0, k_bits[:, :, :-count], v_bits[:, :, :-count])
        found: dict[int, np.ndarray] = {}
        tokens = self.text_tokens(case.text, case.prefix_tokens)
        self.model.forward(tokens[-count:], cache, found.__setitem__)
        return [found[layer] for layer in range(self.model.geometry.layers)]

    def read_on(
        self,
        k_bits: np.ndarray,
        v_bits: np.ndarray,
        tokens: np.ndarray,
        kept: np.ndarray | None = None,
    ) -> np.ndarray:
        """Log probabilities after each of `tokens`, read behind a prefix with this KV, of which
        attention sees `kept` [layers, kv_heads, prefix tokens], or all."""
        cache = self._cache_with(k_bits, v_bits, len(tokens))
        if kept is not None:
            cache.kept = np.pad(kept, ((0, 0), (0, 0), (0, len(tokens))), constant_values=True)
        return metrics.log_softmax(self.model.logits(self.model.forward(tokens, cache)))

    def write_on(
        self, k_bits: np.ndarray, v_bits: np.ndarray, token: int, count: int
    ) -> np.ndarray:
        """`token`, then the likeliest one, again and again: count + 1 tokens."""
        cache = self._cache_with(k_bits, v_bits, count)
        written = [token]
        while len(written) <= count:
            hidden = self.model.forward(np.array(written[-1:]), cache)
            written.append(int(self.model.logits(hidden)[0].argmax()))
        return np.array(written)

    def _cache_with(self, k_bits: np.ndarray, v_bits: np.ndarray, more: int) -> KvCache:
        cache = KvCache(self.model.geometry, k_bits.shape[2] + more)
        cache.load(0, k_bits, v_bits)
        return cache


class Experiment:
    """One case: its exact run, against which any number of coded ones are held."""

    def __init__(self, engine: Engine, case: Case) -> None:
        self.engine = engine
        self.case = case
        tokens = engine.tokens(case)
        self._inputs = tokens[case.prefix_tokens : -1]
        self._targets = tokens[case.prefix_tokens + 1 :]
        self.k_bits, self.v_bits = engine.prefix_bits(case)
        self._exact: np.ndarray | None = None
        self._written: np.ndarray | None = None

    def forced(self, coded: Coded) -> dict[str, float]:
        """Scores over tokens that are given."""
        if self._exact is None:
            self._exact = self.engine.read_on(self.k_bits, self.v_bits, self._inputs)
        found = self._exact
        if not self._is_same(coded):
            found = self.engine.read_on(coded.k_bits, coded.v_bits, self._inputs, coded.kept)
        return vars(metrics.score(self._exact, found, self._targets)) | self._errors(coded)

    def written(self, coded: Coded) -> dict[str, float | str]:
        """Scores of what the model writes by itself, `scored_tokens` of it.

        same_tokens: how many agree with the exact run's before the first that does not. regret: by
        how many nats, on average, the exact model in the same context prefers its own choice.
        """
        first, count = int(self._inputs[0]), self.case.scored_tokens
        engine = self.engine
        if self._written is None:
            self._written = engine.write_on(self.k_bits, self.v_bits, first, count)
        written = self._written
        if not self._is_same(coded):
            written = engine.write_on(coded.k_bits, coded.v_bits, first, count)
        differs = np.flatnonzero(written != self._written)
        judged = engine.read_on(self.k_bits, self.v_bits, written[:-1])
        regret = judged.max(-1) - judged[np.arange(count), written[1:]]
        return {
            "same_tokens": int(differs[0]) - 1 if len(differs) else count,
            "regret": float(regret.mean()),
            "regret_error": metrics.standard_error(regret),
            "wrote": engine.tokenizer.decode(written[1:].tolist())[:200],
        }

    def _is_same(self, coded: Coded) -> bool:
        """Then the model, which is deterministic, has nothing else to say."""
        same = coded.kept is None and np.array_equal(self.k_bits, coded.k_bits)
        return same and np.array_equal(self.v_bits, coded.v_bits)

    def _errors(self, coded: Coded) -> dict[str, float]:
        return {
            "k_error": metrics.relative_error(from_bits(self.k_bits), from_bits(coded.k_bits)),
            "v_error": metrics.relative_error(from_bits(self.v_bits), from_bits(coded.v_bits)),
        }
