# SPDX-License-Identifier: Apache-2.0
"""What `cairn.evaluate` shows on a terminal: a bar while it measures, a table when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ._measure import Evaluation

BAR_SECONDS = 0.1


class Bar:
    """One line on a terminal, drawn over; elsewhere a line for each recipe that is done."""

    def __init__(self, recipes: Sequence[str]) -> None:
        self._recipes = recipes
        self._begin = self._recipe_begin = time.monotonic()
        self._shown, self._what = 0.0, ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, recipe: str, share: float, what: str) -> None:
        now, index = time.monotonic(), self._recipes.index(recipe)
        if share >= 1:
            took, self._recipe_begin = now - self._recipe_begin, now
            self._say(f"{recipe:16} {index + 1} of {len(self._recipes)} {took:7.1f} s", "\n")
        elif self._is_terminal and (what != self._what or now - self._shown >= BAR_SECONDS):
            self._shown, self._what = now, what
            whole = (index + share) / len(self._recipes)
            left = (now - self._begin) * (1 - whole) / whole if whole else 0
            bar = "#" * int(24 * whole)
            self._say(f"{recipe:16} [{bar:.<24}] {whole:4.0%}  {left:4.0f} s left, {what}", "")

    def skip(self, recipe: str) -> None:
        self._recipe_begin = time.monotonic()
        index = self._recipes.index(recipe)
        self._say(f"{recipe:16} {index + 1} of {len(self._recipes)} not measured", "\n")

    def _say(self, line: str, end: str) -> None:
        begin = "\r\x1b[K" if self._is_terminal else ""
        print(begin + line, end=end, file=sys.stderr, flush=True)


def make_table(found: Sequence[Evaluation]) -> str:
    lines = [
        f"{'recipe':16}{'bits':>8}{'ratio':>7}{'K error':>9}{'V error':>9}{'attention':>13}"
        f"{'KL':>21}{'ppl x':>13}{'encode':>8}{'decode':>8}  GB/s"
    ]
    for one in found:
        attention = _cell(one.attention_error, ".4f")
        kl = _cell(one.kl, ".5f") if one.kl is None else f"{one.kl:.5f} ± {one.kl_error:.5f}"
        lines.append(
            f"{one.name:16}{one.bits:8.3f}{one.ratio:7.2f}{one.k_error:9.4f}{one.v_error:9.4f}"
            f"{attention:>13}{kl:>21}{_cell(one.perplexity_ratio, '.4f'):>13}"
            f"{format_rate(one.encode_rate):>8}{format_rate(one.decode_rate):>8}"
        )
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "unavailable" if value is None else format(value, form)


def format_rate(rate: float) -> str:
    """GB/s, and no rate that rounds to nothing."""
    return f"{rate / 1e9:.2f}" if rate >= 1e8 else f"{rate / 1e9:.4f}"
