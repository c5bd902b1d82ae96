# SPDX-License-Identifier: Apache-2.0
"""Records a space's puts: a running worker writes the dumps that `cairn.evaluate` reads.

    with cairn.Capture(space, "/tmp/capture") as capture:
        …                                       # the worker goes on putting blocks
        capture.add_queries(key, {layer: q})    # optional
    # cairnctl evaluate /tmp/capture/0 --calibration /tmp/capture/1

Needs numpy.
"""

from __future__ import annotations

import math
import os
import pathlib
import shutil
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ._model import Scales, write_model
from .errors import InvalidArgumentError, NotDurableError
from .keys import DTYPE_BYTES
from .space import Space
from .tensors import NUMPY_DTYPES, Tensor, describe
from .transfer import Part, Put, PutResult, plane_of, slots_of

QUERY_TOKENS_MAX = 64  # the last tokens of a block
# The numpy type that each dtype has in files. 8-bit floats are their bits: which of them, the sign
# of the type tells.
DUMP_DTYPES = NUMPY_DTYPES | {"fp8_e5m2": "int8"}


class Capture:
    """Copies sequences that are put into `space` through this object, from their first block on.

    A put that fails is not recorded. No put fails or waits for the disk because of the recording. A
    recorded put costs one copy in memory, after the put; once the recording `is_full`, puts cost
    nothing more. An error in the recording ends it and is kept as `error`. `close` writes the
    files.

    sequences: number of sequences to write, each into its own folder: FOLDER/0, the longest,
    FOLDER/1, … tokens_max: limit for one sequence. bytes_max: limit for all memory, for at most
    twice as many sequences. every: records one of this many sequences that begin or branch. scales:
    of 8-bit floats, what the engine multiplies K and V of each of the model's layers by. parts:
    the layers and heads of each group that this rank puts, if it does not put whole blocks. Groups
    other than K and V are left out. Blocks must come after their parents. Thread-safe.
    """

    def __init__(
        self,
        space: Space,
        folder: str | os.PathLike,
        *,
        sequences: int = 2,
        tokens_max: int = 2048,
        bytes_max: int = 1 << 30,
        every: int = 1,
        parts: Sequence[Part] = (),
        scales: Scales = Scales(),
    ) -> None:
        import numpy  # noqa: F401  now, and not in the first put

        if min(sequences, tokens_max, bytes_max, every) < 1:
            raise InvalidArgumentError("sequences, tokens_max, bytes_max and every are 1 or more")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise InvalidArgumentError(f"{self.folder} is not empty")
        self.error: Exception | None = None
        self._space, self._sequences, self._every = space, sequences, every
        self._scales = scales
        self._blocks_max = max(1, tokens_max // space.spec.tokens_per_block)
        self._bytes_left = bytes_max
        self._lock = threading.Lock()
        self._boxes = _boxes_of(space.spec, parts)
        self._chains: list[_Chain] = []
        self._places: dict[bytes, tuple[_Chain, int]] = {}
        self._begun = 0
        self._is_open = True
        space._tap(self.record)

    @property
    def is_full(self) -> bool:
        """Returns whether all requested sequences are complete, so that `close` has nothing to wait
        for."""
        return self._whole_count >= self._sequences

    @property
    def _whole_count(self) -> int:
        return sum(chain.is_whole(self._blocks_max) for chain in self._chains)

    def add_queries(self, key: bytes, queries: Mapping[int, Any]) -> None:
        """Adds queries after RoPE of the last tokens of the block `key`, which has been put: by
        layer, numpy arrays [query heads, tokens, dim]. For each sequence, the queries of its last
        block are written. Does nothing if the block is not recorded."""
        import numpy as np

        with self._lock:
            chain, index = self._places.get(key, (None, 0))
            if chain is not None:
                cut = {i: np.array(q)[:, -QUERY_TOKENS_MAX:] for i, q in queries.items()}
                chain.queries.setdefault(index, {}).update(cut)

    def record(self, puts: Sequence[Put], results: Sequence[PutResult]) -> None:
        """Called by `Space` after its puts."""
        if not self._is_open:
            return
        try:
            for put, result in zip(puts, results, strict=True):
                is_stored = result.error is None or isinstance(result.error, NotDurableError)
                if is_stored and put.part.group in self._boxes and put.image is None:
                    self._record(put)
        except Exception as error:  # the worker's puts must not fail because of the recording
            self.error = error
            self._end()

    def close(self) -> list[pathlib.Path]:
        """Ends the recording and writes it. Returns the folders, the longest sequence first; none
        after an error, or if it was closed before."""
        if self._is_open:
            self._end()
        found = sorted(self._chains, key=lambda chain: -chain.whole_blocks)[: self._sequences]
        written = []
        for chain in found:
            if chain.whole_blocks and self.error is None:
                folder = self.folder / str(len(written))
                chain.write(folder, self._space, self._scales)
                written.append(folder)
        self._chains, self._places = [], {}
        return written

    def __repr__(self) -> str:
        whole = f"{self._whole_count} of {self._sequences} sequences"
        return f"<cairn.Capture into {self.folder}: {whole}>"

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _end(self) -> None:
        self._is_open = False
        self._space._tap(None)

    def _record(self, put: Put) -> None:
        with self._lock:
            chain, index = self._place_of(put)
            if chain is None:
                return
            block = chain.blocks[index]
        block.copy(put)  # without the lock: two parts of a block do not overlap
        if len(chain.blocks) == self._blocks_max and self.is_full:
            self._end()

    def _place_of(self, put: Put) -> tuple[_Chain | None, int]:
        """Returns the sequence and index of a block. Makes an index for a block that continues a
        sequence."""
        if put.key in self._places:
            return self._places[put.key]
        chain, index = None, 0
        if put.parent is None and put.first_position == 0:
            self._begun += 1
            if (self._begun - 1) % self._every == 0:
                chain = self._new_chain()
        elif put.parent in self._places:
            chain, last = self._places[put.parent]
            index = last + 1
            if index < len(chain.blocks):
                chain = self._fork(chain, index)
        is_next = chain is not None and index == len(chain.blocks) < self._blocks_max
        if not is_next or self._block_bytes > self._bytes_left:
            return None, 0
        self._bytes_left -= self._block_bytes
        chain.blocks.append(_Block(self._boxes))
        chain.keys.append(put.key)
        self._places[put.key] = chain, index
        return chain, index

    def _fork(self, chain: _Chain, count: int) -> _Chain | None:
        """Returns another sequence that begins with the same blocks, which are stored once."""
        self._begun += 1
        if (self._begun - 1) % self._every:
            return None
        forked = self._new_chain()
        if forked is not None:
            forked.keys, forked.blocks = chain.keys[:count], chain.blocks[:count]
            self._find_places()
        return forked

    def _new_chain(self) -> _Chain | None:
        """Returns a new sequence; replaces the shortest one if there are too many."""
        if len(self._chains) >= 2 * self._sequences:
            shortest = min(self._chains, key=lambda chain: len(chain.blocks))
            if len(shortest.blocks) >= self._blocks_max:
                return None
            before = self._block_count
            self._chains.remove(shortest)
            self._bytes_left += self._block_bytes * (before - self._block_count)
            self._find_places()
        self._chains.append(_Chain())
        return self._chains[-1]

    def _find_places(self) -> None:
        self._places = {}
        for chain in self._chains:
            for index, key in enumerate(chain.keys):
                self._places.setdefault(key, (chain, index))

    @property
    def _block_count(self) -> int:
        return len({id(block) for chain in self._chains for block in chain.blocks})

    @property
    def _block_bytes(self) -> int:
        return sum(box.block_bytes for box in self._boxes.values())


class _Box:
    """The layers and heads of a group that are recorded."""

    def __init__(self, spec: Any, part: Part) -> None:
        group = spec.groups[part.group]
        self.all_layers = range(len(group.layer_indices))
        self.all_heads = range(group.kv_heads)
        self.layers, self.heads = part.layers or self.all_layers, part.heads or self.all_heads
        self.layer_indices = [group.layer_indices[i] for i in self.layers]
        self.dtype = DUMP_DTYPES[spec.dtype]
        shape = (len(self.layers), len(self.heads), spec.tokens_per_block)
        self.shapes = [(*shape, group.k_dim), (*shape, group.v_dim)]
        self.block_bytes = sum(map(math.prod, self.shapes)) * DTYPE_BYTES[spec.dtype]


def _boxes_of(spec: Any, parts: Sequence[Part]) -> dict[int, _Box]:
    kv = [index for index, group in enumerate(spec.groups) if group.kind == "kv"]
    if not kv:
        raise InvalidArgumentError("the space has no group of K and V")
    return {part.group: _Box(spec, part) for part in parts or [Part(group=i) for i in kv]}


class _Block:
    """One block, recorded part by part."""

    def __init__(self, boxes: dict[int, _Box]) -> None:
        import numpy as np

        self._boxes = boxes
        self.planes = {
            group: [np.empty(shape, box.dtype) for shape in box.shapes]
            for group, box in boxes.items()
        }
        self._missing = {
            group: np.ones(box.shapes[0][:2], bool) for group, box in boxes.items()
        }

    @property
    def is_whole(self) -> bool:
        return not any(missing.any() for missing in self._missing.values())

    def copy(self, put: Put) -> None:
        box = self._boxes[put.part.group]
        planes = self.planes[put.part.group]
        layers = _places(put.part.layers or box.all_layers, box.layers)
        heads = _places(put.part.heads or box.all_heads, box.heads)
        if put.source is None:
            for plane, array in zip(planes, (put.k, put.v), strict=True):
                found = _layers_of(array)
                if put.slot_mapping is not None:
                    found = [layer[:, slots_of(put.slot_mapping)] for layer in found]
                for place, layer in zip(range(len(plane))[layers], found, strict=True):
                    plane[place, heads] = layer.view(plane.dtype)
        else:
            counts = [len(range(count)[cut]) for count, cut in zip(planes[0].shape, (layers, heads))]
            both = _array_of(describe("source", put.source)).reshape(-1).view(planes[0].dtype)
            both = both.reshape(*counts, -1)
            first = planes[0].shape[2] * planes[0].shape[3]
            for plane, flat in zip(planes, (both[:, :, :first], both[:, :, first:]), strict=True):
                plane[layers, heads] = flat.reshape(*counts, *plane.shape[2:])
        self._missing[put.part.group][layers, heads] = False


def _places(wanted: range, box: range) -> slice:
    """Returns the positions of layers or heads in a box that contains them."""
    first = wanted.start - box.start
    if first < 0 or first + len(wanted) > len(box):
        raise InvalidArgumentError(f"{wanted} was put, {box} is captured (parts)")
    return slice(first, first + len(wanted))


def _layers_of(array: Any) -> list:
    """Returns arrays [heads, tokens, dim] of numpy that share the caller's memory."""
    plane = plane_of("a plane", array)
    found = [_array_of(tensor) for tensor in plane.layers]
    if len(found) == 1 and found[0].ndim == 4:
        found = list(found[0])
    return [layer[:, plane.first_token :][:, : plane.shape[2]] for layer in found]


def _array_of(tensor: Tensor) -> Any:
    import ctypes

    import numpy as np

    dtype = np.dtype(f"uint{8 * tensor.itemsize}")
    if not tensor.bytes:
        return np.empty(tensor.shape, dtype)
    low = sum(min(0, (n - 1) * step) for n, step in zip(tensor.shape, tensor.strides, strict=True))
    high = sum(max(0, (n - 1) * step) for n, step in zip(tensor.shape, tensor.strides, strict=True))
    memory = (ctypes.c_uint8 * (high - low + tensor.itemsize)).from_address(tensor.address + low)
    return np.ndarray(tensor.shape, dtype, memory, -low, tensor.strides)


class _Chain:
    """One sequence from its first block on."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.blocks: list[_Block] = []
        self.queries: dict[int, dict[int, Any]] = {}  # by block, then by layer

    @property
    def whole_blocks(self) -> int:
        """Returns the number of blocks before the first incomplete one."""
        return next((i for i, x in enumerate(self.blocks) if not x.is_whole), len(self.blocks))

    def is_whole(self, blocks: int) -> bool:
        return len(self.blocks) == blocks == self.whole_blocks

    def write(self, folder: pathlib.Path, space: Space, scales: Scales) -> None:
        """Writes the whole sequence, or nothing."""
        import numpy as np

        count, partial = self.whole_blocks, folder.with_suffix(".partial")
        partial.mkdir()
        try:
            for group, box in self.blocks[0]._boxes.items():
                for plane, name in enumerate("kv"):
                    for place, layer in enumerate(box.layer_indices):
                        parts = [x.planes[group][plane][place] for x in self.blocks[:count]]
                        np.save(partial / f"{name}.{layer}.npy", np.concatenate(parts, 1))
            for layer, q in self.queries.get(count - 1, {}).items():
                np.save(partial / f"q.{layer}.npy", q)
            write_model(partial, space.spec, space.tenant, scales)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
