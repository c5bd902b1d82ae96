# SPDX-License-Identifier: Apache-2.0
"""The stores that `compare.py` compares, each behind its vLLM connector. A store listens on
loopback only. `config` is what vLLM gets as --kv-transfer-config, `pids` are the store's processes,
and `kept()` says how many bytes it holds."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("client/examples/demo", "client/examples/vllm", "tests/support")]

import cairn  # noqa: E402
from daemon import Daemon  # noqa: E402
from measured import LMCACHE  # noqa: E402
from ports import free_port  # noqa: E402
from process import config_of  # noqa: E402

START_SECONDS_MAX = 120


class Alone:
    """vLLM without a connector."""

    name, config, pids = "vLLM alone", None, ()


class Example:
    """vLLM's example: for each prompt a folder with a file for each layer."""

    name, pids = "ExampleConnector", ()

    def __init__(self, folder):
        self._folder = folder
        self.config = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        }

    def kept(self):
        """The length of all files, and what the file system has allocated for them."""
        found = [path.stat() for path in self._folder.rglob("*") if path.is_file()]
        return sum(one.st_size for one in found), sum(one.st_blocks * 512 for one in found)

    def stop(self):
        """Nothing to do: whoever made the folder removes it."""


class LmCache:
    """LMCache's server with its default settings."""

    name = "LMCacheMPConnector"

    def __init__(self, folder, gib):
        program = LMCACHE / "bin" / "lmcache"
        if not program.exists():
            raise SystemExit(f"{program} is missing: .ci/engines installs it")
        port, self._http = free_port(), free_port()
        command = [sys.executable, str(program), "server"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self._http)]
        command += ["--l1-size-gb", str(gib), "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "engine_driven"]  # without a GPU
        environment = dict(os.environ, PYTHONPATH=str(LMCACHE), LMCACHE_TRACK_USAGE="false")
        self._log = folder / "lmcache.log"
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                log = self._log.read_text(encoding="utf-8", errors="replace")
                raise SystemExit(f"LMCache's server did not start:\n{log[-4000:]}")
            time.sleep(0.2)
        self.pids = tuple(tree_of(self._process.pid))
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
        self.config = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }

    def kept(self):
        """What its allocator has handed out, twice: it does not say how much of that is KV."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/status", timeout=10) as answer:
            used = _find(json.load(answer), "memory_used_bytes")
        return used, used

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self._process.kill()
        self._process.wait()

    def _is_healthy(self):
        with contextlib.suppress(OSError):
            address = f"http://127.0.0.1:{self._http}/healthcheck"
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.status == 200
        return False


class Cairn:
    """A cairnd without an SSD tier. `settings` are the connector's."""

    def __init__(self, bin_dir, folder, recipe, gib, **settings):
        self.name = ", ".join(["Cairn", recipe, *settings])
        self.recipe, self.log = recipe, folder / "cairnd.log"
        self._daemon = Daemon(bin_dir, "local", folder, f"{gib}GiB")
        self.pids = (self._daemon.process.pid,)
        self.config = config_of(self._daemon.control, recipe=recipe, **settings)
        self._client = cairn.connect(self._daemon.control, data=self._daemon.data)

    def kept(self):
        """The bytes of the images, and what is allocated for them."""
        stats = self._client.stats()
        return stats.image_bytes, sum(tier.used_bytes for tier in stats.tiers)

    def stop(self):
        self._client.close()
        self._daemon.stop()


def tree_of(pid):
    """The process and all its descendants."""
    yield pid
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree_of(int(child))


def _find(status, name):
    """The value of this name at any depth. None: there is none."""
    if name in status:
        return status[name]
    found = (_find(inner, name) for inner in status.values() if isinstance(inner, dict))
    return next((value for value in found if value is not None), None)
