# SPDX-License-Identifier: Apache-2.0
"""The bytes of a profile, as docs/internals/formats/profile.md draws them. Needs numpy."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .keys import ROPE_KINDS

TABLES = 21  # tables of a plane
SYMBOLS = 16  # symbols of a table; the last is the escape
RATES_MAX = 64
_SECTION = 16
_TURN = 2.0**64  # units in a turn


@dataclass(frozen=True)
class Rotation:
    """RoPE of K: the pairs of channels that it rotates, and the angle from one token to the next.

    turns: uint64 [dims / 2], in units of 2⁻⁶⁴ turn.
    """

    kind: str = "none"  # "half", "interleaved"
    first: int = 0
    dims: int = 0
    turns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))

    @staticmethod
    def of(kind: str, frequencies: Sequence[float], first: int = 0) -> Rotation:
        """frequencies: radians per token, one for each pair."""
        turns = [round(float(f) / (2 * np.pi) * _TURN) % 2**64 for f in frequencies]
        return Rotation(kind, first, 2 * len(turns), np.array(turns, np.uint64))

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and the second channels of the pairs."""
        count = self.dims // 2
        if self.kind == "interleaved":
            first = self.first + 2 * np.arange(count)
            return first, first + 1
        first = self.first + np.arange(count)
        return first, first + count


@dataclass
class Plane:
    """K or V: numbers by channel [layers, heads, dim], and the tables of the plane.

    mean: float32; step_log, sigma_log: int16, 256 · log2; frequencies: [TABLES, SYMBOLS], each
    table sums to 256; offsets: int8 [TABLES, 2], for the codes ±1 and ±2, in 1/256 of a step.
    """

    mean: np.ndarray
    step_log: np.ndarray
    sigma_log: np.ndarray
    frequencies: np.ndarray
    offsets: np.ndarray


@dataclass
class Basis:
    """The basis of K: scale and its inverse, float32 [layers, heads, dim]; vectors, float16
    [layers, heads, dim (channel), dim (component)]."""

    scale: np.ndarray
    inverse: np.ndarray
    vectors: np.ndarray


@dataclass
class Profile:
    """The profile of one group of layers. planes: K and V, or only the latent. rates: {bits:
    multiplier}, bits in tenths, multipliers as 256 · log2."""

    planes: list[Plane]
    rotation: Rotation
    rates: dict[int, int]
    basis: Basis | None = None

    def to_bytes(self) -> bytes:
        layers, heads, k_dim = self.planes[0].mean.shape
        v_dim = self.planes[1].mean.shape[2] if len(self.planes) > 1 else 0
        sections = [
            self.rotation.turns.astype("<u8").tobytes(),
            b"".join(struct.pack("<Hh", *rate) for rate in sorted(self.rates.items())),
        ]
        for plane in self.planes:
            sections.append(plane.frequencies.astype(np.uint8).tobytes())
            sections.append(plane.offsets.astype(np.int8).tobytes())
        for plane in self.planes:
            channels = np.zeros(
                plane.mean.shape, [("mean", "<f4"), ("step", "<i2"), ("sigma", "<i2")]
            )
            channels["mean"] = plane.mean
            channels["step"], channels["sigma"] = plane.step_log, plane.sigma_log
            sections.append(channels.tobytes())
        if self.basis is not None:
            for array, kind in (
                (self.basis.scale, "<f4"),
                (self.basis.inverse, "<f4"),
                (self.basis.vectors, "<f2"),
            ):
                sections.append(array.astype(kind).tobytes())
        content = b"".join(section + bytes(-len(section) % _SECTION) for section in sections)
        rotation = self.rotation
        head = struct.pack(
            "<4sHHQBBBBHHIIHHH",
            b"CKVP",
            1,
            64,
            64 + len(content),
            len(self.planes),
            ROPE_KINDS[rotation.kind],
            0 if self.basis is None else 1,
            0,
            layers,
            heads,
            k_dim,
            v_dim,
            rotation.first,
            rotation.dims,
            len(self.rates),
        )
        return head + bytes(64 - len(head)) + content


def profile_id(data: bytes) -> bytes:
    """Returns the id by which images name the profile."""
    return hashlib.sha256(data).digest()
