# SPDX-License-Identifier: Apache-2.0
"""A fault a minute, each of a random kind and at a random host, while clients of all hosts go on.

What must hold is what test_hosts.py says. CAIRN_SOAK_MINUTES is the number of faults, and
CAIRN_SEED replays a run.
"""

import os
import random
import time

import pytest

from test_hosts import NAMES, REASON, Load, await_reads, bin_dir, check_weights, hits, started

MINUTES = int(os.environ.get("CAIRN_SOAK_MINUTES", "60"))
SEED = int(os.environ.get("CAIRN_SEED", str(random.getrandbits(32))))
FAULT_SECONDS = 20.0
STEADY_RATE = 8  # requests a second

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


class Faults:
    """Each is made, and ended. Those of a daemon are excused at its host."""

    def __init__(self, fleet, load):
        self._fleet, self._load, self._network = fleet, load, fleet.network

    def kill(self, name):
        member = self._fleet.members[name]
        with self._load.excuse(name):
            member.kill()
            time.sleep(FAULT_SECONDS)
            member.start()

    def stop(self, name):
        member = self._fleet.members[name]
        with self._load.excuse(name):
            member.freeze()
            try:
                time.sleep(FAULT_SECONDS)
            finally:
                member.thaw()

    def restart(self, name):
        member = self._fleet.members[name]
        with self._load.excuse(name):
            member.terminate()
            member.start()

    def cut(self, name):
        self._endure(self._network.cut, self._network.mend, name)

    def slow(self, name):
        self._endure(self._network.slow, self._network.quicken, name)

    def delay(self, name):
        self._endure(self._network.disturb, self._network.calm, name, 0.05, 0.0)

    def lose(self, name):
        self._endure(self._network.disturb, self._network.calm, name, 0.01, 0.05)

    def forget(self, name):
        """The host does not know one of the others."""
        others = [one for one in NAMES if one != name]
        self._fleet.list_for(name, [name, others[0]])
        time.sleep(FAULT_SECONDS)
        self._fleet.list_for(name, NAMES)

    @staticmethod
    def _endure(begin, end, name, *how):
        begin(name, *how)
        try:
            time.sleep(FAULT_SECONDS)
        finally:
            end(name)


KINDS = ("kill", "stop", "restart", "cut", "slow", "delay", "lose", "forget")


def shuffled(chance):
    """All kinds, in one random order after the other."""
    while True:
        yield from chance.sample(KINDS, len(KINDS))


def test_a_fault_a_minute(tmp_path, bin_dir):
    print(f"\nseed {SEED}")
    chance = random.Random(SEED)
    kinds = shuffled(chance)
    with started(bin_dir, tmp_path, NAMES) as fleet:
        load = Load(fleet, "steady.py", str(STEADY_RATE * 60), "60")
        try:
            faults = Faults(fleet, load)
            weights = {name: fleet.members[name].weight() for name in NAMES}
            for minute in range(MINUTES):
                begin = time.monotonic()
                kind, name = next(kinds), chance.choice(NAMES)
                getattr(faults, kind)(name)
                fleet.await_joined(NAMES)
                others = [one for one in NAMES if one != name]
                recovery = max(await_reads(fleet, name, others[0]),
                               await_reads(fleet, others[1], name))
                time.sleep(max(begin + 60 - time.monotonic(), 0))
                lines = load.lines(begin)
                own, peer = hits(lines)
                print(f"{minute + 1:3} {kind:8} at {name}: recovery {recovery:4.1f} s,"
                      f" {len(lines)} requests, own {own:.2f}, other hosts {peer:.2f}", flush=True)
            load.stop()
        finally:
            load.kill()
        load.check()
        check_weights(fleet, weights)
