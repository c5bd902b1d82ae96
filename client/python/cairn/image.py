# SPDX-License-Identifier: Apache-2.0
"""Encoded images as bytes: inspect, verify, decode and encode them. Needs no daemon."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi
from .errors import InvalidArgumentError
from .keys import DTYPE_BYTES, DTYPES, GROUP_KINDS, KEY_BYTES, checked_dtype
from .tensors import contiguous
from .transfer import Part, check_key, plane_of, slots_of

_DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
_DIGEST = ctypes.c_uint8 * KEY_BYTES


@dataclass(frozen=True)
class ImageInfo:
    """The header of an image. `part` has explicit layer and head ranges."""

    version: int
    fingerprint: bytes
    key: bytes
    part: Part
    tokens: int
    dtype: str
    recipe: str
    first_position: int
    image_bytes: int
    source_bytes: int
    tile_count: int
    k_dim: int
    v_dim: int
    side_object: bytes | None = None  # id of the profile or bank that it was encoded with


def inspect(image: Any) -> ImageInfo:
    """Reads header and directory of untrusted bytes. Raises InvalidArgumentError, which says what
    is wrong."""
    memory = contiguous("image", image)
    info = _abi.ImageInfo()
    _ffi.check(_ffi.library().cairn_image_inspect(memory.address, memory.bytes, ctypes.byref(info)))
    part = info.slice
    return ImageInfo(
        info.version,
        bytes(info.fingerprint),
        bytes(info.key),
        Part(
            range(part.layer_first, part.layer_first + part.layer_count),
            range(part.head_first, part.head_first + part.head_count),
            part.group,
        ),
        info.tokens,
        _DTYPE_NAMES.get(info.dtype, str(info.dtype)),
        info.recipe.decode(),
        info.first_position,
        info.image_bytes,
        info.source_bytes,
        info.tile_count,
        info.k_dim,
        info.v_dim,
        bytes(info.side_object) if any(info.side_object) else None,
    )


def verify(image: Any) -> None:
    """Checks every checksum. Raises DataLossError if one does not match."""
    memory = contiguous("image", image)
    _ffi.check(_ffi.library().cairn_image_verify(memory.address, memory.bytes, None))


@dataclass(frozen=True)
class ImageSpec:
    """The content and the coding of an image: `layers` and `heads` of one K and V group of one
    block. With v_dim 0 it is a latent. Equal specs and equal elements give equal bytes, the same as
    in a daemon. For an image that is not put into a space, the fields with defaults can be left
    out."""

    recipe: str
    layers: int
    heads: int
    tokens: int
    k_dim: int
    v_dim: int
    dtype: str = "bf16"  # or another name of keys.DTYPES, or such a dtype of torch or numpy
    first_position: int = 0  # position of the first token in its sequence
    key: bytes = bytes(KEY_BYTES)
    fingerprint: bytes = bytes(KEY_BYTES)
    group: int = 0
    layer_first: int = 0
    head_first: int = 0
    profile: bytes | None = None  # from cairn.profile; for patternkv:b, from cairn.bank
    # Inputs that some recipes need, or that improve their compression.
    parent: Any = None  # image of the same part of the previous block: ott:2 continues from it
    query_magnitudes: Any = None  # float32 [layers, heads, k_dim]: mean |q| after RoPE
    chain_tokens: int = 0  # logquant: length of the chain; 0: it ends with the block
    # float32 [layers, heads, tokens]: token scores for arkv
    token_scores: Any = None
    token_states: Any = None  # uint8, likewise: from cairn.arkv.plan, for arkv:paper

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))

    @property
    def source_bytes(self) -> int:
        """Returns the size of the elements in bytes."""
        rows = self.layers * self.heads * self.tokens
        return rows * (self.k_dim + self.v_dim) * DTYPE_BYTES[self.dtype]

    def _native(self) -> _abi.ImageSpec:
        part = (self.group, self.layer_first, self.layers, self.head_first, self.heads)
        heads = (self.layers, self.heads)
        given = self.query_magnitudes
        magnitudes = _place("query_magnitudes", given, "float32", (*heads, self.k_dim))
        tokens = (*heads, self.tokens)
        scores = _place("token_scores", self.token_scores, "float32", tokens)
        states = _place("token_states", self.token_states, "uint8", tokens)
        parent = None if self.parent is None else contiguous("parent", self.parent)
        profile = None if self.profile is None else contiguous("profile", self.profile)
        return _abi.ImageSpec(
            kind=GROUP_KINDS["kv" if self.v_dim else "latent"],
            fingerprint=_DIGEST.from_buffer_copy(check_key("fingerprint", self.fingerprint)),
            key=_DIGEST.from_buffer_copy(check_key("key", self.key)),
            slice=_abi.Slice(*part),
            tokens=self.tokens,
            dtype=DTYPES[self.dtype],
            k_dim=self.k_dim,
            v_dim=self.v_dim,
            first_position=self.first_position,
            recipe=self.recipe.encode(),
            profile=profile and profile.address,
            profile_bytes=profile.bytes if profile else 0,
            parent_image=parent and parent.address,
            parent_image_bytes=parent.bytes if parent else 0,
            query_magnitudes=magnitudes,
            token_scores=scores,
            chain_tokens=self.chain_tokens,
            token_states=states,
        )


def _place(what: str, array: Any, dtype: str, shape: tuple[int, ...]) -> int | None:
    """Returns the address of the elements, after checking the array."""
    if array is None:
        return None
    tensor = contiguous(what, array)
    if (tensor.dtype, tensor.shape) != (dtype, shape):
        raise InvalidArgumentError(
            f"{what} is {tensor.dtype} {tensor.shape}, expected {dtype} {shape}"
        )
    return tensor.address


def recipes() -> list[str]:
    """Returns the recipes that an ImageSpec may name: all recipes of the library."""
    return _ffi.library().cairn_image_recipes().decode().split(",")


def bytes_max(spec: ImageSpec) -> int:
    """Returns the largest size in bytes of an image of the spec, for all recipes."""
    found = ctypes.c_uint64()
    native = spec._native()
    _ffi.check(_ffi.library().cairn_image_bytes_max(ctypes.byref(native), ctypes.byref(found)))
    return found.value


def encode(
    spec: ImageSpec, k: Any = None, v: Any = None, *, source: Any = None, target: Any = None
) -> memoryview:
    """Encodes arrays [layers, heads, tokens, dim] on the calling thread. In their place `source`
    may be given: their bytes, contiguous as [layers, heads, plane (K, V), tokens, dim]. Returns the
    image, which is the beginning of `target` (writable bytes of sufficient size) or of newly
    allocated memory. `source` is encoded in place; arrays are gathered first."""
    native = spec._native()
    memory, held = _elements_of(spec, k, v, source, is_target=False)
    target = memoryview(bytearray(bytes_max(spec)) if target is None else target).cast("B")
    place = contiguous("target", target, is_target=True)
    written = ctypes.c_size_t()
    _ffi.check(
        _ffi.library().cairn_image_encode(
            ctypes.byref(native),
            ctypes.byref(memory),
            place.address,
            place.bytes,
            ctypes.byref(written),
        )
    )
    del held
    return target[: written.value]


def thin(image: Any, chain_tokens: int) -> bytes:
    """Rewrites an image of logquant, which is verified first, for a chain of chain_tokens. The
    result equals encoding its source for that chain."""
    place, written = contiguous("image", image), ctypes.c_size_t()
    target = ctypes.create_string_buffer(place.bytes)
    where = (place.address, place.bytes, chain_tokens, target, place.bytes)
    _ffi.check(_ffi.library().cairn_image_thin(*where, ctypes.byref(written)))
    return ctypes.string_at(target, written.value)


def decode(
    image: Any,
    k: Any = None,
    v: Any = None,
    *,
    source: Any = None,
    profile: bytes | None = None,
    slot_mapping: Any = None,
) -> ImageInfo:
    """Verifies an image and decodes all of it into arrays [layers, heads, tokens, dim] of its own
    part, or into `source`, bytes in the order that `encode` names. With `slot_mapping`, k and v are
    an engine's cache, [layers, heads, slots, dim]; token i goes to slot slot_mapping[i], and a
    token with slot -1 is skipped. `profile`: the one with which it was encoded, if any."""
    info, place = inspect(image), contiguous("image", image)
    slots = None if slot_mapping is None else slots_of(slot_mapping)
    memory, held = _elements_of(info, k, v, source, is_target=True, slots=slots)
    library, where = _ffi.library(), (place.address, place.bytes)
    if profile is None:
        _ffi.check(library.cairn_image_decode(*where, ctypes.byref(memory)))
    else:
        given = (profile, len(profile))
        _ffi.check(library.cairn_image_decode_with(*where, *given, ctypes.byref(memory)))
    del held
    return info


def _elements_of(
    what: ImageInfo | ImageSpec,
    k: Any,
    v: Any,
    source: Any,
    is_target: bool,
    slots: list[int] | None = None,
) -> tuple[_abi.Memory, list[Any]]:
    """Returns the memory of the elements, checked, and the objects that keep it alive."""
    memory = _abi.Memory(form=_abi.FORM_VIEWS)
    if source is not None:
        if k is not None or v is not None:
            raise InvalidArgumentError("k and v exclude source: name one form")
        if slots is not None:
            raise InvalidArgumentError("slot_mapping is of k and v, not of source")
        tensor = contiguous("source", source, is_target)
        memory.form, memory.data, memory.bytes = _abi.FORM_SOURCE, tensor.address, tensor.bytes
        return memory, [tensor]
    if isinstance(what, ImageSpec):
        counts = (what.layers, what.heads)
    else:
        counts = (len(what.part.layers or ()), len(what.part.heads or ()))
    wanted = [("k", k, what.k_dim)] + ([("v", v, what.v_dim)] if what.v_dim else [])
    planes = []
    for name, array, dim in wanted:
        plane = plane_of(name, array, slots)
        plane.tensor.require(name, what.dtype, is_target)
        shape = (*counts, what.tokens, dim)
        if plane.shape != shape:
            raise InvalidArgumentError(f"{name} has shape {plane.shape}, expected {shape}")
        planes.append(plane)
    memory.k = planes[0].view()
    if len(planes) > 1:
        memory.v = planes[1].view()
    return memory, planes
