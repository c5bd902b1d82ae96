# SPDX-License-Identifier: Apache-2.0
"""Which weights a folder has, without reading gigabytes: a store must not give one model's KV to
another's engine."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib

_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json"}
_SAMPLES = 64  # of a file, evenly spaced
_SAMPLE_BYTES = 4096
# Written by tools that only read the model, or of the tokenizer, whose tokens are in the keys.
_LEFT_OUT = {"generation_config.json", "special_tokens_map.json", "tokenizer_config.json"}


@functools.lru_cache(maxsize=256)
def revision_of(folder: str) -> str:
    """A digest of names, lengths and samples of the files of weights and of their configuration.

    Two sets of weights that differ are told apart unless all of the samples, 256 KiB of each file,
    are alike, as they may be where somebody edited a few values: then name a revision yourself.
    """
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(folder).iterdir()):
        is_wanted = path.suffix in _SUFFIXES and path.name not in _LEFT_OUT
        if is_wanted and path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            _sample(path, digest)
    return "files:" + digest.hexdigest()[:32]


def _sample(path: pathlib.Path, digest: hashlib._Hash) -> None:
    count = path.stat().st_size
    with open(path, "rb") as file:
        if count <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
            return
        for i in range(_SAMPLES):
            file.seek(i * (count - _SAMPLE_BYTES) // (_SAMPLES - 1), os.SEEK_SET)
            digest.update(file.read(_SAMPLE_BYTES))
