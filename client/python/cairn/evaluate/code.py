# SPDX-License-Identifier: Apache-2.0
"""Codes the KV of one sequence block by block with the codec alone, into whole images as in a
daemon. Needs numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import image
from ..errors import FailedPreconditionError, InvalidArgumentError
from .dump import Kv

TOKENS_PER_BLOCK = 128
SOURCE_BYTES_MAX = 48 << 20  # in one image, whose limit is 64 MiB
SAMPLES_MIN = 5  # for a rate; if there are fewer blocks, they are coded again


@dataclass(frozen=True)
class Group:
    """Layers of one geometry and one RoPE, and their profile."""

    layers: list[int]
    profile: bytes | None = None


@dataclass(frozen=True)
class Inputs:
    """Inputs of encoders other than the elements, by layer: the mean |q| of the queries that read
    each channel of K [heads, dim], and the score and the state of each token [heads, tokens].
    Layers may lack them."""

    query_magnitudes: Mapping[int, np.ndarray] = field(default_factory=dict)
    token_scores: Mapping[int, np.ndarray] = field(default_factory=dict)
    token_states: Mapping[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """Layers of a group that share an image; `first` is the index of the first one in the group."""

    layers: list[int]
    first: int
    profile: bytes | None


@dataclass(frozen=True)
class Coded:
    """The decoded values, and the measurements for the blocks from `first_counted` on. Rates are
    bytes in source form per second, for the median image; decoding includes all checksums."""

    kv: Kv
    image_bytes: int
    source_bytes: int
    encode_rate: float
    decode_rate: float

    @property
    def bits(self) -> float:
        """Returns the bits per element of K and V together, with all overhead."""
        item_bytes = next(iter(self.kv.k.values())).itemsize
        return 8 * item_bytes * self.image_bytes / self.source_bytes

    @property
    def ratio(self) -> float:
        return self.source_bytes / self.image_bytes


def block_count_of(kv: Kv) -> int:
    count = kv.token_count // TOKENS_PER_BLOCK
    if not count:
        raise InvalidArgumentError(f"{kv.token_count} tokens are no block of {TOKENS_PER_BLOCK}")
    return count


def code(
    exact: Kv,
    groups: Sequence[Group],
    recipe: str,
    inputs: Inputs = Inputs(),
    first_counted: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Coded:
    """Codes the full blocks of `exact`. Needs as much memory as its K and V. Raises
    FailedPreconditionError if the recipe cannot code such KV."""
    block_count = block_count_of(exact)
    try:
        exact = exact.first_tokens(block_count * TOKENS_PER_BLOCK)
        codec = _Codec(exact, groups, recipe, inputs)
    except InvalidArgumentError as error:
        raise FailedPreconditionError(str(error)) from None
    for block in range(block_count):
        codec.code(block, block >= first_counted)
        progress((block + 1) / block_count)
    return codec.coded()


def parts_of(exact: Kv, groups: Sequence[Group]) -> list[_Part]:
    """Returns the layers that share an image: layers of one group, as many as fit in an image."""
    found = []
    for group in groups:
        kv = exact.k[group.layers[0]], exact.v[group.layers[0]]
        layer_bytes = sum(x[:, :TOKENS_PER_BLOCK].nbytes for x in kv)
        count = max(1, SOURCE_BYTES_MAX // layer_bytes)
        for first in range(0, len(group.layers), count):
            found.append(_Part(group.layers[first : first + count], first, group.profile))
    return found


def _stacked(
    found: Mapping[int, np.ndarray], layers: list[int], cut=np.s_[:], dtype: type = np.float32
) -> Any:
    if not all(layer in found for layer in layers):
        return None
    return np.stack([found[layer][cut] for layer in layers]).astype(dtype)


class _Codec:
    """Encodes and decodes block after block, in memory that is allocated once."""

    def __init__(
        self, exact: Kv, groups: Sequence[Group], recipe: str, inputs: Inputs
    ) -> None:
        self._exact, self._parts, self._recipe = exact, parts_of(exact, groups), recipe
        self._inputs = inputs
        k = {layer: np.empty_like(plane) for layer, plane in exact.k.items()}
        v = {layer: np.empty_like(plane) for layer, plane in exact.v.items()}
        self._coded = Kv(exact.dtype, k, v, scales=exact.scales)
        self._image_bytes = 0
        self._source_bytes = 0
        self._rates: dict[str, list[float]] = {"encode": [], "decode": []}
        self._targets: list[bytearray] = []
        self._decoded: list[np.ndarray] = []
        blocks = exact.token_count // TOKENS_PER_BLOCK
        self._samples = -(-SAMPLES_MIN // (blocks * len(self._parts)))
        self._parents: list[bytes | None] = [None] * len(self._parts)
        self._has_chain = False
        for index, part in enumerate(self._parts):  # touches the memory and loads the library
            spec, source = self._source_of(index, min(1, blocks - 1))
            self._targets.append(bytearray(image.bytes_max(spec)))
            self._decoded.append(np.empty_like(source))
            image_bytes, *_ = self._code(index, spec, source)
            # A recipe that continues from the previous block has another name without it.
            info = image.inspect(memoryview(self._targets[index])[:image_bytes])
            self._has_chain |= info.recipe != recipe

    def code(self, block: int, is_counted: bool) -> None:
        for index, part in enumerate(self._parts):
            spec, source = self._source_of(index, block)
            for _ in range(self._samples):
                image_bytes, *seconds = self._code(index, spec, source)
                for step, took in zip(self._rates.values(), seconds, strict=True):
                    step.append(source.nbytes / took)
            if is_counted:
                self._image_bytes += image_bytes
                self._source_bytes += source.nbytes
            if self._has_chain:
                self._parents[index] = bytes(memoryview(self._targets[index])[:image_bytes])
            self._keep(part, block, spec, self._decoded[index])

    def _code(
        self, index: int, spec: image.ImageSpec, source: np.ndarray
    ) -> tuple[int, float, float]:
        """Returns the size of the image, the seconds of encoding, and the seconds of decoding."""
        begin = time.perf_counter()
        encoded = image.encode(spec, source=source, target=self._targets[index])
        middle = time.perf_counter()
        image.decode(encoded, source=self._decoded[index], profile=spec.profile)
        return len(encoded), middle - begin, time.perf_counter() - middle

    def _source_of(self, index: int, block: int) -> tuple[image.ImageSpec, np.ndarray]:
        """Returns a copy of one block of one part as source payload: [layers, heads, K then V]."""
        part = self._parts[index]
        cut = np.s_[:, block * TOKENS_PER_BLOCK : (block + 1) * TOKENS_PER_BLOCK]
        planes = (self._exact.k, self._exact.v)
        k, v = (np.stack([plane[i][cut] for i in part.layers]) for plane in planes)
        spec = image.ImageSpec(
            self._recipe,
            len(part.layers),
            k.shape[1],
            TOKENS_PER_BLOCK,
            k.shape[3],
            v.shape[3],
            self._exact.dtype,
            first_position=block * TOKENS_PER_BLOCK,
            layer_first=part.first,
            profile=part.profile,
            parent=self._parents[index],
            query_magnitudes=_stacked(self._inputs.query_magnitudes, part.layers),
            token_scores=_stacked(self._inputs.token_scores, part.layers, cut),
            token_states=_stacked(self._inputs.token_states, part.layers, cut, np.uint8),
            chain_tokens=self._exact.token_count,
        )
        flat = [plane.reshape(*plane.shape[:2], -1) for plane in (k, v)]
        return spec, np.concatenate(flat, axis=2)

    def _keep(self, part: _Part, block: int, spec: image.ImageSpec, decoded: np.ndarray) -> None:
        cut = np.s_[:, block * TOKENS_PER_BLOCK : (block + 1) * TOKENS_PER_BLOCK]
        k, v = np.split(decoded, [spec.tokens * spec.k_dim], axis=2)
        shape = (spec.heads, spec.tokens, -1)
        for place, layer in enumerate(part.layers):
            self._coded.k[layer][cut] = k[place].reshape(shape)
            self._coded.v[layer][cut] = v[place].reshape(shape)

    def coded(self) -> Coded:
        rates = {f"{step}_rate": float(np.median(found)) for step, found in self._rates.items()}
        return Coded(self._coded, self._image_bytes, self._source_bytes, **rates)
