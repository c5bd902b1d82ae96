# SPDX-License-Identifier: Apache-2.0
"""The Debian package on a bare Debian 12: installed, its unit checked, a daemon of its user served and ended, removed, purged.
`make test-ops`."""

import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest
from conftest import BIN, ROOT
from container import run

PACKAGE = ROOT / "build" / "deb"
# Of the user, which stays: dpkg's and the shadow tools' own traces.
LEFT = {"/etc/passwd", "/etc/passwd-", "/etc/group", "/etc/group-", "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-"}

# Of each man page, in this order.
WANTED = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "OPTIONS", "SEE ALSO"]


def build():
    run(ROOT / "cmake" / "packaging" / "deb" / "build", BIN)
    (found,) = PACKAGE.glob("*.deb")
    return found


@pytest.fixture(scope="module")
def bare():
    """A Debian 12 with what the package depends on, and nothing of it."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root and mmdebstrap (.ci/ops)")
    depends = run("dpkg-deb", "-f", build(), "Depends")
    libraries = [part.split()[0] for part in depends.split(",") if "|" not in part]
    root = ROOT / "build" / f"bare-{os.getpid()}"
    include = ",".join([*libraries, "systemd-standalone-sysusers"])
    # What it mounts on the way is seen by nobody else.
    run("unshare", "--mount", "mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", "bookworm", root)
    yield root
    run("rm", "-rf", "--one-file-system", root)


def files(root):
    found = run("find", root, "-xdev", "(", "-type", "f", "-o", "-type", "d", "-o", "-type", "l", ")")
    names = {line.removeprefix(str(root)) for line in found.splitlines()}
    return {name for name in names if not re.match(r"/(var/lib/dpkg|var/log|var/cache|tmp|proc|sys|dev)\b", name)}


def chroot(root, *words, user=None, code=0):
    return run("chroot", *([f"--userspec={user}"] if user else []), root, *words, code=code)


def check_unit(root):
    """The unit loads, its program is there, and its exposure is low. Targets are systemd's, which is not in a bare root."""
    units = root / "lib" / "systemd" / "system"
    stubs = [units / f"{name}.target" for name in ["sysinit", "shutdown", "basic", "multi-user", "network-online", "network"]]
    stubs = [path for path in stubs if not path.exists()]
    for path in stubs:
        path.write_text("[Unit]\nDescription=a stand-in\n")
    run("systemd-analyze", "verify", f"--root={root}", "--man=no", "--recursive-errors=no", "cairnd.service")
    said = run("systemd-analyze", "security", "--offline=true", f"--root={root}", "--threshold=30", "cairnd.service")
    for path in stubs:
        path.unlink()
    assert float(re.search(r"exposure level for cairnd.service: ([\d.]+)", said).group(1)) <= 3.0
    assert "\nLimitCORE=0\n" in (units / "cairnd.service").read_text()


def check_pages(root):
    """Man pages of both programs, with every flag and command that they have, in the sections where a reader looks for them."""
    for page, program in [("man8/cairnd.8.gz", "cairnd"), ("man1/cairnctl.1.gz", "cairnctl")]:
        text = gzip.decompress((root / "usr/share/man" / page).read_bytes()).decode().replace("\\-", "-")
        sections = re.findall(r"^\.SH (.*)$", text, re.MULTILINE)
        assert [name for name in sections if name in WANTED] == WANTED and len(set(sections)) == len(sections)
        help_ = chroot(root, program, "--help")
        for word in re.findall(r"^ +(--[a-z-]+|[a-z]+)\b", help_, re.MULTILINE):
            assert word in text, f"{page}: {word}"
        if program == "cairnctl":
            commands = re.findall(r"^\.SS (.*)$", text, re.MULTILINE)
            assert commands == re.findall(r"^  ([a-z]+) ", help_.partition("Commands:")[2], re.MULTILINE)
            for command in commands:
                flags = re.findall(r"^  (--[a-z-]+)", chroot(root, program, command, "--help"), re.MULTILINE)
                assert all(flag in text for flag in flags), f"{command}: {flags}"


def check_serves(root):
    """As the unit starts it, in the folders that systemd would make, without systemd."""
    unit = (root / "lib" / "systemd" / "system" / "cairnd.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).split()
    chroot(root, "install", "-d", "-m", "750", "-o", "cairn", "-g", "cairn", "/run/cairn")
    environment = os.environ | {"CAIRN_HOST_BYTES": "64MiB", "CAIRN_HTTP": "127.0.0.1:0"}
    log = root / "tmp" / "log"
    run("mount", "-t", "proc", "proc", root / "proc")  # the daemon sets its socket's mode by it
    with log.open("w") as out:
        daemon = subprocess.Popen(
            ["chroot", "--userspec=cairn:cairn", root, *command], stdout=out, stderr=out, env=environment
        )
    try:
        deadline = time.monotonic() + 60
        while "cairnd ready" not in log.read_text():
            assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        control = ["--control", "unix:/run/cairn/control.sock"]
        assert "64MiB" in chroot(root, "cairnctl", "status", *control, user="cairn:cairn")
        assert chroot(root, "cairnctl", "status", *control, user="nobody:nogroup", code=4) == ""
        assert "host" in chroot(root, "cairnctl", "tier", *control, user="cairn:cairn")
        chroot(root, "cairnctl", "tier", *control, user="nobody:cairn", code=1)  # no operator
        daemon.terminate()
        assert daemon.wait(30) == 0, log.read_text()
    finally:
        daemon.kill()
        daemon.wait()
        run("umount", root / "proc")
    shutil.rmtree(root / "run" / "cairn")


STUB = """#!/bin/sh
echo "$*" >> /tmp/systemctl
[ "$1" != enable ] || ln -s /lib/systemd/system/cairnd.service /etc/systemd/system/multi-user.target.wants/
"""


@pytest.fixture
def systemctl(bare):
    """What the package has systemd do: a function that gives the calls since its last."""
    (bare / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    stub, calls = bare / "usr/local/bin/systemctl", bare / "tmp/systemctl"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def since():
        said = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return said

    return since


def test_the_same_programs_make_the_same_package(bare):
    digests = {hashlib.sha256(pathlib.Path(build()).read_bytes()).hexdigest() for _ in range(2)}
    assert len(digests) == 1


def test_installs_serves_and_leaves_nothing(bare, systemctl):
    before = files(bare)
    shutil.copy(build(), bare / "tmp" / "cairn.deb")
    chroot(bare, "dpkg", "-i", "/tmp/cairn.deb")
    assert systemctl() == ["enable cairnd.service"], "an image that is being made runs no systemd, and has it start"
    assert "cairn:x:" in (bare / "etc" / "passwd").read_text()
    check_unit(bare)
    check_pages(bare)
    check_serves(bare)
    running = bare / "run" / "systemd" / "system"
    running.mkdir(parents=True, exist_ok=True)
    restart = ["daemon-reload", "--quiet is-enabled cairnd.service", "restart cairnd.service"]
    chroot(bare, "dpkg", "-i", "/tmp/cairn.deb")  # again, as an upgrade does
    assert systemctl() == ["daemon-reload", *restart]
    config = bare / "etc" / "cairn" / "cairnd.yaml"
    config.write_text(config.read_text() + "log-level: debug\n")
    chroot(bare, "dpkg", "-r", "cairn")
    chroot(bare, "dpkg", "-i", "/tmp/cairn.deb")
    assert systemctl() == ["stop cairnd.service", "daemon-reload", *restart], "it runs again after a removal"
    chroot(bare, "dpkg", "-r", "cairn")
    assert config.read_text().endswith("log-level: debug\n"), "a change of the operator's outlives a removal"
    assert (bare / "var" / "lib" / "cairn").exists(), "and so does the SSD tier"
    chroot(bare, "dpkg", "-P", "cairn")
    shutil.rmtree(running.parent)
    assert files(bare) - before - LEFT == set()
    assert before - files(bare) == set()
