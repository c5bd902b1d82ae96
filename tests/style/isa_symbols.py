# SPDX-License-Identifier: Apache-2.0
"""No object compiled for a wider instruction set may define a weak symbol.

A weak symbol (an inline function of std, say) compiled with -mavx2 can be the copy the linker keeps for the whole program, which
then dies on a CPU without AVX2. The sources are those whose compile command has such a flag. Whether one leaks depends on the
inliner, so each object is looked at as it was built and as -O0, which inlines nothing, builds it.

usage: isa_symbols.py BUILD_FOLDER
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FLAG = re.compile(r"(^|\s)-m(avx|sse4|ssse3|bmi|fma|f16c|pclmul|vpclmul|arch=)")
# Where exceptions are handled from: data, the same in every object.
PERSONALITY = "DW.ref.__gxx_personality_v0"


def weak_symbols(path):
    symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    weak = [line[19:] for line in symbols.splitlines() if re.match(r"^[0-9a-f]+ [WVuwv] ", line)]
    return [symbol for symbol in weak if symbol != PERSONALITY]


def compile_plainly(entry, path):
    """Starts the entry's compile command with -O0, to `path`."""
    words = shlex.split(entry["command"])
    words[words.index("-o") + 1] = str(path)
    kept = [w for w in words if not re.fullmatch(r"-O\w|-g\d?|-Werror", w)]
    return subprocess.Popen(kept + ["-O0", "-w"], cwd=entry["directory"])


def main():
    build = pathlib.Path(sys.argv[1])
    commands = json.loads((build / "compile_commands.json").read_text())
    entries = [c for c in commands if FLAG.search(c["command"])]
    if not entries:
        print("skipped: nothing is compiled with instruction-set flags")
        return 77
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        plain = [pathlib.Path(folder) / f"{i}.o" for i in range(len(entries))]
        compilers = [compile_plainly(entry, path) for entry, path in zip(entries, plain)]
        if any([compiler.wait() != 0 for compiler in compilers]):
            print("an object does not compile at -O0")
            return 1
        for entry, path in zip(entries, plain):
            built = build / shlex.split(entry["command"])[shlex.split(entry["command"]).index("-o") + 1]
            for kind, target in (("as built", built), ("at -O0", path)):
                if not target.exists():
                    continue
                weak = weak_symbols(target)
                for symbol in weak:
                    print(f"{entry['file']} {kind}: weak symbol {symbol}")
                failures += len(weak)
    print(f"{len(entries)} sources, {failures} weak symbols")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
