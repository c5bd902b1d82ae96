# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side tells the workers' in a step. Picklable; knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..paged import SKIPPED
from .adapters import Adapter

NO_BLOCK = 0  # the engine's number of it

Tables = list[list[int]]  # of each of the engine's groups its blocks, as `cairn.paged` wants them


@dataclass(frozen=True)
class Load:
    """Blocks of the store for a request."""

    request_id: str
    keys: list[bytes]
    blocks: Tables
    lease: bytes | None
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Save:
    """Consecutive blocks of a chain. Where the engine has let go of one of a group's blocks,
    nothing is saved of that group. parent: the key before them; None: they begin the chain."""

    keys: list[bytes]
    blocks: Tables
    parent: bytes | None
    first_position: int
    is_derived: bool  # computed on blocks that may have been loaded with losses
    adapter: Adapter | None = None


@dataclass
class Plan:
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    is_idle: bool = False  # nothing is computed in this step


@dataclass(frozen=True)
class Geometry:
    """Tokens of a block of the engine's, and of the store's: a multiple of them."""

    engine_tokens: int
    store_tokens: int

    @property
    def ratio(self) -> int:
        return self.store_tokens // self.engine_tokens

    def tables(
        self, groups: Sequence[Sequence[int]], first: int, count: int, wanted: range
    ) -> Tables:
        """Of `count` store blocks from `first` on, those of the engine's blocks that are `wanted`,
        and there: of what is out of a window the engine has none."""
        places = range(first * self.ratio, (first + count) * self.ratio)
        return [
            [blocks[i] if i in wanted and blocks[i] != NO_BLOCK else SKIPPED for i in places]
            for blocks in groups
        ]
