# SPDX-License-Identifier: Apache-2.0
"""Names of spaces and blocks in pure Python, identical to those of the daemon and the C++ SDK.

docs/internals/formats/key.md draws the hashed bytes; tests/golden/keys has test vectors for both
implementations. Nothing here calls a daemon or loads the library.
"""

from __future__ import annotations

import hashlib
import operator
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidArgumentError

DTYPES = {"bf16": 1, "fp16": 2, "fp32": 3, "fp8_e4m3": 5, "fp8_e5m2": 6}
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}
ROPE_KINDS = {"none": 0, "half": 1, "interleaved": 2}
GROUP_KINDS = {"kv": 1, "latent": 2, "state": 3, "opaque_rows": 4}
KEY_BYTES = 32
NO_PARENT = bytes(KEY_BYTES)

_SPACE_TAG = b"cairn.space.v1"
_BLOCK_TAG = b"cairn.block.v1"
_OPAQUE_TAG = b"cairn.opaque.v1"


_LONG_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def dtype_of(given: Any) -> str | None:
    """Returns the space's name for a dtype of a space, torch, numpy, ml_dtypes or jax. None: spaces
    do not support it."""
    name = given.__name__ if isinstance(given, type) else str(given).removeprefix("torch.")
    return name if name in DTYPES else _LONG_NAMES.get(name)


def checked_dtype(given: Any) -> str:
    """Returns `dtype_of`, or raises InvalidArgumentError."""
    name = dtype_of(given)
    if name is None:
        raise InvalidArgumentError(
            f"dtype is {given!r}, expected {', '.join(DTYPES)}, or such a dtype of torch or numpy"
        )
    return name


@dataclass(frozen=True)
class Rope:
    """The rotation of K by position.

    kind: "half" pairs channels (c, c + rotary_dims/2), "interleaved" pairs (2c, 2c + 1), "none"
    means no rotation. inverse_frequencies: given if they are not base^(-2i/rotary_dims).
    """

    kind: str = "none"
    rotary_dims: int = 0
    base: float = 0.0
    inverse_frequencies: tuple[float, ...] = ()


@dataclass(frozen=True)
class Group:
    """Layers of one kind and one geometry. `layers`: the model's indices; an int n means 0 … n -
    1."""

    kind: str
    layers: int | Sequence[int]
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window_tokens: int = 0
    rope: Rope = field(default_factory=Rope)
    state_bytes: int = 0
    row_bytes: int = 0

    @property
    def layer_indices(self) -> tuple[int, ...]:
        return tuple(range(self.layers) if isinstance(self.layers, int) else self.layers)


def KvGroup(
    layers: int | Sequence[int],
    kv_heads: int,
    dim: int,
    *,
    v_dim: int | None = None,
    window_tokens: int = 0,
    rope: Rope | None = None,
) -> Group:
    """Returns a group of K and V heads. `dim` is that of a K head, and of a V head unless `v_dim`
    is given; window_tokens 0 means full attention."""
    return Group(
        "kv",
        layers,
        kv_heads=kv_heads,
        k_dim=dim,
        v_dim=dim if v_dim is None else v_dim,
        window_tokens=window_tokens,
        rope=rope or Rope(),
    )


@dataclass(frozen=True)
class SpaceSpec:
    """The identity of a space: equal specifications name the same space. It does not include the
    recipe.

    dtype: a name of DTYPES; a dtype of torch or numpy is converted to its name."""

    model: str
    weights_revision: str
    groups: Sequence[Group]
    dtype: str = "bf16"
    tokens_per_block: int = 128

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))


@dataclass(frozen=True)
class KeyExtra:
    """An input other than tokens that KV depends on: kind "lora", "salt", "media", …

    offset: position of the first token that it affects, from the start of the block (in
    `derive_chain`, of the sequence).
    """

    kind: str
    value: bytes
    offset: int = 0


def _field(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def _u8(value: int) -> bytes:
    return _field(struct.pack("<B", value))


def _u32(value: int) -> bytes:
    return _field(struct.pack("<I", value))


def _f64(value: float) -> bytes:
    return _field(struct.pack("<d", value + 0.0))  # adding 0 turns -0 into 0


def _u32s(values: Iterable[int]) -> bytes:
    return _field(token_bytes(values))


def token_bytes(tokens: Iterable[int]) -> bytes:
    """Converts token ids to little-endian uint32; arrays are read through the buffer protocol."""
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]
    except TypeError:
        view = None
    if view is not None and view.format in ("I", "<I", "L", "<L") and view.itemsize == 4:
        return view.tobytes()
    if view is not None and view.ndim == 1 and view.format not in ("e", "f", "d"):
        tokens = view.tolist()
    words = array("I", [operator.index(token) for token in tokens])
    if words.itemsize != 4:
        return struct.pack(f"<{len(words)}I", *words)
    return words.tobytes()


def _group_fields(group: Group) -> bytes:
    layers, rope = group.layer_indices, group.rope
    parts = [
        _u8(GROUP_KINDS[group.kind]),
        _u32(len(layers)),
        _u32s(layers),
        _u32(group.kv_heads),
        _u32(group.k_dim),
        _u32(group.v_dim),
        _u32(group.window_tokens),
        _u8(ROPE_KINDS[rope.kind]),
        _u32(rope.rotary_dims),
        _f64(rope.base),
        _u32(len(rope.inverse_frequencies)),
        *(_f64(frequency) for frequency in rope.inverse_frequencies),
        _u32(group.state_bytes),
        _u32(group.row_bytes),
    ]
    return b"".join(parts)


def fingerprint(tenant: str, spec: SpaceSpec) -> bytes:
    """Returns the 32 bytes that name the space of `spec` under `tenant`."""
    parts = [
        _field(_SPACE_TAG),
        _field(tenant.encode()),
        _field(spec.model.encode()),
        _field(spec.weights_revision.encode()),
        _u8(DTYPES[spec.dtype]),
        _u32(spec.tokens_per_block),
        _u32(len(spec.groups)),
        *(_group_fields(group) for group in spec.groups),
    ]
    return hashlib.sha256(b"".join(parts)).digest()


def _extra_fields(extras: Iterable[KeyExtra]) -> bytes:
    canonical = sorted(
        {(extra.offset, extra.kind.encode(), bytes(extra.value)) for extra in extras}
    )
    return b"".join(
        _u32(offset) + _field(kind) + _field(value) for offset, kind, value in canonical
    )


def _block_key(space: bytes, parent: bytes, words: bytes, extras: Iterable[KeyExtra]) -> bytes:
    parts = [
        _field(_BLOCK_TAG),
        _field(space),
        _field(parent),
        _u32(len(words) // 4),
        _field(words),
        _field(_extra_fields(extras)),
    ]
    return hashlib.sha256(b"".join(parts)).digest()


def derive_key(
    space: bytes,
    parent: bytes | None,
    tokens: Iterable[int],
    extras: Iterable[KeyExtra] = (),
) -> bytes:
    """Returns the key of one block. `space` is a fingerprint; parent None means the first block of
    a chain."""
    return _block_key(space, parent or NO_PARENT, token_bytes(tokens), extras)


def iterate_chain(
    space: bytes,
    tokens: Iterable[int],
    tokens_per_block: int,
    extras: Sequence[KeyExtra] = (),
) -> Iterator[bytes]:
    """Like `derive_chain`, one key at a time."""
    words, parent = token_bytes(tokens), NO_PARENT
    for first in range(0, len(words) // 4 - tokens_per_block + 1, tokens_per_block):
        touching = [
            KeyExtra(extra.kind, extra.value, extra.offset - first)
            for extra in extras
            if first <= extra.offset < first + tokens_per_block
        ]
        block = words[4 * first : 4 * (first + tokens_per_block)]
        parent = _block_key(space, parent, block, touching)
        yield parent


def derive_chain(
    space: bytes,
    tokens: Iterable[int],
    tokens_per_block: int,
    extras: Sequence[KeyExtra] = (),
) -> list[bytes]:
    """Returns the keys of all full blocks of a token sequence. An extra changes the key of the
    block that contains its offset in the sequence, and so the keys of all later blocks."""
    return list(iterate_chain(space, tokens, tokens_per_block, extras))


def opaque_key(space: bytes, engine_key: bytes) -> bytes:
    """Returns the key of a block that an engine identifies by its own hash."""
    parts = [_field(_OPAQUE_TAG), _field(space), _field(engine_key)]
    return hashlib.sha256(b"".join(parts)).digest()
