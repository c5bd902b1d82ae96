# SPDX-License-Identifier: Apache-2.0
"""Chooses the recipe that `cairn.evaluate` recommends: the smallest whose loss is within a
limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from .measure import MARGINS, Evaluation
from .recipes import UNSAFE

# The figures that a limit can be set on, with their default limits.
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
    """A figure and its limit. For a judge's figure the limit includes two standard errors; for an
    error it holds in every layer."""

    figure: str
    most: float

    def of(self, one: Evaluation) -> float | None:
        """Returns the value that is compared with `most`."""
        return one.bound(self.figure)

    def __str__(self) -> str:
        how = "with two standard errors" if self.figure in MARGINS else "in every layer"
        return f"{self.figure} at most {self.most:g} {how}"


def recommend(found: Sequence[Evaluation], loss: Loss) -> Evaluation | None:
    """Returns the recipe with the fewest bits that is within the limit and not in UNSAFE, or
    None."""
    known = [one for one in found if one.recipe not in UNSAFE and loss.of(one) is not None]
    good = [one for one in known if loss.of(one) <= loss.most]
    return min(good, key=lambda one: (one.bits, loss.of(one)), default=None)


def parse_loss(given: str | None, has_judge: bool, has_queries: bool) -> Loss:
    """Parses FIGURE=MOST, or only MOST for the first figure that is available."""
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
