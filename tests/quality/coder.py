# SPDX-License-Identifier: Apache-2.0
"""Codes KV with the codec alone, as cairn.evaluate does: the bytes that a daemon would keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import eight
import numpy as np
from cairn.evaluate.code import Group, Inputs, code
from cairn.evaluate.dump import Kv
from lm.model import Geometry


@dataclass(frozen=True)
class Coded:
    """KV as it came back [layers, kv_heads, tokens, dim] (bf16 bits), and its size when stored, or
    when held by a reader that attends to `kept` [layers, kv_heads, tokens] alone."""

    k_bits: np.ndarray
    v_bits: np.ndarray
    image_bytes: int  # of whole images: headers, directories, parameters, rows
    element_count: int
    kept: np.ndarray | None = None

    @property
    def bits(self) -> float:
        """All-in, per element of K and V together."""
        return 8 * self.image_bytes / self.element_count


class Codec:
    """What cairn.evaluate measures with. Nothing here knows a recipe. dtype: of an engine's cache in
    8-bit floats, to which KV is rounded first; its bits are of an element of bf16, too."""

    def __init__(self, dtype: str = "bf16") -> None:
        self._dtype = dtype
        self.NAME = "codec" if dtype == "bf16" else f"codec, {dtype}"

    def __enter__(self) -> Codec:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def code(
        self,
        geometry: Geometry,
        revision: str,
        recipe: str,
        k_bits: np.ndarray,
        v_bits: np.ndarray,
        profiles: Sequence[bytes] | None = None,
        inputs: Inputs = Inputs(),
    ) -> Coded:
        """The KV of a whole prefix in blocks of 128 tokens; a profile for each kind of layers."""
        kinds = list(geometry.layers_by_kind().values())
        groups = [
            Group(layers, profile)
            for layers, profile in zip(kinds, profiles or [None] * len(kinds), strict=True)
        ]
        if self._dtype != "bf16":
            k_bits, v_bits = (eight.from_bf16(self._dtype, bits) for bits in (k_bits, v_bits))
        exact = Kv(self._dtype, dict(enumerate(k_bits)), dict(enumerate(v_bits)))
        found = code(exact, groups, recipe, inputs)
        k_out, v_out = (
            np.stack([plane[i] for i in range(geometry.layers)])
            for plane in (found.kv.k, found.kv.v)
        )
        if self._dtype != "bf16":
            k_out, v_out = (eight.to_bf16(self._dtype, codes) for codes in (k_out, v_out))
        return Coded(k_out, v_out, found.image_bytes, k_bits.size + v_bits.size)
