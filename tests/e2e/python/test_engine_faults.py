# SPDX-License-Identifier: Apache-2.0
"""Every connector under every fault of its daemon: the engine goes on, what it gets is right bit for
bit, no call is over its deadline, and when the daemon is back there are hits again. The connectors
go through a fault beside each other, each as an engine of its own."""

import os
import threading
import time

import pytest
from engine_drivers import BLOCKS, BUSY, CONNECTORS
from own_daemon import OwnDaemon

BACK_SECONDS = 20.0 * BUSY  # until a client has come back, which backs off
FROZEN_SECONDS = float(os.environ.get("CAIRN_STALL_SECONDS", "4"))  # until all have given up asking
FULL_BYTES = "16MiB"


@pytest.fixture
def own(bin_dir):
    with OwnDaemon(bin_dir) as daemon:
        yield daemon


@pytest.fixture
def make(request):
    """Drivers of all connectors, or of those named, which are closed at the end. None finds what
    another has put."""

    def build(own, *names):
        drivers = {}
        for name in names or CONNECTORS:
            drivers[name] = CONNECTORS[name](own.settings | {"weights_revision": name})
            request.addfinalizer(drivers[name].close)
        return drivers

    return build


@pytest.fixture
def begun(own, make):
    """Drivers of all connectors, which have hit all of prompt 1."""
    own.start()
    drivers = make(own)
    until_hits(drivers, 1)
    return drivers


def each(drivers, do):
    """What `do` says of each, all at once."""
    said, raised = {}, []

    def run(name, driver):
        try:
            said[name] = do(driver)
        except BaseException as error:
            raised.append((name, error))

    threads = [threading.Thread(target=run, args=item) for item in drivers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, error in raised:
        raise AssertionError(f"{name}: {error}") from error
    return said


def use(driver, seed):
    began = time.monotonic()
    hits = driver.use(seed)
    elapsed = time.monotonic() - began
    assert elapsed < driver.USE_SECONDS, f"the engine waited {elapsed:.2f} s"
    return hits


def until_hits(drivers, seed):
    """Uses a prompt until all of it comes from the store."""

    def go_on(driver):
        deadline = time.monotonic() + BACK_SECONDS
        while (hits := use(driver, seed)) < BLOCKS:
            assert time.monotonic() < deadline, f"no more than {hits} hits"
            time.sleep(0.05)

    each(drivers, go_on)


def no_hits(drivers, *seeds):
    said = each(drivers, lambda driver: [use(driver, seed) for seed in seeds])
    assert said == dict.fromkeys(drivers, [0] * len(seeds))


def use_while(drivers, seed, happens):
    """They go on with a prompt while something `happens`, after each has hit all of it, and three
    times after it. By connector the hits of each time."""
    is_over, have_hit = threading.Event(), {driver: threading.Event() for driver in drivers.values()}

    def go_on(driver):
        hits, left = [], 3
        try:
            while left:
                left -= is_over.is_set()
                hits.append(use(driver, seed))
                if hits[-1] == BLOCKS:
                    have_hit[driver].set()
        finally:
            have_hit[driver].set()
        return hits

    def run():
        try:
            for event in have_hit.values():
                event.wait(60)
            happens()
        finally:
            is_over.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return each(drivers, go_on)
    finally:
        thread.join()


def test_absent_at_start(own, make):
    drivers = make(own)
    no_hits(drivers, 1, 1, 2)
    own.start()
    until_hits(drivers, 1)


def test_frozen_at_start(own, make):
    own.start()
    own.freeze()
    drivers = make(own)
    no_hits(drivers, 1, 1)
    own.thaw()
    until_hits(drivers, 1)


def test_killed_in_the_middle(own, begun):
    for name, hits in use_while(begun, 1, own.kill).items():
        assert BLOCKS in hits and hits[-1] == 0, name
    own.start()
    until_hits(begun, 1)


def test_frozen_in_the_middle(own, begun):
    def happens():
        own.freeze()
        time.sleep(FROZEN_SECONDS)
        own.thaw()

    for name, hits in use_while(begun, 1, happens).items():
        assert BLOCKS in hits and 0 in hits and len(hits) > 5, name
    until_hits(begun, 1)
    until_hits(begun, 2)


def test_full(bin_dir, make):
    with OwnDaemon(bin_dir, FULL_BYTES) as own:
        own.start()
        drivers = make(own)
        until_hits(drivers, 0)
        each(drivers, lambda driver: [use(driver, seed) for seed in range(1, 9)])
        hits = each(drivers, lambda one: use(one, 0))
        assert all(count < BLOCKS for count in hits.values()), hits
        for driver in drivers.values():  # one after the other: there is room for one
            until_hits({"": driver}, 20)
            driver.close()


def test_draining(own, begun):
    hits = use_while(begun, 1, own.drain)
    assert all(BLOCKS in one for one in hits.values())
    assert own.is_draining()
    no_hits(begun, 2, 2)  # nothing is taken any more
    use_while(begun, 1, own.terminate)
    own.start()
    until_hits(begun, 1)


@pytest.mark.parametrize("when", ["looked up", "loaded"])
def test_many_requests_of_vllm_wait_side_by_side(own, make, when):
    """Each has its deadlines from when it came, not from when those before it had theirs."""
    own.start()
    driver = make(own, "vllm")["vllm"]
    seeds = range(8)
    until_hits({"vllm": driver}, 0)
    while driver.use_many(seeds) < BLOCKS * len(seeds):
        pass
    own.freeze() if when == "looked up" else driver.before_loads(own.freeze)
    began = time.monotonic()
    assert driver.use_many(seeds) < BLOCKS * len(seeds)
    assert time.monotonic() - began < driver.USE_SECONDS
    own.thaw()


def test_closing_beside_a_frozen_daemon(own, begun):
    own.freeze()
    each(begun, lambda driver: use(driver, 2))
    each(begun, lambda driver: driver.close())  # which has a deadline
