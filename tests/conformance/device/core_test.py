# SPDX-License-Identifier: Apache-2.0
"""The arithmetic and tables of tile forms compile for a device, and give the same bytes whoever compiles them.

Compiles core.cu with nvcc for sm_90 and, as C++, with the compiler of the tree, and compares what both print. No device is needed;
where there is one, it has to print the same.

usage: core_test.py COMPILER
"""

import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
import nvcc  # noqa: E402


def digests(text):
    sides = {"host": {}, "device": {}}
    for line in text.splitlines():
        side, form, index, digest = line.split()
        sides[side][form, int(index)] = digest
    return sides


def main():
    compiler = nvcc.command(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        nvcc.run([sys.argv[1], "-std=c++20", "-O1", "-ffp-contract=off", "-I", nvcc.ROOT, "-x", "c++", HERE / "core.cu", "-o", folder / "plain"])
        nvcc.run([*compiler, "-arch=sm_90", "--keep", "--keep-dir", folder, HERE / "core.cu", "-o", folder / "core"])
        ptx = (folder / "core.ptx").read_text()
        plain = digests(nvcc.run([folder / "plain"]))
        both = digests(nvcc.run([folder / "core"]))
    loose = sorted(set(re.findall(r"\b(?:fma\.\S*f32|\S+\.ftz\S*|div\.(?:approx|full)\S*)", ptx)))
    wrong = [f"host of nvcc: {of}" for of in plain["host"] if both["host"].get(of) != plain["host"][of]]
    wrong += [f"device: {of}" for of, digest in both["device"].items() if digest != plain["host"][of]]
    wrong += [f"the device code has {instruction}" for instruction in loose]
    for finding in wrong:
        print(finding)
    forms = len({form for form, _ in plain["host"]})
    print(f"{forms} forms, {len(plain['host'])} digests, of a device {len(both['device'])}")
    return 1 if wrong or forms != 9 else 0


if __name__ == "__main__":
    sys.exit(main())
