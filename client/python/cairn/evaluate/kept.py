# SPDX-License-Identifier: Apache-2.0
"""Keeps the results of `cairn.evaluate` in evaluate.json, so that a run can continue."""

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

FORMAT = 4  # results in another format are ignored


class Kept:
    """The results in evaluate.json, keyed by their inputs."""

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
            return  # missing or not ours: measured again and overwritten
        self.found, self.losses = {one.name: one for one in found}, losses

    def write(self, conclusion: dict | None = None) -> None:
        """Writes the file atomically: a run may be interrupted at any time."""
        rows = [asdict(one) for one in self.found.values()]
        kept = {"key": self._key} | (conclusion or {})
        kept |= {"losses": asdict(self.losses), "evaluations": rows}
        partial = self.path.with_suffix(".json.partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.path)
