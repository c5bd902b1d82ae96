# SPDX-License-Identifier: Apache-2.0
"""A client's trace in the daemon's log of slow requests."""

import cairn
import pytest
from conftest import make_kv, open_space
from daemon import Daemon

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LARGE = (32, 8, 128, 128)  # 16 MiB: a millisecond is not enough to move them


def test_a_slow_request_is_logged_with_its_trace(bin_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("CAIRN_SLOW_MS", "1")
    with (
        Daemon(bin_dir, "local", tmp_path, "128MiB") as daemon,
        cairn.connect(daemon.control, data=daemon.data) as client,
    ):
        space = open_space(client, groups=[cairn.KvGroup(32, 8, 128)], tokens_per_block=128)
        keys = space.keys(range(3 * 128))
        planes = make_kv(1, LARGE)
        with cairn.trace(TRACE):
            space.put(keys[0], *planes)
            with cairn.trace(TRACE.replace("a3", "b4")):
                space.put(keys[1], *planes)
            with pytest.raises(cairn.InvalidArgumentError, match="traceparent"), cairn.trace("00-4bf9"):
                pass
            space.put(keys[2], *planes)
        space.put(keys[0][::-1], *planes)
    log = (tmp_path / "cairnd.log").read_text()
    slow = [line for line in log.splitlines() if "put was slow" in line]
    traces = [line.split("trace=")[1].split()[0] for line in slow]
    assert traces == ["a3ce929d0e0e4736", "b4ce929d0e0e4736", "a3ce929d0e0e4736", "none"], log
