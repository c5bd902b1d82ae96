# SPDX-License-Identifier: Apache-2.0
"""Real text that this machine can get: files of Debian packages, downloaded but not installed.

Texts in SCORED are what quality is measured on, texts in CALIBRATION are what profiles may be made
from. No document is in both.
"""

from __future__ import annotations

import gzip
import html
import pathlib
import re
import subprocess
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Text:
    about: str
    package: str  # of Debian; "": `path` is in this repository
    path: str  # inside the package
    first: int  # character
    markup: str = ""  # "markdown": link targets are taken out; "html": tags are


SCORED = {
    "A": Text(
        "an essay (An Anarchist FAQ, section J.5)",
        "anarchism",
        "usr/share/doc/anarchism/markdown/secJ5.md.gz",
        4000,
        "markdown",
    ),
    "B": Text(
        "a technical manual (Debian Policy)",
        "debian-policy",
        "usr/share/doc/debian-policy/policy.txt.gz",
        30000,
    ),
    "alice": Text(
        "a novel (Alice's Adventures in Wonderland, I and II)",
        "",
        "client/examples/demo/text.txt",
        0,
    ),
}
CALIBRATION = {
    "perl": Text(
        "a tutorial of Perl's regular expressions",
        "perl-doc",
        "usr/share/perl/5.36.0/pod/perlretut.pod",
        2000,
    ),
    "vim": Text("Vim's manual", "vim-runtime", "usr/share/vim/vim90/doc/eval.txt", 20000),
    "python": Text(
        "Python source", "libpython3.11-minimal", "usr/lib/python3.11/typing.py", 8000
    ),
    "essay": Text(
        "another essay of A's package",
        "anarchism",
        "usr/share/doc/anarchism/html/append42.html",
        3000,
        "html",
    ),
}


def read(name: str, cache: pathlib.Path) -> str:
    """The text from its first character on. Packages are kept, unpacked, in `cache`."""
    text = {**SCORED, **CALIBRATION}[name]
    folder = _unpacked(text.package, cache) if text.package else ROOT
    data = (folder / text.path).read_bytes()
    if text.path.endswith(".gz"):
        data = gzip.decompress(data)
    return plain(data.decode("utf-8", "replace"), text.markup)[text.first :]


def plain(text: str, markup: str) -> str:
    if markup == "markdown":
        return re.sub(r"\]\([^)]*\)", "]", text)
    if markup == "html":
        text = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "", text))
        return re.sub(r"\n\s*\n+", "\n\n", text)
    return text


def version(name: str, cache: pathlib.Path) -> str:
    """The package and its version, or where in the repository the text is."""
    text = {**SCORED, **CALIBRATION}[name]
    if not text.package:
        return text.path
    return " ".join(next(cache.glob(f"{text.package}_*.deb")).name.split("_")[:2])


def _unpacked(package: str, cache: pathlib.Path) -> pathlib.Path:
    folder = cache / package
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        found = sorted(cache.glob(f"{package}_*.deb"))
        if not found:
            subprocess.run(["apt-get", "download", "-q", package], cwd=cache, check=True)
            found = sorted(cache.glob(f"{package}_*.deb"))
        partial = cache / f"{package}.partial"
        subprocess.run(["dpkg-deb", "-x", found[-1], partial], check=True)
        partial.rename(folder)
    return folder
