# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries that users run are built hardened: read back from the files, as a flag that is set somewhere may not arrive.

usage: hardening.py FILE…
"""

import subprocess
import sys


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], capture_output=True, text=True, check=True).stdout


def lacking(path):
    header, segments = readelf("-h", path), readelf("-l", path)
    dynamic, symbols = readelf("-d", path), readelf("--dyn-syms", path)
    is_program = "INTERP" in segments
    stack = [line.split() for line in segments.splitlines() if "GNU_STACK" in line]
    found = {
        "position-independent code (PIE)": "DYN" in header and ("PIE" in dynamic or not is_program),
        "RELRO": "GNU_RELRO" in segments,
        "BIND_NOW": "BIND_NOW" in dynamic or "NOW" in dynamic.partition("FLAGS_1")[2].split("\n")[0],
        "a stack that does not execute": bool(stack) and "E" not in stack[0][6],
        "the stack protector": "__stack_chk_fail" in symbols,
        "FORTIFY_SOURCE": any(name in symbols for name in ("__memcpy_chk", "__fprintf_chk", "__vsnprintf_chk", "__memset_chk")),
    }
    return [what for what, is_there in found.items() if not is_there]


def main():
    failures = [f"{path}: without {what}" for path in sys.argv[1:] for what in lacking(path)]
    print("\n".join(failures) if failures else f"{len(sys.argv) - 1} files are hardened")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
