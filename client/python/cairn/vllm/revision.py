# SPDX-License-Identifier: Apache-2.0
"""Computes the revision of the weights in a folder. A store must not give one model's KV to another
model's engine.

The revision is a digest of all bytes, so two machines with the same files have the same revision.
Gigabytes are read only once: digests of files are kept in the user's cache folder, each with a
stamp of its file (device, inode, length, times of its last change). Only the stamp contains times.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import pathlib
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from ..errors import InvalidArgumentError

log = logging.getLogger("vllm.cairn")

Stamp = tuple[int, ...]

# Files that K and V cannot depend on. All others are read, whatever their names. Names that begin
# with a dot belong to tools and to the file system.
_LEFT_OUT_NAMES = {
    # Texts: the tokens from a tokenizer are in the keys.
    "LICENSE",
    "NOTICE",
    "README",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    # Files for training, which vLLM does not load either.
    "optimizer.bin",
    "optimizer.pt",
    "scaler.pt",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
}
_LEFT_OUT_SUFFIXES = {".gif", ".jinja", ".jpeg", ".jpg", ".md", ".pdf", ".png", ".svg", ".txt"}
# Largest size of configurations, code and tokenizers.
_NO_WEIGHTS = {".json", ".py", ".yaml", ".yml", ".model"}

_PIECE_BYTES = 64 << 20  # piece for one thread
_READ_BYTES = 1 << 20
_THREADS = 8
_LONG_BYTES = 4 << 30  # size from which the log reports the reading
_SAY_SECONDS = 20.0
_SAMPLES, _SAMPLE_BYTES = 64, 4096
# A file may change again within the tick of the clock that stamped it, so a younger stamp proves
# nothing.
_SETTLED_NS = 2_000_000_000

_lock = threading.Lock()
_known: dict[str, tuple[dict[str, Stamp], str]] = {}  # by the resolved folder; guarded by _lock


def revision_of(folder: str) -> str:
    """Returns a digest of the names and bytes of all files in a folder and its subfolders, except
    those that K and V cannot depend on. Raises InvalidArgumentError if none of the files can be
    weights."""
    root = os.path.realpath(folder)
    with _lock:
        stamps = stamps_of(root)
        known = _known.get(root)
        if known is not None and known[0] == stamps and is_settled(stamps.values()):
            return known[1]
        if all(pathlib.Path(name).suffix in _NO_WEIGHTS for name in stamps):
            raise InvalidArgumentError(
                f"which weights {folder} has is not known: there are none in it"
                f" ({', '.join(sorted(stamps)[:4]) or 'no file'}). Those of an engine have the name"
                " that weights_revision in kv_connector_extra_config gives"
            )
        with _Kept(root) as kept:
            digests = kept.digests_of(stamps)
        whole = hashlib.sha256()
        for name in sorted(digests):
            whole.update(os.fsencode(name) + f"\0{stamps[name][2]}\0{digests[name]}\0".encode())
        revision = "bytes:" + whole.hexdigest()[:32]
        _known[root] = (stamps, revision)
        return revision


def stamps_of(folder: str) -> dict[str, Stamp]:
    """Returns stamps of the files from which a revision is made. Equal stamps on one machine mean
    unchanged files, without reading them."""
    root = os.path.realpath(folder)
    return {name: _stamp(os.path.join(root, name)) for name in _names(root)}


def _names(root: str) -> Iterator[str]:
    seen = set()
    for path, folders, files in os.walk(root, followlinks=True):
        if os.path.realpath(path) in seen:  # a link to a parent folder
            folders.clear()
            continue
        seen.add(os.path.realpath(path))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if _is_wanted(name) and os.path.isfile(os.path.join(path, name)):
                yield os.path.relpath(os.path.join(path, name), root)


def _is_wanted(name: str) -> bool:
    return not (
        name.startswith(".")
        or name in _LEFT_OUT_NAMES
        or pathlib.Path(name).suffix.lower() in _LEFT_OUT_SUFFIXES
    )


def _stamp(path: str) -> Stamp:
    """Returns the stamp of the file; for a link, of its target."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_settled(stamps: Iterable[Stamp]) -> bool:
    """Returns whether every later change of the files changes their stamps."""
    newest = max((max(stamp[3:]) for stamp in stamps), default=0)
    return newest < time.time_ns() - _SETTLED_NS


def changed_since_start(stamps: Iterable[Stamp]) -> bool:
    """Returns whether a file is younger than this process, which may have read the earlier content.
    """
    newest = max((max(stamp[3:]) for stamp in stamps), default=0)
    return newest > _process_start_ns() + 1_000_000_000  # on a clock with whole seconds


def _process_start_ns() -> int:
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lines = pathlib.Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    return boot * 1_000_000_000 + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class _Kept:
    """Digests of a folder's files that a process of this user has computed. While it is open, no
    other process reads that folder: ranks of an engine need the same digests, and wait for the
    first rank."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._file: IO[str] | None = None
        self._entries: dict[str, Any] = {}  # by file name: stamp, samples and digest

    def __enter__(self) -> _Kept:
        name = hashlib.sha256(os.fsencode(self._root)).hexdigest()[:32]
        try:
            folder = _cache_folder()
            self._file = open(folder / f"{name}.json", "a+", encoding="utf-8")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._file.seek(0)
            self._entries = json.load(self._file)
        # There is no such folder, it is full, or the file is incomplete.
        except (OSError, ValueError):
            self._entries = {}
        if not isinstance(self._entries, dict):
            self._entries = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()  # also unlocks it

    def digests_of(self, stamps: dict[str, Stamp]) -> dict[str, str]:
        digests, samples, missing = {}, {}, []
        for name, stamp in stamps.items():
            samples[name] = _samples(os.path.join(self._root, name), stamp[2])
            entry = self._entries.get(name)
            # The samples are needed, because images of file systems have equal times and inodes.
            if isinstance(entry, list) and entry[:2] == [list(stamp), samples[name]]:
                digests[name] = str(entry[2])
            else:
                missing.append(name)
        if missing:
            digests |= _read(self._root, {name: stamps[name][2] for name in missing})
            self._keep(
                {
                    name: [stamp, samples[name], digests[name]]
                    for name, stamp in stamps.items()
                    if is_settled([stamp]) and _stamp(os.path.join(self._root, name)) == stamp
                }
            )
        return digests

    def _keep(self, entries: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.seek(0)
            self._file.truncate()
            json.dump(entries, self._file)
            self._file.flush()
        except OSError as error:
            log.debug("cairn: digests of %s are not kept: %s", self._root, error)


def _cache_folder() -> pathlib.Path:
    """Returns a cache folder of this user only. Whoever can write there can change the revisions of
    weights."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(base) / "cairn" / "weights"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _samples(path: str, size: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        for i in range(_SAMPLES):
            file.seek(i * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
            if size <= _SAMPLE_BYTES:
                break
    return digest.hexdigest()


def _read(root: str, sizes: dict[str, int]) -> dict[str, str]:
    """Computes the digests of files piece by piece on several threads. Hashing releases the
    interpreter's lock."""
    pieces = [
        (name, offset)
        for name, size in sizes.items()
        for offset in range(0, max(1, size), _PIECE_BYTES)
    ]
    wanted, started = sum(sizes.values()), time.monotonic()
    if wanted >= _LONG_BYTES:
        log.info(
            "cairn: %.1f GB of weights in %s are read, once, to tell them from others;"
            " weights_revision in kv_connector_extra_config names them without",
            wanted / 1e9,
            root,
        )
    digests = {name: hashlib.sha256() for name in sizes}
    said, done = started, 0
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "cairn-digest") as pool:
        found = pool.map(lambda piece: _digest_piece(os.path.join(root, piece[0]), piece[1]), pieces)
        for (name, _), (count, digest) in zip(pieces, found, strict=True):
            digests[name].update(digest)
            done += count
            if wanted >= _LONG_BYTES and time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                log.info("cairn: %.1f of %.1f GB of weights are read", done / 1e9, wanted / 1e9)
    seconds = max(1e-9, time.monotonic() - started)
    if wanted >= _LONG_BYTES:
        log.info("cairn: all are read, in %.0f s, %.1f GB/s", seconds, done / 1e9 / seconds)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _digest_piece(path: str, offset: int) -> tuple[int, bytes]:
    digest, buffer, left = hashlib.sha256(), memoryview(bytearray(_READ_BYTES)), _PIECE_BYTES
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while left > 0:
            count = file.readinto(buffer[: min(left, _READ_BYTES)]) or 0
            if count == 0:
                break
            digest.update(buffer[:count])
            left -= count
    return _PIECE_BYTES - left, digest.digest()
