# SPDX-License-Identifier: Apache-2.0
"""The output of `cairn.evaluate` on a terminal: a progress bar, then a table."""

from __future__ import annotations

import sys
import time
import textwrap
from collections.abc import Sequence

from .choice import Loss
from .columns import columns
from .measure import MARGINS, Evaluation
from .recipes import bits_over

WIDTH = 100  # width of notes
BAR_SECONDS = 0.1


class Bar:
    """On a terminal, one line that is redrawn. Elsewhere, a line for each finished recipe."""

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


def make_table(found: Sequence[Evaluation], about: dict) -> str:
    """Returns the figures, then the notes of `about`. An error is that of all layers, followed by
    the worst layer's."""
    cells = [
        [column.head, *map(column.cell, found)] for column in columns(found) if column.is_on_terminal
    ]
    widths = [max(map(len, column)) for column in cells]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in zip(*cells, strict=True)
    ]
    lines += [f"{name} is not measured: {why}" for name, why in about["not_measured"].items()]
    notes = [*about["notes"], *(f"Note: {note}" for note in about["warnings"])]
    # Does not break paths.
    wrap = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, *("\n" + wrap.fill(note) for note in notes)])


def verdict_of(best: Evaluation | None, loss: Loss) -> str:
    """Returns the recommendation. If the limit is not on a judge's figure, adds the judge's figure.
    """
    if best is None:
        return f"no recipe has {loss}"
    over = bits_over(best.recipe, best.bits)
    said = f"with {loss}: {best.name}, {best.bits:.2f} bits"
    said += f" ({over:.2f} more than its name says)" if over else ""
    said += f", {best.ratio:.2f} times smaller"
    if best.kl is not None and loss.figure not in MARGINS:
        said += f"; its KL is {best.kl:.4f} ± {best.kl_error:.4f}"
    return said
