# SPDX-License-Identifier: Apache-2.0
"""The scheduler's messages to the workers for one step. Picklable. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..paged import SKIPPED
from ..transfer import Names
from .adapters import Adapter

NO_BLOCK = 0  # the engine's number for "no block"

# For each group of the space, the engine's blocks: for states one per key, otherwise as many as
# fill a store block. Blocks that are not moved are SKIPPED.
Tables = list[list[int]]



def by_key(blocks: Sequence[int], keys: int) -> list[list[int]]:
    """Splits a table of `Tables` into the engine's blocks of each key."""
    step = len(blocks) // keys
    return [list(blocks[i : i + step]) for i in range(0, len(blocks), step)]


# Blocks with states, by the engine's table and the number of tokens before the state.
States = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Load:
    """Blocks of the store for a request."""

    request_id: str
    keys: list[bytes]
    blocks: Tables
    lease: bytes | None
    adapter: Adapter | None = None
    is_placed: bool = True  # False: the engine has no block for a state, so the load is useless


@dataclass(frozen=True)
class Save:
    """Consecutive blocks of a chain. If the engine has freed a block of a group, nothing of that
    group is saved for the store block. parent: the key before them; None: they begin the chain."""

    keys: list[bytes]
    blocks: Tables
    parent: bytes | None
    first_position: int
    is_derived: bool  # computed on blocks that may have been loaded with losses
    adapter: Adapter | None = None
    names: Sequence[Names] = ()  # vLLM's own names of each key's block; empty: none


@dataclass
class Plan:
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    is_idle: bool = False  # this step computes nothing


@dataclass(frozen=True)
class GroupTable:
    """The engine's table with the blocks of a group of the space, and their size in tokens.
    is_state: a block has the state after all tokens up to its end."""

    table: int
    block_tokens: int
    is_state: bool = False


@dataclass(frozen=True)
class Geometry:
    """engine_tokens: unit in which the engine counts prefixes, a multiple of the blocks of all
    groups. store_tokens: tokens of a store block, a multiple of engine_tokens. groups: groups of
    the space; by default one. lag: tokens at the end of a hit that are computed again
    (`drafts.lag_of`)."""

    engine_tokens: int
    store_tokens: int
    groups: tuple[GroupTable, ...] = ()
    lag: int = 0

    def __post_init__(self) -> None:
        if not self.groups:
            object.__setattr__(self, "groups", (GroupTable(0, self.engine_tokens),))

    @property
    def ratio(self) -> int:
        return self.store_tokens // self.engine_tokens

    @property
    def has_states(self) -> bool:
        return any(group.is_state for group in self.groups)

    def full_blocks(self, tables: Sequence[Sequence[int]], tokens: int) -> int:
        """Returns how many store blocks the tokens fill for which the engine has its blocks."""
        of_rows = (group for group in self.groups if not group.is_state)
        there = (
            len(tables[group.table]) * group.block_tokens // self.store_tokens for group in of_rows
        )
        return min([tokens // self.store_tokens, *there])

    def tables(
        self,
        tables: Sequence[Sequence[int]],
        first: int,
        count: int,
        tokens: range,
        states: States,
    ) -> Tables:
        """Returns, for `count` store blocks from `first` on, the engine's blocks of the wanted
        tokens. The engine has no blocks for tokens outside a window."""
        return [
            self._states(group, first, count, states)
            if group.is_state
            else self._rows(group, tables[group.table], first, count, tokens)
            for group in self.groups
        ]

    def _rows(
        self, group: GroupTable, table: Sequence[int], first: int, count: int, tokens: range
    ) -> list[int]:
        ratio = self.store_tokens // group.block_tokens
        wanted = range(tokens.start // group.block_tokens, tokens.stop // group.block_tokens)
        return [
            table[i] if i in wanted and table[i] != NO_BLOCK else SKIPPED
            for i in range(first * ratio, (first + count) * ratio)
        ]

    def _states(self, group: GroupTable, first: int, count: int, states: States) -> list[int]:
        ends = ((i + 1) * self.store_tokens for i in range(first, first + count))
        return [states.get((group.table, end), SKIPPED) for end in ends]

    def last_states(self, tables: Sequence[Sequence[int]], end: int) -> States:
        """Returns the engine's blocks for the states of a prefix with that end."""
        found = {}
        for group in self.groups:
            if group.is_state:
                place = end // group.block_tokens - 1
                table = tables[group.table]
                block = table[place] if place < len(table) else NO_BLOCK
                found[group.table, end] = SKIPPED if block == NO_BLOCK else block
        return found
