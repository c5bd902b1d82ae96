# SPDX-License-Identifier: Apache-2.0
"""The data plane over TLS: blocks move, a ticket is its certificate's, and nothing is downgraded."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import cairn
import pytest
from certificates import Ca

URI = "URI:spiffe://prod.example/ns/{}/sa/engine"
MOVED = itertools.count(1)
SERVER = "spiffe://prod.example/ns/cairn/sa/cairnd"


class Daemon:
    def __init__(self, bin_dir, folder, *flags, control="127.0.0.1:0"):
        self._path = folder / "log"
        self._log = open(self._path, "w", encoding="utf-8")
        command = [str(bin_dir / "cairnd"), "--control", control, "--http", "127.0.0.1:0"]
        command += ["--socket", str(folder / "s"), "--host-bytes", "128MiB", "--ssd", "off"]
        self.process = subprocess.Popen(
            [*command, "--drain-ms", "0", *map(str, flags)], stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + 30
        while (ready := re.search(r"cairnd ready .*", self.log())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        found = dict(re.findall(r"(\w+)=(\S+)", ready[0]))
        self.control, self.http = found["control"], found["http"]
        stream = re.search(r"stream=(tls:\S+)", self.log())
        self.stream = stream and stream[1].strip('"')

    def log(self):
        return self._path.read_text(encoding="utf-8")

    def metric(self, series):
        url = f"http://{self.http}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self._log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stream")


@pytest.fixture(scope="module")
def ca(folder):
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    return Ca(folder)


@pytest.fixture(scope="module")
def server(ca):
    return ca.issue("server", f"URI:{SERVER},DNS:localhost,IP:127.0.0.1", use="serverAuth")


@pytest.fixture(scope="module")
def daemon(bin_dir, ca, server, folder):
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    with Daemon(bin_dir, folder, *flags, "--stream", "127.0.0.1:0") as started:
        yield started


@pytest.fixture(scope="module")
def engine(ca):
    return ca.issue("engine", URI.format("team-a"))


def tls(daemon, ca, pair, **more):
    options = {"control": daemon.control, "tls_ca": str(ca.pem), "timeout": 10.0}
    return options | {"tls_cert": pair[0], "tls_key": pair[1]} | more


def move(client, tokens=1024, timeout=20):
    space = client.open_space(
        "m", "r", [cairn.KvGroup(4, 4, 64)], tokens_per_block=tokens, recipe="raw"
    )
    first = next(MOVED) * 10_000  # blocks that nobody has put yet
    (key,) = space.keys(range(first, first + tokens))
    source = os.urandom(space.source_bytes())
    space.put(key, source=source, timeout=timeout)
    target = bytearray(len(source))
    assert space.get(key, source=target, timeout=timeout) and target == source
    return len(source)


def test_blocks_move_over_tls(daemon, ca, engine):
    sent = 'cairn_transport_sent_bytes_total{transport="stream"}'
    received = 'cairn_transport_received_bytes_total{transport="stream"}'
    before = daemon.metric(sent), daemon.metric(received)
    with cairn.connect(**tls(daemon, ca, engine)) as client:
        moved = move(client)
    assert moved > 1 << 20
    assert daemon.metric(received) - before[1] >= moved
    assert daemon.metric(sent) - before[0] >= moved
    assert daemon.metric('cairn_tls_handshakes_total{door="stream",outcome="completed"}') >= 1
    # By the name of the certificate, too, and where the address is given.
    for more in ({"tls_server": SERVER}, {"data": daemon.stream}, {"transports": "stream"}):
        with cairn.connect(**tls(daemon, ca, engine, **more)) as client:
            move(client, 16)


def test_a_daemon_that_offers_no_tls_gets_no_data(bin_dir, ca, server, engine, tmp_path):
    """As an older daemon, or one that lies: the ticket stays with the client."""
    flags = ["--tls-cert", server[0], "--tls-key", server[1], "--tls-ca", ca.pem]
    with Daemon(bin_dir, tmp_path, *flags) as plain:
        with cairn.connect(**tls(plain, ca, engine)) as client:
            with pytest.raises(cairn.Error, match="no data address over TLS"):
                move(client, 16)
            assert plain.metric('cairn_transport_peers_opened_total{transport="local"}') == 0


def test_settings_that_leave_tls_are_refused(daemon, ca, engine):
    with pytest.raises(cairn.Error, match="UCX, without TLS"):
        cairn.connect(**tls(daemon, ca, engine, data="127.0.0.1:1"))
    with pytest.raises(cairn.Error, match="set tls_ca"):
        cairn.connect(daemon.control, data=daemon.stream)
    with pytest.raises(cairn.Error, match="expected some of local, stream, ucx"):
        cairn.connect(**tls(daemon, ca, engine, transports="tcp"))


class Relay:
    """Passes bytes on, and keeps what clients say; or answers itself."""

    def __init__(self, target=None, answer=b""):
        self.heard = b""
        self._target, self._answer = target, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        if self._target is None:
            if self._answer:
                client.sendall(self._answer)
            while data := client.recv(65536):
                self.heard += data
            return client.close()
        with socket.create_connection(self._target) as daemon:
            back = threading.Thread(target=self._copy, args=(daemon, client), daemon=True)
            back.start()
            while data := client.recv(65536):
                self.heard += data
                daemon.sendall(data)
            with contextlib.suppress(OSError):
                daemon.shutdown(socket.SHUT_WR)
            back.join(10)

    @staticmethod
    def _copy(source, target):
        while data := source.recv(65536):
            target.sendall(data)
        with contextlib.suppress(OSError):  # it may be closed by then
            target.shutdown(socket.SHUT_WR)


def test_a_relay_in_the_clear_learns_nothing(daemon, ca, engine):
    host, _, port = daemon.stream[len("tls:"):].rpartition(":")
    relay = Relay((host, int(port)))
    options = tls(daemon, ca, engine, data=f"tls:127.0.0.1:{relay.port}")
    with cairn.connect(**options) as client:
        move(client, 16)  # it may pass bytes on: they are sealed from end to end
    assert relay.heard and b"CRS1" not in relay.heard


def test_whoever_is_not_the_daemon_gets_no_ticket(daemon, ca, engine, folder, bin_dir):
    # Plain text.
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        relay = Relay(answer=answer)
        options = tls(daemon, ca, engine, data=f"tls:127.0.0.1:{relay.port}")
        with cairn.connect(**options) as client, pytest.raises(cairn.Error):
            move(client, 16, timeout=0.5)
        assert b"CRS1" not in relay.heard
    # Another daemon with a certificate of the same CA, which is another's name.
    other = ca.issue("other", "URI:spiffe://prod.example/ns/x/sa/y,DNS:x", use="serverAuth")
    place = folder / "other-daemon"
    place.mkdir()
    flags = ["--tls-cert", other[0], "--tls-key", other[1], "--tls-ca", ca.pem]
    with Daemon(bin_dir, place, *flags, "--stream", "127.0.0.1:0") as impostor:
        with cairn.connect(**tls(daemon, ca, engine, data=impostor.stream)) as client:
            with pytest.raises(cairn.Error, match="certificate is refused"):
                move(client, 16)
        assert impostor.metric('cairn_transport_peers_opened_total{transport="stream"}') == 0


def test_a_ticket_is_its_certificates(daemon, ca, engine, folder, bin_dir):
    """A data connection of another certificate is refused, even with the ticket."""
    other = ca.issue("thief", URI.format("team-b"))
    pair = folder / "swap.pem", folder / "swap.key"
    for source, target in zip(engine, pair, strict=True):
        shutil.copy(source, target)
    with cairn.connect(**tls(daemon, ca, [str(one) for one in pair])) as client:
        # The session is open; its data connections are made with what the files say now.
        for source, target in zip(other, pair, strict=True):
            shutil.copy(source, target)
        time.sleep(1.1)  # files are looked at once a second
        with pytest.raises(cairn.Error, match="ticket|identity|peer"):
            move(client, 16)


def test_the_flag_needs_the_files(bin_dir):
    done = subprocess.run(
        [bin_dir / "cairnd", "--stream", "127.0.0.1:0", "--check-config"],
        capture_output=True, text=True, timeout=20,
    )
    assert done.returncode != 0
    assert "set tls-cert, tls-key and tls-ca" in done.stderr + done.stdout
