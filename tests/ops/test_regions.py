# SPDX-License-Identifier: Apache-2.0
"""Who pays for the memory between a daemon and its clients: each in a memory cgroup of its own, as containers of a pod are.

A page of a memfd is charged to whoever touches it first, for as long as anybody has the memfd (docs/internals/adr/0008-client-regions.md).
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BIN, ROOT
from memory_group import MemoryGroup

sys.path += [str(ROOT / "client" / "python"), str(ROOT / "tests" / "e2e" / "python")]

from own_daemon import OwnDaemon  # noqa: E402
from region_client import CONNECTIONS, MIB, REGION_BYTES  # noqa: E402

REGIONS = CONNECTIONS * REGION_BYTES
# The kernel counts a processor's last 64 pages late.
SLACK = 2 * MIB
# Of docs/guides/memory.md: the host tier and staging, the index of the first, and the rest.
DAEMON = (256 + 192 + 32 + 64) * MIB
CLIENT = pathlib.Path(__file__).with_name("region_client.py")


@pytest.fixture
def groups():
    with MemoryGroup("daemon") as daemon, MemoryGroup("client") as client:
        yield daemon, client


@contextlib.contextmanager
def client_of(daemon, group):
    """A client; `move` makes it move bytes, or begin to."""
    command = [*group.by, sys.executable, str(CLIENT), daemon.control, daemon.data]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def move(waits=True):
            process.stdin.write("\n")
            process.stdin.flush()
            assert not waits or process.stdout.readline() == "moved\n"

        try:
            yield move
        finally:
            process.kill()


def check(groups, at_rest):
    """The client's group carries its regions, and the daemon's nothing for them."""
    daemon, client = groups
    assert daemon.shared <= SLACK
    assert daemon.own <= min(DAEMON, at_rest + 32 * MIB)
    assert REGIONS - SLACK <= client.shared <= REGIONS + SLACK


TOUCH = """
import mmap, sys
pages = mmap.mmap(int(sys.argv[1]), 0)
for place in range(0, len(pages), mmap.PAGESIZE):
    pages[place] = 1
"""


def test_a_page_is_charged_to_who_touches_it_first(groups):
    """Or else the other test would show nothing."""
    daemon, client = groups
    memfd = os.memfd_create("region")
    try:
        os.truncate(memfd, 8 * MIB)
        for group in [daemon, client]:
            subprocess.run([*group.by, sys.executable, "-c", TOUCH, str(memfd)], pass_fds=[memfd], check=True)
        assert daemon.shared >= 8 * MIB - SLACK and client.shared <= SLACK
    finally:
        os.close(memfd)


def test_clients_pay_for_their_regions(groups):
    daemon_group, client_group = groups
    with OwnDaemon(BIN, "256MiB", by=daemon_group.by) as daemon:
        daemon.start()
        at_rest = daemon_group.own
        for _ in range(3):
            with client_of(daemon, client_group) as move:
                move()
                check(groups, at_rest)
                move(waits=False)  # and is killed in the midst of it
            client_group.await_shared(SLACK)  # the daemon has closed its memfds
        with client_of(daemon, client_group) as move:
            move()
            for _ in range(2):
                daemon.kill()
                assert client_group.shared >= REGIONS - SLACK, "charged to the client, whoever lives"
                daemon.start()
                move()  # over new connections, and without the memfds of the old
                check(groups, at_rest)
        client_group.await_shared(SLACK)
        assert daemon_group.own <= at_rest + 32 * MIB
