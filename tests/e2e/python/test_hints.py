# SPDX-License-Identifier: Apache-2.0
"""Hints on how long blocks are worth keeping: SDK, `cairnctl`, a restart, and vLLM's requests."""

import json
import os
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import cairn
import pytest
from cairn.vllm.hints import Hint, hint_of
from conftest import ROOT, TOKENS, make_kv, open_space
from own_daemon import OwnDaemon

BLOCK_BYTES = 64 << 10  # of which a tier of 16 MiB holds fewer than 256
GROUP = cairn.Group("opaque_rows", 1, row_bytes=BLOCK_BYTES // 16)


def open_large(client):
    return client.open_space("large", "1", [GROUP], tokens_per_block=16, recipe="raw")


def put_chain(space, first_token, count):
    keys = space.keys(range(first_token, first_token + 16 * count))
    for i, key in enumerate(keys):
        parent = keys[i - 1] if i else None
        space.put(key, source=os.urandom(BLOCK_BYTES), parent=parent, first_position=16 * i)
    return keys


def fill(space, count, begin=10_000_000):
    """Single blocks, each put once."""
    for i in range(count):
        put_chain(space, begin + 16 * i, 1)


def wait_for(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_retained_prefix_outlasts_others(bin_dir):
    with OwnDaemon(bin_dir, "16MiB") as own:
        own.start()
        with cairn.connect(own.control, data=own.data) as client:
            space = open_large(client)
            kept, plain = put_chain(space, 0, 8), put_chain(space, 1000, 8)
            later = space.keys(range(2000, 2000 + 16 * 4))
            assert space.retain(kept, 600, priority=2) == 8
            assert space.retain(later, 600) == 0, "they may come before the put"
            put_chain(space, 2000, 4)
            fill(space, 400)
            assert all(space.contains(kept)) and all(space.contains(later))
            assert not any(space.contains(plain))
            assert space.explain(plain).blocks[0].reason == "evicted"
            assert space.demote([*kept, *later]) == 12
            fill(space, 40, 20_000_000)
            assert not any(space.contains(kept)) and not any(space.contains(later))


def test_a_retention_ends_by_itself(bin_dir):
    with OwnDaemon(bin_dir, "16MiB") as own:
        own.start()
        with cairn.connect(own.control, data=own.data) as client:
            space = open_large(client)
            kept = put_chain(space, 0, 4)
            space.retain(kept, 1)
            begin = 10_000_000

            def is_gone():
                nonlocal begin
                fill(space, 300, begin)
                begin += 16 * 300
                return not any(space.contains(kept))

            wait_for(is_gone)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_hints_survive_a_restart_on_ssd(bin_dir, end):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with OwnDaemon(bin_dir, "16MiB", ssd=f"{os.path.abspath(folder)}=256MiB") as own:
            own.start()
            with cairn.connect(own.control, data=own.data) as client:
                space = open_large(client)
                kept, plain = put_chain(space, 0, 8), put_chain(space, 1000, 8)
                space.retain(kept, 600)
                # A round of upkeep saves the hints before it writes blocks down.
                (last,) = space.keys(range(9000, 9016))
                space.put(last, source=bytes(BLOCK_BYTES), is_durable=True)
                for i, key in enumerate([*kept, *plain]):
                    result = space.put(
                        key,
                        source=bytes(BLOCK_BYTES),
                        parent=[*kept, *plain][i - 1] if i % 8 else None,
                        first_position=16 * (i % 8),
                        is_durable=True,
                    )
                    assert result.is_duplicate
            getattr(own, end)()
            own.start()
            with cairn.connect(own.control, data=own.data) as client:
                space = open_large(client)
                assert all(space.contains(kept))
                for keys in (kept, plain):  # into memory, the retained ones first
                    for key in keys:
                        space.get(key, source=bytearray(BLOCK_BYTES))
                fill(space, 400)
                tiers = [block.tiers for block in space.explain(kept).blocks]
                assert all("host" in names for names in tiers), tiers
                assert not any("host" in block.tiers for block in space.explain(plain).blocks)


def test_limits_are_named(client):
    space = open_space(client)
    (key,) = space.keys(range(TOKENS))
    for call in (
        lambda: space.retain([key], 0),
        lambda: space.retain([key], 604_801),
        lambda: space.demote([key], after=604_801),
    ):
        with pytest.raises(cairn.InvalidArgumentError, match="604800"):
            call()
    for priority in (0, 6):
        with pytest.raises(cairn.InvalidArgumentError, match="priority is .*1 to 5"):
            space.retain([key], 10, priority=priority)
    many = [i.to_bytes(32, "little") for i in range(1, 65_000)]
    with pytest.raises(cairn.ResourceExhaustedError, match="hints"):
        space.retain(many, 10)
    assert space.retain([key], 10) == 0


def test_cairnctl(client, bin_dir, daemon, tmp_path):
    space = open_space(client)
    keys = space.keys(range(2 * TOKENS))
    space.put(keys[0], *make_kv(0))
    tokens = tmp_path / "tokens"
    tokens.write_text(json.dumps(list(range(2 * TOKENS))))
    where = ["--control", daemon.control, "--space", space.fingerprint.hex()]

    def run(*words):
        return subprocess.run([bin_dir / "cairnctl", *words, *where], capture_output=True, text=True)

    done = run("retain", "--tokens", tokens, "--for", "60", "--priority", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"space_id": 0} == {"space_id": 0, "blocks": 2, "stored": 1}
    done = run("demote", keys[0].hex(), "--after", "5")
    assert "1 blocks have the hint, 1 of them are stored" in done.stdout
    assert run("retain", "--tokens", tokens, "--priority", "6").returncode == 2
    assert run("retain", "--tokens", tokens, "--for", "604801").returncode == 2
    assert run("retain").returncode == 2


def test_a_replay_of_agents_hits_more_with_hints(bin_dir, tmp_path):
    script = ROOT / "client" / "examples" / "agents" / "trace.py"
    made = subprocess.run(
        [sys.executable, script, "--sessions", "12"], capture_output=True, check=True
    )
    trace = tmp_path / "agents.jsonl"
    trace.write_bytes(made.stdout)
    hits = []
    with OwnDaemon(bin_dir, "16MiB") as own:
        own.start()
        for words in ([], ["--hints"]):
            command = [bin_dir / "cairnctl", "replay", trace, "--json", "--recipe", "raw", *words]
            command += ["--control", own.control, "--deadline-ms", "60000"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            assert (told["hints"] > 0) == bool(words) and told["refused_hints"] == 0
            hits.append(told["hits"]["all"]["blocks"])
    assert hits[1] > hits[0]


# ------------------------------------------------------------------------------------- of vLLM


def request_of(**params):
    return SimpleNamespace(kv_transfer_params=params)


def test_what_a_request_says():
    assert hint_of(SimpleNamespace()) is None
    assert hint_of(request_of()) is None
    assert hint_of(SimpleNamespace(kv_transfer_params=None)) is None
    assert hint_of(request_of(cairn={"retain": 60, "priority": 2})) == Hint(60, 2)
    assert hint_of(request_of(cairn={"retain": 60})) == Hint(60, 1)
    assert hint_of(request_of(cairn={"demote": 0})) == Hint(demote=0)
    assert hint_of(request_of(cairn={})) is None
    assert hint_of(request_of(cache_control={"type": "ephemeral"})) == Hint(300)
    assert hint_of(request_of(cache_control={"type": "ephemeral", "ttl": "1h"})) == Hint(3600)
    action = SimpleNamespace(action_type="retain", payload={"seconds": 5, "priority": 3})
    other = SimpleNamespace(action_type="other", payload={})
    envelope = SimpleNamespace(actions=[other, action])
    assert hint_of(SimpleNamespace(kv_transfer_params=None, kv_hints=envelope)) == Hint(5, 3)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"cairn": 3}, "cairn"),
        ({"cairn": {"retan": 60}}, "retan"),
        ({"cairn": {"retain": 0}}, "retain"),
        ({"cairn": {"retain": 604_801}}, "retain"),
        ({"cairn": {"retain": 1.5}}, "retain"),
        ({"cairn": {"retain": True}}, "retain"),
        ({"cairn": {"retain": 1, "priority": 6}}, "priority"),
        ({"cairn": {"retain": 1, "demote": 1}}, "retain and demote"),
        ({"cairn": {"priority": 1}}, "priority"),
        ({"cairn": {"demote": -1}}, "demote"),
        ({"cache_control": {"type": "other"}}, "type"),
        ({"cache_control": {"ttl": "5 minutes"}}, "ttl"),
        ({"cache_control": {"ttl": "30d"}}, "ttl"),
    ],
)
def test_what_is_wrong_is_named(params, field):
    with pytest.raises(ValueError, match=field):
        hint_of(request_of(**params))


class HintedSpace:
    def __init__(self):
        self.calls = []

    def match(self, keys, timeout):
        blocks = [SimpleNamespace(tier="host"), SimpleNamespace(tier="ssd")]
        return SimpleNamespace(block_count=2, lease=None, keys=keys[:2], blocks=blocks)

    def prefetch(self, keys):
        self.calls.append(("prefetch", list(keys)))

    def retain(self, keys, seconds, priority):
        self.calls.append(("retain", len(keys), seconds, priority))

    def demote(self, keys, after):
        self.calls.append(("demote", len(keys), after))


def test_a_scheduler_sends_them_and_reads_ahead():
    from cairn.vllm.lookup import Lookups
    from cairn.vllm.scheduler import Scheduler, log
    from fake_vllm import Request

    space = HintedSpace()
    session = SimpleNamespace(space=space, is_lossless=True)
    lookups = Lookups(session, 5.0, log)
    geometry = SimpleNamespace(store_tokens=32, engine_tokens=16, has_states=False, ratio=2)
    scheduler = Scheduler(lookups, bytes(32), geometry, is_saving=False)
    wanted = {"cairn": {"retain": 60, "priority": 2}}
    one = Request("one", range(100), kv_transfer_params=wanted)
    scheduler.begin(one)
    one.all_token_ids += range(60)
    scheduler.end("one")
    two = Request("two", range(100), kv_transfer_params={"cairn": {"demote": 9}})
    scheduler.begin(two)
    scheduler.end("two")
    scheduler.begin(Request("three", range(100), kv_transfer_params={"cairn": {"x": 9}}))
    wait_for(lambda: sum(call[0] == "prefetch" for call in space.calls) == 3)
    scheduler.close()
    hints = [call for call in space.calls if call[0] != "prefetch"]
    assert hints == [("retain", 3, 60, 2), ("retain", 5, 60, 2), ("demote", 3, 9)]
    cold = next(call for call in space.calls if call[0] == "prefetch")
    assert len(cold[1]) == 1, "only what is on a drive"


def test_no_hits_are_told_once(caplog):
    from cairn.vllm.lookup import TOLD_AFTER, Lookups
    from cairn.vllm.scheduler import log

    class EmptySpace:
        fingerprint = bytes.fromhex("ab" * 32)

        def match(self, keys, timeout):
            return SimpleNamespace(block_count=0, lease=None, keys=[], blocks=[])

    lookups = Lookups(SimpleNamespace(space=EmptySpace()), 5.0, log)
    for _ in range(2 * TOLD_AFTER):
        asked = lookups.ask([bytes(32)])
        wait_for(lambda asked=asked: lookups.poll(asked) is not None)
    lookups.close()
    told = [text for text in caplog.messages if "cairnctl explain" in text]
    assert len(told) == 1 and "--space abababababab" in told[0]
