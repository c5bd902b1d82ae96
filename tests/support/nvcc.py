# SPDX-License-Identifier: Apache-2.0
"""nvcc as tests run it."""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # what a test exits with that could not run
# What codecs/numbers/math.h asks for.
STRICT = ["--fmad=false", "-ftz=false", "-prec-div=true", "-Xcompiler", "-ffp-contract=off,-Wall,-Wextra"]


def run(command):
    """What the command printed; where it fails, the test does."""
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        print(" ".join(map(str, command)), done.stdout, done.stderr, sep="\n")
        sys.exit(1)
    return done.stdout + done.stderr


def command(compiler):
    """nvcc with the options that all of the tree is compiled with. Skips the test where there is none."""
    found = os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        print("skipped: no nvcc (CUDACXX, PATH, /usr/local/cuda/bin)")
        sys.exit(SKIPPED)
    return [found, "-std=c++20", "-ccbin", compiler, *STRICT, "-I", ROOT, "--Werror", "cross-execution-space-call"]
