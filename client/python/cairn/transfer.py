# SPDX-License-Identifier: Apache-2.0
"""The requests and results of puts and gets: the part of a block, its arrays, and the outcome."""

from __future__ import annotations

import ctypes
import math
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi, keys
from .errors import Error, InvalidArgumentError
from .tensors import Tensor, contiguous, describe

_SKIPPED = -(2**63)  # a token offset: the token is skipped
_LISTS = (list, tuple)
_Strides = ctypes.c_int64 * 4
_SLOT_TYPES = {"int64": ctypes.c_int64, "int32": ctypes.c_int32}

_HASH_BYTES = (8, 32)  # of an engine's hash, at least and at most

TIERS = {0: "none", 1: "gpu", 2: "host", 3: "ssd", 4: "peer"}
DURABILITIES = (
    "not_asked",
    "durable",
    "no_tier",
    "read_only",
    "no_room",
    "late",
    "ancestors",
    "too_large",
    "gone",
    "stopping",
)


@dataclass(frozen=True)
class Part:
    """A layer range and a head range of one group, as `range`s of step 1; None means all. Layers
    count within the group."""

    layers: range | None = None
    heads: range | None = None
    group: int = 0

    def native(self) -> _abi.Slice:
        """Returns the slice for the library, which only reads it."""
        if self is WHOLE:
            return _WHOLE_SLICE
        layer_first, layer_count = _bounds("layers", self.layers)
        head_first, head_count = _bounds("heads", self.heads)
        group = _ffi.unsigned("group", self.group)
        return _abi.Slice(group, layer_first, layer_count, head_first, head_count)


WHOLE = Part()  # every layer and head of the first group
_WHOLE_SLICE = _abi.Slice()


def _bounds(what: str, wanted: range | None) -> tuple[int, int]:
    if wanted is None:
        return 0, 0
    if not isinstance(wanted, range) or wanted.step != 1 or not len(wanted) or wanted.start < 0:
        raise InvalidArgumentError(f"{what} is {wanted!r}, expected a range like range(2, 5)")
    return _ffi.unsigned(what, wanted.start), _ffi.unsigned(what, len(wanted))


@dataclass(frozen=True)
class Names:
    """Names that an engine has for a block. Events carry them, so that routers match by them.

    hash, parent: the engine's own hash of the block, and of the block before it, 8 to 32 bytes
    each. tokens: the ids of the block's tokens. A daemon that does not know hashes gets none, and
    only a daemon whose operator asks for tokens (`--event-tokens on`) gets them."""

    hash: bytes = b""
    parent: bytes = b""
    tokens: Sequence[int] = ()

    @staticmethod
    def of(own: bytes, parent: bytes = b"", tokens: Sequence[int] = ()) -> Names | None:
        """Returns the names of a block; None if its hash is not one that the daemon takes."""
        if not _HASH_BYTES[0] <= len(own) <= _HASH_BYTES[1]:
            return None
        return Names(own, parent if _HASH_BYTES[0] <= len(parent) <= _HASH_BYTES[1] else b"", tokens)

    @staticmethod
    def of_hex(own: str, parent: str = "") -> Names | None:
        """Returns the names of a block whose hashes are written in hex; None likewise."""
        return Names.of(_from_hex(own), _from_hex(parent))


def fill_names(named: Sequence[tuple[_abi.Names, Names]]) -> list[Any]:
    """Writes the names of many blocks to the structures beside them. Returns what keeps their memory
    alive. All hashes are in one buffer, because a buffer costs more than its hashes."""
    joined = b"".join([part for _, one in named for part in (one.hash, one.parent)])
    memory = ctypes.create_string_buffer(joined, len(joined) + 1)
    address, held = ctypes.addressof(memory), [memory]
    for native, one in named:
        own, parent = len(one.hash), len(one.parent)
        if own:
            native.hash, native.hash_bytes = address, own
        if parent:
            native.parent, native.parent_bytes = address + own, parent
        address += own + parent
        if len(one.tokens):
            try:
                ids = array("I", one.tokens)
            except (OverflowError, TypeError) as error:
                raise InvalidArgumentError(f"names.tokens: {error}, expected 32-bit ids") from None
            native.tokens = (ctypes.c_uint32 * len(ids)).from_buffer(ids)
            native.token_count = len(ids)
    return held


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


@dataclass
class Put:
    """One block, or a part of one, to put. See `Space.put` for the fields."""

    key: bytes
    k: Any = None
    v: Any = None
    parent: bytes | None = None
    first_position: int = 0
    part: Part = WHOLE
    is_derived: bool = False
    encode: str = "daemon"
    source: Any = None
    image: Any = None
    query_squares: Any = None
    query_magnitudes: Any = None
    token_scores: Any = None
    slot_mapping: Any = None
    is_durable: bool = False
    names: Names | None = None


@dataclass
class Get:
    """One block, or a part of one, to get. See `Space.get` for the fields."""

    key: bytes
    k: Any = None
    v: Any = None
    lease: bytes | None = None
    part: Part = WHOLE
    decode: str = "client"
    source: Any = None
    image: Any = None
    slot_mapping: Any = None


@dataclass(frozen=True)
class PutResult:
    """is_duplicate: the block was stored already; nothing was moved. image_bytes: size in the
    daemon. durability: "durable" or "not_asked"; the reason if `error` is a `NotDurableError`."""

    is_duplicate: bool
    image_bytes: int
    error: Error | None = None
    durability: str = "not_asked"


Recorder = Callable[[Sequence[Put], Sequence[PutResult]], None]  # called after puts


@dataclass(frozen=True)
class GetResult:
    """True if the block was found: the arrays then hold verified KV. A miss is False. target_bytes:
    bytes written, for an image its length."""

    is_hit: bool
    tier: str
    wire_bytes: int
    first_position: int
    error: Error | None = None
    target_bytes: int = 0

    def __bool__(self) -> bool:
        return self.is_hit


@dataclass(frozen=True)
class Prefetched:
    """The number of blocks in each state. absent: a wanted part is not stored. refused: not queued,
    because too many reads are; ask again later."""

    in_memory: int
    on_their_way: int
    absent: int
    refused: int


@dataclass(frozen=True)
class MatchedBlock:
    tier: str
    image_bytes: int


class Plane:
    """K, V or a latent: one array [layers, heads, tokens, dim], or a list of one per layer.

    With slots, the array is [layers, heads, slots, dim], and token i is at slot slots[i]."""

    def __init__(self, what: str, array: Any, slots: list[int] | None = None) -> None:
        self.what = what
        self._slots = slots
        self._is_list = isinstance(array, _LISTS)
        if self._is_list:
            self.layers = [describe(f"{what}[{i}]", layer) for i, layer in enumerate(array)]
            if not self.layers or len({(t.shape, t.strides, t.dtype) for t in self.layers}) != 1:
                raise InvalidArgumentError(f"{what}: the layers' shapes, strides or dtypes differ")
            self.shape = (len(self.layers), *self.layers[0].shape)
            self._strides = (0, *self.layers[0].strides)
        else:
            self.layers = [describe(what, array)]
            self.shape, self._strides = self.layers[0].shape, self.layers[0].strides
        if len(self.shape) != 4:
            raise InvalidArgumentError(
                f"{what} has shape {self.shape}, expected [layers, heads, tokens, dim]"
            )
        self._first_token = 0
        self._set_bounds()
        if slots is not None:
            for i, slot in enumerate(slots):
                if not -1 <= slot < self.shape[2]:
                    raise InvalidArgumentError(
                        f"slot_mapping[{i}] is {slot}, {what} has {self.shape[2]} slots"
                    )
            self.shape = (*self.shape[:2], len(slots), self.shape[3])

    def _set_bounds(self) -> None:
        """Sets the range of bytes of the array, or of each of its layers, from its address."""
        self._first_byte, self._end_byte = 0, self.tensor.itemsize
        for axis in range(1 if self._is_list else 0, len(self.shape)):
            span = (self.shape[axis] - 1) * self._strides[axis]
            if span < 0:
                self._first_byte += span
            else:
                self._end_byte += span

    @property
    def tensor(self) -> Tensor:
        return self.layers[0]

    @property
    def first_token(self) -> int:
        """Returns the first token of a cut."""
        return self._first_token

    def cut(self, first: int, count: int) -> Plane:
        """Returns the plane's tokens [first, first + count)."""
        cut = object.__new__(Plane)
        cut.__dict__.update(self.__dict__)
        cut.shape = (*self.shape[:2], count, self.shape[3])
        if self._slots is None:
            cut._first_token = self._first_token + first
        else:
            cut._slots = self._slots[first : first + count]
        return cut

    def view(self) -> _abi.View:
        offset = self._first_token * self._strides[2]
        first, end = self._first_byte - offset, self._end_byte - offset
        view = _abi.View(None, None, None, _Strides(*self._strides), first, end)
        if self._slots is not None:
            step = self._strides[2]
            offsets = [_SKIPPED if slot < 0 else slot * step for slot in self._slots]
            view.token_offsets = (ctypes.c_int64 * len(offsets))(*offsets)
        if self._is_list:
            addresses = [layer.address + offset for layer in self.layers]
            view.layers = (ctypes.c_void_p * len(addresses))(*addresses)
        else:
            view.data = self.layers[0].address + offset
        return view


def plane_of(what: str, array: Any, slots: list[int] | None = None) -> Plane:
    return array if isinstance(array, Plane) else Plane(what, array, slots)


def slots_of(slot_mapping: Any) -> list[int]:
    """Returns slots as integers, from a sequence or from an array of any library."""
    if isinstance(slot_mapping, list | tuple | range):
        return [int(slot) for slot in slot_mapping]
    tensor = contiguous("slot_mapping", slot_mapping)
    kind = _SLOT_TYPES.get(tensor.dtype)
    if kind is None or len(tensor.shape) != 1:
        raise InvalidArgumentError(
            f"slot_mapping is {tensor.dtype} of shape {tensor.shape}, expected int64 or int32 [tokens]"
        )
    return list((kind * tensor.shape[0]).from_address(tensor.address))


def fill(
    memory: _abi.Memory, spec: keys.SpaceSpec, request: Put | Get
) -> list[Plane] | list[Tensor]:
    """Checks the memory of a request against the space's geometry, and describes it. The returned
    objects keep that memory alive."""
    part, is_target = request.part, isinstance(request, Get)
    if not 0 <= part.group < len(spec.groups):
        raise InvalidArgumentError(f"group is {part.group}, the space has {len(spec.groups)}")
    flat = [("source", request.source), ("image", request.image)]
    named = [(what, array) for what, array in flat if array is not None]
    if named and request.slot_mapping is not None:
        raise InvalidArgumentError(f"slot_mapping is of k and v, not of {named[0][0]}")
    if not named:
        return _fill_views(memory, spec, request, is_target)
    if len(named) > 1 or request.k is not None or request.v is not None:
        raise InvalidArgumentError("k and v, source and image exclude each other: name one form")
    what, array = named[0]
    tensor = contiguous(what, array, is_target)
    if what == "source" and tensor.bytes != _source_bytes(spec, part):
        raise InvalidArgumentError(
            f"source has {tensor.bytes} bytes, expected {_source_bytes(spec, part)}"
        )
    memory.form = _abi.FORM_SOURCE if what == "source" else _abi.FORM_IMAGE
    memory.data, memory.bytes = tensor.address, tensor.bytes
    return [tensor]


def fill_statistics(request: _abi.PutRequest, spec: keys.SpaceSpec, one: Put) -> list[Any]:
    """Describes the statistics of a put. The returned objects keep their memory alive."""
    if one.query_squares is None and one.query_magnitudes is None and one.token_scores is None:
        return []
    group = spec.groups[one.part.group]
    channels, tokens = (group.k_dim, "k_dim"), (spec.tokens_per_block, "tokens")
    held = []
    for name, count, (last, last_name) in (
        ("query_squares", "query_square_count", channels),
        ("query_magnitudes", "query_magnitude_count", channels),
        ("token_scores", "token_score_count", tokens),
    ):
        given = getattr(one, name)
        if given is None:
            continue
        expected = (*_counts(group, one.part), last)
        values, address = _floats(name, given, expected, last_name)
        setattr(request, name, address)
        setattr(request, count, math.prod(expected))
        held.append(values)
    return held


def _floats(name: str, given: Any, expected: tuple[int, ...], last: str) -> tuple[Any, int]:
    """Returns the values as contiguous fp32, and their address."""
    tensor = contiguous(name, given)
    if tensor.shape != expected:
        raise InvalidArgumentError(
            f"{name} has shape {tensor.shape}, expected {expected}: layers, heads, {last}"
        )
    if tensor.dtype == "float32":
        return tensor, tensor.address
    if tensor.dtype != "float16":
        raise InvalidArgumentError(f"{name} has dtype {tensor.dtype}, expected float32 or float16")
    count = math.prod(expected)
    halves = struct.unpack(f"{count}e", ctypes.string_at(tensor.address, tensor.bytes))
    held = (ctypes.c_float * count)(*halves)
    return held, ctypes.addressof(held)


def _counts(group: keys.Group, part: Part) -> tuple[int, int]:
    layers = len(group.layer_indices) if part.layers is None else len(part.layers)
    return layers, group.kv_heads if part.heads is None else len(part.heads)


def _source_bytes(spec: keys.SpaceSpec, part: Part) -> int:
    group = spec.groups[part.group]
    layers, heads = _counts(group, part)
    if group.kind in ("state", "opaque_rows"):
        rows = 1 if group.kind == "state" else spec.tokens_per_block
        return layers * (group.state_bytes or rows * group.row_bytes)
    rows = layers * heads * spec.tokens_per_block
    return rows * (group.k_dim + group.v_dim) * keys.DTYPE_BYTES[spec.dtype]


def _fill_views(
    memory: _abi.Memory, spec: keys.SpaceSpec, request: Put | Get, is_target: bool
) -> list[Plane]:
    group = spec.groups[request.part.group]
    layers, heads = _counts(group, request.part)
    wanted = [("k", request.k, group.k_dim)]
    if group.v_dim:
        wanted.append(("v", request.v, group.v_dim))
    planes = []
    slots = None if request.slot_mapping is None else slots_of(request.slot_mapping)
    for what, array, dim in wanted:
        plane = plane_of(what, array, slots)
        plane.tensor.require(what, spec.dtype, is_target)
        shape = (layers, heads, spec.tokens_per_block, dim)
        if plane.shape != shape:
            raise InvalidArgumentError(f"{what} has shape {plane.shape}, expected {shape}")
        planes.append(plane)
    memory.form = _abi.FORM_VIEWS
    memory.k = planes[0].view()
    if len(planes) > 1:
        memory.v = planes[1].view()
    return planes


def choice_of(what: str, value: str, choices: tuple[str, ...]) -> int:
    if value not in choices:
        raise InvalidArgumentError(f"{what} is {value!r}, expected one of {', '.join(choices)}")
    return choices.index(value)


_Key = ctypes.c_uint8 * keys.KEY_BYTES


def native_key(what: str, key: bytes) -> Any:
    """Returns the key for a field of a request."""
    return _Key.from_buffer_copy(check_key(what, key))


def check_key(what: str, key: bytes) -> bytes:
    if len(key) != keys.KEY_BYTES:
        raise InvalidArgumentError(f"{what} has {len(key)} bytes, expected {keys.KEY_BYTES}")
    return key
