# SPDX-License-Identifier: Apache-2.0
"""Starts a cairnd of our own on free ports of the loopback interface, and ends it."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import threading
import time

START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 20


class Daemon:
    """`control`, `data` and `http` are where it listens; its log is in FOLDER/cairnd.log."""

    def __init__(
        self,
        bin_dir: pathlib.Path,
        transport: str,
        folder: pathlib.Path,
        host_bytes: str = "1GiB",
        ssd: str = "off",
    ) -> None:
        program = bin_dir / "cairnd"
        if not program.exists():
            raise SystemExit(f"{program} is missing: make build")
        socket = folder / "cairnd.sock"
        command = [str(program), "--control", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += ["--socket", str(socket), "--host-bytes", host_bytes, "--ssd", ssd]
        if transport == "ucx":
            command += ["--data", "127.0.0.1:0"]
        self._wanted = {"control", "http"} | ({"data"} if transport == "ucx" else set())
        self._found: dict[str, str] = {}
        self._log_path = folder / "cairnd.log"
        self._log = open(self._log_path, "a", encoding="utf-8")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.stop()
            raise
        self.control = self._found["control"]
        self.http = self._found["http"]
        self.data = self._found["data"] if transport == "ucx" else f"unix:{socket}"

    def _read(self) -> None:
        """Keeps the log, and the addresses that the daemon names once it serves."""
        for line in self.process.stdout:
            self._log.write(line)
            self._log.flush()
            if not line.startswith("cairnd ready "):
                continue
            for name, address in re.findall(r"\b(control|data|http)=(127\.0\.0\.1:[1-9]\d*)", line):
                self._found.setdefault(name, address)

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._wanted <= self._found.keys():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"cairnd did not start:\n{self._log_path.read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """As when the machine takes it away: it has no time for anything."""
        self.process.kill()
        self.stop()

    def stop(self) -> None:
        """A graceful drain, and a kill if that takes too long."""
        if self._log.closed:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self._log.close()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
