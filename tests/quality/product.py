# SPDX-License-Identifier: Apache-2.0
"""Codes KV by way of a cairnd of our own: what a decode worker would get, and the bytes that the
store holds for it. Side objects are installed before the first put, and what was stored has to be
in the recipe that was asked for: without its profile a daemon keeps blocks `exact`."""

from __future__ import annotations

import itertools
import pathlib
import tempfile
import time
from collections.abc import Mapping, Sequence

import cairn
import numpy as np
from cairn.evaluate.code import Inputs
from coder import Coded
from daemon import Daemon
from lm.model import CHUNK_TOKENS, Geometry

CALL_SECONDS = 60.0
MINING_SECONDS = 120.0
BANKED = "patternkv"  # recipes that code with a bank


def groups_of(geometry: Geometry) -> list[cairn.Group]:
    """One group per kind of layer."""
    return [
        cairn.KvGroup(
            layers=layers,
            kv_heads=geometry.kv_heads,
            dim=geometry.dim,
            window_tokens=kind.window_tokens,
            rope=cairn.Rope(geometry.rope_pairs, geometry.dim, kind.rope_base),
        )
        for kind, layers in geometry.layers_by_kind().items()
    ]


class Product:
    """A daemon and a client to it, until the end of the `with` block."""

    NAME = "daemon"

    def __init__(self, bin_dir: pathlib.Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cairn-quality-")
        self._daemon = Daemon(bin_dir, "local", pathlib.Path(self._folder.name))
        self._client = cairn.connect(
            self._daemon.control, data=self._daemon.data, tenant="quality"
        )
        self._count = itertools.count()

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()
        self._daemon.stop()
        self._folder.cleanup()

    def code(
        self,
        geometry: Geometry,
        revision: str,
        recipe: str,
        k_bits: np.ndarray,
        v_bits: np.ndarray,
        profiles: Sequence[bytes] | None = None,
        inputs: Inputs = Inputs(),
    ) -> Coded:
        """Puts the KV of a whole prefix in blocks of 128 tokens into a space of `recipe`, gets it
        back and deletes it. `profiles`: a profile or a bank for each kind of layers."""
        tokens = k_bits.shape[2]
        if tokens % CHUNK_TOKENS:
            raise ValueError(f"{tokens} tokens are not full blocks of {CHUNK_TOKENS}")
        groups = groups_of(geometry)
        with self._open(groups, revision, recipe) as space:
            install(space, profiles)
            keys = space.keys(np.arange(tokens, dtype=np.uint32))
            k_out, v_out = np.empty_like(k_bits), np.empty_like(v_bits)
            image_bytes = 0
            for index, group in enumerate(groups):
                layers, part = list(group.layer_indices), cairn.Part(group=index)
                magnitudes = _stacked(inputs.query_magnitudes, layers)
                scores = _stacked(inputs.token_scores, layers)
                puts = _puts(keys, part, k_bits[layers], v_bits[layers], magnitudes, scores)
                image_bytes += _put(space, puts)
                check_recipe(space, keys[-1], part, recipe)
                k_out[layers], v_out[layers] = _get(space, keys, part, k_bits[layers].shape)
            space.invalidate()
        return Coded(k_out, v_out, image_bytes, k_bits.size + v_bits.size)

    def mine(
        self, geometry: Geometry, revision: str, k_bits: np.ndarray, v_bits: np.ndarray
    ) -> list[bytes]:
        """Puts KV in full blocks of 128 tokens, without queries, into a space of cairn:2.3, and
        waits for what the daemon mines of it: a profile for each kind of layers."""
        groups = groups_of(geometry)
        with self._open(groups, revision, "cairn:2.3") as space:
            keys = space.keys(np.arange(k_bits.shape[2], dtype=np.uint32))
            for index, group in enumerate(groups):
                layers = list(group.layer_indices)
                part = cairn.Part(group=index)
                _put(space, _puts(keys, part, k_bits[layers], v_bits[layers], None, None))
            profiles = [_wait_for_profile(space, index) for index in range(len(groups))]
            space.invalidate()
        return profiles

    def _open(self, groups: list[cairn.Group], revision: str, recipe: str) -> cairn.Space:
        """A space that shares blocks with no other."""
        space = self._client.open_space(
            model=f"{recipe} {next(self._count)}",
            weights_revision=revision,
            groups=groups,
            dtype="bf16",
            tokens_per_block=CHUNK_TOKENS,
            recipe=recipe,
        )
        if space.recipe != recipe:
            raise RuntimeError(f"asked for {recipe}, the space has {space.recipe}")
        return space


def _wait_for_profile(space: cairn.Space, group: int) -> bytes:
    latest = time.monotonic() + MINING_SECONDS
    while (found := space.current_profile(group)) is None:
        if time.monotonic() > latest:
            raise RuntimeError(f"no profile of group {group} after {MINING_SECONDS:.0f} s")
        time.sleep(0.2)
    return space.side_object(found)


def install(space: cairn.Space, side_objects: Sequence[bytes] | None) -> None:
    """One for each group; which kind they are is what the recipe needs."""
    for index, data in enumerate(side_objects or ()):
        if space.recipe.startswith(BANKED):
            space.install_bank(index, data)
        else:
            space.install_profile(index, data)


def check_recipe(space: cairn.Space, key: bytes, part: cairn.Part, recipe: str) -> None:
    """RuntimeError where the image of a block is in another recipe than the space's."""
    image = bytearray(space.image_bytes_max(part))
    if not space.get(key, image=image, part=part):
        raise RuntimeError("a block that was put is not there")
    found = cairn.image.inspect(image).recipe
    if found != recipe:
        raise RuntimeError(f"asked for {recipe}, the daemon stored {found}")


def _block(index: int) -> slice:
    return slice(index * CHUNK_TOKENS, (index + 1) * CHUNK_TOKENS)


def _stacked(by_layer: Mapping[int, np.ndarray], layers: list[int]) -> np.ndarray | None:
    if not by_layer:
        return None
    return np.stack([by_layer[layer] for layer in layers]).astype(np.float32)


def _puts(
    keys: list[bytes],
    part: cairn.Part,
    k: np.ndarray,
    v: np.ndarray,
    magnitudes: np.ndarray | None,
    scores: np.ndarray | None,
) -> list[cairn.Put]:
    return [
        cairn.Put(
            key,
            k[:, :, _block(index)],
            v[:, :, _block(index)],
            parent=keys[index - 1] if index else None,
            first_position=index * CHUNK_TOKENS,
            part=part,
            query_magnitudes=magnitudes,
            token_scores=None if scores is None else scores[:, :, _block(index)].copy(),
        )
        for index, key in enumerate(keys)
    ]


def _put(space: cairn.Space, puts: list[cairn.Put]) -> int:
    results = space.put_batch(puts, timeout=CALL_SECONDS)
    for result in results:
        if result.error is not None:
            raise result.error
        if result.is_duplicate or not result.image_bytes:
            raise RuntimeError("a put stored nothing")
    return sum(result.image_bytes for result in results)


def _get(
    space: cairn.Space, keys: list[bytes], part: cairn.Part, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    k, v = np.empty(shape, np.uint16), np.empty(shape, np.uint16)
    gets = [
        cairn.Get(key, k[:, :, _block(index)], v[:, :, _block(index)], part=part)
        for index, key in enumerate(keys)
    ]
    for result in space.get_batch(gets, timeout=CALL_SECONDS):
        if result.error is not None:
            raise result.error
        if not result:
            raise RuntimeError("a block that was put is not there")
    return k, v
