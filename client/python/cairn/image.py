# SPDX-License-Identifier: Apache-2.0
"""Encoded images as bytes: look at one, check it, decode it. No daemon needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from . import _ffi
from .errors import InvalidArgumentError
from .tensors import contiguous
from .transfer import Part, plane_of

_DTYPES = {1: "bf16", 2: "fp16", 3: "fp32"}


@dataclass(frozen=True)
class ImageInfo:
    """What the header of an image says. `part` has explicit layer and head ranges."""

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


def inspect(image: Any) -> ImageInfo:
    """Reads header and directory of hostile bytes; InvalidArgumentError names what is wrong."""
    memory = contiguous("image", image)
    info = _ffi.ImageInfo()
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
        _DTYPES.get(info.dtype, str(info.dtype)),
        info.recipe.decode(),
        info.first_position,
        info.image_bytes,
        info.source_bytes,
        info.tile_count,
        info.k_dim,
        info.v_dim,
    )


def verify(image: Any) -> None:
    """Checks every checksum; DataLossError when one does not match its bytes."""
    memory = contiguous("image", image)
    _ffi.check(_ffi.library().cairn_image_verify(memory.address, memory.bytes, None))


def decode(image: Any, k: Any, v: Any = None) -> ImageInfo:
    """Verifies an image and decodes it into arrays [layers, heads, tokens, dim] of its own part."""
    info, memory = inspect(image), contiguous("image", image)
    target = _ffi.Memory(form=_ffi.FORM_VIEWS)
    wanted = [("k", k, info.k_dim)] + ([("v", v, info.v_dim)] if info.v_dim else [])
    planes = []
    for what, array, dim in wanted:
        plane = plane_of(what, array)
        plane.tensor.require(what, info.dtype, is_target=True)
        shape = (len(info.part.layers or ()), len(info.part.heads or ()), info.tokens, dim)
        if plane.shape != shape:
            raise InvalidArgumentError(f"{what} has shape {plane.shape}, expected {shape}")
        planes.append(plane)
    target.k = planes[0].view()
    if len(planes) > 1:
        target.v = planes[1].view()
    _ffi.check(
        _ffi.library().cairn_image_decode(memory.address, memory.bytes, ctypes.byref(target))
    )
    return info
