# SPDX-License-Identifier: Apache-2.0
"""Computes squared queries for puts, from which the daemon mines profiles (docs/recipes/cairn.md).
A block has them only if one step computes all of its tokens. Each layer then sees all queries of
the block in one call. Nothing is kept between steps, so no sum mixes blocks or lacks tokens.

Knows nothing of vLLM except what `tap` uses. An error here ends the squares, but never a step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..paged import SKIPPED
from ..transfer import Part
from .plan import Plan, Save
from .tap import numpy_of, slots_of, watch


class Squares:
    """parts: this worker's part of each group of layers. dims: channels of a head of K. layers: the
    engine's layers by the model's indices, in the order of the part. Only the engine's thread calls
    it."""

    def __init__(
        self,
        parts: Sequence[Part],
        dims: Sequence[int],
        layers: Sequence[Mapping[int, Any]],
        engine_tokens: int,
        log: logging.Logger,
    ) -> None:
        self._log, self._engine_tokens = log, engine_tokens
        self._is_told = False
        self._groups = [
            _Group(len(of), len(part.heads or ()), dim)
            for of, part, dim in zip(layers, parts, dims, strict=True)
        ]
        self._undo = [
            watch(layer, self._seer(group, place))
            for group, of in zip(self._groups, layers, strict=True)
            for place, layer in enumerate(of.values())
        ]
        log.info("cairn: blocks that one step computes whole are put with their squared queries")

    def begin(self, plan: Plan) -> None:
        """Begins a step with its saves, before the step runs."""
        if not self._undo:
            return
        for index, group in enumerate(self._groups):
            group.begin(self._blocks_of(plan.saves, index))

    def _blocks_of(self, saves: Sequence[Save], group: int) -> dict[bytes, list[int]]:
        """Returns the slots of each key's tokens. Omits a key if the engine has freed some of its
        blocks."""
        found = {}
        for save in saves:
            ratio = len(save.blocks[group]) // len(save.keys)
            for i, key in enumerate(save.keys):
                table = save.blocks[group][i * ratio : (i + 1) * ratio]
                if SKIPPED not in table:
                    found[key] = slots_of(table, self._engine_tokens)
        return found

    def _seer(self, group: _Group, place: int) -> Any:
        def see(query: Any, metadata: Any) -> None:
            try:
                group.see(place, query, metadata)
            except Exception as error:
                self._log.error("cairn: puts bring no squared queries any more: %s", error)
                self._end()

        return see

    def take(self, key: bytes, group: int) -> Any:
        """Returns, after a step, the means [layers, heads, channels] of a block that it computed.
        None: the step has not shown all of its queries, or some are not finite."""
        return self._groups[group].take(key)

    def end(self) -> None:
        """Ends a step, after `take`."""
        is_missing = any(group.is_partly_seen for group in self._groups)
        for group in self._groups:
            group.begin({})
        if is_missing and not self._is_told:
            self._is_told = True
            self._log.warning(
                "cairn: not all of the engine's attention is seen, as where one graph runs a whole"
                " forward: such steps' blocks are put without squared queries"
            )

    def _end(self) -> None:
        for group in self._groups:
            group.begin({})
        undo, self._undo = self._undo, []
        for one in undo:
            one()


class _Group:
    """A step's blocks of a group of layers."""

    def __init__(self, layer_count: int, heads: int, dim: int) -> None:
        self._layer_count, self._heads, self._dim = layer_count, heads, dim
        self.begin({})

    def begin(self, blocks: Mapping[bytes, Sequence[int]]) -> None:
        """blocks: for each key, the slots of its tokens."""
        self._slots = blocks
        self._places = {key: i for i, key in enumerate(blocks)}
        self._means: Any = None  # [blocks, layers, heads, channels]
        self._is_seen: Any = None  # [blocks, layers]
        self._calls = 0
        self._metadata: Any = None  # the call to which `_rows` belongs
        self._rows: list[tuple[int, int]] = []  # blocks, and the first row of their queries

    @property
    def is_partly_seen(self) -> bool:
        """Returns whether the step computes blocks, but has not called some layers."""
        return bool(self._slots) and self._calls < self._layer_count

    def see(self, place: int, query: Any, metadata: Any) -> None:
        import numpy as np

        if not self._slots:
            return
        self._calls += 1
        if metadata is not self._metadata:
            self._metadata, self._rows = metadata, self._find(numpy_of(metadata.slot_mapping))
        if not self._rows:
            return
        if len(query.shape) != 3 or query.shape[1] % self._heads or query.shape[2] != self._dim:
            raise ValueError(
                f"queries have shape {tuple(query.shape)}, expected tokens, heads in"
                f" {self._heads}s, {self._dim} channels"
            )
        if self._means is None:
            shape = (len(self._slots), self._layer_count, self._heads, self._dim)
            self._means, self._is_seen = np.empty(shape, np.float32), np.zeros(shape[:2], bool)
        tokens = len(next(iter(self._slots.values())))
        blocks = [block for block, _ in self._rows]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = [_sum_of_squares(query[row : row + tokens]) for _, row in self._rows]
            of_heads = np.stack(squares).reshape(len(blocks), self._heads, -1, self._dim)
            self._means[blocks, place] = of_heads.mean(2) / tokens
        self._is_seen[blocks, place] = True

    def _find(self, slots: Any) -> list[tuple[int, int]]:
        """Finds blocks whose tokens are consecutive in this call, and the first row of each."""
        import numpy as np

        firsts = {of[0]: (self._places[key], of) for key, of in self._slots.items()}
        rows = []
        for row in np.flatnonzero(np.isin(slots, list(firsts))):
            block, wanted = firsts[int(slots[row])]
            if np.array_equal(slots[row : row + len(wanted)], wanted):
                rows.append((block, int(row)))
        return rows

    def take(self, key: bytes) -> Any:
        import numpy as np

        block = self._places.get(key)
        if block is None or self._means is None or not self._is_seen[block].all():
            return None
        return self._means[block] if np.isfinite(self._means[block]).all() else None


def _sum_of_squares(query: Any) -> Any:
    """Returns the sum over tokens, with all heads and channels in one row."""
    import numpy as np

    values = numpy_of(query)
    return np.square(values.reshape(len(values), -1)).sum(0)
