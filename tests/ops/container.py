# SPDX-License-Identifier: Apache-2.0
"""Containers of the image, by runc: no capability, no new privileges, and a root file system that nobody may write."""

import json
import pathlib
import shutil
import subprocess
import time
import uuid

MIB = 1 << 20
CGROUP = pathlib.Path("/sys/fs/cgroup/memory")


def run(*command, code=0, timeout=500):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == code, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


class Container:
    """Runs `args`, as `user` and `groups`, with the folders of `mounts` ({inside: outside}), in the network namespace `network`, with
    `memory` bytes, and the seccomp profile in the file `seccomp`. Its output is the file `log`."""

    def __init__(self, bundle, folder, args, user=65532, groups=(2000,), mounts=None, network=None, memory=None, seccomp=None):
        self.name = f"cairn-test-{uuid.uuid4().hex[:8]}"
        self.state, self.log = folder / "state", folder / f"{self.name}.log"
        self.bundle = folder / self.name
        self.bundle.mkdir(parents=True)
        config = json.loads((bundle / "config.json").read_text())
        process = config["process"]
        process.update(terminal=False, noNewPrivileges=True, args=[str(word) for word in args])
        process["user"] = {"uid": user, "gid": groups[0], "additionalGids": list(groups[1:])}
        process["capabilities"] = {kind: [] for kind in ["bounding", "effective", "permitted"]}
        config["root"] = {"path": str(bundle / "rootfs"), "readonly": True}
        for inside, outside in (mounts or {}).items():
            (bundle / "rootfs" / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
            mount = {"destination": inside, "type": "bind", "source": str(outside), "options": ["rbind", "rw"]}
            config["mounts"].append(mount)
        if network:
            for namespace in config["linux"]["namespaces"]:
                if namespace["type"] == "network":
                    namespace["path"] = f"/run/netns/{network}"
        config["linux"]["cgroupsPath"] = f"/cairn-test/{self.name}"
        if memory:
            config["linux"]["resources"]["memory"] = {"limit": memory}
        if seccomp:
            config["linux"]["seccomp"] = json.loads(seccomp.read_text())
        (self.bundle / "config.json").write_text(json.dumps(config))
        with self.log.open("w") as log:
            command = ["runc", "--root", self.state, "run", "-b", self.bundle, self.name]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def text(self):
        return self.log.read_text()

    def await_text(self, text, seconds=60):
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def exec(self, *words):
        """(exit code, what it printed) of a command inside."""
        ran = subprocess.run(
            ["runc", "--root", self.state, "exec", self.name, *words], capture_output=True, text=True, timeout=60
        )
        return ran.returncode, ran.stdout + ran.stderr

    def kill(self, signal):
        subprocess.run(["runc", "--root", self.state, "kill", self.name, signal], capture_output=True)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def memory(self, figure):
        return int((CGROUP / "cairn-test" / self.name / f"memory.{figure}").read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill("KILL")
        self.process.wait(60)
        subprocess.run(["runc", "--root", self.state, "delete", "-f", self.name], capture_output=True)
        shutil.rmtree(self.bundle, ignore_errors=True)
