# SPDX-License-Identifier: Apache-2.0
"""The bridge to vLLM's ZMQ format, as a subscriber that was written for vLLM reads it."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT, TOKENS, make_kv, open_space

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from cairn.events import END, FIELDS, low_64_bits  # noqa: E402


# As vLLM 0.32 declares them (vllm/distributed/kv_events.py), in so far as they are read here.
class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


@pytest.fixture
def bridge(daemon, tmp_path):
    """Starts one; returns a subscriber and a replayer."""
    context = zmq.Context()
    started = []

    def start(*flags):
        publish, replay = (f"ipc://{tmp_path}/{name}" for name in ("publish", "replay"))
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe(b"")
        subscriber.bind(publish)  # first, so that nothing is missed
        command = [sys.executable, "-m", "cairn.events", "--control", daemon.control]
        command += ["--tenant", "test", "--zmq", publish, "--connect", "--replay", replay, *flags]
        python_path = {"PYTHONPATH": str(ROOT / "client" / "python")}
        started.append(subprocess.Popen(command, env=os.environ | python_path))
        dealer = context.socket(zmq.DEALER)
        dealer.connect(replay)
        return subscriber, dealer

    yield start
    for process in started:
        process.terminate()
        assert process.wait(10) == 0
    context.destroy(linger=0)


def receive(socket, count):
    frames = []
    while len(frames) < count:
        assert socket.poll(10_000), "nothing comes"
        frames.append(socket.recv_multipart())
    return frames


def put(space, keys):
    k, v = make_kv(1)
    for i, key in enumerate(keys):
        space.put(key, k, v, parent=keys[i - 1] if i else None, first_position=i * TOKENS)


def test_a_subscriber_from_before_a_restart_hears_the_first_word(daemon, tmp_path):
    """It connects again a moment after the publisher has spoken."""
    address = f"ipc://{tmp_path}/publish"
    command = [sys.executable, "-m", "cairn.events", "--control", daemon.control, "--zmq", address]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "client" / "python")}
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.connect(address)
        for _ in range(2):
            process = subprocess.Popen(command, env=environment)
            try:
                ((_, _, payload),) = receive(subscriber, 1)
                assert msgspec.msgpack.decode(payload, type=Batch).events == [AllBlocksCleared()]
                with context.socket(zmq.SUB) as another:  # of the same topic
                    another.subscribe(b"")
                    another.connect(address)
                    receive(another, 1)
                    receive(subscriber, 1)
            finally:
                process.terminate()
                assert process.wait(10) == 0
            while subscriber.poll(100):  # what is still on its way
                subscriber.recv_multipart()


def until_removed(subscriber, decode):
    """Decoded events of all batches up to the first that says that a block is gone."""
    numbers, events = [], []
    while not any("Removed" in str(event) for event in events):
        ((_, number, payload),) = receive(subscriber, 1)
        numbers.append(int.from_bytes(number, "big"))
        events += decode(payload)
    return numbers, events


def test_a_subscriber_of_vllm_reads_it(bridge, client):
    subscriber, dealer = bridge("--topic", "kv")
    ((topic, number, payload),) = receive(subscriber, 1)
    cleared = msgspec.msgpack.decode(payload, type=Batch)
    assert (topic, number, cleared.events) == (b"kv", bytes(8), [AllBlocksCleared()])
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    put(space, keys)
    space.delete(keys[2:])
    numbers, events = until_removed(
        subscriber, lambda payload: msgspec.msgpack.decode(payload, type=Batch).events
    )
    assert numbers == list(range(1, len(numbers) + 1))
    stored = [event for event in events if isinstance(event, BlockStored)]
    hashes = [one for event in stored for one in event.block_hashes]
    assert hashes == [low_64_bits(key) for key in keys]
    assert stored[0].parent_block_hash is None and stored[0].block_size == TOKENS
    assert {event.medium for event in events} == {"CPU"}
    assert {event.ownership for event in events} == {f"cairn:{space.fingerprint.hex()}"}
    for before, event in zip(stored, stored[1:], strict=False):
        assert event.parent_block_hash == before.block_hashes[-1]
    assert events[-1].block_hashes == [low_64_bits(keys[2])]

    dealer.send_multipart([b"", (1).to_bytes(8, "big")])
    replayed = receive(dealer, len(numbers) + 1)
    assert [int.from_bytes(frames[2], "big") for frames in replayed[:-1]] == numbers
    assert replayed[-1] == [b"", b"", END, b""]


def test_the_older_form_is_by_position(bridge, client):
    subscriber, _ = bridge("--form", "array", "--hashes", "bytes")
    receive(subscriber, 1)
    space = open_space(client)
    keys = space.keys(range(TOKENS))
    put(space, keys)
    space.delete(keys)
    _, events = until_removed(subscriber, lambda payload: msgspec.msgpack.decode(payload)[1])
    stored = dict(zip(("type", *FIELDS["BlockStored"]), events[0], strict=True))
    assert stored["type"] == "BlockStored" and stored["block_hashes"] == keys
    removed = dict(zip(("type", *FIELDS["BlockRemoved"]), events[-1], strict=True))
    assert removed["block_hashes"] == keys and removed["medium"] == "CPU"
