# SPDX-License-Identifier: Apache-2.0
"""All kernels compile for a device, spill no registers, and say that they are unavailable where there is no driver.

Compiles kernels/backend_cuda.cu for the architectures given, reads what ptxas says of each kernel, and links a program with the
static CUDA runtime that needs no libcuda to start.

usage: nvcc_test.py COMPILER ARCHITECTURE…       nvcc_test.py g++ sm_90
"""

import pathlib
import re
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from nvcc import ROOT, command, run  # noqa: E402

REGISTERS = 65536  # of a multiprocessor
THREADS = {"AttendAffine": 128, "AttendFp8": 128, "AttendPlain": 128}  # of a block; of others 256
# kernel -> blocks of it that a multiprocessor has to have registers for
RESIDENT = {"DecodeRawAny": 6, "DecodeAffine": 5, "DecodeAffineAny": 4, "DecodeStripsAny": 4, "DecodeStripsFast": 3, "DecodePlanesFast": 4, "VerifyCrcs": 3, "DecodeFp8": 5, "DecodeFp8Any": 4, "DecodePatternedAny": 4, "DecodeMixedAny": 4, "DecodeKeptAny": 4, "DecodeStepsAny": 2, "DecodeStepsFast": 2, "DecodeHotAny": 4,
            "EncodeAffineFast": 3, "EncodeAffineAny": 4, "EncodePatternedAny": 4, "EncodeMixedAny": 4, "EncodeFp8Any": 4, "EncodeKeptAny": 4, "EncodeStripsAny": 4, "EncodeStepsAny": 3, "EncodeHotAny": 3, "NarrowTiles": 4, "ThinTiles": 4, "NarrowSteps": 2, "PlaceTiles": 4, "StoreTiles": 4, "SumCrcs": 3,
            "AttendAffine": 2, "AttendFp8": 2, "AttendPlain": 1, "AttendAny": 2, "MergeAttended": 4, "MinePatterns": 3, "SumMoments": 3, "CountCodes": 3}
KERNELS_MIN = 64
# Bytes of stack and spills that are borne: sm_90, whose figures are quoted, has none; what fewer blocks would cost was not measured.
SPILLS = {"sm_80": {"EncodeStripsAny": 80}, "sm_100": {"EncodeStripsAny": 196, "DecodeHotAny": 92, "SumCrcs": 16}}

PROBE = """
#include <cstdio>
#include "kernels/backend.h"
int main() {
  const cairn::kernels::Availability found = cairn::kernels::Probe();
  int stream = 0;
  const auto result = cairn::kernels::LaunchDecode({}, nullptr, nullptr, &stream);
  const bool is_refused = result == cairn::kernels::LaunchResult::kUnavailable;
  std::printf("%d %d %s\\n", found.is_available ? 1 : 0, is_refused ? 1 : 0, found.reason.data());
}
"""


def kernels_of(text):
    """{mangled name: (registers, bytes of stack and spills)} of what `ptxas -v` says."""
    found = {}
    name, stack = None, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack = match.group(1), 0
        elif "stack frame" in line:
            stack = sum(map(int, re.findall(r"(\d+) bytes", line)))
        elif (match := re.search(r"Used (\d+) registers", line)) and name:
            found[name] = (int(match.group(1)), stack)
    return found


def check(kernels, architecture, filt):
    wrong = []
    borne = SPILLS.get(architecture, {})
    for mangled, (registers, stack) in sorted(kernels.items()):
        full = run([filt, mangled]).strip()
        name = re.sub(r"<.*|\(.*", "", full.removeprefix("void ")).rsplit("::", 1)[-1]
        blocks = RESIDENT.get(name)
        if blocks is None:
            wrong.append(f"{name} has no line in RESIDENT")
        elif stack > borne.get(name, 0):
            wrong.append(f"{full}: {stack} bytes of stack and spills")
        elif -(-registers // 8) * 8 * THREADS.get(name, 256) * blocks > REGISTERS:
            wrong.append(f"{full}: {registers} registers are too many for {blocks} blocks")
        print(f"{registers:4d} registers  {full.split('(')[0]}")
    if len(kernels) < KERNELS_MIN:
        wrong.append(f"{len(kernels)} kernels")
    return wrong


def main():
    compiler = command(sys.argv[1])
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for architecture in sys.argv[2:]:
            text = run([*compiler, f"-arch={architecture}", "-Xptxas", "-v",
                        "-c", ROOT / "kernels/backend_cuda.cu", "-o", folder / "kernels.o"])
            print(architecture)
            wrong += check(kernels_of(text), architecture, shutil.which("c++filt"))
        (folder / "probe.cc").write_text(PROBE)
        run([*compiler, folder / "probe.cc", folder / "kernels.o", "-cudart", "static", "-o", folder / "probe"])
        if "libcuda" in run(["ldd", folder / "probe"]):
            wrong.append("the program needs libcuda or libcudart to start")
        said = run([folder / "probe"]).strip()
        print(said)
        if said.split()[0] == "0" and not re.match(r"0 1 unavailable: ", said):
            wrong.append("without a driver the backend has to say that it is unavailable")
    for finding in wrong:
        print(finding)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
