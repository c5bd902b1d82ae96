# SPDX-License-Identifier: Apache-2.0
"""Publishes a daemon's events in the format of vLLM 0.32, for routers that read that format.

    python -m cairn.events --control 127.0.0.1:50151 --zmq tcp://127.0.0.1:5557

Needs pyzmq and msgspec (`pip install kvcairn[events]`). docs/guides/events.md describes the fields.
"""

from __future__ import annotations

import argparse
import functools
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ._settings import control_address
from .client import connect
from .errors import UnavailableError
from .watch import BlockEvent, EventBatch, EventWatch

BATCHES_KEPT = 10_000  # kept for replays
HIGH_WATER_MARK = 100_000
END = (-1).to_bytes(8, "big", signed=True)  # ends a replay
MEDIA = {"gpu": "GPU", "host": "CPU", "ssd": "STORAGE"}
WAIT_SECONDS = 0.05  # wait for events; between waits, replays are answered
EVENTS_PER_BATCH = 1024  # of a snapshot
SUBSCRIBER_MS = 2000  # time that the first batch waits for a subscriber
# During this time after the start, all subscribers are told everything anew for each new one. A
# subscriber from before a restart knows the events of an earlier process, and reconnects only after
# the restart.
JOINING_SECONDS = 60.0
CLEARED = {"type": "AllBlocksCleared"}

# Fields as vLLM declares them: first those that it always writes, then those that it omits if they
# are None.
FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "AllBlocksCleared": (),
}


def low_64_bits(hash_bytes: bytes) -> int:
    """Returns vLLM's short hash of a block, its default."""
    return int.from_bytes(hash_bytes[-8:], "big")


def high_64_bits(hash_bytes: bytes) -> int:
    """Returns SGLang's short hash of a page, which is signed."""
    return int.from_bytes(hash_bytes[:8], "big", signed=True)


# --hashes: the form of a hash in events.
HASHES: dict[str, Callable[[bytes], Any]] = {
    "int": low_64_bits,
    "sglang": high_64_bits,
    "bytes": bytes,
}


def names_of(event: BlockEvent) -> tuple[bytes, bytes | None]:
    """Returns what routers call the block and the one before it: the engine's hashes, or Cairn's keys
    if the writer sent none."""
    if event.engine_hash:
        return event.engine_hash, event.engine_parent or None
    return event.key, event.parent


def events_of(
    events: Iterable[BlockEvent], hash_of: Callable[[bytes], Any], has_owner: bool = False
) -> list[dict[str, Any]]:
    """Returns events as dicts with their `type`; consecutive blocks of a chain share one event.
    has_owner: they name the space."""
    made: list[dict[str, Any]] = []
    before: BlockEvent | None = None
    for event in events:
        name, parent = names_of(event)
        if before is not None and _goes_on(before, event):
            made[-1]["block_hashes"].append(hash_of(name))
            if event.is_stored:
                made[-1]["token_ids"] += event.tokens
        elif event.is_stored:
            made.append(
                {
                    "type": "BlockStored",
                    "block_hashes": [hash_of(name)],
                    "parent_block_hash": None if parent is None else hash_of(parent),
                    "token_ids": list(event.tokens),
                    "block_size": event.token_count,
                    "lora_id": None,
                    "medium": MEDIA[event.tier],
                    "lora_name": None,
                }
                | _origin(event, has_owner)
            )
        else:
            made.append(
                {
                    "type": "BlockRemoved",
                    "block_hashes": [hash_of(name)],
                    "medium": MEDIA[event.tier],
                }
                | _origin(event, has_owner)
            )
        before = event
    return made


def _origin(event: BlockEvent, has_owner: bool) -> dict[str, Any]:
    origin = {"locality": "LOCAL"}
    return origin | {"ownership": f"cairn:{event.space.hex()}"} if has_owner else origin


def _goes_on(before: BlockEvent, event: BlockEvent) -> bool:
    is_alike = (before.is_stored, before.tier, before.space, before.token_count) == (
        event.is_stored,
        event.tier,
        event.space,
        event.token_count,
    )
    if not is_alike or not event.is_stored:
        return is_alike
    is_next = names_of(event)[1] == names_of(before)[0]
    return is_next and len(event.tokens) == len(before.tokens)


def as_array(event: dict[str, Any]) -> list[Any]:
    """Returns the form before 0.26: the type, then fields by position."""
    return [event["type"], *(event.get(name) for name in FIELDS[event["type"]])]


def _place_in_chain(event: BlockEvent) -> tuple[bytes, str, int]:
    return event.space, event.tier, event.first_position


class Bridge:
    """Numbers its batches from 0 without gaps, and answers replays of the last batches.

    A snapshot is published once it is complete, in the order of chains: a router that keeps a tree
    needs a block's parent before the block."""

    def __init__(
        self,
        publisher: Any,
        replayer: Any,
        topic: bytes,
        hash_of: Callable[[bytes], Any],
        form: str,
        has_owner: bool = False,
    ) -> None:
        self._publisher, self._replayer, self._topic = publisher, replayer, topic
        self._form = form
        self._events_of = functools.partial(events_of, hash_of=hash_of, has_owner=has_owner)
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=BATCHES_KEPT)
        self._next = 0
        self._snapshot: list[BlockEvent] = []
        self._began = time.monotonic()

    def step(self, watch: EventWatch) -> bool:
        """Returns False if a new watch, with a new snapshot, must take its place."""
        try:
            batch = watch.next(WAIT_SECONDS)
        except UnavailableError:
            time.sleep(WAIT_SECONDS)  # a reset follows if events were lost
            batch = None
        is_young = time.monotonic() - self._began < JOINING_SECONDS
        is_new_wanted = self._has_joined() and is_young
        if batch is not None:
            is_new_wanted = is_new_wanted and not batch.is_reset
            self._take(batch)
        while self._replayer is not None and self._replayer.poll(0):
            self._replay(self._replayer.recv_multipart())
        return not is_new_wanted

    def _take(self, batch: EventBatch) -> None:
        if batch.is_reset:
            self._snapshot = []
            self._publish([CLEARED])
        if batch.snapshot in ("page", "last_page"):
            self._snapshot += batch.events
        else:
            self._publish(self._events_of(batch.events))
        if batch.snapshot == "last_page":
            events = sorted(self._snapshot, key=_place_in_chain)
            self._snapshot = []
            for i in range(0, len(events), EVENTS_PER_BATCH):
                self._publish(self._events_of(events[i : i + EVENTS_PER_BATCH]))

    def _has_joined(self) -> bool:
        """Returns whether a subscriber has joined since the last call."""
        has_joined = False
        while self._publisher.poll(0):
            has_joined |= self._publisher.recv().startswith(b"\1")
        return has_joined

    def _publish(self, events: Iterable[dict[str, Any]]) -> None:
        import msgspec

        events = list(events)
        if not events:
            return
        shaped = [as_array(event) if self._form == "array" else event for event in events]
        payload = msgspec.msgpack.encode([time.time(), shaped, 0])
        self._sent.append((self._next, payload))
        self._publisher.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload))
        self._next += 1

    def _replay(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[2]) != 8:
            return  # not a valid request; its sender waits in vain
        reader, empty, first = frames
        for number, payload in self._sent:
            if number >= int.from_bytes(first, "big"):
                self._replayer.send_multipart(
                    (reader, empty, self._topic, number.to_bytes(8, "big"), payload)
                )
        self._replayer.send_multipart((reader, empty, b"", END, b""))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m cairn.events", description=__doc__)
    parser.add_argument(
        "--control",
        default=control_address(),
        help="HOST:PORT or unix:PATH of cairnd [$CAIRN_CONTROL, else 127.0.0.1:50151]",
    )
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--zmq", required=True, help="address of the PUB socket")
    parser.add_argument("--connect", action="store_true", help="connect there, do not bind")
    parser.add_argument("--replay", help="address to bind a ROUTER for replays to")
    parser.add_argument("--topic", default="")
    parser.add_argument("--form", choices=("map", "array"), default="map")
    parser.add_argument("--hashes", choices=tuple(HASHES), default="int")
    parser.add_argument("--ownership", action="store_true", help="name each block's space")
    given = parser.parse_args(arguments)
    import zmq

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with zmq.Context() as context, connect(given.control, tenant=given.tenant) as client:
        with context.socket(zmq.XPUB) as publisher, context.socket(zmq.ROUTER) as router:
            publisher.set_hwm(HIGH_WATER_MARK)
            publisher.setsockopt(zmq.XPUB_VERBOSE, 1)  # reports each subscriber
            publisher.linger = router.linger = 0
            (publisher.connect if given.connect else publisher.bind)(given.zmq)
            if given.replay is not None:
                router.bind(given.replay)
            bridge = Bridge(
                publisher,
                None if given.replay is None else router,
                given.topic.encode(),
                HASHES[given.hashes],
                given.form,
                given.ownership,
            )
            try:
                if given.connect:  # messages sent before there is a subscriber are lost
                    publisher.poll(SUBSCRIBER_MS)
                while True:
                    with client.events(snapshots=True) as watch:
                        while bridge.step(watch):
                            pass
            except KeyboardInterrupt:
                pass


if __name__ == "__main__":
    main()
