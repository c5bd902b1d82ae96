# SPDX-License-Identifier: Apache-2.0
"""Keys in Python are those of the library, and those of the vectors both sides pass."""

import ctypes
import json
import random

import cairn
import numpy as np
import pytest
from cairn import _abi, _ffi, keys
from cairn.client import native_spec
from cairn.keys import KeyExtra, SpaceSpec, derive_chain, derive_key, fingerprint, opaque_key
from conftest import ROOT

SPECS = [
    SpaceSpec("m", "r", [cairn.KvGroup(4, 2, 64)]),
    SpaceSpec(
        "modèle",
        "r" * 64,
        [
            cairn.KvGroup([0, 2, 5], 8, 128, v_dim=64, rope=cairn.Rope("half", 64, 1e6)),
            cairn.KvGroup(
                [1, 3], 8, 128, window_tokens=512, rope=cairn.Rope("interleaved", 8, 1e4)
            ),
            cairn.Group("latent", [4], kv_heads=1, k_dim=576),
            cairn.Group("state", [6, 7], state_bytes=4096),
            cairn.Group("opaque_rows", [8], row_bytes=132),
        ],
        dtype="fp16",
        tokens_per_block=64,
    ),
    SpaceSpec(
        "m",
        "r",
        [cairn.KvGroup(1, 1, 8, rope=cairn.Rope("half", 8, 1e4, (1.0, 0.5, 0.25, 0.0)))],
        dtype="fp32",
        tokens_per_block=16,
    ),
]


VECTORS = json.loads((ROOT / "tests" / "golden" / "keys" / "keys.json").read_text())


def name_of(kinds, number):
    return next(name for name, value in kinds.items() if value == number)


def spec_of(vector):
    groups = []
    for group in vector["groups"]:
        rope = dict(group["rope"], kind=name_of(keys.ROPE_KINDS, group["rope"]["kind"]))
        rope["inverse_frequencies"] = tuple(rope["inverse_frequencies"])
        kind = name_of(keys.GROUP_KINDS, group["kind"])
        groups.append(cairn.Group(**(group | {"kind": kind, "rope": cairn.Rope(**rope)})))
    return SpaceSpec(
        vector["model"],
        vector["weights_revision"],
        groups,
        name_of(keys.DTYPES, vector["dtype"]),
        vector["tokens_per_block"],
    )


def extras_of(vector):
    return [KeyExtra(e["kind"], bytes.fromhex(e["value"]), e["offset"]) for e in vector["extras"]]


@pytest.mark.parametrize("vector", VECTORS["spaces"], ids=lambda vector: vector["name"])
def test_golden_fingerprint(vector):
    spec = spec_of(vector["spec"])
    assert fingerprint(vector["spec"]["tenant"], spec).hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["keys"], ids=lambda vector: vector["name"])
def test_golden_key(vector):
    space, parent = bytes.fromhex(vector["space"]), bytes.fromhex(vector["parent"])
    key = derive_key(space, parent, vector["tokens"], extras_of(vector))
    assert key.hex() == vector["key"]


@pytest.mark.parametrize("vector", VECTORS["chains"], ids=lambda vector: vector["name"])
def test_golden_chain(vector):
    chain = derive_chain(
        bytes.fromhex(vector["space"]),
        vector["tokens"],
        vector["tokens_per_block"],
        extras_of(vector),
    )
    assert [key.hex() for key in chain] == vector["keys"]


@pytest.mark.parametrize("vector", VECTORS["opaque"])
def test_golden_opaque_key(vector):
    space, engine_key = bytes.fromhex(vector["space"]), bytes.fromhex(vector["engine_key"])
    assert opaque_key(space, engine_key).hex() == vector["key"]


def native_extras(extras):
    native = (_abi.KeyExtra * len(extras))()
    for one, extra in zip(native, extras, strict=True):
        one.kind, one.offset, one.value_bytes = extra.kind.encode(), extra.offset, len(extra.value)
        one.value = ctypes.cast(ctypes.c_char_p(extra.value), ctypes.c_void_p)
    return native


@pytest.mark.parametrize("spec", SPECS)
def test_fingerprint(spec):
    expected = ctypes.create_string_buffer(32)
    _ffi.check(
        _ffi.library().cairn_fingerprint(b"tenant-1", ctypes.byref(native_spec(spec)), expected)
    )
    assert fingerprint("tenant-1", spec) == expected.raw


@pytest.mark.parametrize(
    "extras",
    [
        [],
        [KeyExtra("salt", b"\0s")],
        [
            KeyExtra("media", bytes(range(32)), 40),
            KeyExtra("lora", b"a", 0),
            KeyExtra("lora", b"a"),
        ],
        [KeyExtra("media", b"", 95), KeyExtra("media", b"\xff", 32), KeyExtra("x", b"y", 1000)],
    ],
)
def test_chain(extras):
    rng = random.Random(7)
    space, tokens = rng.randbytes(32), [rng.randrange(2**32) for _ in range(100)]
    words = (ctypes.c_uint32 * len(tokens))(*tokens)
    expected, count = ctypes.create_string_buffer(3 * 32), ctypes.c_size_t()
    _ffi.check(
        _ffi.library().cairn_derive_chain(
            space,
            words,
            100,
            32,
            native_extras(extras),
            len(extras),
            expected,
            3,
            ctypes.byref(count),
        )
    )
    chain = derive_chain(space, tokens, 32, extras)
    assert count.value == 3 and b"".join(chain) == expected.raw
    assert chain[0] == derive_key(space, None, tokens[:32], [e for e in extras if e.offset < 32])


def test_opaque_key():
    expected = ctypes.create_string_buffer(32)
    _ffi.check(_ffi.library().cairn_opaque_key(bytes(32), b"engine", 6, expected))
    assert opaque_key(bytes(32), b"engine") == expected.raw


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.int32])
def test_tokens_of_any_kind(dtype):
    tokens = list(range(64))
    assert derive_chain(bytes(32), np.array(tokens, dtype), 32) == derive_chain(
        bytes(32), tokens, 32
    )
    every_other = np.arange(128, dtype=dtype)[::2] // 2
    assert derive_chain(bytes(32), every_other, 32) == derive_chain(bytes(32), tokens, 32)


def test_bad_tokens():
    for tokens in ([-1] * 32, [2**32] * 32, [0.5] * 32, np.zeros(32)):
        with pytest.raises((OverflowError, TypeError, ValueError)):
            derive_chain(bytes(32), tokens, 32)
