# SPDX-License-Identifier: Apache-2.0
"""Three stores that run with what the chart renders, on three addresses of this host: they find each other, and read each other's blocks over TLS."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import CHART, ROOT
from test_chart import daemon_of, given_policy, of_kind, pods

sys.path[:0] = [str(ROOT / path) for path in ("client/python", "tests/e2e/python", "tests/support")]
import cairn  # noqa: E402
from certificates import Ca  # noqa: E402
from ports import free_port  # noqa: E402

BIN = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
SECONDS_MAX = 60
NAME = "cairn.serving.svc"  # of the members' certificate


def wait_for(what, of):
    end = time.monotonic() + SECONDS_MAX
    while not (value := what()):
        assert time.monotonic() < end, of()
        time.sleep(0.1)
    return value


class Pod:
    """The daemon of one pod: its flags, with the places of this host."""

    def __init__(self, container, name, host, mounts, folder):
        folder.mkdir()
        for part in ["sockets", "admin"]:
            (folder / part).mkdir(mode=0o700)
        places = mounts | {"/run/cairn-admin/": f"{folder}/admin/", "/run/cairn/": f"{folder}/sockets/"}
        places |= {"$(POD_IP)": host, "$(MEMBER_NAME)": name}
        self.args = []
        for word in container["args"]:
            for old, new in places.items():
                word = word.replace(old, str(new))
            self.args.append(word)
        self.flags = dict(word.removeprefix("--").split("=", 1) for word in self.args)
        self._log = open(folder / "log", "w+")
        environment = {"PATH": os.environ["PATH"]}
        self.process = subprocess.Popen([BIN / "cairnd", *self.args], stdout=self._log, stderr=self._log, env=environment)

    def log(self):
        return pathlib.Path(self._log.name).read_text()

    def members(self):
        """{name: state} as the daemon says, or nothing while it does not answer."""
        words = [BIN / "cairnctl", "members", "--json", "--admin", self.flags["admin"], "--control", self.flags["admin"]]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=20)
        return {one["name"]: one["state"] for one in json.loads(ran.stdout)["members"]} if ran.returncode == 0 else {}

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        self._log.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """(the CA, what the chart mounts): as the example says."""
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    folder = tmp_path_factory.mktemp("tls")
    ca = Ca(folder)
    addresses = ",".join(f"IP:{host}" for host in HOSTS)
    pair = ca.issue("member", f"DNS:{NAME},{addresses}", use="serverAuth,clientAuth")
    for source, target in zip([*pair, ca.pem], ["tls.crt", "tls.key", "ca.crt"], strict=True):
        shutil.copy(source, folder / target)
    policy = given_policy(CHART / "ci" / "daemonset-cluster-values.yaml")
    (folder / "policy.yaml").write_text(policy + '  - {dns: engine, tenants: ["*"]}\n')
    return ca, {"/run/cairn-tls/": f"{folder}/", "/run/cairn-policy/": f"{folder}/"}


@pytest.fixture(scope="module")
def stores(render, certificates, tmp_path_factory):
    """They all know each other."""
    control, stream, http, peer = (free_port() for _ in range(4))
    listed = [{"name": f"r-cairn-{at}", "host": host} for at, host in enumerate(HOSTS)]
    values = f"ports.control={control},ports.stream={stream},ports.http={http},cluster.peerPort={peer}"
    sizes = "memory.host=128Mi,memory.staging=192Mi,drainSeconds=0,cluster.matchMs=2000"
    objects = render(
        "-f", CHART / "ci" / "statefulset-cluster-values.yaml", "--set", values, "--set", sizes,
        "--set-json", "ssd.devices=[]", "--set-json", f"cluster.file.members={json.dumps(listed)}",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("m")
    (config,) = of_kind(objects, "ConfigMap")
    (folder / "members").write_text(config["data"]["members"])
    (spec,) = pods(objects)
    mounts = certificates[1] | {"/run/cairn-members/": f"{folder}/"}
    with contextlib.ExitStack() as stack:
        started = []
        for at, host in enumerate(HOSTS):
            started.append(Pod(daemon_of(spec), f"r-cairn-{at}", host, mounts, folder / str(at)))
            stack.callback(started[-1].close)
        everybody = {one["name"]: "joined" for one in listed}
        for one in started:
            wait_for(lambda one=one: one.members() == everybody, lambda one=one: f"{one.members()}\n{one.log()}")
        yield started


def test_a_block_of_one_store_is_read_from_each(stores, certificates):
    ca, _ = certificates
    cert, key = ca.issue("engine", "DNS:engine")
    with contextlib.ExitStack() as stack:
        spaces = []
        for store in stores:
            tls = {"tls_ca": str(ca.pem), "tls_cert": cert, "tls_key": key}
            client = stack.enter_context(cairn.connect(store.flags["control"], timeout=20.0, **tls))
            spaces.append(client.open_space("m", "r", [cairn.KvGroup(4, 4, 64)], tokens_per_block=64, recipe="raw"))
        (block,) = spaces[0].keys(range(64))
        source = os.urandom(spaces[0].source_bytes())
        spaces[0].put(block, source=source)
        for at, space in enumerate(spaces):
            with space.match([block]) as match:
                assert match.block_count == 1, stores[at].log()
                target = bytearray(len(source))
                assert space.get(block, source=target) and target == source
