# SPDX-License-Identifier: Apache-2.0
"""Writes keys.json, the vectors of docs/internals/formats/key.md: a second implementation, written from that page.

python3 tests/golden/keys/generate.py          writes the file
python3 tests/golden/keys/generate.py --check  fails unless the file is what would be written
"""

import hashlib
import json
import pathlib
import random
import struct
import sys

TARGET = pathlib.Path(__file__).with_name("keys.json")


def digest(fields):
    state = hashlib.sha256()
    for content in fields:
        state.update(len(content).to_bytes(4, "little") + content)
    return state.digest()


def number(value, width=4):
    return value.to_bytes(width, "little")


def real(value):
    return struct.pack("<d", 0.0 if value == 0 else value)


def numbers(values):
    return b"".join(number(v) for v in values)


def fingerprint(spec):
    fields = [
        b"cairn.space.v1",
        spec["tenant"].encode(),
        spec["model"].encode(),
        spec["weights_revision"].encode(),
        number(spec["dtype"], 1),
        number(spec["tokens_per_block"]),
        number(len(spec["groups"])),
    ]
    for group in spec["groups"]:
        rope = group["rope"]
        fields += [number(group["kind"], 1), number(len(group["layers"])), numbers(group["layers"])]
        fields += [number(group[name]) for name in ("kv_heads", "k_dim", "v_dim", "window_tokens")]
        fields += [number(rope["kind"], 1), number(rope["rotary_dims"]), real(rope["base"])]
        fields += [number(len(rope["inverse_frequencies"]))] + [real(f) for f in rope["inverse_frequencies"]]
        fields += [number(group["state_bytes"]), number(group["row_bytes"])]
    return digest(fields)


def encode_extras(extras):
    out = b""
    unique = {(e["offset"], e["kind"].encode(), bytes.fromhex(e["value"])) for e in extras}
    for offset, kind, value in sorted(unique):
        for content in (number(offset), kind, value):
            out += number(len(content)) + content
    return out


def block_key(space, parent, tokens, extras=()):
    return digest([b"cairn.block.v1", space, parent, number(len(tokens)), numbers(tokens), encode_extras(extras)])


def chain(space, tokens, tokens_per_block, extras):
    parent, keys = bytes(32), []
    for first in range(0, len(tokens) - tokens_per_block + 1, tokens_per_block):
        touching = [
            dict(extra, offset=extra["offset"] - first)
            for extra in extras
            if first <= extra["offset"] < first + tokens_per_block
        ]
        parent = block_key(space, parent, tokens[first : first + tokens_per_block], touching)
        keys.append(parent.hex())
    return keys


def opaque_key(space, engine):
    return digest([b"cairn.opaque.v1", space, engine])


def group(kind, layers, **sizes):
    rope = {"kind": 0, "rotary_dims": 0, "base": 0.0, "inverse_frequencies": []}
    rope.update(sizes.pop("rope", {}))
    out = {"kind": kind, "layers": layers, "kv_heads": 0, "k_dim": 0, "v_dim": 0, "window_tokens": 0}
    out.update({"state_bytes": 0, "row_bytes": 0, "rope": rope})
    out.update(sizes)
    return out


def specs():
    half = {"kind": 1, "rotary_dims": 64, "base": 10000.0}
    kv = group(1, list(range(30)), kv_heads=3, k_dim=64, v_dim=64, rope=half)
    scaled = {"kind": 2, "rotary_dims": 8, "base": 500000.0, "inverse_frequencies": [1.0, 0.25, 1e-3, 0.0]}
    base = {"tenant": "default", "model": "m", "weights_revision": "r", "dtype": 1, "tokens_per_block": 128, "groups": [kv]}
    hybrid = [
        group(1, [0, 2, 4], kv_heads=8, k_dim=128, v_dim=96, window_tokens=4096, rope=half),
        group(2, [1], kv_heads=1, k_dim=576, rope=scaled),
        group(3, [3, 5], state_bytes=1048576),
        group(4, [1], row_bytes=132),
    ]
    yield "plain", base
    yield "fp16", dict(base, dtype=2)
    yield "fp32", dict(base, dtype=3)
    yield "other tenant", dict(base, tenant="A-b_c.9")
    yield "short blocks", dict(base, tokens_per_block=16)
    # The same characters, split otherwise: the lengths tell them apart.
    yield "split one way", dict(base, model="ab", weights_revision="c")
    yield "split another way", dict(base, model="a", weights_revision="bc")
    yield "not ASCII", dict(base, model="modèle/日本", weights_revision="x" * 256)
    yield "hybrid", dict(base, groups=hybrid)
    yield "groups in another order", dict(base, groups=hybrid[::-1])
    yield "fp8_e4m3", dict(base, dtype=5)
    yield "fp8_e5m2", dict(base, dtype=6)


def extra(kind, offset, value):
    return {"kind": kind, "offset": offset, "value": value.hex()}


def vectors():
    rng = random.Random(20260101)
    spaces = [{"name": name, "spec": spec, "fingerprint": fingerprint(spec).hex()} for name, spec in specs()]
    plain = bytes.fromhex(spaces[0]["fingerprint"])
    ids = [rng.randrange(2**32) for _ in range(128)]
    parent = bytes(range(32))
    media = [extra("media", 5, b"\x01" * 32), extra("lora", 0, b"adapter"), extra("media", 5, b"\x00" * 32)]
    keys = []
    for name, space, before, tokens, extras in (
        ("first block", plain, bytes(32), ids, []),
        ("with a parent", plain, parent, ids, []),
        ("other space", bytes.fromhex(spaces[1]["fingerprint"]), parent, ids, []),
        ("one token", plain, parent, [0], []),
        ("largest id", plain, parent, [2**32 - 1, 0, 1], []),
        ("no token", plain, parent, [], []),
        ("lora", plain, bytes(32), ids, [extra("lora", 0, b"adapter")]),
        ("empty value", plain, bytes(32), ids, [extra("salt", 0, b"")]),
        ("several extras", plain, bytes(32), ids, media),
        ("several extras, other order and one twice", plain, bytes(32), ids, media[::-1] + media[:1]),
    ):
        keys.append({"name": name, "space": space.hex(), "parent": before.hex(), "tokens": tokens, "extras": extras,
                     "key": block_key(space, before, tokens, extras).hex()})
    long = [rng.randrange(150000) for _ in range(16 * 5 + 7)]
    chains = []
    for name, tokens, extras in (
        ("five blocks and a rest", long, []),
        ("salt, and media in the third block", long, [extra("salt", 0, b"s"), extra("media", 16 * 2 + 3, b"image")]),
        ("media in the rest touches no block", long, [extra("media", 16 * 5, b"image")]),
        ("shorter than a block", long[:15], []),
    ):
        chains.append({"name": name, "space": plain.hex(), "tokens_per_block": 16, "tokens": tokens, "extras": extras,
                       "keys": chain(plain, tokens, 16, extras)})
    opaque = [{"space": plain.hex(), "engine_key": engine.hex(), "key": opaque_key(plain, engine).hex()}
              for engine in (b"", b"\x00", b"12345678", bytes(range(256)))]
    return {"spaces": spaces, "keys": keys, "chains": chains, "opaque": opaque}


def main():
    text = json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            print(f"{TARGET} is not what {__file__} writes")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
