# SPDX-License-Identifier: Apache-2.0
"""Makes profiles of a dump's model from tokens that are not scored. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bank import mine
from ..errors import FailedPreconditionError, InvalidArgumentError
from ..profile import SKIPPED_TOKENS, GroupSamples, build
from .code import TOKENS_PER_BLOCK, Inputs
from .dump import Dump, Kv, as_float
from .losses import Losses

KINDS = ("plain", "basis")
BANK = "bank"  # a bank of patterns: not a profile, but made from the same tokens
RATES = (2.3, 3.0, 4.3)
HELD_OUT_BLOCKS_MAX = 32
BASIS_TOKENS_PER_CHANNEL = 8  # with fewer, a basis fits the tokens and not the model


@dataclass(frozen=True)
class Calibration:
    """texts: KV from position 0 on; q: queries by layer. It includes the first `held_out_blocks` of
    the scored dump and the first `held_out_queries` of each of its layers, which are not scored."""

    texts: list[Kv]
    q: dict[int, list[np.ndarray]]
    held_out_blocks: int = 0
    held_out_queries: int = 0

    @property
    def token_count(self) -> int:
        return sum(text.token_count for text in self.texts)


def calibration_of(dump: Dump, others: Sequence[Dump]) -> Calibration:
    """Returns the calibration from dumps of other texts or, if there are none, from the first half
    of the dump."""
    if others:
        for other in others:
            _check_same_model(dump, other)
        q = {i: [other.q[i] for other in others if i in other.q] for i in dump.k}
        return Calibration(list(others), q)
    blocks = min(dump.token_count // TOKENS_PER_BLOCK // 2, HELD_OUT_BLOCKS_MAX)
    if not blocks:
        return Calibration([], {})
    queries = min((q.shape[1] for q in dump.q.values()), default=0) // 2
    q = {i: [q[:, :queries]] for i, q in dump.q.items() if queries}
    return Calibration([dump.first_tokens(blocks * TOKENS_PER_BLOCK)], q, blocks, queries)


def shared_tokens(dump: Dump, other: Dump) -> int:
    """Returns how many tokens the two have in common at their beginning, by the V of their first
    layer."""
    layer = min(dump.v)
    count = min(dump.token_count, other.token_count)
    one, two = dump.v[layer][:, :count], other.v[layer][:, :count]
    differs = np.flatnonzero((one != two).any((0, 2)))
    return int(differs[0]) if len(differs) else count


def require(dump: Dump, calibration: Calibration, kind: str) -> None:
    """Raises FailedPreconditionError, with the missing input, if a profile of that kind, or a bank,
    cannot be made."""
    if not calibration.texts:
        needed = f"{2 * TOKENS_PER_BLOCK} tokens in the dump, or another dump (--calibration)"
        raise FailedPreconditionError(f"a profile is made from {needed}")
    if kind == "basis":
        channels = max(k.shape[2] for k in dump.k.values())
        needed = BASIS_TOKENS_PER_CHANNEL * channels
        if calibration.token_count < needed:
            raise FailedPreconditionError(
                f"a basis of {channels} channels is made from {needed} tokens that are not scored,"
                f" there are {calibration.token_count} (--calibration)"
            )
    for text in calibration.texts:
        planes = [*text.k.values(), *text.v.values()]
        if not all(np.isfinite(as_float(plane)).all() for plane in planes):
            raise FailedPreconditionError("a profile is made from KV that is finite")


def make_profiles(
    dump: Dump,
    calibration: Calibration,
    rates: Sequence[float],
    kind: str,
    losses: Losses | None = None,
) -> list[bytes]:
    """Returns a profile, or a bank, for each of dump.groups(). `losses` are of all layers. Raises
    FailedPreconditionError as require() does."""
    require(dump, calibration, kind)
    groups = [_samples(dump, calibration, layers) for layers in dump.groups()]
    if losses is not None:
        for group, layers in zip(groups, dump.groups(), strict=True):
            group.k_loss = np.array([losses.k[i] for i in layers], np.float32)
            group.v_loss = np.array([losses.v[i] for i in layers], np.float32)
    if kind == BANK:
        return make_banks(groups)
    return build(groups, rates, has_basis=kind == "basis")


def make_banks(groups: Sequence[GroupSamples]) -> list[bytes]:
    """Returns a bank for each group, from all of its texts one after another, without their first
    tokens."""
    joined = ([_rest(texts) for texts in zip(*group.texts, strict=True)] for group in groups)
    return [mine(*planes) for planes in joined]


def _rest(texts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([text[:, :, SKIPPED_TOKENS:] for text in texts], 2)


def inputs_of(dump: Dump, calibration: Calibration) -> Inputs:
    """Returns the encoder inputs of the layers that have queries."""
    found = {}
    for layer, queries in calibration.q.items():
        if queries:
            found[layer] = np.mean([_by_head(dump, layer, np.abs(as_float(q))) for q in queries], 0)
    return Inputs(query_magnitudes=found)


def _by_head(dump: Dump, layer: int, values: np.ndarray) -> np.ndarray:
    """Returns the mean [heads, dim] of [query heads, n, dim] over the query heads that read each
    head of K."""
    heads, _, dim = dump.k[layer].shape
    return values.mean(1).reshape(heads, -1, dim).mean(1)


def _samples(dump: Dump, calibration: Calibration, layers: list[int]) -> GroupSamples:
    texts = [
        tuple(np.stack([as_float(plane[i]) for i in layers]) for plane in (text.k, text.v))
        for text in calibration.texts
    ]
    squares = q_squares_of(dump, calibration)
    known = np.stack([squares[i] for i in layers]) if squares.keys() >= set(layers) else None
    return GroupSamples(texts, dump.rotation_of(layers[0]), known)


def q_squares_of(dump: Dump, calibration: Calibration) -> dict[int, np.ndarray]:
    """Returns by layer the mean of q² [heads, dim] over the query heads of each head of K."""
    return {
        layer: np.mean([_by_head(dump, layer, np.square(as_float(q))) for q in queries], 0).astype(
            np.float32
        )
        for layer, queries in calibration.q.items()
        if queries
    }


def _check_same_model(dump: Dump, other: Dump) -> None:
    def shapes(one: Dump) -> dict[int, tuple]:
        return {i: (*one.k[i].shape[::2], one.v[i].shape[2]) for i in one.k}

    if shapes(dump) != shapes(other) or dump.dtype != other.dtype:
        raise InvalidArgumentError("the calibration's layers, heads or dtype are not the dump's")
