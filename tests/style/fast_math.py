# SPDX-License-Identifier: Apache-2.0
"""codecs/numbers/math.h does not compile where the compiler may change arithmetic, and compiles elsewhere.

usage: fast_math.py COMPILER
"""

import subprocess
import sys

SOURCE = '#include "codecs/numbers/math.h"\n'
ALLOWED = [[], ["-O3"]]
REFUSED = [["-ffast-math"], ["-Ofast"], ["-ffinite-math-only"]]


def compiles(compiler, flags):
    command = [compiler, "-std=c++20", "-I.", "-fsyntax-only", "-x", "c++", *flags, "-"]
    return subprocess.run(command, input=SOURCE, text=True, capture_output=True).returncode == 0


def main():
    compiler = sys.argv[1]
    wrong = [f"refuses {flags}" for flags in ALLOWED if not compiles(compiler, flags)]
    wrong += [f"takes {flags}" for flags in REFUSED if compiles(compiler, flags)]
    for finding in wrong:
        print(f"codecs/numbers/math.h {finding}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
