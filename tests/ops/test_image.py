# SPDX-License-Identifier: Apache-2.0
"""The container image: equal when made twice, minimal, and a daemon that runs in it. `make test-ops`."""

import hashlib
import json
import os
import shutil

import pytest
from conftest import ROOT
from container import Container, run


def test_the_same_lock_makes_the_same_digest(image, make_image):
    assert make_image() == image[0]


def test_its_history_names_each_layer(image):
    index = json.loads((ROOT / "build" / "image" / "index.json").read_text())
    blobs = ROOT / "build" / "image" / "blobs" / "sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"].split(":")[1]).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].split(":")[1]).read_text())
    layers = [entry for entry in config["history"] if not entry.get("empty_layer")]
    assert len(layers) == len(manifest["layers"]) == 2
    assert "cairnd" in layers[1]["comment"]


def test_it_holds_no_shell_and_nothing_setuid(image):
    root = image[1] / "rootfs"
    programs = [path.name for folder in ["bin", "sbin", "usr/bin", "usr/sbin"] for path in (root / folder).glob("*")]
    assert sorted(programs) == ["cairnctl", "cairnd"]
    assert (root / "usr" / "lib" / "libcairn_ucx.so").exists()
    assert not run("find", root, "-xdev", "-perm", "/6000", "-type", "f")


def test_scanners_find_its_packages(image):
    lock = [line.split() for line in (ROOT / "cmake" / "packaging" / "image" / "packages.lock").read_text().splitlines()]
    found = image[1] / "rootfs" / "var" / "lib" / "dpkg" / "status.d"
    assert {path.name for path in found.iterdir()} == {name for name, *_ in lock}
    for name, version, _ in lock:
        assert f"\nVersion: {version}\n" in (found / name).read_text()


def test_its_bill_names_all_that_is_in_it(image):
    bill = json.loads((ROOT / "build" / "image.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    parts = {part["name"]: part for part in bill["components"]}
    root = image[1] / "rootfs"
    for path in [root / "usr/bin/cairnd", root / "usr/bin/cairnctl", root / "usr/lib/libcairn_ucx.so"]:
        assert parts.pop(path.name)["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()
    lock = [line.split() for line in (ROOT / "cmake" / "packaging" / "image" / "packages.lock").read_text().splitlines()]
    assert {(name, part["version"], part["hashes"][0]["content"]) for name, part in parts.items()} == {tuple(line) for line in lock}


@pytest.mark.parametrize("data", ["off", "127.0.0.1:0"], ids=["local", "ucx"])
def test_a_daemon_runs_in_it_and_ends_as_asked(image, tmp_path, data):
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    run("chown", "0:2000", sockets)
    sockets.chmod(0o2770)
    flags = ["--control=unix:/run/cairn/control.sock", "--socket=/run/cairn/cairnd.sock", "--http=127.0.0.1:0"]
    command = ["cairnd", *flags, "--host-bytes=64MiB", f"--data={data}"]
    with Container(image[1], tmp_path, command, mounts={"/run/cairn": sockets}) as container:
        container.await_text("cairnd ready")
        code, said = container.exec("cairnctl", "status", *flags[:1])
        assert code == 0 and "64MiB" in said, said
        code, said = container.exec("cairnctl", "drain", "--timeout", "4", *flags[:1])
        assert code == 0, said
        container.kill("TERM")
        assert container.wait(30) == 0, container.text()
        assert "ended drained=true" in container.text()


def test_the_shipped_seccomp_profile_is_enough_for_io_uring(image, tmp_path):
    """A trace is replayed over both transports, with a drive that io_uring serves."""
    data = ROOT / "build" / f"seccomp-{os.getpid()}"  # a temporary folder may be memory, which is no drive
    (data / "ssd").mkdir(parents=True)
    run("chown", "-R", "65532:2000", data)
    turn = {"timestamp": 0, "input_length": 2048, "output_length": 8, "hash_ids": [1, 2, 3, 4]}
    (data / "trace").write_text(f"{json.dumps(turn)}\n" * 3)
    flags = ["--control=127.0.0.1:50151", "--data=127.0.0.1:50153", "--http=off", "--socket=/data/cairnd.sock"]
    command = ["cairnd", *flags, "--host-bytes=64MiB", "--ssd=/data/ssd=256MiB", "--ssd-io=uring"]
    profile = ROOT / "helm" / "cairn" / "files" / "seccomp-io-uring.json"
    try:
        with Container(image[1], tmp_path, command, mounts={"/data": data}, seccomp=profile) as container:
            container.await_text("cairnd ready")
            for transport in [[], ["--data=127.0.0.1:50153"]]:
                code, said = container.exec("cairnctl", "replay", "/data/trace", "--json", *transport)
                assert code == 0, said
                figures, _ = json.JSONDecoder().raw_decode(said)  # UCX has more to say behind it
                assert figures["hits"]["all"]["blocks"] == 8, said
            code, said = container.exec("cairnctl", "tier", "--json")
            assert code == 0 and '"engine": "uring"' in said, said
            container.kill("TERM")
            assert container.wait(30) == 0, container.text()
    finally:
        shutil.rmtree(data)
