# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups, of version 2 or 1, whichever there is."""

import pathlib
import time
import uuid

import pytest

ROOT = pathlib.Path("/sys/fs/cgroup")


def _home():
    """Where cgroups of memory are made, and what the memory of processes is called there; None: nowhere."""
    if "memory" in _text(ROOT / "cgroup.subtree_control").split():
        return ROOT, "anon"
    if "memory" in _text(ROOT / "cgroup.controllers").split():
        try:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
            return ROOT, "anon"
        except OSError:
            return None
    return (ROOT / "memory", "rss") if (ROOT / "memory" / "cgroup.procs").exists() else None


def _text(path):
    try:
        return path.read_text()
    except OSError:
        return ""


class MemoryGroup:
    """Skips its test where there are none, or they may not be made."""

    def __init__(self, name):
        home = _home()
        if home is None:
            pytest.skip("no cgroups of memory here")
        parent, self._anonymous = home
        self._folder = parent / f"cairn-{name}-{uuid.uuid4().hex[:8]}"
        try:
            self._folder.mkdir()
        except OSError as error:
            pytest.skip(f"cgroups cannot be made: {error}")

    @property
    def by(self):
        """Words that start a command in it."""
        return "sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs")

    def limit(self, bytes_max):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (self._folder / name).exists():
                (self._folder / name).write_text(str(bytes_max))

    def bytes_of(self, figure):
        for line in (self._folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name == figure:
                return int(value)
        raise AssertionError(f"memory.stat has no {figure}")

    @property
    def shared(self):
        """Pages of memfds that are charged to it."""
        return self.bytes_of("shmem")

    @property
    def own(self):
        """Memory of its processes and of memfds: not files' pages, which the kernel takes back."""
        return self.bytes_of(self._anonymous) + self.shared

    def await_shared(self, bytes_max, seconds=10):
        """As soon as that little is left; the kernel counts in batches."""
        deadline = time.monotonic() + seconds
        while self.shared > bytes_max:
            assert time.monotonic() < deadline, f"{self.shared} bytes of memfds are left"
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + 10
        while True:  # until its processes are gone
            try:
                return self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
