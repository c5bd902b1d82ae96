# SPDX-License-Identifier: Apache-2.0
"""Who may come in: the policy over unix sockets and TLS, rotation, revocation, downgrade."""

import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import cairn
import pytest
from certificates import Ca, serial_of

MOVED = itertools.count(1)
TEAM_A = "URI:spiffe://prod.example/ns/team-a/sa/vllm"
POLICY = """version: 1
identities:
  - {uri: "spiffe://prod.example/ns/team-a/sa/*", tenants: [team-a, shared]}
  - {dns: "*.team-b.example", tenants: [team-b]}
  - {uri: "spiffe://prod.example/ns/ops/sa/cairnctl", operator: true}
deny:
  - {uri: "spiffe://prod.example/ns/team-a/sa/old"}
"""


class Daemon:
    """A cairnd of its own. Its log is `log()`."""

    def __init__(self, bin_dir, folder, *flags, control="127.0.0.1:0"):
        self._path = folder / "log"
        self._log = open(self._path, "w", encoding="utf-8")
        command = [str(bin_dir / "cairnd"), "--control", control, "--http", "127.0.0.1:0"]
        command += ["--socket", str(folder / "s"), "--host-bytes", "64MiB", "--ssd", "off"]
        self.process = subprocess.Popen(
            [*command, "--drain-ms", "0", *map(str, flags)], stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + 30
        while (ready := re.search(r"cairnd ready .*", self.log())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        found = dict(re.findall(r"(\w+)=(\S+)", ready[0]))
        self.control, self.http, self.admin = found["control"], found["http"], found["admin"]
        self.port = self.control.rpartition(":")[2]

    def log(self):
        return self._path.read_text(encoding="utf-8")

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.M)
        return float(found[1]) if found else 0.0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self._log.close()


def wait_for(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refusal(kind, **arguments):
    with pytest.raises(kind) as caught:
        cairn.connect(**arguments).close()
    return str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trust")


@pytest.fixture(scope="module")
def ca(folder):
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    return Ca(folder)


@pytest.fixture(scope="module")
def server(ca):
    san = "URI:spiffe://prod.example/ns/cairn/sa/cairnd,DNS:localhost,IP:127.0.0.1"
    return ca.issue("server", san, use="serverAuth")


@pytest.fixture
def secured(bin_dir, ca, server, tmp_path):
    """A daemon with TLS and a policy, both in files of its own."""
    certificate, key, trusted = (shutil.copy(one, tmp_path) for one in [*server, ca.pem])
    policy, crl = tmp_path / "policy.yaml", tmp_path / "crl.pem"
    policy.write_text(POLICY)
    ca.revoke(crl)
    flags = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", trusted, "--tls-crl", crl]
    with Daemon(bin_dir, tmp_path, *flags, "--policy", policy) as daemon:
        daemon.certificate, daemon.key, daemon.ca = certificate, key, pathlib.Path(trusted)
        daemon.policy, daemon.crl = policy, crl
        yield daemon


@pytest.fixture(scope="module")
def team_a(ca):
    return ca.issue("team-a", TEAM_A)


def tls(daemon, ca, pair, **more):
    options = {"control": daemon.control, "tls_ca": str(ca.pem), "timeout": 5.0}
    if pair is not None:
        options |= {"tls_cert": pair[0], "tls_key": pair[1]}
    return options | more


def test_certificates_are_the_tenants_of_the_policy(secured, ca, folder, team_a):
    dns = ca.issue("dns", "DNS:engine-7.team-b.example")
    ops = ca.issue("ops", "URI:spiffe://prod.example/ns/ops/sa/cairnctl")
    # (certificate, tenant, why it is refused; None: it is not)
    cases = [
        (team_a, "team-a", None),
        (team_a, "shared", None),
        (team_a, "team-b", "tenant: 'team-b' is none of team-a, shared (policy.yaml:3)"),
        (dns, "team-b", None),
        (dns, "team-a", "tenant: 'team-a' is none of team-b (policy.yaml:4)"),
        (ops, "team-a", "tenant: 'team-a' is not allowed: the rule has no tenants (policy.yaml:5)"),
        (
            ca.issue("old", "URI:spiffe://prod.example/ns/team-a/sa/old"),
            "team-a",
            "peer: spiffe://prod.example/ns/team-a/sa/old is denied (policy.yaml:7)",
        ),
        (
            ca.issue("stranger", "URI:spiffe://prod.example/ns/team-z/sa/vllm"),
            "team-a",
            "peer: spiffe://prod.example/ns/team-z/sa/vllm is in no rule of policy.yaml",
        ),
    ]
    for pair, tenant, why in cases:
        if why is None:
            with cairn.connect(**tls(secured, ca, pair, tenant=tenant)) as client:
                assert client.stats(timeout=5.0).session_count == 1
        else:
            assert why in refusal(cairn.PermissionDeniedError, **tls(secured, ca, pair, tenant=tenant))


def test_certificates_that_prove_nothing_are_refused_with_the_reason(secured, ca, folder, team_a):
    other = Ca(folder, "other")
    rejected = "does not accept our certificate"
    # What the daemon counts, and what the SDK says, which looks at its own files first.
    cases = {
        "expired": (ca.issue("late", TEAM_A, days=0), "expired"),
        "unknown_ca": (other.issue("other-client", TEAM_A), rejected),
        "wrong_use": (ca.issue("use", TEAM_A, use="serverAuth"), "extended key usage"),
        "wrong_name": (ca.issue("two", f"{TEAM_A},URI:spiffe://prod.example/ns/b/sa/c"), "two URIs"),
        "no_certificate": (None, "it asks for a certificate"),
    }
    time.sleep(1.1)  # the first of them is valid for the second that it was made in
    for reason, (pair, said) in cases.items():
        text = refusal(cairn.Error, **tls(secured, ca, pair, tenant="team-a"))
        assert said in text, reason
        shake_hands(secured, ca, pair)
        name = f'cairn_tls_handshakes_total{{door="control",outcome="{reason}"}}'
        wait_for(lambda: secured.metric(name) >= 1)
        assert f"reason={reason}" in secured.log()


def shake_hands(daemon, ca, pair):
    """Without the SDK, which would not send what it knows to be wrong."""
    context = ssl.create_default_context(cafile=str(ca.pem))
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        context.load_cert_chain(*pair)
    with socket.create_connection(("127.0.0.1", int(daemon.port)), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as one:
            with pytest.raises(OSError):  # TLS 1.3: refused after the client is done
                if one.recv(1) == b"":
                    raise OSError


def test_what_does_not_fit_is_said(bin_dir, secured, ca, folder, team_a, tmp_path_factory):
    plain_text = refusal(cairn.Error, control=secured.control, tenant="team-a")
    assert f"{secured.control} speaks TLS: set tls_ca" in plain_text
    elsewhere = Ca(folder, "elsewhere")
    distrusted = tls(secured, ca, team_a, tenant="team-a", tls_ca=str(elsewhere.pem))
    assert "is not one of" in refusal(cairn.Error, **distrusted)
    named = tls(secured, ca, team_a, tenant="team-a", tls_server="elsewhere.example")
    assert "for elsewhere.example" in refusal(cairn.Error, **named)
    uri = tls(secured, ca, team_a, tenant="team-a")
    cairn.connect(**uri, tls_server="spiffe://prod.example/ns/cairn/sa/cairnd").close()
    assert "spiffe://prod.example/x" in refusal(
        cairn.Error, **uri, tls_server="spiffe://prod.example/x"
    )
    with Daemon(bin_dir, tmp_path_factory.mktemp("plain")) as plain:
        downgraded = tls(plain, ca, team_a)
        assert "does not speak TLS" in refusal(cairn.Error, **downgraded)
        assert plain.metric("cairn_sessions_opened_total") == 0
    half = tls(secured, ca, None, tls_cert=team_a[0])
    assert "tls_cert and tls_key" in refusal(cairn.InvalidArgumentError, **half)
    mixed = tls(secured, ca, (team_a[0], secured.key))
    assert "is not its key" in refusal(cairn.InvalidArgumentError, **mixed)


class OpeningRelay:
    """A daemon's stand-in with a certificate of its own: it opens TLS, and passes on what it reads."""

    def __init__(self, target, pair, newest=ssl.TLSVersion.TLSv1_3):
        self.heard, self._target = b"", target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.maximum_version = newest
        self._context.load_cert_chain(*pair)
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.control = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain):
        try:
            with self._context.wrap_socket(plain, server_side=True) as client:
                with socket.create_connection(self._target) as daemon:
                    copy = threading.Thread(target=self._back, args=(daemon, client), daemon=True)
                    copy.start()
                    while data := client.recv(65536):
                        self.heard += data
                        daemon.sendall(data)
        except OSError:
            plain.close()

    @staticmethod
    def _back(daemon, client):
        try:
            while data := daemon.recv(65536):
                client.sendall(data)
        except OSError:
            pass

    def close(self):
        self._listener.close()


def test_whoever_relays_to_a_daemon_is_told_nothing(bin_dir, ca, server, team_a, folder, tmp_path):
    """Behind it is a daemon in the clear, which would answer all: only the certificate is wrong."""
    san = "DNS:localhost,IP:127.0.0.1"
    relays = [
        (server, None),  # the daemon's own certificate: it works, so the others show something
        (Ca(folder, "rogue").issue("rogue-server", san, use="serverAuth"), "is not one of"),
        (ca.issue("elsewhere-server", "DNS:elsewhere.example", use="serverAuth"), "127.0.0.1"),
        (ca.issue("client-as-server", san, use="clientAuth"), "is not one of"),
    ]
    with Daemon(bin_dir, tmp_path) as plain:
        target = ("127.0.0.1", int(plain.port))
        # gRPC's client accepts TLS 1.2: that lets in nobody without the daemon's key.
        versions = [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2]
        for (pair, why), newest in itertools.product(relays, versions):
            relay = OpeningRelay(target, pair, newest)
            options = tls(plain, ca, team_a, tenant="team-a") | {"control": relay.control}
            opened = plain.metric("cairn_sessions_opened_total")
            if why is None:
                cairn.connect(**options).close()
                assert relay.heard and plain.metric("cairn_sessions_opened_total") == opened + 1
            else:
                said = refusal(cairn.Error, **options)
                assert why in said, said
                assert relay.heard == b""
                assert plain.metric("cairn_sessions_opened_total") == opened
            relay.close()


def test_the_page_works_as_it_stands(bin_dir, ca, tmp_path):
    """The commands and the policy of docs/guides/trust.md, on one host."""
    page = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "trust.md"
    blocks = re.findall(r"```(sh|yaml)\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    commands, start = [text for kind, text in blocks if kind == "sh"][:2]
    assert "openssl req" in commands and start.startswith("cairnd ")
    (policy,) = [text for kind, text in blocks if kind == "yaml" and text.startswith("version:")]
    (tmp_path / "policy.yaml").write_text(policy)
    shell = {"input": commands, "text": True, "cwd": tmp_path, "capture_output": True}
    subprocess.run(["bash", "-e"], check=True, **shell)
    words = start.splitlines()[0].replace("$PWD", str(tmp_path)).split()[1:]
    flags = [word for i, word in enumerate(words) if "--control" not in words[max(0, i - 1) : i + 1]]
    flags[flags.index("--stream") + 1] = "127.0.0.1:0"
    options = {"tls_ca": "ca.pem", "tls_cert": "engine.pem", "tls_key": "engine.key"}
    options = {name: str(tmp_path / path) for name, path in options.items()}
    options |= {"tls_server": "cairn.example", "timeout": 10.0}
    with Daemon(bin_dir, tmp_path, *flags) as daemon:
        with cairn.connect(daemon.control, tenant="team-a", **options) as client:
            move(client)
        sent = daemon.metric('cairn_transport_sent_bytes_total{transport="stream"}')
        assert sent > 0
        why = refusal(cairn.PermissionDeniedError, control=daemon.control, tenant="team-b", **options)
        assert "'team-b' is none of team-a, shared-prompts (policy.yaml:3)" in why


def test_no_door_speaks_an_older_tls(bin_dir, ca, server, team_a, tmp_path):
    """Whoever sits between them cannot make client and daemon agree on less than TLS 1.3."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem, "--policy", policy]
    flags += ["--stream", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with Daemon(bin_dir, tmp_path, *flags) as daemon:
        found = dict(re.findall(r"(\w+)=(\S+)", daemon.log()))
        doors = {"control": "h2", "admin": "h2", "stream": "cairn-stream/1"}
        for (door, alpn), version in itertools.product(
            doors.items(), [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
        ):
            context = ssl.create_default_context(cafile=str(ca.pem))
            context.maximum_version = version
            context.set_alpn_protocols([alpn])
            context.load_cert_chain(*team_a)
            host, _, port = found[door].removeprefix("tls:").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                if version == ssl.TLSVersion.TLSv1_2:
                    with pytest.raises(ssl.SSLError, match="(?i)protocol.version"):
                        context.wrap_socket(plain, server_hostname="localhost")
                else:
                    with context.wrap_socket(plain, server_hostname="localhost") as one:
                        assert one.version() == "TLSv1.3"


def test_the_environment_of_an_engine_is_enough(secured, ca, team_a, monkeypatch):
    monkeypatch.setenv("CAIRN_CONTROL", secured.control)
    monkeypatch.setenv("CAIRN_TLS_CA", str(ca.pem))
    monkeypatch.setenv("CAIRN_TLS_CERT", team_a[0])
    monkeypatch.setenv("CAIRN_TLS_KEY", team_a[1])
    with cairn.connect(tenant="team-a") as client:
        assert client.stats(timeout=5.0).session_count == 1


def half_write(rng, files):
    """Writes them one after the other. Each is half written for a while."""
    for path, text in files:
        path.write_bytes(text[: rng.randrange(len(text))])
        time.sleep(rng.uniform(0, 0.1))
        path.write_bytes(text)


class Rotation:
    """Replaces the files of a daemon and of its clients: certificates, keys, CAs, revocation lists."""

    def __init__(self, daemon, cas, client_files):
        self._daemon, self._cas, self._rng = daemon, cas, random.Random(7)
        self._certificate, self._key, self._ca = map(pathlib.Path, client_files)
        self._made, self._orders = {}, itertools.count()
        self._current = 0  # the CA that signs

    def _pairs(self, number):
        """Of the current CA, for the daemon and the clients. A soak goes round with a few."""
        name = f"{self._current}-{number % 16}"
        if name not in self._made:
            ca, san = self._cas[self._current], "DNS:localhost,IP:127.0.0.1"
            of_server = ca.issue(f"server-{name}", san, use="serverAuth")
            self._made[name] = of_server, ca.issue(f"client-{name}", TEAM_A)
        return [[pathlib.Path(one).read_bytes() for one in pair] for pair in self._made[name]]

    def _bundle(self, numbers):
        return b"".join(self._cas[number].pem.read_bytes() for number in numbers)

    def _lists(self, numbers):
        """New ones, of the same revocations. The CAs in force come first."""
        texts = []
        for number in numbers:
            self._cas[number].revoke(self._daemon.crl.with_suffix(".new"))
            texts.append(self._daemon.crl.with_suffix(".new").read_bytes())
        return b"".join(texts)

    def _replace(self, files):
        """Of the daemon, in an order that no turn had lately; until they are in force."""
        before = self._daemon.metric("cairn_tls_reloads_total")
        orders = list(itertools.permutations(files))
        half_write(self._rng, orders[next(self._orders) % len(orders)])
        wait_for(lambda: self._daemon.metric("cairn_tls_reloads_total") > before, 60)
        wait_for(lambda: "not taken" not in self._daemon.get("/readyz"))

    def turn(self, number, has_new_ca):
        daemon = self._daemon
        certificate, key = map(pathlib.Path, (daemon.certificate, daemon.key))
        trusted = [self._current]
        if has_new_ca:  # both are trusted, then the new one signs, then it alone is trusted
            trusted.append(1 - self._current)
            self._replace([(daemon.ca, self._bundle(trusted)), (daemon.crl, self._lists(trusted))])
            half_write(self._rng, [(self._ca, self._bundle(trusted))])
            self._current = 1 - self._current
        of_server, of_client = self._pairs(number)
        files = [(certificate, of_server[0]), (key, of_server[1])]
        files += [(daemon.crl, self._lists(trusted)), (daemon.ca, self._bundle(trusted))]
        self._replace(files)
        half_write(self._rng, [(self._certificate, of_client[0]), (self._key, of_client[1])])
        if has_new_ca:
            alone = [self._current]
            self._replace([(daemon.crl, self._lists(alone)), (daemon.ca, self._bundle(alone))])
            half_write(self._rng, [(self._ca, self._bundle(alone))])


def test_files_are_replaced_under_clients(secured, ca, team_a, folder, tmp_path):
    """Half written, in every order: nobody notices, and newcomers get the new certificate."""
    sources = enumerate([*team_a, ca.pem])
    files = [str(shutil.copy(one, tmp_path / f"own{i}")) for i, one in sources]
    failures, ends, calls = [], threading.Event(), itertools.count()

    def ask(client):
        while not ends.is_set():
            try:
                client.stats(timeout=30.0)
                next(calls)
                time.sleep(0.02)
            except cairn.Error as error:
                failures.append(error)

    turns = int(os.environ.get("CAIRN_ROTATIONS", "2"))
    count, new_cas = 4 if turns < 10 else 8, 0
    options = tls(secured, ca, files[:2], tenant="team-a") | {"tls_ca": files[2]}
    clients = [cairn.connect(**options) for _ in range(count)]
    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    rotation = Rotation(secured, [ca, Ca(folder, "next-ca")], files)
    try:
        # Half of a file is said, and the old one stays.
        key = pathlib.Path(secured.key)
        text = key.read_bytes()
        key.write_bytes(text[: len(text) // 2])
        wait_for(lambda: "not taken" in secured.get("/readyz"))
        key.write_bytes(text)
        for turn in range(turns):
            has_new_ca = turn % 4 == 1
            new_cas += has_new_ca
            rotation.turn(turn, has_new_ca)
            try:
                with cairn.connect(**options | {"timeout": 30.0}) as client:
                    client.stats(timeout=30.0)
            except cairn.Error as error:
                failures.append(error)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
    print(
        f"{turns} rotations, {new_cas} of them of the CA, {count} clients, {next(calls)} calls, "
        f"{len(failures)} failed"
    )
    assert not failures


def test_a_client_takes_its_new_certificate_when_it_reconnects(secured, ca, tmp_path):
    first = ca.issue("first", TEAM_A)
    pair = [str(shutil.copy(one, tmp_path / f"own{i}")) for i, one in enumerate(first)]
    with cairn.connect(**tls(secured, ca, pair, tenant="team-a")) as client:
        for source, target in zip(ca.issue("second", TEAM_A), pair, strict=True):
            shutil.copy(source, target)
        ca.revoke(secured.crl, first[0])
        wait_for(lambda: secured.metric('cairn_tls_control_ended_total{reason="revoked"}') == 1)
        wait_for(lambda: _answers(client))
        assert client.counters().reconnects == 1


def _answers(client):
    try:
        client.stats(timeout=1.0)
        return True
    except cairn.Error:
        return False


def test_deny_ends_a_session_and_bad_policies_change_nothing(secured, ca, team_a):
    with cairn.connect(**tls(secured, ca, team_a, tenant="team-a")) as client:
        client.stats(timeout=5.0)
        secured.policy.write_text(POLICY + "tenants:\n  team-a: {weight: 2}\n")
        wait_for(lambda: "policy.yaml:9" in secured.get("/readyz"))
        assert "tenants.team-a.weight: this daemon does not enforce it" in secured.get("/readyz")
        assert secured.metric("cairn_policy_load_failures_total") == 1
        client.stats(timeout=5.0)
        secured.policy.write_text(f'{POLICY}  - {{serial: "{serial_of(team_a[0])}"}}\n')
        wait_for(lambda: secured.metric("cairn_sessions") == 0)
        assert "policy" not in secured.get("/readyz")
        text = refusal(cairn.PermissionDeniedError, **tls(secured, ca, team_a, tenant="team-a"))
        assert "is denied (policy.yaml:8)" in text


def test_the_metrics_are_documented(bin_dir, ca, server, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    flags += ["--policy", policy, "--audit", tmp_path / "audit"]
    with Daemon(bin_dir, tmp_path, *flags) as daemon:
        text = daemon.get("/metrics")
    kinds = "cairn_(?:tls|policy|audit)_"
    exported = set(re.findall(rf"^# TYPE ({kinds}\w+)", text, re.M))
    reference = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
    assert exported == set(re.findall(rf"^\| `({kinds}\w+)`", reference.read_text(), re.M))


def test_operators_over_tls(bin_dir, ca, server, team_a, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    ops = ca.issue("operator", "URI:spiffe://prod.example/ns/ops/sa/cairnctl")
    with Daemon(bin_dir, tmp_path, *flags, "--policy", policy, "--admin", "127.0.0.1:0") as daemon:

        def ask(pair):
            words = ["spaces", "--control", daemon.control, "--tls-ca", ca.pem]
            words += ["--tls-cert", pair[0], "--tls-key", pair[1]]
            return subprocess.run(
                [bin_dir / "cairnctl", *map(str, words)], capture_output=True, text=True
            )

        assert ask(ops).returncode == 0, ask(ops).stderr
        refused = ask(team_a)
        assert refused.returncode == 1
        assert "is no operator (policy.yaml:3)" in refused.stderr


def test_users_of_a_unix_socket(bin_dir, tmp_path):
    policy = tmp_path / "policy.yaml"
    mine = f"version: 1\nidentities: [{{uid: {os.getuid()}, tenants: [mine]}}]\n"
    policy.write_text(mine + "tenants: {mine: {sessions: 2}}\n")
    control = f"unix:{tmp_path}/c"
    with Daemon(bin_dir, tmp_path, "--policy", policy, control=control) as daemon:
        why = refusal(cairn.PermissionDeniedError, control=control)
        assert "tenant: 'default' is none of mine (policy.yaml:2)" in why
        with cairn.connect(control, tenant="mine") as one, cairn.connect(control, tenant="mine"):
            why = refusal(cairn.ResourceExhaustedError, control=control, tenant="mine")
            assert "sessions: the policy allows the tenant 2" in why
            policy.write_text(mine + f"deny: [{{uid: {os.getuid()}}}]\n")
            wait_for(lambda: daemon.metric("cairn_sessions") == 0)
            with pytest.raises(cairn.Error):
                one.stats()
        # More than one tenant: clients map the host tier and could read each other's.
        policy.write_text(mine.replace("[mine]", "[mine, yours]"))
        wait_for(lambda: "more than one tenant" in daemon.get("/readyz"))


def move(client):
    space = client.open_space("m", "r", [cairn.KvGroup(4, 4, 64)], tokens_per_block=16, recipe="raw")
    first = next(MOVED) * 100  # blocks that nobody has put yet
    (key,) = space.keys(range(first, first + 16))
    source = os.urandom(space.source_bytes())
    space.put(key, source=source, timeout=20)
    target = bytearray(len(source))
    assert space.get(key, source=target, timeout=20) and target == source


def test_who_comes_by_a_door_is_its_tenant(bin_dir, tmp_path):
    policy, a, b = tmp_path / "policy.yaml", tmp_path / "a", tmp_path / "b"
    policy.write_text(
        f"""version: 1
identities:
  - {{uid: {os.getuid()}, tenants: ["*"]}}
  - {{door: {a}, tenants: [team-a]}}
  - {{door: {b}, tenants: [team-b]}}
"""
    )
    control = f"unix:{tmp_path}/c"
    audit = tmp_path / "audit"
    flags = ["--policy", policy, "--door", f"{a},{b}", "--audit", audit]
    with Daemon(bin_dir, tmp_path, *flags, control=control) as daemon:
        for door in (a, b):
            assert (door / "control.sock").stat().st_mode & 0o777 == 0o666
            assert (door / "cairnd.sock").stat().st_mode & 0o777 == 0o666
        by_a, by_b = (f"unix:{door}/control.sock" for door in (a, b))
        # The uid is that of the first rule, which does not count by a door.
        for by, mine, other in ((by_a, "team-a", "team-b"), (by_b, "team-b", "team-a")):
            with cairn.connect(by, tenant=mine, timeout=10.0) as client:
                move(client)
            why = refusal(cairn.PermissionDeniedError, control=by, tenant=other)
            assert f"'{other}' is none of {mine} (policy.yaml:" in why
        with cairn.connect(control, tenant="team-c", timeout=10.0) as client:
            move(client)
        # A ticket is of the door that it came by.
        for data in (f"unix:{b}/cairnd.sock", f"unix:{tmp_path}/s"):
            with cairn.connect(by_a, tenant="team-a", data=data, timeout=10.0) as client:
                with pytest.raises(cairn.PermissionDeniedError, match="another peer opened"):
                    move(client)
        wait_for(lambda: audit.read_text().count('"event":"ticket refused"') >= 2)
        told = [json.loads(line) for line in audit.read_text().splitlines()]
        told = [line for line in told if line["event"] == "ticket refused"]
        assert {line["peer"] for line in told} == {f"uid {os.getuid()}", f"uid {os.getuid()} by {b}"}
        assert {line["tenant"] for line in told} == {"team-a"}
        # A file that is gone is made again. One that is another's cuts off its own clients alone.
        for name in ("control.sock", "cairnd.sock"):
            (a / name).unlink()
            wait_for(lambda name=name: (a / name).exists())
        with cairn.connect(by_a, tenant="team-a", timeout=10.0) as client:
            move(client)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            (a / "control.sock").unlink()
            other.bind(str(a / "control.sock"))
            other.listen()
            if not daemon.log().count("socket file of a door is gone"):
                wait_for(lambda: "a door" in daemon.log())
            assert daemon.get("/readyz").startswith("ready")
            with cairn.connect(by_b, tenant="team-b", timeout=10.0) as client:
                move(client)
    assert not (b / "control.sock").exists() and not (b / "cairnd.sock").exists()
    said = start_refused(bin_dir, tmp_path, "--door", a)
    assert "door is set and policy is off" in said


def test_a_door_of_the_policy_that_the_daemon_does_not_have_is_said(bin_dir, tmp_path):
    """Its rule matches nobody: most often a folder that is spelled in two ways."""
    policy, a = tmp_path / "policy.yaml", tmp_path / "a"
    right = f"version: 1\nidentities:\n  - {{door: {a}, tenants: [team-a]}}\n"
    wrong = right + f"deny:\n  - {{door: {a}x}}\n  - {{door: {a}y}}\n"
    said = f"policy: policy.yaml:5: {a}x is no door of this daemon (--door): the rule matches nobody"
    control = f"unix:{tmp_path}/c"
    policy.write_text(wrong)

    def check(*words):
        words = list(map(str, [bin_dir / words[0], *words[1:]]))
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    flags = ["--policy", policy, "--door", a]
    with Daemon(bin_dir, tmp_path, *flags, control=control) as daemon:
        assert said in daemon.get("/readyz") and "policy.yaml:6" in daemon.get("/readyz")
        assert daemon.get("/readyz").startswith("ready")
        assert daemon.log().count("matches nobody") == 2
        with cairn.connect(f"unix:{a}/control.sock", tenant="team-a", timeout=10.0) as client:
            move(client)
        policy.write_text(right)
        wait_for(lambda: "matches nobody" not in daemon.get("/readyz"))
        policy.write_text(wrong)
        wait_for(lambda: said in daemon.get("/readyz"))
        assert daemon.log().count("matches nobody") == 4
    socket_flags = ["--socket", tmp_path / "s", "--control", control]
    assert said in check("cairnd", "--check-config", *socket_flags, *flags)
    assert f"must have --door: {a}, {a}x, {a}y" in check("cairnctl", "policy", "check", policy)
    shown = json.loads(check("cairnctl", "policy", "check", policy, "--json"))
    assert shown["doors"] == [str(a), f"{a}x", f"{a}y"]


def start_refused(bin_dir, tmp_path, *flags):
    command = [bin_dir / "cairnd", "--http", "off", "--socket", tmp_path / "s", *flags]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    return ended.stderr + ended.stdout


def test_what_cannot_be_kept_does_not_start(bin_dir, ca, server, tmp_path):
    both = "set tls-cert, tls-key and tls-ca, or a unix socket, or plaintext anywhere"
    said = start_refused(bin_dir, tmp_path, "--control", "0.0.0.0:0")
    assert "control is 0.0.0.0:0, without TLS, and plaintext is loopback" in said and both in said
    said = start_refused(bin_dir, tmp_path, "--control", "127.0.0.1:0", "--plaintext", "refuse")
    assert "plaintext is refuse" in said
    said = start_refused(bin_dir, tmp_path, "--tls-cert", server[0])
    assert "tls-cert, tls-key and tls-ca: set all three, or none" in said
    whole = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    said = start_refused(bin_dir, tmp_path, *whole, "--admin", "127.0.0.1:0")
    assert "set policy, which says who is an operator" in said
    said = start_refused(bin_dir, tmp_path, *whole, "--control", "127.0.0.1:0", "--tls-key", ca.pem)
    # A member is a client of the others, with the same certificate.
    members = ["--members", f"file:{tmp_path}/members", "--member-name", "a", "--peer", "127.0.0.1:0"]
    members += ["--control", f"unix:{tmp_path}/c", "--policy", tmp_path / "members.yaml"]
    (tmp_path / "members.yaml").write_text("version: 1\nidentities: [{uid: 1, peer: true}]\n")
    (tmp_path / "members").write_text("")
    said = start_refused(bin_dir, tmp_path, *whole, *members)
    assert "a member of a cluster is one towards the others" in said
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nidentities:\n  - {uid: 1, tenants: [a, b]}\n")
    said = start_refused(bin_dir, tmp_path, "--policy", policy, "--map", "on")
    assert "more than one tenant" in said
    policy.write_text("version: 1\nidentities:\n  - {uid: 1, tenant: [a]}\n")
    said = start_refused(bin_dir, tmp_path, "--policy", policy)
    assert "policy.yaml:3: identities.tenant is unknown" in said
    checked = subprocess.run(
        [bin_dir / "cairnctl", "policy", "check", policy], capture_output=True, text=True
    )
    assert checked.returncode == 2 and "policy.yaml:3: identities.tenant is unknown" in checked.stderr


def test_the_audit_file(bin_dir, tmp_path):
    policy, audit = tmp_path / "policy.yaml", tmp_path / "audit"
    policy.write_text(f"version: 1\nidentities: [{{uid: {os.getuid()}, tenants: [mine]}}]\n")
    control = f"unix:{tmp_path}/c"

    def lines():
        return [json.loads(line) for line in audit.read_text().splitlines()]

    def drain():
        words = [bin_dir / "cairnctl", "drain", "--control", daemon.control]
        return subprocess.run(list(map(str, words)), capture_output=True, text=True)

    flags = ["--policy", policy, "--audit", audit]
    with Daemon(bin_dir, tmp_path, *flags, control=control) as daemon:
        assert audit.stat().st_mode & 0o777 == 0o600
        refusal(cairn.PermissionDeniedError, control=control, tenant="yours")
        last = lines()[-1]
        assert (last["event"], last["tenant"]) == ("refused", "yours")
        assert last["peer"] == f"uid {os.getuid()}" and "none of mine" in last["reason"]
        policy.write_text("version: 2\n")
        wait_for(lambda: lines()[-1]["event"] == "policy not taken")
        # Moved away by a rotation: a new one begins.
        audit.rename(tmp_path / "audit.1")
        wait_for(lambda: audit.exists() and lines()[-1]["event"] == "new file")
        # Where no line can be written, operators change nothing.
        audit.unlink()
        audit.symlink_to("/dev/full")
        wait_for(lambda: "audit:" in daemon.get("/readyz"))
        refused = drain()
        assert refused.returncode == 4 and "audit:" in refused.stderr
        assert "draining" not in daemon.get("/readyz")
        audit.unlink()
        wait_for(lambda: "audit:" not in daemon.get("/readyz"))
        assert drain().returncode == 0
        assert [line["call"] for line in lines() if line["event"] == "change"] == ["Drain"]
        numbers = [line["number"] for line in lines()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def client_hello(pair, ca):
    context = ssl.create_default_context(cafile=str(ca.pem))
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2"])
    came, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(came, sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return sent.read()


def test_the_audit_file_tells_who_was_refused(bin_dir, ca, server, team_a, folder, tmp_path):
    certificate, key = (shutil.copy(one, tmp_path) for one in server)
    policy, audit = tmp_path / "policy.yaml", tmp_path / "audit"
    policy.write_text(POLICY)
    flags = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", ca.pem, "--policy", policy]
    flags += ["--audit", audit, "--admin", "127.0.0.1:0"]
    ops = ca.issue("auditor", "URI:spiffe://prod.example/ns/ops/sa/cairnctl")
    with Daemon(bin_dir, tmp_path, *flags) as daemon:

        def await_line(event):
            def found():
                lines = [json.loads(line) for line in audit.read_text().splitlines()]
                return [line for line in lines if line["event"] == event]

            wait_for(found)
            return found()[0]

        def run(pair, *words):
            words = [*words, "--control", daemon.control, "--tls-ca", ca.pem]
            words += ["--tls-cert", pair[0], "--tls-key", pair[1]]
            subprocess.run([bin_dir / "cairnctl", *map(str, words)], capture_output=True)

        await_line("tls loaded")
        run(team_a, "spaces")
        line = await_line("operator refused")
        assert line["peer"] == TEAM_A[len("URI:"):] and "no operator" in line["reason"]
        assert line["call"] == "/cairn.v1.Admin/ListSpaces"
        shake_hands(daemon, ca, Ca(folder, "audited").issue("audited-client", TEAM_A))
        line = await_line("handshake refused")
        assert (line["door"], line["reason"]) == ("control", "unknown_ca")
        assert line["address"].startswith("127.0.0.1:") and line["why"]
        pathlib.Path(key).write_text("garbage")
        line = await_line("tls not taken")
        assert str(key) in line["reason"]
        run(ops, "drain")
        line = await_line("outcome")
        assert (line["call"], line["outcome"]) == ("Drain", "OK")
        assert line["peer"] == await_line("change")["peer"] == "spiffe://prod.example/ns/ops/sa/cairnctl"
    numbers = [json.loads(line)["number"] for line in audit.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_damaged_handshakes_harm_nobody(secured, ca, team_a):
    """Cut at every byte, or with changed bytes. CAIRN_HANDSHAKES: how many are changed."""
    hello = client_hello(team_a, ca)
    count = int(os.environ.get("CAIRN_HANDSHAKES", "300"))
    random_ = random.Random(7)

    def send(text):
        with socket.create_connection(("127.0.0.1", int(secured.port)), timeout=10) as one:
            one.sendall(text)

    with cairn.connect(**tls(secured, ca, team_a, tenant="team-a")) as client:
        for cut in range(len(hello)):
            send(hello[:cut])
        for _ in range(count):
            changed = bytearray(hello)
            for _ in range(random_.randint(1, 4)):
                changed[random_.randrange(len(changed))] = random_.randrange(256)
            send(bytes(changed))
        client.stats(timeout=5.0)
    with cairn.connect(**tls(secured, ca, team_a, tenant="team-a", timeout=20.0)) as client:
        client.stats(timeout=5.0)
    assert secured.process.poll() is None
