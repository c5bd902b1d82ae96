# SPDX-License-Identifier: Apache-2.0
"""`cairnctl top` on a terminal: it says which key ends it, and leaves the terminal as it was."""

import os
import pty
import signal
import subprocess
import termios
import time

import pytest
from conftest import make_kv, open_space


def until(file, text):
    """What is printed until the text is."""
    said, deadline = "", time.monotonic() + 30
    while text not in said:
        assert time.monotonic() < deadline, said
        said += os.read(file, 65536).decode()
    return said


@pytest.fixture
def top(bin_dir, daemon):
    """The file of its terminal, and the process."""
    mine, its = pty.openpty()
    command = [bin_dir / "cairnctl", "top", "--interval", "1", "--control", daemon.control]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    yield mine, its, process
    process.kill()
    process.wait()
    os.close(mine)
    os.close(its)


def has_echo(terminal):
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def test_q_ends_it(top, client):
    space = open_space(client)
    (key,) = space.keys(range(32))
    space.put(key, *make_kv(1))
    mine, its, process = top
    said = until(mine, "q quits")
    assert "FINGERPRINT" in said and str(space.fingerprint.hex())[:8] in said and not has_echo(its)
    os.write(mine, b"xq")
    assert process.wait(20) == 0 and has_echo(its)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(top, number):
    mine, its, process = top
    until(mine, "q quits")
    process.send_signal(number)
    assert process.wait(20) == -number and has_echo(its)
