# SPDX-License-Identifier: Apache-2.0
"""The bridge to vLLM's ZMQ format, as a subscriber that was written for vLLM reads it."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request

import cairn
import pytest
from conftest import ROOT, TOKENS, make_kv, open_space
from daemon import Daemon
from ports import free_port

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from cairn.events import END, FIELDS, high_64_bits, low_64_bits  # noqa: E402


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
        command += ["--tenant", "test", "--zmq", publish, "--connect", "--replay", replay]
        command += ["--ownership", *flags]
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


def put(space, keys, names=None):
    k, v = make_kv(1)
    for i, key in enumerate(keys):
        parent = keys[i - 1] if i else None
        own = names[i] if names else None
        position = i * TOKENS
        space.put(key, k, v, parent=parent, first_position=position, names=own, timeout=20)


def of_space(events, space):
    """The daemon is the session's: other tests' blocks are in snapshots, too."""
    return [event for event in events if event.ownership == f"cairn:{space.fingerprint.hex()}"]


def decode(payload):
    return msgspec.msgpack.decode(payload, type=Batch).events


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
                assert decode(payload) == [AllBlocksCleared()]
                with context.socket(zmq.SUB) as another:  # of the same topic
                    another.subscribe(b"")
                    another.connect(address)
                    for one in (another, subscriber):
                        while decode(receive(one, 1)[0][2]) != [AllBlocksCleared()]:
                            pass
            finally:
                process.terminate()
                assert process.wait(10) == 0
            while subscriber.poll(100):  # what is still on its way
                subscriber.recv_multipart()


def until_removed(subscriber, space):
    """The space's events, of all batches up to the first that says that a block of it is gone."""
    numbers, events = [], []
    while not any(isinstance(event, BlockRemoved) for event in events):
        ((_, number, payload),) = receive(subscriber, 1)
        numbers.append(int.from_bytes(number, "big"))
        events += of_space((e for e in decode(payload) if e != AllBlocksCleared()), space)
    return numbers, events


def test_a_subscriber_of_vllm_reads_it(bridge, client):
    subscriber, dealer = bridge("--topic", "kv")
    ((topic, number, payload),) = receive(subscriber, 1)
    assert (topic, number, decode(payload)) == (b"kv", bytes(8), [AllBlocksCleared()])
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    put(space, keys)
    space.delete(keys[2:])
    numbers, events = until_removed(subscriber, space)
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
    events = []
    while not any(event[:2] == ["BlockRemoved", keys] for event in events):
        ((_, _, payload),) = receive(subscriber, 1)
        events += [event for event in msgspec.msgpack.decode(payload)[1] if event[1:2] == [keys]]
    stored = dict(zip(("type", *FIELDS["BlockStored"]), events[0], strict=True))
    assert stored["type"] == "BlockStored" and stored["block_hashes"] == keys
    removed = dict(zip(("type", *FIELDS["BlockRemoved"]), events[-1], strict=True))
    assert removed["medium"] == "CPU"


def names_of(count, tokens=()):
    """As an engine names the blocks of a chain."""
    hashes = [b"", *(f"block {i}".encode().rjust(32, b"#") for i in range(count))]
    return [
        cairn.Names(hashes[i + 1], hashes[i], tokens[i * TOKENS : (i + 1) * TOKENS])
        for i in range(count)
    ]


@pytest.mark.parametrize(("form", "hash_of"), [("int", low_64_bits), ("sglang", high_64_bits)])
def test_hashes_are_the_engines_own(bridge, client, form, hash_of):
    space = open_space(client)
    names = names_of(4)
    keys = space.keys(range(4 * TOKENS))
    put(space, keys[:2], names)  # before there is a bridge: they come with its snapshot
    subscriber, _ = bridge("--hashes", form)
    events = []
    while not events:
        events = of_space(decode(receive(subscriber, 1)[0][2])[1:], space) or of_space(
            decode(receive(subscriber, 1)[0][2]), space
        )
    (stored,) = events
    assert stored.block_hashes == [hash_of(one.hash) for one in names[:2]]
    assert stored.parent_block_hash is None
    for i in (2, 3):
        k, v = make_kv(1)
        space.put(
            keys[i], k, v, parent=keys[i - 1], first_position=i * TOKENS, names=names[i]
        )
    space.delete(keys[3:])
    _, events = until_removed(subscriber, space)
    assert events[0].parent_block_hash == hash_of(names[1].hash)
    assert [one for e in events[:-1] for one in e.block_hashes] == [hash_of(n.hash) for n in names[2:]]
    assert events[-1].block_hashes == [hash_of(names[3].hash)]


def ask(port, path, **body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as reply:
        return json.load(reply)


def test_an_indexer_that_knows_nothing_of_cairn_scores_it(bin_dir, tmp_path, monkeypatch):
    """NVIDIA Dynamo's, which reads vLLM's events: a snapshot, what comes and what goes."""
    pytest.importorskip("dynamo.indexer", reason="pip install ai-dynamo-runtime")
    monkeypatch.setenv("CAIRN_EVENT_TOKENS", "on")
    tokens = list(range(1000, 1000 + 4 * TOKENS))
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon(bin_dir, "local", tmp_path, "64MiB"))
        client = stack.enter_context(cairn.connect(daemon.control, data=daemon.data))
        space = open_space(client)
        keys, names = space.keys(tokens), names_of(4, tokens)
        put(space, keys[:3], names)
        address, port = f"tcp://127.0.0.1:{free_port()}", free_port()
        python_path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "client" / "python"), *sys.path])}
        for command in (
            ["dynamo.indexer", "--workers", f"7={address}", "--block-size", str(TOKENS)]
            + ["--port", str(port), "--model-name", "m"],
            ["cairn.events", "--control", daemon.control, "--zmq", address],
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", *command], env=os.environ | python_path
            )
            stack.callback(process.wait)
            stack.callback(process.kill)

        def score():
            """How many tokens of the prompt the indexer believes to be in the worker's memory."""
            with contextlib.suppress(OSError):
                reply = ask(port, "/query", token_ids=tokens, model_name="m")
                return reply["instances"].get("7", {}).get("cpu", 0)
            return None

        wait_for(lambda: score() == 3 * TOKENS)
        put(space, keys, names)
        wait_for(lambda: score() == 4 * TOKENS)
        space.delete(keys[1:])
        wait_for(lambda: score() == TOKENS)
        space.invalidate()
        wait_for(lambda: score() == 0)


def wait_for(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
