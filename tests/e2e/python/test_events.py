# SPDX-License-Identifier: Apache-2.0
"""What blocks come and go, of a real cairnd, as a router reads it."""

import json
import subprocess
import threading

import cairn
import numpy as np
import pytest
from cairn.watch import Position
from conftest import TOKENS, make_kv, open_space
from daemon import Daemon


def put(space, keys):
    k, v = make_kv(1)
    for i, key in enumerate(keys):
        space.put(key, k, v, parent=keys[i - 1] if i else None, first_position=i * TOKENS)


def begin(watch):
    """A watch has begun once its reset is read."""
    batch = watch.next(5.0)
    assert batch.is_reset and not batch.events
    return batch


def read(watch, count):
    batches = []
    while sum(len(batch.events) for batch in batches) < count:
        batch = watch.next(5.0)
        assert batch is not None and not batch.is_reset, "the events never come"
        batches.append(batch)
    return batches, [event for batch in batches for event in batch.events]


def test_events_describe_themselves_and_have_no_gaps(client):
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    put(space, keys[:1])  # nobody watches yet
    with client.events() as watch:
        reset = begin(watch)
        put(space, keys)
        space.delete(keys[2:])
        batches, events = read(watch, 3)
    assert [(e.is_stored, e.key) for e in events] == [
        (True, keys[1]),
        (True, keys[2]),
        (False, keys[2]),
    ]
    first = events[0]
    assert (first.space, first.tier, first.parent) == (space.fingerprint, "host", keys[0])
    assert (first.first_position, first.token_count) == (TOKENS, TOKENS)
    ends = [reset.position.next_sequence, *(b.position.next_sequence for b in batches)]
    assert [batch.first_sequence for batch in batches] == ends[:-1]
    assert {batch.position.epoch for batch in batches} == {reset.position.epoch}


def test_a_watch_of_a_space_hears_of_that_alone_and_no_tenant_of_another(client, daemon):
    space, other = open_space(client), open_space(client)
    with cairn.connect(daemon.control, data=daemon.data, tenant="others") as stranger:
        with stranger.events() as theirs, space.watch() as ours:
            begin(theirs)
            begin(ours)
            put(other, other.keys(range(TOKENS)))
            put(space, space.keys(range(TOKENS)))
            _, events = read(ours, 1)
            assert [event.space for event in events] == [space.fingerprint]
            assert theirs.next(0.2) is None  # nor does it see that there was something


def test_a_reader_goes_on_where_it_was(client):
    space = open_space(client)
    keys = space.keys(range(2 * TOKENS))
    with space.watch() as watch:
        position = begin(watch).position
    put(space, keys)  # nobody reads; what comes is kept for a while
    with space.watch(position) as watch:
        assert [event.key for event in read(watch, 2)[1]] == keys
    for stale in (
        Position(position.epoch, position.next_sequence + 1000),
        Position(position.epoch + 2, position.next_sequence),
    ):
        with space.watch(stale) as watch:
            assert begin(watch).position.epoch == position.epoch


def test_nothing_comes_in_that_time(client):
    with client.events() as watch:
        begin(watch)
        while (batch := watch.next(0.2)) is not None:
            assert batch.events == []  # of other tests' daemon life
    with pytest.raises(cairn.FailedPreconditionError, match="the watch is closed"):
        watch.next(0.1)


def test_a_space_may_be_closed_before_its_watch(client):
    space = open_space(client)
    watch = space.watch()
    begin(watch)
    space.close()
    assert watch.next(0.1) is None
    watch.close()


def test_who_does_not_read_holds_nobody_up(client):
    """Many more events than the call's window of bytes has room for, and no one reads them."""
    space = open_space(client, groups=[cairn.Group("state", 1, state_bytes=64)])
    keys = [space.opaque_key(f"{i}".encode()) for i in range(1000)]
    source = np.zeros(64, np.uint8)
    with client.events() as watch:
        begin(watch)
        for _ in range(3):
            results = space.put_batch([cairn.Put(key, source=source) for key in keys])
            assert all(result.error is None for result in results)
            assert space.invalidate() == len(keys)
        _, events = read(watch, 6000)
    assert sum(event.is_stored for event in events) == 3000


def test_too_many_watch(client):
    watches = [client.events() for _ in range(32)]  # a tenant's half
    for watch in watches:
        begin(watch)
    with client.events() as one_more:
        with pytest.raises(cairn.ResourceExhaustedError, match="watchers: the tenant holds 32"):
            one_more.next(5.0)
        watches.pop().close()
        while True:  # until the daemon has heard of it
            try:
                begin(one_more)
                break
            except cairn.ResourceExhaustedError:
                continue
    for watch in watches:
        watch.close()


def test_a_daemon_that_is_killed_and_comes_back_is_a_reset(bin_dir, tmp_path):
    with Daemon(bin_dir, "local", tmp_path, "64MiB") as daemon:
        address = daemon.control
        client = cairn.connect(address, data=daemon.data, tenant="test")
        watch = client.events()
        first = begin(watch)
        daemon.process.kill()
        daemon.process.wait()
        with pytest.raises(cairn.UnavailableError):
            while watch.next(5.0) is not None:
                pass
    socket = str(tmp_path / "again.sock")
    command = [str(bin_dir / "cairnd"), "--control", address, "--http", "off", "--socket", socket]
    with open(tmp_path / "again.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen([*command, "--host-bytes", "64MiB"], stderr=log)
    try:
        again = next(iter(watch))
        assert again.is_reset and again.position.epoch != first.position.epoch
    finally:
        client.close()
        process.kill()
        process.wait()


def test_cairnctl_says_them(client, daemon, bin_dir):
    space = open_space(client)
    command = [str(bin_dir / "cairnctl"), "events", "--control", daemon.control, "--json"]
    command += ["--space", space.fingerprint.hex(), "--count", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    keys = space.keys(range(TOKENS))
    done = threading.Event()

    def work():
        while not done.is_set():
            put(space, keys)
            space.delete(keys)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        out, _ = process.communicate(timeout=20)
    finally:
        done.set()
        worker.join()
    lines = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0 and len(lines) >= 2
    assert {line["key"] for line in lines} == {keys[0].hex()}
    assert {line["event"] for line in lines} <= {"stored", "removed"}
