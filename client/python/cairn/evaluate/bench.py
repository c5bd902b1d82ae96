# SPDX-License-Identifier: Apache-2.0
"""Measures recipes on a dump, with the profiles of its model."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Sequence

from ..errors import FailedPreconditionError
from .calibrate import (
    BANK,
    Calibration,
    calibration_of,
    inputs_of,
    make_profiles,
    q_squares_of,
    require,
)
from .code import TOKENS_PER_BLOCK, Group, block_count_of
from .dump import Dump, Kv, read_dump
from .judge import Judge, Verdict
from .losses import Losses, measure_losses
from .measure import Evaluation, Progress, Scored, measure
from .notes import Notes
from .recipes import Candidate, candidates, rates_of


class _LossJudge:
    """Measures the loss from a coarse K or V of each layer, with one text as the prefix."""

    def __init__(self, kv: Kv, verdict: Verdict, found: Losses, keep: Callable[[], None]) -> None:
        """`found` has the known losses and receives new ones; `keep` is called after each."""
        self._kv, self._verdict, self.found, self._keep = kv, verdict, found, keep

    def complete(self, dump: Dump, calibration: Calibration, progress: Progress) -> Losses:
        def show() -> None:
            self._keep()
            done = len(self.found.v)
            progress(0.0, f"asking the judge what layers lose, {done} of {len(dump.k)}")

        measure_losses(
            self._kv,
            {layer: dump.rotation_of(layer) for layer in dump.k},
            q_squares_of(dump, calibration),
            lambda kv: self._verdict.score(self._kv, kv).kl,
            self.found,
            show,
        )
        return self.found


class Bench:
    """A dump, and the profiles of its model. Each profile is made at its first use."""

    def __init__(
        self, dump: Dump, calibration: Sequence[Dump], wanted: Sequence[Candidate]
    ) -> None:
        self.dump, self.calibration = dump, calibration_of(dump, calibration)
        self._inputs = inputs_of(dump, self.calibration)
        self._rates = rates_of(wanted)
        self._verdict: Verdict | None = None
        self._loss_judge: _LossJudge | None = None
        self._profiles: dict[str, list[bytes] | FailedPreconditionError] = {}

    def judge_by(
        self,
        judge: Judge,
        behind: tuple[Kv, Judge] | None = None,
        losses: Losses | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """`behind`: the prefix with which losses of layers are measured, and its judge; None: the
        dump, and `judge`. `losses`: known losses, to which new ones are added."""
        self._verdict = Verdict(judge)
        exact = self.dump.first_tokens(block_count_of(self.dump) * TOKENS_PER_BLOCK)
        kv, verdict = (exact, self._verdict) if behind is None else (behind[0], Verdict(behind[1]))
        self._loss_judge = _LossJudge(kv, verdict, Losses() if losses is None else losses, keep)

    def profiles(self, kind: str, progress: Progress = lambda share, what: None) -> list[bytes]:
        """Returns one for each of dump.groups(). Raises FailedPreconditionError if they cannot be
        made."""
        if kind not in self._profiles:
            try:
                require(self.dump, self.calibration, kind)
                losses = None
                if kind != BANK and self._loss_judge is not None:
                    losses = self._loss_judge.complete(self.dump, self.calibration, progress)
                progress(0.0, "making the profile")
                made = make_profiles(self.dump, self.calibration, self._rates, kind, losses)
            except FailedPreconditionError as error:
                made = error
            self._profiles[kind] = made
        made = self._profiles[kind]
        if isinstance(made, FailedPreconditionError):
            raise made
        return made

    def measure(self, one: Candidate, progress: Progress) -> Evaluation:
        """Measures one candidate. Raises FailedPreconditionError, with the missing input."""
        layers = self.dump.groups()
        profiles: list[bytes | None] = [None] * len(layers)
        if one.profile is not None:
            profiles = list(self.profiles(one.profile, progress))
        groups = [Group(*pair) for pair in zip(layers, profiles, strict=True)]
        held_out = self.calibration.held_out_blocks, self.calibration.held_out_queries
        scored = Scored(self.dump, groups, self._inputs, *held_out)
        return measure(scored, one.recipe, one.profile, self._verdict, progress)


def evaluate(
    dump: Dump | str | os.PathLike,
    recipes: Iterable[str] | None = None,
    judge: Judge | None = None,
    progress: Callable[[str, float, str], None] = lambda recipe, share, what: None,
    calibration: Iterable[Dump | str | os.PathLike] = (),
    calibration_judge: Judge | None = None,
) -> list[Evaluation]:
    """Codes a dump, or the dump in a folder, with each recipe, by default all. `judge` gives kl,
    perplexity_ratio and same_top. `progress` is called with (recipe, share done, step).
    `calibration`: dumps of other texts of the same model, from which profiles are made. Without
    any, profiles are made from the first half of the dump, which is then not scored.
    `calibration_judge` predicts after the first of these dumps and measures the losses of layers;
    without it, `judge` does. Warns about figures that cannot be measured or that may mislead."""
    wanted, others = candidates(list(recipes or ()) or None), [_dump_of(one) for one in calibration]
    bench = Bench(_dump_of(dump), others, wanted)
    if judge is not None:
        has_other = bool(others) and calibration_judge is not None
        bench.judge_by(judge, (others[0], calibration_judge) if has_other else None)
    found = []
    for one in wanted:
        try:
            found.append(
                bench.measure(one, lambda share, what, name=one.name: progress(name, share, what))
            )
        except FailedPreconditionError as error:
            warnings.warn(f"{one.name} is not measured: {error}", stacklevel=2)
    named = [(f"calibration {index}", one) for index, one in enumerate(others)]
    notes = Notes(bench.dump, bench.calibration, named, judge is not None)
    for note in notes.warnings(found):
        warnings.warn(note, stacklevel=2)
    return found


def _dump_of(given: Dump | str | os.PathLike) -> Dump:
    return given if isinstance(given, Dump) else read_dump(pathlib.Path(given))
