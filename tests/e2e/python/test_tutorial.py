# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/guides/python.md run, in order, and print what the page says they print."""

import contextlib
import io
import re
import shlex
import subprocess

from conftest import ROOT

PAGE = ROOT / "docs" / "guides" / "python.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_blocks(daemon):
    names = {"__name__": "tutorial"}
    expected = []
    for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            assert not expected, "an output block is missing"
            code = code.replace("127.0.0.1:50151", daemon.control)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(PAGE), "exec"), names)  # the page is ours
            expected = [out.getvalue()] if out.getvalue() else []
        elif language == "text":
            assert expected == [code]
            expected = []
    assert not expected and names["client"]


def test_the_daemon_takes_the_flags(bin_dir):
    (line,) = re.findall(r"^build/release/bin/cairnd (.*?) &$", PAGE.read_text(), re.MULTILINE)
    subprocess.run(
        [bin_dir / "cairnd", *shlex.split(line), "--check-config"], check=True, timeout=10
    )
