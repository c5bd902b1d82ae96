# SPDX-License-Identifier: Apache-2.0
"""Which recipe `cairn.evaluate` recommends: the smallest that keeps a limit of one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from .measure import MARGINS, Evaluation
from .recipes import UNSAFE

# What a loss may be of, and the most that is taken for good where no one says.
LOSSES = {
    "kl": 0.01,
    "attention_error": 0.05,
    "kv_error": 0.1,
    "k_error": 0.1,
    "v_error": 0.1,
    "perplexity_ratio": 1.01,
}


@dataclass(frozen=True)
class Loss:
    """The figure that counts, and the most of it: of a judge's figures with two standard errors, of
    errors in every layer."""

    figure: str
    most: float

    def of(self, one: Evaluation) -> float | None:
        """What is held against `most`."""
        return one.bound(self.figure)

    def __str__(self) -> str:
        how = "with two standard errors" if self.figure in MARGINS else "in every layer"
        return f"{self.figure} at most {self.most:g} {how}"


def recommend(found: Sequence[Evaluation], loss: Loss) -> Evaluation | None:
    """The one of fewest bits that keeps the loss and is not UNSAFE, or None."""
    known = [one for one in found if one.recipe not in UNSAFE and loss.of(one) is not None]
    good = [one for one in known if loss.of(one) <= loss.most]
    return min(good, key=lambda one: (one.bits, loss.of(one)), default=None)


def parse_loss(given: str | None, has_judge: bool, has_queries: bool) -> Loss:
    """FIGURE=MOST, or MOST alone of the first figure that can be had."""
    can_be_had = {"kl": has_judge, "perplexity_ratio": has_judge, "attention_error": has_queries}
    first = next(figure for figure in LOSSES if can_be_had.get(figure, True))
    figure, equals, most = (given or "").rpartition("=")
    figure = figure if equals else first
    if figure not in LOSSES:
        raise InvalidArgumentError(f"loss {given}: expected one of {', '.join(LOSSES)}, as in kl=1")
    if not can_be_had.get(figure, True):
        needed = "queries (q) in the dump" if figure == "attention_error" else "a judge (--judge)"
        raise InvalidArgumentError(f"loss {given}: {figure} needs {needed}")
    try:
        return Loss(figure, float(most) if given else LOSSES[figure])
    except ValueError:
        raise InvalidArgumentError(f"loss {given}: {most!r} is no number") from None
