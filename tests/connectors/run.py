# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder with the Python that it runs in: run.py [FILE…]. Of each engine the
files are one pytest in a process of its own, as the packages of two would not get on in one."""

import itertools
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "release"


def engine_of(file):
    """test_vllm_names.py is of vllm."""
    return file.stem.split("_")[1]


def main():
    files = [pathlib.Path(name) for name in sys.argv[1:]] or list(HERE.glob("test_*.py"))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment.setdefault("CAIRN_LIBRARY", str(BUILD / "lib" / "libcairn.so"))
    environment.setdefault("CAIRN_BIN_DIR", str(BUILD / "bin"))
    failed = []
    for engine, of_it in itertools.groupby(sorted(files), engine_of):
        print(f"== {engine}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
        command += [str(HERE / file.name) for file in of_it]
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(engine)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
