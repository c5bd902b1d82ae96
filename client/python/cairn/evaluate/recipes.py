# SPDX-License-Identifier: Apache-2.0
"""What there is to choose from: the library's recipes, and those that need a profile with each
kind of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from .. import image
from ..errors import InvalidArgumentError
from .calibrate import BANK, KINDS, RATES

# The library lists none of those that need a profile: they have any rate.
PROFILED = (*(f"cairn:{rate}" for rate in RATES), "cairn-hot:2.4")
BANKED = ("patternkv:4", "patternkv:2")
# What a run measures unless it names recipes or asks for all: those that the guide recommends, and their neighbours.
USUAL = ("exact", "kivi:8", "kivi:4", "kivi:2", "cairn:4.3", "cairn:3.0", "cairn:2.3", "cairn-hot:2.4")
# {recipe: why}: measured and shown, but never recommended, whatever a text says of them.
UNSAFE = {
    "fp8": "a bias of K makes channels so large that its eight bits lose what tokens differ by, and"
    " another model of a family may have a larger bias"
}
# Recipes whose names say the bits that their profile aims at, and how far above is worth a word.
_AIMED, _OVER = ("cairn:", "cairn-hot:"), 1.03
_PROBE_TOKENS, _PROBE_CHANNELS = 32, 32


@dataclass(frozen=True)
class Candidate:
    """`cairn:2.3/basis` is the recipe cairn:2.3 with a profile that has a basis."""

    recipe: str
    profile: str | None = None

    @property
    def name(self) -> str:
        return self.recipe if self.profile is None else f"{self.recipe}/{self.profile}"


def candidates(named: Sequence[str] | None = None) -> list[Candidate]:
    """Of names, as a user gives them; None: of all that the library has."""
    found = []
    for name in [*image.recipes(), *PROFILED, *BANKED] if named is None else named:
        recipe, _, kind = name.rpartition("/")
        if kind not in (*KINDS, BANK):  # ott:2/local is a recipe
            recipe, kind = name, ""
        kinds = (kind,) if kind else kinds_of(recipe)
        found += [Candidate(recipe, kind) for kind in kinds]
    return found


def bits_over(recipe: str, bits: float) -> float:
    """How many more bits it takes than its name says; 0 where that is little, or it says none."""
    if not recipe.startswith(_AIMED):
        return 0.0
    named = float(recipe.partition(":")[2])
    return bits - named if bits > _OVER * named else 0.0


def rates_of(wanted: Sequence[Candidate]) -> list[float]:
    """Of profiles: the usual ones, and what else is asked for."""
    asked = {float(one.recipe[6:]) for one in wanted if one.recipe.startswith("cairn:")}
    return sorted(asked | set(RATES))


@functools.cache
def kinds_of(recipe: str) -> tuple[str | None, ...]:
    """What the library wants beside the elements, by its own word: kinds of profile, a bank, or
    nothing. InvalidArgumentError for a recipe that it does not know."""
    shape = (_PROBE_TOKENS, _PROBE_CHANNELS, _PROBE_CHANNELS)
    spec = image.ImageSpec(recipe, 1, 1, *shape)
    try:
        image.encode(spec, source=bytearray(spec.source_bytes))
    except InvalidArgumentError as error:
        if "needs a bank" in str(error):
            return (BANK,)
        if "needs spec.profile" in str(error):
            return KINDS
        raise
    return (None,)
