# SPDX-License-Identifier: Apache-2.0
"""What pages say of measured figures, held against the rows.

A page says a figure in words and, behind the sentence, in a comment that this reads:

    <!-- claim kl fp8 over cairn:4.3/plain in 2.1..3.6 of smollm2,gemma3 -->
    <!-- claim copy/kl kivi:2/daemon in ..0.4 of all on A -->

FIGURE is a field of a row, of the test `forced` or of the one that is named before it; RECIPE and,
after a slash, its profile; `over` another recipe on the same model and text; bounds, either of
which may be left out; models, or `all`; texts, if it is not of all. Each figure that is there,
rounded to as many decimals as a bound has, lies within the bounds, and each model named has one.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from goals import counted

_CLAIM = re.compile(r"<!-- claim\s+(.*?)\s*-->", re.DOTALL)
_BOUND = r"(?:\d+(?:\.\d+)?)?"
_GRAMMAR = re.compile(
    r"(?:(?P<test>\w+)/)?(?P<figure>\w+) "
    r"(?P<recipe>\S+(?: kept)?)(?: over (?P<base>\S+(?: kept)?))?"
    rf" in (?P<low>{_BOUND})\.\.(?P<high>{_BOUND}) of (?P<models>\S+)(?: on (?P<texts>\S+))?"
)
Row = dict


@dataclass(frozen=True)
class Claim:
    place: str  # the page and the claim, as errors name it
    test: str
    figure: str
    recipe: str  # with its profile
    base: str | None
    low: Decimal | None
    high: Decimal | None
    models: tuple[str, ...]
    texts: tuple[str, ...]  # none: all


def claims_of(page: pathlib.Path, models: Sequence[str]) -> list[Claim]:
    """ValueError names a claim that cannot be read."""
    found = []
    for match in _CLAIM.finditer(page.read_text(encoding="utf-8")):
        words = " ".join(match[1].split())
        parts = _GRAMMAR.fullmatch(words)
        if parts is None:
            raise ValueError(f"{page.name}: no claim is written like this: {words}")
        named = tuple(models) if parts["models"] == "all" else tuple(parts["models"].split(","))
        if not set(named) <= set(models):
            raise ValueError(f"{page.name}: a model is not there: {words}")
        low, high = (Decimal(x) if x else None for x in (parts["low"], parts["high"]))
        texts = tuple(parts["texts"].split(",")) if parts["texts"] else ()
        test = parts["test"] or "forced"
        about = test, parts["figure"], parts["recipe"], parts["base"]
        found.append(Claim(f"{page.name}: {words}", *about, low, high, named, texts))
    return found


def refuted(claims: Iterable[Claim], rows: list[Row]) -> list[str]:
    """A line for each model and text that refutes a claim, and for each model without a row."""
    at_2048 = {
        (row["test"], named(row), row["model"], row["text"]): row for row in counted(rows)
    }
    lines = []
    for claim in claims:
        for model in claim.models:
            figures = _figures(claim, model, at_2048)
            if not figures:
                lines.append(f"{claim.place}: nothing is measured of {model}")
            lines += [
                f"{claim.place}: {model} {text} has {figure:.5f}"
                for text, figure in figures.items()
                if not is_within(figure, claim)
            ]
    return lines


def named(row: Row) -> str:
    return row["recipe"] if row["profile"] is None else f"{row['recipe']}/{row['profile']}"


def _figures(claim: Claim, model: str, rows: dict[tuple, Row]) -> dict[str, float]:
    """By text."""
    found = {}
    for (test, recipe, of, text), row in rows.items():
        if (test, recipe, of) != (claim.test, claim.recipe, model):
            continue
        if claim.texts and text not in claim.texts:
            continue
        if claim.base is None:
            found[text] = row[claim.figure]
        elif base := rows.get((test, claim.base, of, text)):
            found[text] = row[claim.figure] / base[claim.figure]
    return found


def is_within(figure: float, claim: Claim) -> bool:
    for bound, sign in ((claim.low, 1), (claim.high, -1)):
        if bound is not None:
            rounded = Decimal(repr(figure)).quantize(bound, ROUND_HALF_UP)
            if sign * rounded < sign * bound:
                return False
    return True
