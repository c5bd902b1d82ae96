# SPDX-License-Identifier: Apache-2.0
"""Who pays for the memory between a daemon and its clients: each in a memory cgroup of its own, as containers of a pod are.

A page of a memfd is charged to whoever touches it first, for as long as anybody has the memfd (docs/internals/adr/0008-client-regions.md).
A client touches all of its regions, and the daemon all of its arena, which its clients map.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

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
ARENA = (256 + 192) * MIB
DAEMON = ARENA + (32 + 64) * MIB
CLIENT = pathlib.Path(__file__).with_name("region_client.py")


@pytest.fixture
def groups():
    with MemoryGroup("daemon") as daemon, MemoryGroup("client") as client:
        yield daemon, client


class Client(subprocess.Popen):
    def __init__(self, daemon, group):
        command = [*group.by, sys.executable, str(CLIENT), daemon.control, daemon.data]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def move(self, waits=True):
        """It moves bytes, or begins to."""
        self.stdin.write("\n")
        self.stdin.flush()
        assert not waits or self.stdout.readline() == "moved\n"

    def maps(self):
        """How many arenas it maps."""
        return pathlib.Path(f"/proc/{self.pid}/maps").read_text().count("memfd:cairn-arena")


@contextlib.contextmanager
def client_of(daemon, group):
    with Client(daemon, group) as client:
        try:
            yield client
        finally:
            client.kill()


def check(groups, at_rest):
    """The client's group carries its regions, and the daemon's its arena, whoever maps it."""
    daemon, client = groups
    assert ARENA - SLACK <= daemon.shared <= ARENA + SLACK
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
            with client_of(daemon, client_group) as client:
                client.move()
                assert client.maps() > 0
                check(groups, at_rest)
                client.move(waits=False)  # and is killed in the midst of it
            client_group.await_shared(SLACK)  # the daemon has closed its memfds
        with client_of(daemon, client_group) as client:
            client.move()
            for _ in range(2):
                daemon.kill()
                assert client_group.shared >= REGIONS - SLACK, "charged to the client, whoever lives"
                daemon.start()
                client.move()  # over new connections, and without the memfds of the old
                check(groups, at_rest)
        client_group.await_shared(SLACK)
        assert daemon_group.own <= at_rest + 32 * MIB


def test_the_memory_of_a_dead_daemon_is_the_daemons_until_all_clients_let_it_go(groups):
    daemon_group, client_group = groups
    daemon_group.limit(DAEMON + ARENA // 2)
    with OwnDaemon(BIN, "256MiB", by=daemon_group.by) as daemon:
        daemon.start()
        at_rest = daemon_group.own
        with client_of(daemon, client_group) as client:
            client.move()
            client.send_signal(signal.SIGSTOP)
            daemon.kill()
            assert daemon_group.shared >= ARENA - SLACK
            began = time.monotonic()
            said = daemon.start_refused()
            assert time.monotonic() - began >= 5, "it waits for clients to let the memory go"
            assert "of shared memory are in use: a client that is stopped may still map" in said
            client.send_signal(signal.SIGCONT)
            daemon.start()  # waits for the client
            client.move()
            check(groups, at_rest)
