# SPDX-License-Identifier: Apache-2.0
"""What a worker has of a group of layers."""

from __future__ import annotations

from dataclasses import dataclass

from .. import paged
from ..transfer import Part


@dataclass(frozen=True)
class GroupPart:
    """split: how many of the blocks of `cache` one of the scheduler's has."""

    cache: paged.PagedCache
    part: Part
    split: int

    def table(self, blocks: list[int]) -> list[int]:
        """In blocks of the cache."""
        if self.split == 1:
            return blocks
        return [
            paged.SKIPPED if block == paged.SKIPPED else block * self.split + i
            for block in blocks
            for i in range(self.split)
        ]
