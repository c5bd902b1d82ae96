# SPDX-License-Identifier: Apache-2.0
"""A client's trace in the daemon's log of slow requests and calls."""

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


def test_a_slow_control_call_is_logged_with_its_trace(bin_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("CAIRN_SLOW_MS", "1")
    with (
        Daemon(bin_dir, "local", tmp_path, "64MiB") as daemon,
        cairn.connect(daemon.control, data=daemon.data) as client,
    ):
        space = open_space(client)
        keys = [space.opaque_key(f"{i}".encode()) for i in range(60_000)]  # 2 MB of a request
        with cairn.trace(TRACE):
            assert not any(space.contains(keys, timeout=10))
        space.contains(keys, timeout=10)
    log = (tmp_path / "cairnd.log").read_text()
    slow = [line for line in log.splitlines() if "call was slow call=Contains" in line]
    assert [line.split("trace=")[1].split()[0] for line in slow] == ["a3ce929d0e0e4736", "none"], log
    assert all(f" {step}=" in slow[0] for step in ["took", "receive", "answer", "send"])
    assert "code=OK" in slow[0] and "call=OpenSession" not in log


def test_a_call_that_was_told_to_wait_is_not_slow_for_that(bin_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("CAIRN_SLOW_MS", "250")
    with (
        Daemon(bin_dir, "local", tmp_path, "64MiB") as daemon,
        cairn.connect(daemon.control, data=daemon.data) as client,
    ):
        space = open_space(client)
        assert space.match([space.opaque_key(b"none")], wait=0.4).block_count == 0
    assert "call=Match" not in (tmp_path / "cairnd.log").read_text()
