# SPDX-License-Identifier: Apache-2.0
"""The image, made and unpacked once."""

import contextlib
import json
import os
import pathlib
import shutil

import pytest
from container import run

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", ROOT / "build" / "release" / "bin"))
NEEDED = ["mmdebstrap", "umoci", "runc"]
IMAGE = ROOT / "build" / "image"


@pytest.fixture(scope="session")
def make_image():
    """Makes it, and gives its digest."""
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root, and {', '.join(NEEDED)} (.ci/ops); missing: {missing}")

    def call():
        run(ROOT / "cmake" / "packaging" / "image" / "build", BIN)
        return json.loads((IMAGE / "index.json").read_text())["manifests"][0]["digest"]

    return call


@pytest.fixture(scope="session", autouse=True)
def no_cgroups_left():
    """runc removes a container's, and leaves the one above."""
    yield
    for folder in pathlib.Path("/sys/fs/cgroup").glob("*/cairn-test"):
        with contextlib.suppress(OSError):
            folder.rmdir()


@pytest.fixture(scope="module")
def image(make_image, tmp_path_factory):
    """(digest, folder with the image unpacked)"""
    digest = make_image()
    folder = tmp_path_factory.mktemp("image") / "bundle"
    run("umoci", "unpack", "--image", f"{IMAGE}:latest", folder)
    return digest, folder
