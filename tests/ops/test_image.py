# SPDX-License-Identifier: Apache-2.0
"""The container image: equal when made twice, minimal, and a daemon that runs in it as the chart runs it. `make test-ops`."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time
import uuid

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))
NEEDED = ["mmdebstrap", "umoci", "runc"]
IMAGE = ROOT / "build" / "image"


def run(*command, **options):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=500, **options)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def make():
    run(ROOT / "packaging" / "image" / "build", BIN)
    return json.loads((IMAGE / "index.json").read_text())["manifests"][0]["digest"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(NEEDED)}; missing: {missing}")
    digest = make()
    folder = tmp_path_factory.mktemp("bundle")
    run("umoci", "unpack", "--image", f"{IMAGE}:latest", folder / "bundle")
    return digest, folder / "bundle"


def test_the_same_lock_makes_the_same_digest(bundle):
    assert make() == bundle[0]


def test_it_holds_no_shell_and_nothing_setuid(bundle):
    root = bundle[1] / "rootfs"
    programs = [path.name for folder in ["bin", "sbin", "usr/bin", "usr/sbin"] for path in (root / folder).glob("*")]
    assert sorted(programs) == ["cairnctl", "cairnd"]
    assert (root / "usr" / "lib" / "libcairn_ucx.so").exists()
    assert not run("find", root, "-xdev", "-perm", "/6000", "-type", "f")


def test_scanners_find_its_packages(bundle):
    lock = [line.split() for line in (ROOT / "packaging" / "image" / "packages.lock").read_text().splitlines()]
    found = bundle[1] / "rootfs" / "var" / "lib" / "dpkg" / "status.d"
    assert {path.name for path in found.iterdir()} == {name for name, *_ in lock}
    for name, version, _ in lock:
        assert f"\nVersion: {version}\n" in (found / name).read_text()


@contextlib.contextmanager
def started(bundle, *flags):
    """A container with no capability, no new privileges and a root file system that nobody may write, as the chart's."""
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    process = config["process"]
    process.update(terminal=False, noNewPrivileges=True, args=["cairnd", *flags])
    process["capabilities"] = {kind: [] for kind in ["bounding", "effective", "permitted"]}
    config["root"]["readonly"] = True
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != "/run/cairn"]
    config["mounts"].append(
        {"destination": "/run/cairn", "type": "tmpfs", "source": "tmpfs", "options": ["mode=2770", "uid=0", "gid=2000"]}
    )
    path.write_text(json.dumps(config))
    sockets = bundle / "rootfs" / "run" / "cairn"  # runc gives a tmpfs the mode of the folder below it
    sockets.mkdir(parents=True, exist_ok=True)
    sockets.chmod(0o2770)
    name = f"cairn-test-{uuid.uuid4().hex[:8]}"
    state = bundle.parent / "state"
    log = open(bundle.parent / "log", "w+")
    container = subprocess.Popen(["runc", "--root", state, "run", "-b", bundle, name], stdout=log, stderr=log)

    def call(*words):
        return subprocess.run(
            ["runc", "--root", state, "exec", name, *words], capture_output=True, text=True, timeout=30
        )

    def log_text():
        return (bundle.parent / "log").read_text()

    try:
        yield container, call, log_text
    finally:
        subprocess.run(["runc", "--root", state, "kill", name, "KILL"], capture_output=True)
        container.wait(30)
        subprocess.run(["runc", "--root", state, "delete", "-f", name], capture_output=True)
        log.close()


@pytest.mark.parametrize("data", ["off", "127.0.0.1:0"], ids=["local", "ucx"])
def test_a_daemon_runs_in_it_and_ends_as_asked(bundle, data):
    control = "unix:/run/cairn/control.sock"
    flags = [f"--control={control}", "--socket=/run/cairn/cairnd.sock", "--http=127.0.0.1:0"]
    with started(bundle[1], *flags, "--host-bytes=64MiB", f"--data={data}") as (container, call, log_text):
        deadline = time.monotonic() + 60
        while "cairnd ready" not in log_text():
            assert container.poll() is None and time.monotonic() < deadline, log_text()
            time.sleep(0.1)
        status = call("cairnctl", "status", "--control", control)
        assert status.returncode == 0 and "64MiB" in status.stdout, status.stdout + status.stderr
        drained = call("cairnctl", "drain", "--timeout", "4", "--control", control)
        assert drained.returncode == 0, drained.stderr
        container.terminate()
        assert container.wait(30) == 0, log_text()
        assert "ended drained=true" in log_text()
