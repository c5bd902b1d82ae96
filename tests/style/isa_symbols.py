# SPDX-License-Identifier: Apache-2.0
"""No object compiled for a wider instruction set may define a weak symbol.

A weak symbol (an inline function of std, say) compiled with -mavx2 can be the copy the linker keeps for the whole program, which
then dies on a CPU without AVX2. The objects are those whose compile command has such a flag.

usage: isa_symbols.py BUILD_FOLDER
"""

import json
import pathlib
import re
import subprocess
import sys

OUTPUT = re.compile(r"\s-o (\S+)")
FLAG = re.compile(r"(^|\s)-m(avx|sse4|ssse3|bmi|fma|f16c|pclmul|vpclmul|arch=)")


def main():
    build = pathlib.Path(sys.argv[1])
    commands = json.loads((build / "compile_commands.json").read_text())
    objects = [build / OUTPUT.search(c["command"]).group(1) for c in commands if FLAG.search(c["command"])]
    built = [o for o in objects if o.exists()]
    if not built:
        print("skipped: no object with instruction-set flags has been built")
        return 77
    failures = 0
    for path in built:
        symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        weak = [line for line in symbols.splitlines() if re.match(r"^[0-9a-f]+ [WVuwv] ", line)]
        for line in weak:
            print(f"{path.relative_to(build)}: weak symbol {line[17:]}")
        failures += len(weak)
    print(f"{len(built)} objects, {failures} weak symbols")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
