# SPDX-License-Identifier: Apache-2.0
"""That each connector sends its engine's own hashes, as events of a real cairnd show them."""

import hashlib

import cairn
import pytest
from cairn.lmcache import CairnL2
from cairn.transfer import Names


def stored_hashes(watch, count):
    """The engine's own hashes of `count` blocks. A block is stored once in each tier that has it."""
    found = {}
    while len(found) < count:
        batch = watch.next(20.0)
        assert batch is not None, "the events never come"
        found |= {event.key: event.engine_hash for event in batch.events}
    return set(found.values())


def test_lmcache_s_hash_of_a_chunk(daemon):
    digest = hashlib.sha256(b"a chunk").digest()
    with cairn.connect(daemon.control, data=daemon.data, tenant="lm") as client:
        with client.events() as watch:
            assert watch.next(20.0).is_reset
            place = {"control": daemon.control, "data": daemon.data, "tenant": "lm"}
            adapter = CairnL2(weights_revision="r", timeout=20.0, **place)
            try:
                view = memoryview(bytearray(4096))
                adapter.submit_batch_set([f"m@0@0@{digest.hex()}", f"m@0@0@{'ab' * 4}"], [view, view])
                # Two objects, and the adapter's note of their length, which may come between them.
                hashes = stored_hashes(watch, 3)
            finally:
                adapter.close()
    assert digest in hashes and b"\xab" * 4 not in hashes  # four bytes are no hash


@pytest.mark.parametrize(
    ("own", "parent", "expected"),
    [
        (bytes(8), b"", Names(bytes(8))),
        (bytes(32), bytes(32), Names(bytes(32), bytes(32))),
        (bytes(32), bytes(7), Names(bytes(32))),
        (bytes(7), bytes(32), None),
        (bytes(33), b"", None),
        (b"", b"", None),
    ],
)
def test_what_is_no_hash_is_left_out(own, parent, expected):
    assert Names.of(own, parent) == expected
    assert Names.of_hex(own.hex(), parent.hex()) == expected


def test_what_is_no_hex_is_left_out():
    assert Names.of_hex("page 7") is None
