# SPDX-License-Identifier: Apache-2.0
"""No secret is in what Cairn writes: logs, the audit file, metrics, configurations, cairnctl's output and errors.

The secrets are known: private keys, the keys of a TLS connection, tickets and leases as a relay with the daemon's own
certificate reads them. TLS session tickets are none."""

import base64
import collections
import json
import os
import pathlib
import re
import select
import shutil
import socket
import ssl
import subprocess
import time

import cairn
import pytest
from certificates import Ca, run, serial_of
from test_trust import POLICY, TEAM_A, Daemon, OpeningRelay, move, refusal, shake_hands, tls, wait_for

OPERATOR = "URI:spiffe://prod.example/ns/ops/sa/cairnctl"


class ReadingRelay(OpeningRelay):
    """Opens TLS with the daemon's key on one side and the client's on the other, and keeps all that is said."""

    def __init__(self, target, server, client, ca, keylog):
        self.said = b""
        self._upstream = ssl.create_default_context(cafile=str(ca.pem))
        self._upstream.load_cert_chain(*client)
        self._upstream.set_alpn_protocols(["h2"])
        self._upstream.keylog_filename = str(keylog)
        super().__init__(target, server)
        self._context.num_tickets = 0

    def _serve(self, plain):
        try:
            with self._context.wrap_socket(plain, server_side=True) as client:
                with socket.create_connection(self._target) as far:
                    with self._upstream.wrap_socket(far, server_hostname="localhost") as daemon:
                        self._pass_on(client, daemon)
        except OSError:
            plain.close()

    def _pass_on(self, client, daemon):
        for one in (client, daemon):
            one.setblocking(False)
        while True:
            select.select([client, daemon], [], [], 0.05)
            for source, target in ((client, daemon), (daemon, client)):
                try:
                    data = source.recv(65536)
                except ssl.SSLWantReadError:
                    continue
                if not data:
                    return
                self.heard += data if source is client else b""
                self.said += data if source is daemon else b""
                while data:
                    try:
                        data = data[target.send(data) :]
                    except ssl.SSLWantWriteError:
                        select.select([], [target], [], 1)

    def shared(self, tag):
        """Values of 16 bytes that the daemon gave under a field's tag and the client showed again."""
        given = {self.said[at.end() : at.end() + 16] for at in re.finditer(re.escape(tag + b"\x10"), self.said)}
        return {one for one in given if len(one) == 16 and len(set(one)) > 4 and one in self.heard}


def spellings(secret):
    """The bytes in every form that a program may write them."""
    forms = {secret, secret[::-1], secret.hex().encode(), secret.hex().upper().encode()}
    forms.add(secret.hex(" ").encode())
    forms.add(secret.hex(":").encode())
    forms.add("".join(f"\\x{byte:02x}" for byte in secret).encode())
    forms.add("".join(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in secret).encode())
    forms.add(", ".join(str(byte) for byte in secret).encode())
    for skipped in range(3):  # wherever it stands in what is encoded
        whole = secret[skipped:]
        whole = whole[: len(whole) // 3 * 3]
        forms |= {base64.b64encode(whole), base64.urlsafe_b64encode(whole)}
    return forms


def secrets_of_key(path):
    """The lines of a PEM's body and the number that is the private key."""
    lines = pathlib.Path(path).read_text().splitlines()
    lines = [line.encode() for line in lines if line and "-----" not in line]
    text = run("pkey", "-in", path, "-noout", "-text")
    number = re.search(r"priv:((?:\s+[0-9a-f:]+)+)", text)[1]
    return lines, bytes.fromhex(re.sub(r"[\s:]", "", number))[-32:]


def found_in(text, secrets):
    """Names of the secrets that a text has."""
    return [name for name, secret in secrets for form in spellings(secret) if form in text]


class Run:
    """A daemon with everything on, and all that it and its tools write."""

    def __init__(self, bin_dir, ca, server, folder):
        self.bin_dir, self.ca, self.folder = bin_dir, ca, folder
        self.texts = {}
        self.certificate, self.key, self.trusted = (
            pathlib.Path(shutil.copy(one, folder)) for one in [*server, ca.pem]
        )
        self.policy, self.crl, self.audit = folder / "policy.yaml", folder / "crl.pem", folder / "audit"
        self.policy.write_text(POLICY)
        ca.revoke(self.crl)
        self.flags = ["--tls-cert", self.certificate, "--tls-key", self.key, "--tls-ca", self.trusted]
        self.flags += ["--tls-crl", self.crl, "--policy", self.policy, "--audit", self.audit]
        self.flags += ["--stream", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self.flags += ["--log-level", "debug", "--slow-ms", "1"]

    def keep(self, name, text):
        self.texts[name] = self.texts.get(name, b"") + (text if isinstance(text, bytes) else text.encode())

    def tool(self, *words, pair=None, daemon=None):
        words = list(map(str, words))
        if daemon is not None:
            words += ["--control", daemon.control, "--tls-ca", str(self.ca.pem)]
            words += ["--tls-cert", pair[0], "--tls-key", pair[1]]
        ended = subprocess.run([self.bin_dir / words[0], *words[1:]], capture_output=True, timeout=60)
        self.keep(" ".join(words[:3]), ended.stdout + ended.stderr)
        return ended

    def scrape(self, daemon):
        self.keep("metrics", daemon.get("/metrics"))
        self.keep("readyz", daemon.get("/readyz"))


def rotate_badly(run_, daemon):
    """Files that are others, halves and nonsense: what is said of them must not quote them."""
    key, certificate = run_.key.read_text(), run_.certificate.read_text()
    for path, wrong in [
        (run_.key, key[: len(key) // 2]),
        (run_.key, key.replace("\n", "\n\n")[:-40] + "=" * 30),
        (run_.certificate, key),
        (run_.trusted, key),
        (run_.crl, key),
        (run_.policy, key),
        (run_.policy, f"version: 1\nidentities:\n  - {key.splitlines()[1]}\n"),
        (run_.policy, f"{key.splitlines()[1]}: 1\n"),
        (run_.policy, f"version: 1\nidentities:\n  - {{{key.splitlines()[1]}: 1}}\n"),
        (run_.policy, f"version: 1\ntenants: {{{key.splitlines()[1]}: 1}}\n"),
    ]:
        right = path.read_text()
        path.write_text(wrong)
        wait_for(lambda: "not taken" in daemon.get("/readyz") or "policy" in daemon.get("/readyz"))
        run_.scrape(daemon)
        run_.tool("cairnd", "--check-config", *run_.flags)
        run_.tool("cairnctl", "policy", "check", run_.policy)
        run_.tool("cairnd", "--check-config", "--config", path)
        path.write_text(right)
        wait_for(lambda: daemon.get("/readyz").strip() == "ready")
    assert run_.key.read_text() == key and run_.certificate.read_text() == certificate


def refuse_clients(run_, daemon, team_a, others):
    for pair in others:
        run_.keep("errors of the SDK", refusal(cairn.Error, **tls(daemon, run_.ca, pair, tenant="team-a")))
    run_.keep("errors of the SDK", refusal(cairn.Error, **tls(daemon, run_.ca, team_a, tenant="team-b")))
    mixed = tls(daemon, run_.ca, (team_a[1], team_a[0]))
    run_.keep("errors of the SDK", refusal(cairn.Error, **mixed))
    run_.keep("errors of the SDK", refusal(cairn.Error, **tls(daemon, run_.ca, team_a, tls_ca=team_a[1])))
    shake_hands(daemon, run_.ca, None)


def use_tools(run_, daemon, ops, team_a):
    for words in [
        ["status"], ["status", "--json"], ["spaces"], ["spaces", "--json"], ["tier"], ["members"],
        ["ls", "--space", "team-a/m"], ["policy", "--space", "team-a/m"], ["version"], ["doctor"],
        ["explain", "--space", "team-a/m"], ["drain"],
    ]:  # fmt: skip
        for pair in (team_a, ops, (ops[1], ops[0]), (ops[0], team_a[1])):
            run_.tool("cairnctl", *words, pair=pair, daemon=daemon)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def ca(folder):
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    return Ca(folder)


def test_no_secret_is_written(bin_dir, ca, folder, tmp_path, capfd):
    server = ca.issue("server", "DNS:localhost,IP:127.0.0.1", use="serverAuth")
    team_a, ops = ca.issue("team-a", TEAM_A), ca.issue("ops", OPERATOR)
    stranger = Ca(folder, "other").issue("stranger", TEAM_A)
    old = ca.issue("old", "URI:spiffe://prod.example/ns/team-a/sa/old")
    run_, keylog = Run(bin_dir, ca, server, tmp_path), folder / "keylog"
    with Daemon(bin_dir, tmp_path, *run_.flags) as daemon:
        relay = ReadingRelay(("127.0.0.1", int(daemon.port)), server, team_a, ca, keylog)
        with cairn.connect(**tls(daemon, ca, team_a, tenant="team-a") | {"control": relay.control}) as client:
            move(client)
            space = client.open_space("m", "r", [cairn.KvGroup(4, 4, 64)], tokens_per_block=16, recipe="raw")
            keys = space.keys(range(160))
            source = os.urandom(space.source_bytes())
            for key in keys:
                space.put(key, source=source, timeout=20)
            space.match(keys, timeout=20).release()
            run_.keep("statistics", repr(client.stats(timeout=5.0)) + repr(client.counters()) + repr(client))
            tickets, leases = relay.shared(b"\x12"), relay.shared(b"\x1a")
        refuse_clients(run_, daemon, team_a, [stranger, old])
        rotate_badly(run_, daemon)
        ca.revoke(run_.crl, old[0])
        use_tools(run_, daemon, ops, team_a)
        run_.tool("cairnd", "--print-config", *run_.flags)
        run_.scrape(daemon)
        relay.close()
    run_.keep("log", daemon.log())
    run_.keep("audit", run_.audit.read_bytes())
    run_.keep("output of the SDK", "".join(capfd.readouterr()))
    secrets = [("ticket", one) for one in tickets] + [("lease", one) for one in leases]
    assert tickets and leases
    for path in {run_.key, pathlib.Path(team_a[1]), pathlib.Path(ops[1]), pathlib.Path(stranger[1])}:
        lines, number = secrets_of_key(path)
        secrets += [(f"a line of {path.name}", line) for line in lines] + [(path.name, number)]
    for line in keylog.read_text().splitlines():
        if not line.startswith("#"):
            secrets.append((f"TLS {line.split()[0]}", bytes.fromhex(line.split()[2])))
    # What is searched is what was written, and the search finds what is there.
    assert len(run_.texts["log"]) > 10_000 and b"DEBUG" in run_.texts["log"]
    assert serial_of(old[0]) and b"spiffe://prod.example/ns/team-a/sa/vllm" in run_.texts["log"]
    events = collections.Counter(json.loads(line)["event"] for line in run_.texts["audit"].splitlines())
    assert {"change", "refused", "handshake refused"} <= events.keys()
    assert min(events["tls not taken"], events["policy not taken"]) >= 5, events
    for name, secret in secrets:
        for form in spellings(secret):
            assert found_in(b"x" + form + b"y", [(name, secret)])
    assert found_in(relay.said, [("ticket", one) for one in tickets])
    written = {name: found_in(text, secrets) for name, text in run_.texts.items()}
    print(
        f"{len(secrets)} secrets in {len(written)} kinds of text, {sum(map(len, run_.texts.values()))} bytes: "
        f"{sum(map(len, written.values()))} found"
    )
    assert {name: found for name, found in written.items() if found} == {}


def test_there_are_no_session_tickets(bin_dir, ca, folder, tmp_path):
    """TLS 1.3 sends them after the handshake: a connection that has read an answer has got none."""
    server = ca.issue("server-2", "DNS:localhost,IP:127.0.0.1", use="serverAuth")
    pair = ca.issue("client-2", TEAM_A)
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    with Daemon(bin_dir, tmp_path, *flags) as daemon:
        context = ssl.create_default_context(cafile=str(ca.pem))
        context.load_cert_chain(*pair)
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", int(daemon.port)), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as one:
                one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                assert one.recv(9)[3] == 4  # SETTINGS
                time.sleep(0.1)
                assert not one.session.has_ticket and not one.session_reused
