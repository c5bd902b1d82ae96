# SPDX-License-Identifier: Apache-2.0
"""A cairnd that is stopped, killed, drained and started again, each time at the same address."""

import shutil
import signal
import subprocess
import tempfile
import time

import cairn

START_SECONDS_MAX = 30


class OwnDaemon:
    """Ends, and takes its folder with it, when its `with` is left. `by`: words that start it. `ssd`:
    the value of --ssd."""

    def __init__(self, bin_dir, host_bytes="64MiB", by=(), ssd="off"):
        self._folder = tempfile.mkdtemp(prefix="cairn-own-")  # short: its sockets' paths are
        self.control = f"unix:{self._folder}/control"
        self.data = f"unix:{self._folder}/data"
        self._bin_dir = bin_dir
        self._command = [*by, str(bin_dir / "cairnd"), "--control", self.control, "--http", "off"]
        self._command += ["--socket", f"{self._folder}/data", "--host-bytes", host_bytes]
        self._command += ["--ssd", ssd, "--drain-ms", "1000"]
        self._log = open(f"{self._folder}/log", "a", encoding="utf-8")
        self._process, self._watcher = None, None

    @property
    def settings(self):
        return {"control": self.control, "data": self.data}

    def log(self):
        with open(f"{self._folder}/log", encoding="utf-8") as file:
            return file.read()

    def is_draining(self):
        return self._watcher.stats().is_draining

    def start(self):
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self._watcher = cairn.connect(self.control, data=self.data)
                return
            except cairn.Error:
                assert self._process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)

    def start_refused(self):
        """Starts it, and returns what it said when it ended."""
        before = len(self.log())
        process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        assert process.wait(START_SECONDS_MAX) != 0
        return self.log()[before:]

    def freeze(self):
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def drain(self):
        """Takes no new sessions and puts from now on."""
        command = [str(self._bin_dir / "cairnctl"), "drain", "--control", self.control]
        subprocess.run(command, check=True, capture_output=True)

    def kill(self):
        self._end(signal.SIGKILL)

    def terminate(self):
        self._end(signal.SIGTERM)

    def _end(self, number):
        self._watcher.close()
        self._process.send_signal(number)
        self._process.wait(20)
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process is not None:
            self.kill()
        self._log.close()
        shutil.rmtree(self._folder)
