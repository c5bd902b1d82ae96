# SPDX-License-Identifier: Apache-2.0
"""What `cairn.evaluate` has on disk, so that a run goes on where it was: evaluate.json."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import asdict

from .. import _ffi
from .dump import Dump
from .losses import Losses
from .measure import Evaluation

FORMAT = 4  # rows of another are not taken over


class Kept:
    """What is on disk, keyed by what it was measured on: evaluate.json."""

    def __init__(
        self,
        path: pathlib.Path,
        dump: Dump,
        judge: str | None,
        calibration: Sequence[Dump],
    ) -> None:
        self.path = path
        self._key = {
            "format": FORMAT,
            "library": _ffi.library_version(),
            "dump": dump.fingerprint(),
            "judge": judge,
            "calibration": [one.fingerprint() for one in calibration],
        }
        self.found: dict[str, Evaluation] = {}
        self.losses = Losses()
        self._read()

    def _read(self) -> None:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] != self._key:
                return
            found = [Evaluation(**row) for row in kept["evaluations"]]
            is_judged, *planes = (kept["losses"][name] for name in ("is_judged", "k", "v"))
            losses = Losses(is_judged, *({int(i): loss for i, loss in x.items()} for x in planes))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return  # none, or not one of ours: measured anew and written over
        self.found, self.losses = {one.name: one for one in found}, losses

    def write(self, conclusion: dict | None = None) -> None:
        """At once or not at all: a run may be cut short in the middle of it."""
        rows = [asdict(one) for one in self.found.values()]
        kept = {"key": self._key} | (conclusion or {})
        kept |= {"losses": asdict(self.losses), "evaluations": rows}
        partial = self.path.with_suffix(".json.partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.path)
