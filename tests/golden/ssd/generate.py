# SPDX-License-Identifier: Apache-2.0
"""Writes ssd.json, the vectors of docs/internals/formats/ssd.md: a second implementation, written from that page and key.md.

python3 tests/golden/ssd/generate.py          writes the file
python3 tests/golden/ssd/generate.py --check  fails unless the file is what would be written
"""

import hashlib
import json
import pathlib
import struct
import sys

TARGET = pathlib.Path(__file__).with_name("ssd.json")

# Bytes 128 to 144 of an image's header, from docs/internals/formats/image.md.
RECIPES = {
    "raw": struct.pack("<BBBBHHBBhB3x", 1, 16, 0, 0, 0, 0, 0, 0, 0, 0),
    "kivi:4+": struct.pack("<BBBBHHBBhB3x", 2, 4, 1, 0, 128, 64, 0, 0, 0, 0),
    "exact:fast": struct.pack("<BBBBHHBBhB3x", 3, 16, 2, 0, 0, 0, 1, 0, 0, 0),
    "logquant:2/log": struct.pack("<BBBBHHBBhB3x", 10, 2, 0, 0, 128, 64, 0, 0, 0, 1),
    "cairn:2.3": struct.pack("<BBBBHHBBhB3x", 4, 23, 0, 0, 0, 0, 0, 0, -77, 0),
}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def fixed(magic, tier_id, fields, size):
    def whole(crc):
        return (struct.pack("<4sHHII16s", magic, 1, size, 0, crc, tier_id) + fields).ljust(size, b"\0")

    return whole(crc32c(whole(0)))


def sealed(key, value):
    return value + struct.pack("<I", crc32c(key + value))


def vector(name, key, value, **fields):
    return dict(fields, name=name, key=key.hex(), value=sealed(key, value).hex())


def extent(name, seq, page, recipe, side_object=b"", **given):
    fields = {"space": 1, "block": bytes(range(1, 33)), "parent": bytes(32), "first_position": 0, "tokens": 128, "group": 0,
              "slice": [0, 1, 0, 1], "source_bytes": 4096, "image_bytes": 4432, "directory_crc": 0, "created": 0,
              "expires": 0} | given
    value = struct.pack("<BBHI32s32sQQQqIH4H", 2 if fields["expires"] else 1, 1 if side_object else 0, fields["group"], fields["space"], fields["block"],
                        fields["parent"], fields["first_position"], fields["source_bytes"], fields["image_bytes"],
                        fields["created"], fields["directory_crc"], fields["tokens"], *fields["slice"])
    fields |= {"block": fields["block"].hex(), "parent": fields["parent"].hex(), "recipe": recipe, "side_object": side_object.hex()}
    value += RECIPES[recipe] + side_object + (struct.pack("<I", fields["expires"]) if fields["expires"] else b"")
    return vector(name, struct.pack(">cQI", b"e", seq, page), value, seq=seq, page=page, **fields)


def extents():
    digest = hashlib.sha256(b"a profile").digest()
    yield extent("least", 1, 1, "raw", tokens=1, source_bytes=1, image_bytes=1)
    yield extent("usual", 77, 513, "kivi:4+", parent=bytes(range(101, 133)), first_position=1024, slice=[2, 30, 4, 4],
                 source_bytes=2 << 20, image_bytes=540_000, directory_crc=0xE3069283, created=1_790_000_000, space=9)
    yield extent("planes alone", 2**40, 7, "exact:fast")
    yield extent("a variant", 3, 8, "logquant:2/log")
    yield extent("a side object", 4, 9, "cairn:2.3", digest, group=3)
    yield extent("an expiry", 5, 10, "raw", created=1_790_000_000, expires=1_790_003_600)
    yield extent("both", 5, 11, "cairn:2.3", digest, expires=2**32 - 1)
    yield extent("most", 2**64 - 1, 2**32 - 1, "raw", bytes([255]) * 32, space=2**32 - 1, block=bytes([254]) * 32,
                 parent=bytes([253]) * 32, first_position=2**40, tokens=1024, group=15, slice=[0, 65535, 65534, 1],
                 source_bytes=64 << 20, image_bytes=64 << 20, directory_crc=2**32 - 1, created=2**63 - 1)


def fields_record(name, seq, page, fields, **meaning):
    """Of fields by their ids; those that the page does not have are of a later release."""
    value = b"\1" + b"".join(struct.pack("<HH", id_, len(data)) + data for id_, data in fields)
    return vector(name, struct.pack(">cQI", b"x", seq, page), value, seq=seq, page=page, **meaning)


def names():
    own, before = bytes(range(1, 33)), bytes(range(101, 109))
    ids = [0, 128_000, 2**32 - 1]
    tokens = struct.pack("<3I", *ids)
    meaning = {"hash": own.hex(), "parent": before.hex(), "tokens": ids, "is_written": True}
    yield fields_record("all", 77, 513, [(1, own), (2, before), (3, tokens)], **meaning)
    yield fields_record("a hash alone", 1, 1, [(1, before)], **dict(meaning, hash=before.hex(), parent="", tokens=[]))
    yield fields_record("tokens alone", 2**64 - 1, 2**32 - 1, [(3, tokens)], **dict(meaning, hash="", parent=""))
    yield fields_record("of a later release", 77, 513, [(9, b"later"), (1, own), (2, before), (3, tokens), (65535, b"")],
                        **dict(meaning, is_written=False))


def field(data):
    return struct.pack("<I", len(data)) + data


def u8(value):
    return field(bytes([value]))


def u32(value):
    return field(struct.pack("<I", value))


def fingerprint(identity):
    """As docs/internals/formats/key.md says."""
    text = field(b"cairn.space.v1") + b"".join(field(identity[name].encode()) for name in ("tenant", "model", "weights_revision"))
    text += u8(identity["dtype"]) + u32(identity["tokens_per_block"]) + u32(len(identity["groups"]))
    for g in identity["groups"]:
        text += u8(g["kind"]) + u32(len(g["layers"])) + field(struct.pack(f"<{len(g['layers'])}I", *g["layers"]))
        text += u32(g["kv_heads"]) + u32(g["k_dim"]) + u32(g["v_dim"]) + u32(g["window_tokens"])
        text += u8(g["rope_kind"]) + u32(g["rotary_dims"]) + field(struct.pack("<d", g["base"]))
        text += u32(len(g["frequencies"])) + b"".join(field(struct.pack("<d", f)) for f in g["frequencies"])
        text += u32(g["state_bytes"]) + u32(g["row_bytes"])
    return hashlib.sha256(text).digest()


def text_bytes(text):
    return struct.pack("<H", len(text.encode())) + text.encode()


def group(**given):
    return {"kind": 1, "layers": [0], "kv_heads": 0, "k_dim": 0, "v_dim": 0, "window_tokens": 0, "rope_kind": 0, "rotary_dims": 0,
            "base": 0.0, "frequencies": [], "state_bytes": 0, "row_bytes": 0} | given


def space(name, number, identity, recipe, current, cold_recipe="", ttl=0):
    value = (b"\2" if cold_recipe or ttl else b"\1") + fingerprint(identity)
    value += b"".join(text_bytes(identity[name]) for name in ("tenant", "model", "weights_revision"))
    value += struct.pack("<BIH", identity["dtype"], identity["tokens_per_block"], len(identity["groups"]))
    for g in identity["groups"]:
        value += struct.pack("<BBIIIIIIId", g["kind"], g["rope_kind"], g["kv_heads"], g["k_dim"], g["v_dim"], g["window_tokens"],
                             g["state_bytes"], g["row_bytes"], g["rotary_dims"], g["base"])
        value += struct.pack(f"<H{len(g['frequencies'])}d", len(g["frequencies"]), *g["frequencies"])
        value += struct.pack(f"<H{len(g['layers'])}I", len(g["layers"]), *g["layers"])
    value += text_bytes(recipe) + struct.pack("<H", len(current))
    for c in current:
        value += struct.pack("<HBB32s", c["group"], c["kind"], c["is_mined"], bytes.fromhex(c["id"]))
    if cold_recipe or ttl:
        value += text_bytes(cold_recipe) + struct.pack("<I", ttl)
    return vector(name, struct.pack(">cI", b"p", number), value, number=number, identity=identity, recipe=recipe, current=current,
                  cold_recipe=cold_recipe, ttl=ttl)


def spaces():
    plain = {"tenant": "t", "model": "m", "weights_revision": "r", "dtype": 1, "tokens_per_block": 128,
             "groups": [group(kv_heads=8, k_dim=128, v_dim=128)]}
    yield space("one group", 0, plain, "exact", [])
    yield space("a cold recipe", 1, plain, "kivi:8", [], cold_recipe="kivi:4")
    yield space("a time to live", 2, plain, "exact", [], ttl=2**32 - 1)
    many = {"tenant": "team-7", "model": "modèle/8b", "weights_revision": "2026-11", "dtype": 3, "tokens_per_block": 16, "groups": [
        group(layers=[0, 2, 65535], kv_heads=2, k_dim=16, v_dim=8, window_tokens=4096, rope_kind=1, rotary_dims=8, base=10000.5),
        group(kind=2, layers=[1], kv_heads=1, k_dim=576, rope_kind=2, rotary_dims=4, base=500000.0, frequencies=[1.0, 0.125]),
        group(kind=3, layers=[3], state_bytes=65536),
        group(kind=4, layers=[4, 5], row_bytes=17)]}
    ids = [hashlib.sha256(bytes([i])).hexdigest() for i in range(3)]
    yield space("four groups", 2**32 - 1, many, "cairn:2.3", [
        {"group": 0, "kind": 1, "is_mined": 1, "id": ids[0]}, {"group": 0, "kind": 2, "is_mined": 0, "id": ids[1]},
        {"group": 1, "kind": 1, "is_mined": 0, "id": ids[2]}])


def vectors():
    tier_id = bytes(range(200, 216))
    metas = [{"tier_id": i.hex(), "segment_bytes": n, "bytes": fixed(b"CKVT", i, struct.pack("<Q", n), 64).hex()}
             for i, n in ((tier_id, 256 << 20), (bytes(16), 8192), (bytes([255]) * 16, 2**44))]
    headers = []
    for slot, seq, size in ((0, 1, 8192), (4095, 2**40 + 3, 256 << 20), (2**32 - 1, 2**64 - 1, 2**44)):
        data = fixed(b"CKVS", tier_id, struct.pack("<QQI", seq, size, slot), 4096)
        assert not any(data[52:])
        headers.append({"tier_id": tier_id.hex(), "slot": slot, "seq": seq, "segment_bytes": size, "begins": data[:52].hex()})
    segments = [vector(f"slot {slot}", struct.pack(">cI", b"s", slot), struct.pack("<BBQ", 1, state, seq), slot=slot, seq=seq,
                       state=state) for slot, state, seq in ((0, 1, 1), (300, 2, 2**64 - 1))]
    small = [vector(name, b"m" + name.encode(), b"\1" + data, bytes=data.hex()) for name, data in (("tier", tier_id), ("", b""))]
    return {"tier_metas": metas, "segment_headers": headers, "extents": list(extents()), "names": list(names()), "segments": segments,
            "spaces": list(spaces()), "metas": small}


def main():
    text = json.dumps(vectors(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            print(f"{TARGET} is not what {__file__} writes")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
