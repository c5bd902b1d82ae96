# SPDX-License-Identifier: Apache-2.0
"""Explanations of the figures of `cairn.evaluate`, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .calibrate import BANK, Calibration, shared_tokens
from .code import TOKENS_PER_BLOCK
from .dump import Dump
from .losses import Losses
from .measure import Evaluation
from .recipes import UNSAFE, bits_over


@dataclass(frozen=True)
class Notes:
    """`others`: the dumps that --calibration named, by name. `losses`: the measured losses of
    layers. `refused`: the reason why the judge did not accept the first of `others`."""

    dump: Dump
    calibration: Calibration
    others: Sequence[tuple[str, Dump]]
    has_judge: bool
    losses: Losses = field(default_factory=Losses)
    refused: str = ""

    def facts(self, found: Sequence[Evaluation]) -> list[str]:
        """Returns notes on the origin of profiles, unknown inputs, and recipes that are not
        recommended."""
        facts = self._dtype()
        if _have_side_objects(found):
            where = ", ".join(name for name, _ in self.others) or "the dump's beginning"
            queries = "with" if any(self.calibration.q.values()) else "without"
            tokens = self.calibration.token_count
            facts.append(f"Profiles are made of {tokens} tokens of {where}, {queries} queries.")
        if _have_profiles(found):
            cost = "is not known: that takes a judge (--judge)"
            if self.losses.v:
                is_judged = self.losses.is_judged
                text = "the judged text itself" if is_judged else self.others[0][0]
                cost = f"was measured behind {text}"
            if self.losses.v and self.refused:
                cost += f", as the judge does not take {self.others[0][0]} ({self.refused})"
            facts.append(f"What coarse steps cost in each layer {cost}.")
        if not self.has_judge:
            facts.append(
                "Without a judge (--judge), errors give an order of recipes; they do not say what a"
                " model's predictions lose."
            )
        unsafe = (one.recipe for one in found if one.recipe in UNSAFE)
        return facts + [f"{name} is never recommended: {UNSAFE[name]}." for name in unsafe]

    def _dtype(self) -> list[str]:
        if not self.dump.is_fp8:
            return []
        scales = "the scales of model.json"
        if not self.dump.scales:
            scales = "a scale of 1, as model.json names none"
        return [
            f"KV is {self.dump.dtype}. Recipes code these elements, and sizes are of them. A judge gets"
            f" them as bf16, multiplied by {scales}; losses do not have what bf16 lost before."
        ]

    def warnings(self, found: Sequence[Evaluation]) -> list[str]:
        """Returns the reasons why figures are better or worse than they will be elsewhere."""
        return [
            *(self._seen() if _have_side_objects(found) else ()),
            *(self._not_turned() if _have_profiles(found) else ()),
            *_over(found),
        ]

    def _seen(self) -> list[str]:
        """Returns a note if tokens of the profiles are also scored."""
        seen = [
            f"{name} and the dump begin with the same {count} tokens: figures of recipes with a"
            " profile are too good by what it knows of those."
            for name, count in ((name, shared_tokens(self.dump, x)) for name, x in self.others)
            if count >= TOKENS_PER_BLOCK
        ]
        if self.has_judge and self.calibration.held_out_blocks:
            seen.append(
                "The judge reads behind the tokens that profiles are made of, too, so KL of recipes"
                " with a profile is too good. Name a dump of another text with --calibration for"
                " figures that hold elsewhere."
            )
        return seen

    def _not_turned(self) -> list[str]:
        layers = [layer for layer in sorted(self.dump.k) if self.dump.rope_of(layer) is None]
        if not layers:
            return []
        which = "K" if len(layers) == len(self.dump.k) else f"K of {len(layers)} layers"
        return [
            f"{which} is coded after RoPE, which costs bits or loss: nothing says how it turns."
            " model.json in the dump's folder says it, or --rope half:BASE or interleaved:BASE."
        ]


def _have_side_objects(found: Sequence[Evaluation]) -> bool:
    return any(one.profile is not None for one in found)


def _have_profiles(found: Sequence[Evaluation]) -> bool:
    return any(one.profile not in (None, BANK) for one in found)


def _over(found: Sequence[Evaluation]) -> list[str]:
    over = [(one, bits_over(one.recipe, one.bits)) for one in found]
    return [
        f"{one.name} takes {one.bits:.2f} bits, {more:.2f} more than its name says: the text is"
        " unlike what its profile was made of, or that was too little."
        for one, more in over
        if more
    ]
