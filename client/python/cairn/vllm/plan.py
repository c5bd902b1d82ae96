# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side tells the workers' in a step. Picklable; knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Load:
    """Blocks of the store for a request. `blocks`: the engine's, as `cairn.paged` wants them."""

    request_id: str
    keys: list[bytes]
    blocks: list[int]
    lease: bytes | None


@dataclass(frozen=True)
class Save:
    """Consecutive blocks of a chain. parent: the key before them; None: they begin it."""

    keys: list[bytes]
    blocks: list[int]
    parent: bytes | None
    first_position: int
    is_derived: bool  # computed on blocks that may have been loaded with losses


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

    def table(self, blocks: Sequence[int], first: int, count: int) -> list[int]:
        """The engine's blocks of `count` store blocks from `first` on."""
        return list(blocks[first * self.ratio : (first + count) * self.ratio])
