# SPDX-License-Identifier: Apache-2.0
"""Observes an engine's queries before attention. `Tap` records them, with K and V from the saves,
as dumps for `cairnctl evaluate` (docs/guides/vllm.md).

Knows of vLLM only that layers have an `impl.forward(layer, query, key, value, cache, metadata, …)`,
and that metadata has a `slot_mapping`. An error here ends the tap, but never a step.
"""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._model import Scales
from ..capture import QUERY_TOKENS_MAX, Capture
from ..paged import SKIPPED
from ..space import Space
from ..transfer import Part
from .plan import Plan, Save
from .settings import Settings

PENDING_MAX = 64  # blocks whose queries wait until they are put


def watch(layer: Any, see: Callable[[Any, Any], None]) -> Callable[[], None]:
    """Calls `see` with the query and the metadata of each forward of the layer that has metadata.
    Stops when the returned function is called."""
    impl = layer.impl
    before, inner = impl.__dict__.get("forward"), impl.forward

    def forward(
        of: Any, query: Any, k: Any, v: Any, cache: Any, metadata: Any, *rest: Any, **more: Any
    ) -> Any:
        if metadata is not None:
            see(query, metadata)
        return inner(of, query, k, v, cache, metadata, *rest, **more)

    def undo() -> None:
        if impl.__dict__.get("forward") is not forward:
            return  # another watch was added after it
        if before is None:
            del impl.forward
        else:
            impl.forward = before

    impl.forward = forward
    return undo


def scales_of(layers: Sequence[Mapping[int, Any]]) -> Scales:
    """What vLLM multiplies the 8-bit floats of each layer by. Where it keeps none, that is 1."""
    found: list[dict[int, float]] = [{}, {}]
    for index, layer in (one for of in layers for one in of.items()):
        for scales, name in zip(found, ("_k_scale_float", "_v_scale_float"), strict=True):
            scale = getattr(layer, name, None) or 1.0
            if scale != 1.0:
                scales[index] = float(scale)
    return Scales(*found)


def slots_of(table: Sequence[int], engine_tokens: int) -> list[int]:
    """Returns the slots of the engine's tokens, from `slot_mapping` of its metadata."""
    return [block * engine_tokens + i for block in table for i in range(engine_tokens)]


class _Wanted:
    """The last tokens of a block, and their slots in the engine."""

    def __init__(self, key: bytes, slots: list[int]) -> None:
        self.key, self.slots = key, slots


class Tap:
    """layers: for each group the engine's layers, by the model's indices. The engine's thread calls
    all functions except `before_puts` and `after_puts`, which the put thread calls."""

    def __init__(
        self,
        settings: Settings,
        folder: str,
        parts: list[Part],
        layers: Sequence[Mapping[int, Any]],
        engine_tokens: int,
        log: logging.Logger,
    ) -> None:
        self._settings, self._log = settings, log
        self._folder, self._parts = pathlib.Path(folder), parts
        self._scales = scales_of(layers)
        self._engine_tokens = engine_tokens
        self._lock = threading.Lock()
        self._capture: Capture | None = None
        self._writer: threading.Thread | None = None
        self._wanted: list[list[_Wanted]] = [[] for _ in parts]  # for each group, of this step
        self._queries: dict[bytes, dict[int, Any]] = {}  # guarded by _lock
        self._is_open = True
        if self._folder.is_dir() and any(self._folder.iterdir()):
            self._is_open = False
            log.warning("cairn: nothing is captured: %s is not empty", folder)
            return
        self._undo = [
            watch(layer, self._seer(group, index))
            for group, of in enumerate(layers)
            for index, layer in of.items()
        ]

    # ------------------------------------------------------------------------ on the engine's

    def begin(self, plan: Plan) -> None:
        """Begins a step with its saves, before the step runs."""
        if not self._is_open:
            return
        wanted = [self._last_of(save, group) for save in plan.saves for group in self._groups]
        self._wanted = [
            [one for one in wanted[group :: len(self._parts)] if one is not None]
            for group in self._groups
        ]

    @property
    def _groups(self) -> range:
        return range(len(self._parts))

    def _last_of(self, save: Save, group: int) -> _Wanted | None:
        """Returns the last block of a save that may be recorded. Sequences end with such a block.
        """
        ratio = len(save.blocks[group]) // len(save.keys)
        block_tokens = ratio * self._engine_tokens
        left = (self._settings.capture_tokens - save.first_position) // block_tokens
        count = min(len(save.keys), left)
        table = save.blocks[group][(count - 1) * ratio : count * ratio] if count > 0 else []
        if not table or SKIPPED in table:
            return None
        slots = slots_of(table, self._engine_tokens)
        return _Wanted(save.keys[count - 1], slots[-QUERY_TOKENS_MAX:])

    def _seer(self, group: int, index: int) -> Callable[[Any, Any], None]:
        def see(query: Any, metadata: Any) -> None:
            if self._wanted[group]:
                self._see(group, index, query, metadata)

        return see

    def _see(self, group: int, index: int, query: Any, metadata: Any) -> None:
        try:
            slots = numpy_of(metadata.slot_mapping)
            for one in self._wanted[group]:
                places = {int(slots[i]): i for i in _places(slots, one.slots)}
                found = [places[slot] for slot in one.slots if slot in places]
                if found:  # otherwise an earlier step computed them
                    self._keep(one.key, index, numpy_of(query[found]).swapaxes(0, 1))
        except Exception as error:
            self._stop(error)

    def _keep(self, key: bytes, index: int, query: Any) -> None:
        with self._lock:
            if not self._is_open:
                return
            if key not in self._queries and len(self._queries) >= PENDING_MAX:
                self._queries.pop(next(iter(self._queries)))
            self._queries.setdefault(key, {})[index] = query

    # -------------------------------------------------------------------------- on the puts'

    def before_puts(self, space: Space) -> None:
        if not self._is_open or self._capture is not None:
            return
        try:
            self._capture = Capture(
                space,
                self._folder,
                sequences=self._settings.capture_sequences,
                tokens_max=self._settings.capture_tokens,
                parts=self._parts,
                scales=self._scales,
            )
        except Exception as error:
            self._stop(error)

    def after_puts(self, key: bytes) -> None:
        """Called for all groups of a block after their puts."""
        if not self._is_open or self._capture is None:
            return
        with self._lock:
            queries = self._queries.pop(key, None)
        if queries is not None:
            self._capture.add_queries(key, queries)
        if self._capture.error is not None:
            self._stop(self._capture.error)
        elif self._capture.is_full:
            self._end()
            self._writer = threading.Thread(target=self._write, name="cairn-capture")
            self._writer.start()

    # ---------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Writes the recorded sequences, after the last put."""
        if self._is_open:
            self._end()
            self._write()
        elif self._writer is not None:
            self._writer.join()

    def _end(self) -> None:
        self._is_open = False
        self._wanted = [[] for _ in self._parts]
        with self._lock:
            self._queries.clear()
        for undo in self._undo:
            undo()

    def _write(self) -> None:
        if self._capture is None:
            return
        try:
            written = self._capture.close()
        except Exception as error:
            return self._log.error("cairn: what was captured is not written: %s", error)
        self._log.info("cairn: captured %s", ", ".join(map(str, written)) or "nothing")

    def _stop(self, error: Exception) -> None:
        self._log.error("cairn: nothing more is captured: %s", error)
        self._end()


def numpy_of(array: Any) -> Any:
    """Converts a tensor to an array of numpy, in a type that numpy has."""
    if hasattr(array, "detach"):
        array = array.detach()
        array = (array.float() if array.is_floating_point() else array).cpu().numpy()
    return array


def _places(slots: Any, wanted: list[int]) -> Any:
    import numpy as np

    return np.flatnonzero(np.isin(slots, wanted))
