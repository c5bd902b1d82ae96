# SPDX-License-Identifier: Apache-2.0
"""The table of figures, which the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .measure import Evaluation


@dataclass(frozen=True)
class Column:
    """figure: returns the value of an Evaluation, or None if it is unknown."""

    head: str
    figure: str
    text: Callable[[Evaluation], str]
    is_on_terminal: bool = True

    def cell(self, one: Evaluation) -> str:
        return "–" if getattr(one, self.figure) is None else self.text(one)


_COLUMNS = (
    Column("recipe", "name", lambda one: one.name),
    Column("bits", "bits", lambda one: f"{one.bits:.3f}"),
    Column("ratio", "ratio", lambda one: f"{one.ratio:.2f}"),
    Column("K error (worst layer)", "k_error", lambda one: _error(one, "k_error")),
    Column("V error (worst layer)", "v_error", lambda one: _error(one, "v_error")),
    Column("attention (worst layer)", "attention_error", lambda one: _error(one, "attention_error")),
    Column("KL, nats", "kl", lambda one: f"{one.kl:.5f} ± {one.kl_error:.5f}"),
    Column("trimmed", "kl_trimmed", lambda one: f"{one.kl_trimmed:.5f}", is_on_terminal=False),
    Column("ppl ×", "perplexity_ratio", lambda one: f"{one.perplexity_ratio:.4f}"),
    Column("top-1", "same_top", lambda one: f"{one.same_top:.1%}", is_on_terminal=False),
    Column("encode GB/s", "encode_rate", lambda one: format_rate(one.encode_rate)),
    Column("decode GB/s", "decode_rate", lambda one: format_rate(one.decode_rate)),
)


def columns(found: Sequence[Evaluation]) -> list[Column]:
    """Returns the columns in which a row has a value."""
    return [
        column
        for column in _COLUMNS
        if any(getattr(one, column.figure) is not None for one in found)
    ]


def _error(one: Evaluation, figure: str) -> str:
    """Formats the error of all layers, with the worst layer and its error in brackets."""
    whole, worst = getattr(one, figure), one.worst(figure)
    if not whole or worst is None:
        return f"{whole:.4f}"
    return f"{whole:.4f} ({worst[1]}: {worst[0]:.4f})"


def format_rate(rate: float) -> str:
    """Formats GB/s, with enough digits that a rate is not rounded to 0."""
    return f"{rate / 1e9:.2f}" if rate >= 1e8 else f"{rate / 1e9:.4f}"
