# SPDX-License-Identifier: Apache-2.0
"""The profiles and banks that recipes are measured with, by name.

plain, basis  made from the calibration texts, none of which is ever scored
mined         made from the first 512 tokens of the prefix itself, with the calibration's queries
              and no losses: what a store can do that was told nothing of the model but those
bank          of 32 patterns, made from the calibration texts
"""

from __future__ import annotations

import pathlib

import calibration
import numpy as np
from cairn._calibrate import BANK, make_banks
from cairn.profile import GroupSamples, Rotation, build
from lm.model import from_bits
from protocol import Engine

KINDS = ("plain", "basis", "mined")
RATES = (2.2, 2.3, 3.0, 4.3)
MINED_TOKENS = 512
Prefix = tuple[np.ndarray, np.ndarray]


class Profiles:
    """Of one model, each made when it is first asked for."""

    def __init__(self, engine: Engine, cache: pathlib.Path) -> None:
        self._engine, self._cache = engine, cache
        self._made: dict[str, list[bytes]] = {}

    def of(self, kind: str, prefix: Prefix) -> list[bytes]:
        """One for each kind of layers. `prefix`: K and V bits, of which mined ones are made."""
        if kind == "mined":
            return build(self._groups(prefix), RATES)
        if kind not in self._made:
            groups = self._groups(None)
            if kind == BANK:
                self._made[kind] = make_banks(groups)
            else:
                self._made[kind] = build(groups, RATES, has_basis=kind == "basis")
        return self._made[kind]

    def query_magnitudes(self) -> np.ndarray:
        """Of the calibration's queries [layers, kv_heads, dim]: the root of their mean square, which
        stands for the mean of |q|."""
        return np.sqrt(calibration.measure(self._engine, self._cache).q_squares)

    def _groups(self, mined: Prefix | None) -> list[GroupSamples]:
        measured = calibration.measure(self._engine, self._cache)
        geometry, groups = self._engine.model.geometry, []
        texts = measured.texts if mined is None else [tuple(x[:, :, :MINED_TOKENS] for x in mined)]
        for kind, layers in geometry.layers_by_kind().items():
            frequencies = kind.rope_base ** (-np.arange(0, geometry.dim, 2) / geometry.dim)
            samples = GroupSamples(
                [(from_bits(k[layers]), from_bits(v[layers])) for k, v in texts],
                Rotation.of(geometry.rope_pairs, frequencies),
                measured.q_squares[layers],
            )
            if mined is None:
                samples.k_loss, samples.v_loss = measured.k_loss[layers], measured.v_loss[layers]
            groups.append(samples)
        return groups
