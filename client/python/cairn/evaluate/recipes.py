# SPDX-License-Identifier: Apache-2.0
"""The recipes to choose from: the library's recipes, and each recipe that needs a profile with
every kind of profile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from .. import image
from ..errors import InvalidArgumentError
from .calibrate import BANK, KINDS, RATES

# The library does not list recipes that need a profile, because they allow any rate.
PROFILED = (*(f"cairn:{rate}" for rate in RATES), "cairn-hot:2.4")
BANKED = ("patternkv:4", "patternkv:2")
# A run without --recipes and --all measures these: the guide's recommendations and their neighbours.
USUAL = ("exact", "kivi:8", "kivi:4", "kivi:2", "cairn:4.3", "cairn:3.0", "cairn:2.3", "cairn-hot:2.4")
# {recipe: reason}: measured and shown, but never recommended, whatever the results.
UNSAFE = {
    "fp8": "a bias of K makes channels so large that its eight bits lose what tokens differ by, and"
    " another model of a family may have a larger bias"
}
# Recipes whose names contain the target bits of their profile, and the excess that is reported.
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
    """Returns the candidates for names from a user; None: all recipes of the library."""
    found = []
    for name in [*image.recipes(), *PROFILED, *BANKED] if named is None else named:
        recipe, _, kind = name.rpartition("/")
        if kind not in (*KINDS, BANK):  # ott:2/local is a recipe
            recipe, kind = name, ""
        kinds = (kind,) if kind else kinds_of(recipe)
        found += [Candidate(recipe, kind) for kind in kinds]
    return found


def bits_over(recipe: str, bits: float) -> float:
    """Returns how many more bits the recipe takes than its name says; 0 if few, or if the name has
    none."""
    if not recipe.startswith(_AIMED):
        return 0.0
    named = float(recipe.partition(":")[2])
    return bits - named if bits > _OVER * named else 0.0


def rates_of(wanted: Sequence[Candidate]) -> list[float]:
    """Returns the rates of profiles: the usual ones, and the other rates of `wanted`."""
    asked = {float(one.recipe[6:]) for one in wanted if one.recipe.startswith("cairn:")}
    return sorted(asked | set(RATES))


@functools.cache
def kinds_of(recipe: str) -> tuple[str | None, ...]:
    """Returns the side objects that the library needs for the recipe: kinds of profile, a bank, or
    none. Raises InvalidArgumentError for an unknown recipe."""
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
