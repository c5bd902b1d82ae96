# SPDX-License-Identifier: Apache-2.0
"""UCX in an engine's process: only where it is named, and whatever the node's variables say."""

import os
import subprocess
import sys

import cairn
import pytest
from conftest import ROOT, Daemon

PROGRAM = """
import os, sys
import cairn

before = dict(os.environ)
with cairn.connect(sys.argv[1], data=sys.argv[2], tenant="ucx", timeout=20) as client:
    space = client.open_space("m", "r", [cairn.KvGroup(1, 1, 64)], tokens_per_block=64, recipe="raw")
    (key,) = space.keys(range(64))
    source = os.urandom(space.source_bytes())
    space.put(key, source=source, timeout=20)
    target = bytearray(len(source))
    assert space.get(key, source=target, timeout=20) and target == source
assert dict(os.environ) == before
print("moved")
"""

# Of each of these UCX ends the process, or its connections, if it is heard.
VARIABLES = {
    "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm",
    "UCX_CM_USE_ALL_DEVICES": "n",
    "UCX_TCP_AF_PRIO": "inet6",
    "UCX_UNIFIED_MODE": "y",
    "UCX_LOG_FILE": "/nonexistent/log",
    "UCX_LOG_FILE_SIZE": "1",
    "UCX_MODULE_LOG_LEVEL": "fatal",
    "UCX_RCACHE_STAT_MIN": "0",
    "UCX_TLS": "rc,cuda_copy",
    "UCX_NET_DEVICES": "mlx5_0:1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ucx")


@pytest.fixture(scope="module")
def daemon(bin_dir, folder):
    if not (bin_dir.parent / "lib" / "libcairn_ucx.so").exists():
        pytest.skip("built without UCX")
    with Daemon(bin_dir, "ucx", folder, "128MiB") as started:
        yield started


def test_the_variables_of_a_node_change_nothing(daemon):
    paths = os.pathsep.join(filter(None, [str(ROOT / "client/python"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, daemon.control, daemon.data],
        env=os.environ | VARIABLES | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "moved\n"), done.stdout + done.stderr


def test_a_daemon_does_not_choose_ucx(daemon, folder):
    socket, hidden = folder / "cairnd.sock", folder / "hidden"
    with cairn.connect(daemon.control, timeout=20) as client:
        socket.rename(hidden)
        try:
            with pytest.raises(cairn.FailedPreconditionError, match=f'set data="{daemon.data}"'):
                client.open_space("m", "r", [cairn.KvGroup(1, 1, 64)], tokens_per_block=64)
        finally:
            hidden.rename(socket)
