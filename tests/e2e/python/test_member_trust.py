# SPDX-License-Identifier: Apache-2.0
"""A daemon as the client of another: what it does not read, and to whom it says nothing."""

import itertools
import os
import socket
import ssl
import threading
import time

import cairn
import numpy as np
import pytest
from certificates import Ca
from ports import free_port
from test_trust import Daemon, OpeningRelay, move

GROUPS = [cairn.KvGroup(layers=2, kv_heads=2, dim=32)]
NAMES = ("a", "b")


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

    def start(self, name, *more, is_tls=True, control=None):
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
            self._bin_dir, folder, *flags, *more, control=control or f"unix:{folder / 'c'}"
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


def refused(act, **options):
    """What it ends in to connect and act: None, or the refusal."""
    try:
        with cairn.connect(timeout=20.0, **options) as client:
            act(client)
    except cairn.Error as error:
        return str(error)
    return None


def ask(client):
    space = open_space(client)
    space.match(space.keys(range(16)), timeout=20.0).release()


def test_every_certificate_as_every_tenant_at_every_door(cluster, tmp_path):
    """What the rules say is the same at control with stream, at the peer port and at a door."""
    rules = f"""version: 1
identities:
  - {{uri: "spiffe://test.example/one", tenants: [one, shared]}}
  - {{dns: "*.two.example", tenants: [two]}}
  - {{uri: "spiffe://test.example/any", tenants: ["*"]}}
  - {{uri: "spiffe://test.example/ops", operator: true}}
  - {{uri: "spiffe://test.example/a", peer: true, tenants: ["*"]}}
  - {{uri: "spiffe://test.example/b", peer: true, tenants: [one]}}
  - {{uri: "spiffe://test.example/idle", peer: true}}
  - {{door: {tmp_path}/door, tenants: [one]}}
deny: [{{uri: "spiffe://test.example/old"}}]
"""
    (tmp_path / "policy.yaml").write_text(rules)
    flags = ["--stream", "127.0.0.1:0", "--door", tmp_path / "door"]
    a = cluster.start("a", *flags, control="127.0.0.1:0")
    everything = ("one", "two", "shared")
    # Tenants of the certificate, then why it is refused as another, then at the peer port.
    members_only = "is no member of the cluster"
    table = {
        "one": (("one", "shared"), "is none of one, shared (policy.yaml:3)", members_only),
        "two": (("two",), "is none of two (policy.yaml:4)", members_only),
        "any": (everything, None, members_only),
        "ops": ((), "is not allowed: the rule has no tenants (policy.yaml:6)", members_only),
        "a": (everything, None, None),
        "b": (("one",), "is none of one (policy.yaml:8)", None),
        "idle": ((), "is not allowed: the rule has no tenants (policy.yaml:9)", None),
        "old": ((), "is denied (policy.yaml:11)", "is denied (policy.yaml:11)"),
        "stranger": ((), "is in no rule of policy.yaml", "is in no rule of policy.yaml"),
    }
    peer_port = f"127.0.0.1:{cluster.ports['a']}"
    for (name, (tenants, why, why_at_peer)), tenant in itertools.product(table.items(), everything):
        names = "DNS:x.two.example" if name == "two" else f"URI:spiffe://test.example/{name}"
        if name not in cluster.pairs:
            cluster.pairs[name] = cluster.ca.issue(name, names)
        pair = cluster.pairs[name]
        tls = {"tls_ca": str(cluster.ca.pem), "tls_cert": pair[0], "tls_key": pair[1], "tenant": tenant}
        case = f"{name} as {tenant}"
        before = a.metric('cairn_transport_peers_opened_total{transport="stream"}')
        said = refused(move, control=a.control, **tls)
        assert (said is None) if tenant in tenants else (why in said), (case, said)
        # A certificate that may not be the tenant has no ticket for the data plane.
        streams = a.metric('cairn_transport_peers_opened_total{transport="stream"}') - before
        assert (streams > 0) == (tenant in tenants), case
        said = refused(ask, control=peer_port, **tls)
        expected = why_at_peer or (None if tenant in tenants else why)
        assert (said is None) if expected is None else (expected in said), (case, said)
    for tenant in everything:
        said = refused(move, control=f"unix:{tmp_path}/door/control.sock", tenant=tenant)
        assert (said is None) if tenant == "one" else ("is none of one (policy.yaml:10)" in said)


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
