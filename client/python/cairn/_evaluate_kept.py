# SPDX-License-Identifier: Apache-2.0
"""What `cairn.evaluate` has on disk, so that a run goes on where it was: evaluate.json."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import asdict

from . import _ffi
from ._dump import Dump
from ._measure import Evaluation

FORMAT = 3  # rows of another are not taken over


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
        self.found = {one.name: one for one in self._read()}

    def _read(self) -> list[Evaluation]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] != self._key:
                return []
            return [Evaluation(**row) for row in kept["evaluations"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []  # none, or not one of ours: measured anew and written over

    def write(self, conclusion: dict | None = None) -> None:
        """At once or not at all: a run may be cut short in the middle of it."""
        rows = [asdict(one) for one in self.found.values()]
        kept = {"key": self._key} | (conclusion or {}) | {"evaluations": rows}
        partial = self.path.with_suffix(".json.partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.path)
