# SPDX-License-Identifier: Apache-2.0
"""What blocks come and go, of a real cairnd, as a router reads it."""

import contextlib
import json
import os
import subprocess
import threading

import cairn
import numpy as np
import pytest
from cairn.watch import Position
from conftest import ROOT, TOKENS, make_kv, open_space
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


# ------------------------------------------------------------------------ names of engines


def hash_of(i):
    """An engine's hash of a block."""
    return f"engine's {i}".encode().ljust(8 + i % 25, b".")


def put_named(space, keys, tokens=()):
    k, v = make_kv(1)
    for i, key in enumerate(keys):
        names = cairn.Names(
            hash=hash_of(i),
            parent=hash_of(i - 1) if i else b"",
            tokens=tokens[i * TOKENS : (i + 1) * TOKENS],
        )
        parent = keys[i - 1] if i else None
        space.put(key, k, v, parent=parent, first_position=i * TOKENS, names=names)


def read_snapshot(watch):
    """The events of the snapshot that begins the watch."""
    reset = watch.next(5.0)
    assert reset.is_reset and reset.snapshot == "follows" and reset.position.epoch == 0
    events, number = [], reset.position.next_sequence
    while True:
        batch = watch.next(5.0)
        assert batch is not None and not batch.is_reset
        assert (batch.first_sequence, batch.position.next_sequence) == (number, number)
        events += batch.events
        if batch.snapshot == "last_page":
            assert batch.position.epoch != 0
            return events
        assert batch.snapshot == "page" and batch.position.epoch == 0


def named(events):
    return {event.key: (event.engine_hash, event.engine_parent) for event in events}


def test_events_carry_the_names_of_the_engine(client):
    space = open_space(client)
    keys = space.keys(range(3 * TOKENS))
    with space.watch() as watch:
        begin(watch)
        put_named(space, keys, range(3 * TOKENS))
        space.delete(keys)
        _, events = read(watch, 6)
    stored, removed = events[:3], events[3:]
    assert [event.engine_hash for event in stored] == [hash_of(i) for i in range(3)]
    assert [event.engine_parent for event in stored] == [b"", hash_of(0), hash_of(1)]
    assert {event.tokens for event in stored} == {()}  # the operator has not asked for them
    assert {event.key: event.engine_hash for event in removed} == {
        key: hash_of(i) for i, key in enumerate(keys)
    }


def test_a_block_gets_its_names_later_and_keeps_the_first(client):
    space = open_space(client)
    keys = space.keys(range(TOKENS))
    put(space, keys)
    with space.watch() as watch:
        begin(watch)
        put_named(space, keys)  # it is stored already: nothing moves
        k, v = make_kv(1)
        again = space.put(keys[0], k, v, names=cairn.Names(hash=b"another's"))
        assert again.is_duplicate
        space.delete(keys)
        _, events = read(watch, 2)
    assert [(e.is_stored, e.engine_hash) for e in events] == [(True, hash_of(0)), (False, hash_of(0))]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (cairn.Names(hash=b"1234567"), r"names.hash has 7 bytes, expected 8 to 32"),
        (cairn.Names(hash=bytes(33)), r"names.hash has 33 bytes, expected 8 to 32"),
        (cairn.Names(parent=bytes(8)), r"names.hash is empty, but names.parent is not"),
        (cairn.Names(tokens=range(3)), rf"names.tokens has 3 ids; a block has {TOKENS}"),
    ],
)
def test_names_that_are_refused(client, names, message):
    space = open_space(client)
    k, v = make_kv(1)
    with pytest.raises(cairn.InvalidArgumentError, match=message):
        space.put(space.keys(range(TOKENS))[0], k, v, names=names)


def test_a_snapshot_tells_what_is_stored(client, daemon):
    space = open_space(client, groups=[cairn.Group("state", 1, state_bytes=64)])
    keys = [space.opaque_key(f"{i}".encode()) for i in range(3000)]  # more than a page
    source = np.zeros(64, np.uint8)
    puts = [cairn.Put(key, source=source, names=cairn.Names(hash=key[:8])) for key in keys]
    assert all(result.error is None for result in space.put_batch(puts))
    gone = keys[::3]
    space.delete(gone)
    with space.watch(snapshots=True) as watch:
        events = read_snapshot(watch)
        assert len(events) == 2000 and all(event.is_stored for event in events)
        assert named(events) == {key: (key[:8], b"") for key in set(keys) - set(gone)}
        space.delete(keys[1:2])
        assert [event.key for event in read(watch, 1)[1]] == keys[1:2]
    with cairn.connect(daemon.control, data=daemon.data, tenant="others") as stranger:
        with stranger.events(snapshots=True) as theirs:
            assert not {event.space for event in read_snapshot(theirs)} & {space.fingerprint}


def test_a_snapshot_and_what_follows_is_what_is_stored(client):
    """While blocks come and go as fast as they can."""
    space = open_space(client, groups=[cairn.Group("state", 1, state_bytes=64)])
    keys = [space.opaque_key(f"{i}".encode()) for i in range(500)]
    source = np.zeros(64, np.uint8)
    done = threading.Event()

    def churn():
        turn = 0
        while not done.is_set():
            part = keys[turn % 5 :: 5]
            space.put_batch([cairn.Put(key, source=source) for key in part])
            space.delete(part[:: 1 + turn % 3])
            turn += 1

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        for _ in range(5):
            with space.watch(snapshots=True) as watch:
                known = {event.key for event in read_snapshot(watch)}
                done.set()
                worker.join()
                while (batch := watch.next(0.3)) is not None:
                    for event in batch.events:
                        (known.add if event.is_stored else known.discard)(event.key)
            stored = space.contains(keys)
            assert known == {key for key, is_there in zip(keys, stored, strict=True) if is_there}
            done.clear()
            worker = threading.Thread(target=churn)
            worker.start()
    finally:
        done.set()
        worker.join()


def test_names_survive_a_kill_and_tokens_are_the_operators_choice(bin_dir, tmp_path, monkeypatch):
    tokens = range(70_000, 70_000 + 3 * TOKENS)
    for name in ("ssd", "first", "second", "third"):
        (tmp_path / name).mkdir()

    @contextlib.contextmanager
    def life(name, event_tokens):
        monkeypatch.setenv("CAIRN_EVENT_TOKENS", event_tokens)
        ssd = f"{tmp_path / 'ssd'}=256MiB"
        with Daemon(bin_dir, "local", tmp_path / name, "64MiB", ssd) as daemon:
            with cairn.connect(daemon.control, data=daemon.data, tenant="test") as client:
                yield open_space(client, weights_revision="the same")
            daemon.process.kill()
            daemon.process.wait()

    with life("first", "on") as space:
        keys = space.keys(tokens)
        with space.watch() as watch:
            begin(watch)
            put_named(space, keys, tokens)
            _, events = read(watch, 6)  # in memory and on the drive
        assert {event.tier for event in events} == {"host", "ssd"}
        for event in events:
            i = keys.index(event.key)
            assert event.tokens == tuple(tokens[i * TOKENS : (i + 1) * TOKENS])
    for name, event_tokens in (("second", "on"), ("third", "off")):
        with life(name, event_tokens) as space, space.watch(snapshots=True) as watch:
            events = read_snapshot(watch)
        assert [event.tier for event in events] == ["ssd"] * 3
        assert named(events) == {
            key: (hash_of(i), hash_of(i - 1) if i else b"") for i, key in enumerate(keys)
        }
        for event in events:
            i = keys.index(event.key)
            kept = tokens[i * TOKENS : (i + 1) * TOKENS] if event_tokens == "on" else ()
            assert event.tokens == tuple(kept)


# The folder of a tier as the first release with names wrote it: docs/internals/formats/ssd.md.
NAMED_TIER = ROOT / "tests" / "golden" / "ssd" / "tier-names.tar.gz"


def test_names_that_an_older_release_wrote(bin_dir, tmp_path, monkeypatch):
    """CAIRN_WRITE_TIER=FILE writes such an archive with this release."""
    monkeypatch.setenv("CAIRN_EVENT_TOKENS", "on")
    archive, tokens = os.environ.get("CAIRN_WRITE_TIER"), range(70_000, 70_000 + 3 * TOKENS)
    for name in ("ssd", "first", "second"):
        (tmp_path / name).mkdir(mode=0o700)
    ssd = tmp_path / "ssd"
    if archive is None:
        subprocess.run(["tar", "-C", ssd, "-xzf", NAMED_TIER, "--no-same-owner"], check=True)
    for name in ("first", "second"):  # and what this release leaves there
        with Daemon(bin_dir, "local", tmp_path / name, "64MiB", f"{ssd}=256MiB") as daemon:
            with cairn.connect(daemon.control, data=daemon.data, tenant="test") as client:
                space = open_space(client, weights_revision="golden")
                keys = space.keys(tokens)
                if archive is not None:
                    put_named(space, keys, tokens)
                else:
                    check_named_blocks(space, keys, tokens)
        if archive is not None:
            subprocess.run(["tar", "-C", ssd, "-czf", archive, "."], check=True)
            pytest.skip(f"wrote {archive}")


def check_named_blocks(space, keys, tokens):
    with space.watch(snapshots=True) as watch:
        events = read_snapshot(watch)
    assert {event.tier for event in events} == {"ssd"} and len(events) == 3
    hashes = {key: (hash_of(i), hash_of(i - 1) if i else b"") for i, key in enumerate(keys)}
    assert named(events) == hashes
    k, v = make_kv(1)
    for i, key in enumerate(keys):
        (event,) = [one for one in events if one.key == key]
        assert event.tokens == tuple(tokens[i * TOKENS : (i + 1) * TOKENS])
        got_k, got_v = np.empty_like(k), np.empty_like(v)
        assert space.get(key, got_k, got_v)
        np.testing.assert_array_equal(got_k, k)
        np.testing.assert_array_equal(got_v, v)
