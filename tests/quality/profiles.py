# SPDX-License-Identifier: Apache-2.0
"""The profiles and banks that recipes are measured with, by name.

plain, basis  made from the calibration texts, none of which is ever scored
mined         made from the first 512 tokens of the prefix itself, with the calibration's queries
              and no losses: what a store can do that was told nothing of the model but those
bank          of 32 patterns, made from the calibration texts

Two are made as a user's are, of the first 1024 tokens of one calibration text, without losses:

evaluate      with the queries of its last 64 tokens, as `cairnctl evaluate --calibration` does
daemon        mined by a cairnd that was put the KV and nothing else
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import calibration
import numpy as np
import product
from cairn.evaluate.calibrate import BANK, make_banks
from cairn.profile import GroupSamples, build
from lm.model import from_bits
from protocol import Case, Engine

STUDY, USER = ("plain", "basis", "mined"), ("evaluate", "daemon")
KINDS = (*STUDY, *USER)
RATES = (2.2, 2.3, 3.0, 4.3)
MINED_TOKENS = 512
USER_TEXT, USER_TOKENS, USER_QUERIES = "perl", 1024, 64
Prefix = tuple[np.ndarray, np.ndarray]


class Profiles:
    """Of one model, each made when it is first asked for."""

    def __init__(self, engine: Engine, cache: pathlib.Path, bin_dir: pathlib.Path) -> None:
        self._engine, self._cache, self._bin_dir = engine, cache, bin_dir
        self._made: dict[str, list[bytes]] = {}

    def of(self, kind: str, prefix: Prefix) -> list[bytes]:
        """One for each kind of layers. `prefix`: K and V bits, of which mined ones are made."""
        if kind == "mined":
            return build(self._mined_groups(prefix), RATES)
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> list[bytes]:
        if kind == "evaluate":
            return build(self._user_groups(), RATES)
        if kind == "daemon":
            engine = self._engine
            with product.Product(self._bin_dir) as daemon:
                return daemon.mine(engine.model.geometry, engine.revision, *self._user_prefix())
        groups = self._study_groups()
        return make_banks(groups) if kind == BANK else build(groups, RATES, kind == "basis")

    def query_magnitudes(self) -> np.ndarray:
        """Of the calibration's queries [layers, kv_heads, dim]: the root of their mean square, which
        stands for the mean of |q|."""
        return np.sqrt(calibration.measure(self._engine, self._cache).q_squares)

    def _study_groups(self) -> list[GroupSamples]:
        measured = calibration.measure(self._engine, self._cache)
        return self._groups(
            measured.texts, measured.q_squares, (measured.k_loss, measured.v_loss)
        )

    def _mined_groups(self, prefix: Prefix) -> list[GroupSamples]:
        measured = calibration.measure(self._engine, self._cache)
        first = tuple(x[:, :, :MINED_TOKENS] for x in prefix)
        return self._groups([first], measured.q_squares)

    def _user_groups(self) -> list[GroupSamples]:
        engine, prefix = self._engine, self._user_prefix()
        queries = engine.last_queries(self._user_case(), *prefix, USER_QUERIES)
        geometry = engine.model.geometry
        by_head = np.stack([q.reshape(geometry.kv_heads, -1, geometry.dim) for q in queries])
        return self._groups([prefix], np.square(by_head).mean(2))

    def _user_case(self) -> Case:
        return Case(self._engine.name, USER_TEXT, USER_TOKENS)

    def _user_prefix(self) -> Prefix:
        return self._engine.prefix_bits(self._user_case())

    def _groups(
        self,
        texts: Sequence[Prefix],
        q_squares: np.ndarray,
        losses: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> list[GroupSamples]:
        """losses: [layers] of K and of V."""
        geometry, groups = self._engine.model.geometry, []
        for layers in geometry.layers_by_kind().values():
            samples = GroupSamples(
                [(from_bits(k[layers]), from_bits(v[layers])) for k, v in texts],
                calibration.rotation_of(geometry, layers[0]),
                q_squares[layers],
            )
            if losses is not None:
                samples.k_loss, samples.v_loss = (loss[layers] for loss in losses)
            groups.append(samples)
        return groups
