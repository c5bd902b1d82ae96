# SPDX-License-Identifier: Apache-2.0
"""A daemon as the client of another: what it does not read, and to whom it says nothing."""

import os
import socket
import ssl
import threading
import time

import cairn
import numpy as np
import pytest
from certificates import Ca
from test_trust import Daemon, OpeningRelay

GROUPS = [cairn.KvGroup(layers=2, kv_heads=2, dim=32)]
NAMES = ("a", "b")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def san(name):
    return f"URI:spiffe://test.example/{name},DNS:localhost,IP:127.0.0.1"


class Cluster:
    """Members a and b over TLS. `peers` is where the list says that each is."""

    def __init__(self, bin_dir, folder):
        self._bin_dir, self._folder = bin_dir, folder
        self.ca = Ca(folder)
        self.ports = {name: free_port() for name in NAMES}
        self.peers = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.pairs = {name: self.ca.issue(name, san(name), use="serverAuth,clientAuth") for name in NAMES}
        rules = [f'  - {{uid: {os.getuid()}, tenants: ["*"]}}']
        rules += [f'  - {{uri: "spiffe://test.example/{n}", peer: true, tenants: ["*"]}}' for n in NAMES]
        (folder / "policy.yaml").write_text("\n".join(["version: 1", "identities:", *rules]) + "\n")
        self.daemons = {}

    def start(self, name, *more, is_tls=True):
        (self._folder / "members").write_text("".join(f"{n}={p}\n" for n, p in self.peers.items()))
        folder = self._folder / name
        folder.mkdir()
        flags = ["--members", f"file:{self._folder / 'members'}", "--member-name", name]
        flags += ["--peer", f"127.0.0.1:{self.ports[name]}", "--peer-match-ms", "3000"]
        if is_tls:
            certificate, key = self.pairs[name]
            flags += ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", self.ca.pem]
            flags += ["--policy", self._folder / "policy.yaml"]
        self.daemons[name] = Daemon(
            self._bin_dir, folder, *flags, *more, control=f"unix:{folder / 'c'}"
        )
        return self.daemons[name]

    def close(self):
        for daemon in self.daemons.values():
            daemon.__exit__()


@pytest.fixture
def cluster(bin_dir, tmp_path):
    made = Cluster(bin_dir, tmp_path)
    yield made
    made.close()


def open_space(client):
    return client.open_space("m", "r", GROUPS, dtype="fp16", tokens_per_block=16, recipe="raw")


def put_blocks(daemon):
    values = np.arange(2 * 2 * 16 * 32, dtype=np.float16).reshape(2, 2, 16, 32)
    with cairn.connect(daemon.control) as client:
        space = open_space(client)
        (key,) = space.keys(range(16))
        space.put(key, values, values)


def matched(daemon, timeout=4.0):
    with cairn.connect(daemon.control) as client:
        space = open_space(client)
        with space.match(space.keys(range(16)), timeout=timeout) as match:
            return match.token_count


def await_log(daemon, text):
    deadline = time.monotonic() + 20
    while text not in daemon.log():
        assert time.monotonic() < deadline, daemon.log()
        time.sleep(0.05)


def await_joined(daemon, count):
    deadline = time.monotonic() + 20
    while daemon.metric('cairn_members{state="joined"}') != count:
        assert time.monotonic() < deadline, daemon.log()
        time.sleep(0.05)


def test_it_reads_over_tls(cluster):
    """So that what is refused below is refused for its reason."""
    a = cluster.start("a", "--stream", "127.0.0.1:0")
    b = cluster.start("b", "--stream", "127.0.0.1:0")
    await_joined(b, 2)
    put_blocks(a)
    assert matched(b) == 16


def test_it_tells_a_member_in_the_clear_nothing(cluster):
    a = cluster.start("a", "--data", "127.0.0.1:0", is_tls=False)
    b = cluster.start("b", "--stream", "127.0.0.1:0")
    await_log(b, "a member does not answer")
    put_blocks(a)
    opened = a.metric("cairn_sessions_opened_total")
    assert matched(b) == 0
    assert b.metric('cairn_members{state="joined"}') == 1
    assert a.metric("cairn_sessions_opened_total") == opened


def test_it_reads_nothing_over_ucx_where_it_was_told_tls(cluster):
    """The member is the right one, and offers its blocks over UCX alone."""
    a = cluster.start("a", "--data", "127.0.0.1:0")
    b = cluster.start("b", "--stream", "127.0.0.1:0")
    await_joined(b, 2)
    put_blocks(a)
    assert matched(b) == 0
    await_log(b, "the daemon offers its data plane over UCX")


@pytest.mark.parametrize("kind", ["rogue", "guest"])
def test_whoever_relays_to_a_member_is_told_nothing(cluster, tmp_path, kind):
    """The relay shows a certificate of another CA, or one that the policy does not call a member."""
    ca = Ca(tmp_path, "rogue-ca") if kind == "rogue" else cluster.ca
    pair = ca.issue(kind, san("a" if kind == "rogue" else kind), use="serverAuth,clientAuth")
    a = cluster.start("a", "--data", "127.0.0.1:0", is_tls=False)
    relay = OpeningRelay(("127.0.0.1", cluster.ports["a"]), pair)
    cluster.peers["a"] = relay.control
    b = cluster.start("b", "--stream", "127.0.0.1:0")
    await_log(b, "a member does not answer")
    put_blocks(a)
    assert matched(b) == 0
    assert relay.heard == b"" and b.metric('cairn_members{state="joined"}') == 1
    relay.close()


def test_a_member_that_talks_nonsense_harms_nobody(cluster):
    """It has a member's certificate, and answers each connection with other bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cluster.pairs["a"])
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))
    answered = []

    def serve():
        rng = np.random.default_rng(1)
        while True:
            try:
                plain, _ = listener.accept()
                with context.wrap_socket(plain, server_side=True) as client:
                    client.sendall(rng.bytes(1 << (len(answered) % 17)))
                answered.append(1)
            except (ssl.SSLError, ConnectionError):
                continue
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    cluster.peers["a"] = f"127.0.0.1:{listener.getsockname()[1]}"
    b = cluster.start("b", "--stream", "127.0.0.1:0")
    put_blocks(b)
    deadline = time.monotonic() + 20
    while len(answered) < 4 and time.monotonic() < deadline:
        assert matched(b) == 16
    assert answered and b.process.poll() is None
    assert b.metric('cairn_members{state="joined"}') == 1
    listener.close()
