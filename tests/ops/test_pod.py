# SPDX-License-Identifier: Apache-2.0
"""The pod of the sidecar form, acted out: the rendered commands, mounts, users and limits in containers with one network, each in mount
and pid namespaces and a memory cgroup of its own. A replay stands in for the engine; this file is the kubelet. `make test-ops`.
"""

import collections
import ctypes
import http.client
import json
import os
import threading
import time
import uuid

import pytest
import yaml
from conftest import ROOT
from container import MIB, Container, run

HELM = ROOT / "build" / "tools" / "bin" / "helm"
CLONE_NEWNET = 0x40000000
ENGINE_MIB = 256
VALUES = {
    "form": "sidecar",
    "image": {"repository": "cairn"},
    "memory": {"host": "64Mi"},
    "drainSeconds": 10,
    "ssd": {"devices": [{"name": "a", "size": "512Mi"}]},
}
EXAMPLE = ["--set", "image=engine:1"]


class Probes(threading.Thread):
    """Asks both paths all the while, as the kubelet asks from outside: on the pod's address. `answers` are (path, status, when)."""

    def __init__(self, network, port):
        super().__init__(daemon=True)
        self.network, self.port, self.answers, self.ends = network, port, [], False
        self.start()

    def run(self):
        with open(f"/run/netns/{self.network}") as namespace:  # of this thread alone
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0
        while not self.ends:
            for path in ["/healthz", "/readyz"]:
                self.answers.append((path, self.ask(path), time.monotonic()))
            time.sleep(0.05)

    def ask(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def between(self, path, begin, end):
        return collections.Counter(status for p, status, at in self.answers if p == path and begin <= at <= end)

    def stop(self):
        self.ends = True
        self.join(20)


@pytest.fixture
def network():
    name = f"cairn-{uuid.uuid4().hex[:8]}"
    run("ip", "netns", "add", name)
    run("ip", "-n", name, "link", "set", "lo", "up")
    yield name
    run("ip", "netns", "delete", name)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The pod's spec, of the example."""
    folder = tmp_path_factory.mktemp("charts")
    run("cp", "-r", ROOT / "helm", folder / "helm")
    chart = folder / "helm" / "examples" / "vllm"
    run(HELM, "dependency", "update", chart)
    (folder / "values.yaml").write_text(yaml.safe_dump({"cairn": VALUES}))
    objects = yaml.safe_load_all(run(HELM, "template", "r", chart, "-f", folder / "values.yaml", *EXAMPLE))
    return next(found for found in objects if found["kind"] == "Deployment")["spec"]["template"]["spec"]


class Pod:
    """Volumes as the kubelet makes them: of the pod's fsGroup."""

    def __init__(self, spec, image, network, folder):
        self.spec, self.image, self.network, self.folder = spec, image, network, folder
        self.disk = ROOT / "build" / f"pod-{uuid.uuid4().hex[:8]}"  # a temporary folder may be memory
        self.volumes = {}
        for volume in spec["volumes"]:
            at = (self.disk if "ephemeral" in volume else folder) / volume["name"]
            at.mkdir(parents=True)
            os.chown(at, 0, spec["securityContext"]["fsGroup"])
            at.chmod(0o2775 if "ephemeral" in volume else 0o2777)
            self.volumes[volume["name"]] = at

    def mounts(self, container):
        return {mount["mountPath"]: self.volumes[mount["name"]] for mount in container["volumeMounts"]}

    def start_daemon(self):
        (found,) = self.spec["initContainers"]
        words = [word.replace("$(POD_IP)", "127.0.0.1") for word in found["command"] + found["args"]]
        security = found["securityContext"]
        limit = found["resources"]["limits"]["memory"]
        assert limit.endswith("Mi")
        groups = (security["runAsGroup"], self.spec["securityContext"]["fsGroup"])
        return Container(
            self.image, self.folder, words, security["runAsUser"], groups, self.mounts(found), self.network,
            int(limit[:-2]) * MIB,
        )  # fmt: skip

    def start_engine(self, trace):
        """Of another user, in the pod's group."""
        (found,) = self.spec["containers"]
        control = next(v["value"] for v in found["env"] if v["name"] == "CAIRN_CONTROL")
        mounts = self.mounts(found) | {"/trace": trace.parent}
        words = ["cairnctl", "replay", f"/trace/{trace.name}", "--recipe", "exact", "--json", "--control", control]
        words += ["--space-name", "pod", "--deadline-ms", "30000"]
        group = self.spec["securityContext"]["fsGroup"]
        return Container(self.image, self.folder, words, 1000, (1000, group), mounts, self.network, ENGINE_MIB * MIB)

    def play(self, trace):
        """What the replay reports."""
        with self.start_engine(trace) as engine:
            assert engine.wait(200) == 0, engine.text()
            text = engine.text()
            return json.loads(text[text.index("{") :])


@pytest.fixture
def pod(rendered, image, network, tmp_path):
    acted = Pod(rendered, image[1], network, tmp_path)
    yield acted
    run("rm", "-rf", acted.disk)


@pytest.fixture
def trace(tmp_path):
    """Requests whose blocks fill the host tier twice, each prefix asked for again."""
    folder = tmp_path / "trace"
    folder.mkdir()
    lines = []
    for turn in range(2):
        for request in range(500):
            ids = [0, *range(1 + request * 4, 5 + request * 4)]
            line = {"timestamp": len(lines), "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            lines.append(json.dumps(line))
    (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "trace.jsonl"


def metric(pod, name):
    text = run("nsenter", f"--net=/run/netns/{pod.network}", "python3", "-c",
               "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read().decode())")  # fmt: skip
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def check(report):
    assert report["wrong_bytes"] == report["wrong_blocks"] == report["lost_blocks"] == 0 and not report["errors"], report


def test_the_life_of_a_pod(pod, trace):
    port = 9464
    probes = Probes(pod.network, port)
    try:
        with pod.start_daemon() as daemon:
            daemon.await_text("probes are answered")
            answered = time.monotonic()
            daemon.await_text("cairnd ready")
            ready = time.monotonic()
            report = pod.play(trace)
            check(report)
            assert report["hits"]["ssd"]["blocks"] > 0 and report["stored_blocks"] == report["distinct_blocks"]
            assert daemon.memory("failcnt") == 0 and daemon.memory("max_usage_in_bytes") < daemon.memory("limit_in_bytes")
            loaded = time.monotonic()
            deadline = time.monotonic() + 60
            while metric(pod, "cairn_images_uncopied") > 0:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            kept = metric(pod, 'cairn_tier_copies{tier="ssd"')
            assert kept > 1000
            # As when the node has no memory left: the kubelet starts it anew.
            daemon.kill("KILL")
            daemon.wait()
        killed = time.monotonic()
        with pod.start_daemon() as daemon:
            daemon.await_text("probes are answered")
            recovering = time.monotonic()
            daemon.await_text("cairnd ready")
            recovered = time.monotonic()
            assert metric(pod, "cairn_recovered_images_total") == kept
            again = pod.play(trace)
            check(again)
            assert again["hits"]["all"]["blocks"] == again["blocks"], "all of it outlived the daemon"
            # The end of a pod: SIGTERM, and SIGKILL 2 s later where the engine took all the time there was.
            drained = time.monotonic()
            daemon.kill("TERM")
            time.sleep(2)
            daemon.kill("KILL")
            daemon.wait()
        with pod.start_daemon() as daemon:
            daemon.await_text("cairnd ready")
            assert metric(pod, "cairn_recovered_images_total") >= kept
            drain_begins = time.monotonic()
            code, said = daemon.exec("cairnctl", "drain", "--control", "unix:/run/cairn/control.sock")
            assert code == 0, said
            asked = time.monotonic()
            time.sleep(1)
            drain_ends = time.monotonic()
            daemon.kill("TERM")
            assert daemon.wait() == 0
    finally:
        probes.stop()
    assert drain_begins > drained > killed > loaded
    slack = 0.3  # between a line of the log and what this file saw of it
    for begin, end in [(answered, loaded), (recovering, drained), (drain_begins, drain_ends)]:
        assert set(probes.between("/healthz", begin + slack, end)) == {200}
    for begin, end in [(ready, loaded), (recovered, drained)]:
        assert set(probes.between("/readyz", begin + slack, end)) == {200}
    assert set(probes.between("/readyz", asked + slack, drain_ends)) == {503}
    assert probes.between("/readyz", answered, drain_ends)[503] > 0


def test_an_engine_that_starts_first_is_told_what_it_lacks(pod, trace):
    with pod.start_engine(trace) as engine:
        assert engine.wait(60) == 4, engine.text()
        assert "Is cairnd running" in engine.text()
