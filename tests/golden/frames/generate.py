# SPDX-License-Identifier: Apache-2.0
"""Writes frames.json, the vectors of docs/internals/formats/frame.md: a second implementation, written from that page.

python3 tests/golden/frames/generate.py          writes the file
python3 tests/golden/frames/generate.py --check  fails unless the file is what would be written
"""

import json
import pathlib
import struct
import sys

TARGET = pathlib.Path(__file__).with_name("frames.json")

KINDS = {"hello": 1, "hello_reply": 2, "get": 3, "get_reply": 4, "put": 5, "put_reply": 6, "ping": 7, "pong": 8,
         "goodbye": 9, "error": 10}
SLICE = ("layer_first", "layer_count", "head_first", "head_count")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def body_bytes(kind, body):
    if kind in ("ping", "pong", "goodbye"):
        return b""
    if kind == "error":
        return body["text"].encode()
    if kind == "hello":
        return struct.pack("<HHIQ", body["version_max"], 0, body["window"], body["region_bytes"])
    if kind == "hello_reply":
        return struct.pack("<HHIQ", body["version"], body.get("batch_max", 0), body["window"], body["payload_bytes_max"])
    slice_ = [body[name] for name in SLICE] if "layer_first" in body else []
    if kind == "get":
        return struct.pack("<Q32s16sH4HBBIQ", body["space_id"], bytes.fromhex(body["key"]), bytes.fromhex(body["lease"]),
                           body["group"], *slice_, body["form"], 0, 0, body["target_bytes"])
    if kind == "get_reply":
        return struct.pack("<BBHIQQ", body["form"], body["tier"], 0, 0, body["first_position"], body["source_bytes"])
    if kind == "put":
        names = b""
        if "engine_hash" in body:
            own, before = bytes.fromhex(body["engine_hash"]), bytes.fromhex(body["engine_parent"])
            names = struct.pack("<BB6x32s32s", len(own), len(before), own, before)
        return struct.pack("<Q32s32sQH4HHBBBB", body["space_id"], bytes.fromhex(body["key"]), bytes.fromhex(body["parent"]),
                           body["first_position"], body["group"], *slice_, body["tokens"], body["form"], body["is_derived"],
                           body["aux"], body.get("is_durable", 0)) + names
    assert kind == "put_reply"
    return struct.pack("<BB6xQ", body["is_duplicate"], body.get("durability", 0), body["image_bytes"])


def frame_bytes(frame):
    body = body_bytes(frame["kind"], frame["body"])
    head = struct.pack("<4sBBHQ16sQIIHHQ", b"CRN1", 1, KINDS[frame["kind"]], 0, frame["seq"], bytes.fromhex(frame["ticket"]),
                       frame["payload_bytes"], frame["payload_crc32c"], frame["deadline_ms"], frame["status"], len(body), frame.get("trace", 0))
    crc = crc32c(head + bytes(4) + body)
    return head + struct.pack("<I", crc) + body


def frame(name, kind, body=None, **head):
    out = {"name": name, "kind": kind, "seq": 0, "ticket": bytes(16).hex(), "payload_bytes": 0, "payload_crc32c": 0,
           "deadline_ms": 0, "status": 0, "body": body or {}}
    out.update(head)
    return out


def frames():
    key, parent, ticket = bytes(range(1, 33)).hex(), bytes(range(101, 133)).hex(), bytes(range(200, 216)).hex()
    tile = {"group": 0, "layer_first": 0, "layer_count": 1, "head_first": 0, "head_count": 1}
    wide = {"group": 15, "layer_first": 24, "layer_count": 1000, "head_first": 1023, "head_count": 1}
    last = 2**64 - 1
    limit = 64 << 20
    get = dict(space_id=1, key=key, lease=bytes(16).hex(), form=0, target_bytes=0, **tile)
    put = dict(space_id=1, key=key, parent=bytes(32).hex(), first_position=0, tokens=128, form=1, is_derived=0, aux=0, **tile)
    yield frame("hello", "hello", {"version_max": 1, "window": 16, "region_bytes": 256 << 20}, seq=1, ticket=ticket, deadline_ms=2000)
    yield frame("hello, largest", "hello", {"version_max": 65535, "window": 256, "region_bytes": last}, seq=last, deadline_ms=60000)
    yield frame("hello_reply", "hello_reply", {"version": 1, "window": 8, "payload_bytes_max": limit}, seq=1, ticket=ticket)
    yield frame("get", "get", get, seq=2, ticket=ticket, deadline_ms=2000)
    yield frame("get, wide slice under a lease", "get",
                dict(get, space_id=last, lease=ticket, form=1, target_bytes=limit, **wide), seq=3)
    yield frame("get, of a trace", "get", get, seq=2, ticket=ticket, trace=0xA3CE929D0E0E4736)
    yield frame("get_reply", "get_reply", {"form": 0, "tier": 2, "first_position": 2**40, "source_bytes": last}, seq=2,
                payload_bytes=9, payload_crc32c=crc32c(b"123456789"))
    yield frame("get_reply without a payload", "get_reply", {"form": 1, "tier": 0, "first_position": 0, "source_bytes": 0})
    yield frame("put", "put", put, seq=4, ticket=ticket, payload_bytes=9, payload_crc32c=0xE3069283, deadline_ms=2000)
    yield frame("put, everything set", "put",
                dict(put, space_id=last, parent=parent, first_position=2**40, tokens=1024, form=0, is_derived=1, aux=7, **wide),
                seq=5, ticket=ticket, payload_bytes=limit, payload_crc32c=2**32 - 1, deadline_ms=60000)
    yield frame("put_reply", "put_reply", {"is_duplicate": 0, "image_bytes": 123456}, seq=4, ticket=ticket)
    yield frame("put_reply, duplicate", "put_reply", {"is_duplicate": 1, "image_bytes": last}, seq=4)
    yield frame("put, durable", "put", dict(put, is_durable=1), seq=8, ticket=ticket, payload_bytes=9, payload_crc32c=0xE3069283)
    yield frame("put, named by the engine", "put", dict(put, engine_hash=parent[:40], engine_parent=""), seq=9, ticket=ticket,
                payload_bytes=9, payload_crc32c=0xE3069283)
    yield frame("put, longest names and tokens", "put", dict(put, aux=15, engine_hash=key, engine_parent=parent[:16]), seq=10,
                ticket=ticket, payload_bytes=9, payload_crc32c=0xE3069283)
    yield frame("put_reply, durable", "put_reply", {"is_duplicate": 0, "image_bytes": 123456, "durability": 1}, seq=8)
    yield frame("put_reply, stored but not durable", "put_reply", {"is_duplicate": 1, "image_bytes": 1, "durability": 9}, seq=8)
    yield frame("ping", "ping", seq=6, ticket=ticket, deadline_ms=100)
    yield frame("pong", "pong", seq=6, ticket=ticket)
    yield frame("goodbye", "goodbye", seq=7, ticket=ticket)
    yield frame("error", "error", {"text": "slice.head_count is 9, expected 1 to 8"}, seq=4, ticket=ticket, status=3)
    yield frame("error without a text", "error", {"text": ""}, seq=4, status=16)
    yield frame("error, longest text", "error", {"text": "é" * 80}, seq=4, status=5)
    yield frame("hello_reply, of a daemon that takes batches", "hello_reply",
                {"version": 2, "batch_max": 32, "window": 32, "payload_bytes_max": limit}, seq=1, ticket=ticket)
    yield frame("hello, of a client that reads payloads in several places", "hello",
                {"version_max": 4, "window": 16, "region_bytes": 256 << 20}, seq=1, ticket=ticket)


def messages():
    """Messages on `local`: an envelope and a frame."""
    get = next(f for f in frames() if f["kind"] == "get")
    reply = next(f for f in frames() if f["kind"] == "get_reply")
    last = 2**64 - 1
    for name, direction, of, fields in (
            ("request", 1, get, (0, 0, 4096, 1 << 20)),
            ("reply", 2, reply, (4096, 9, 0, 0)),
            ("request, reply may be lent", 3, get, (65528, 0, 4096, 1 << 20)),
            ("lent reply", 4, reply, (last - 9, 9, last, last)),
            ("reply lent in places", 5, reply, (256, 9, 1023, 77))):
        names = ("payload_place", "payload_bytes", "reply_place", "reply_capacity_bytes")
        frame_ = frame_bytes(of)
        yield {"name": name, "direction": direction, **dict(zip(names, fields)), "frame": frame_.hex(),
               "bytes": (struct.pack("<4sBBH4Q", b"CRNL", 1, direction, len(frame_), *fields) + frame_).hex()}


def places():
    """What the daemon writes to the client's region with a reply that is lent in places: the list, then the head."""
    head = b"123456789"
    for listed in ([[0, 16]], [[4096, 64], [2**64 - 1, 1], [128, 2**40]]):
        packed = b"".join(struct.pack("<QQ", *place) for place in listed)
        yield {"places": listed, "head": head.hex(), "bytes": (packed + head).hex()}


def main():
    vectors = [dict(f, bytes=frame_bytes(f).hex()) for f in frames()]
    text = json.dumps({"frames": vectors, "messages": list(messages()), "places": list(places())}, indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            print(f"{TARGET} is not what {__file__} writes")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
