# SPDX-License-Identifier: Apache-2.0
"""The C++ tutorial's blocks are the example program, and it prints what the tutorial says.

usage: tutorial_test.py TUTORIAL.md EXAMPLE.cc PROGRAM CAIRND [--write]

--write makes EXAMPLE.cc from the tutorial.
"""

import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

HEADING = "// SPDX-License-Identifier: Apache-2.0\n// The program of docs/guides/cpp.md.\n"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def differences(expected, found, names):
    lines = list(difflib.unified_diff(expected.splitlines(), found.splitlines(), *names, lineterm=""))
    print("\n".join(lines))
    return len(lines)


def run(program, cairnd):
    with tempfile.TemporaryDirectory() as folder:
        daemon = subprocess.Popen(
            [cairnd, "--control=127.0.0.1:0", "--http=off", f"--socket={folder}/cairnd.sock", "--host-bytes=64MiB"],
            stdout=subprocess.PIPE, text=True,
        )
        try:
            ready = daemon.stdout.readline()
            control = re.search(r"control=(\S+)", ready).group(1)
            return subprocess.run([program, control], capture_output=True, text=True, timeout=30, check=True).stdout
        finally:
            daemon.kill()
            daemon.wait(10)


def main():
    tutorial, example, program, cairnd = sys.argv[1:5]
    text = pathlib.Path(tutorial).read_text()
    code = HEADING + "\n".join(blocks(text, "cpp"))
    if "--write" in sys.argv:
        pathlib.Path(example).write_text(code)
        return 0
    failed = differences(code, pathlib.Path(example).read_text(), (tutorial, example))
    failed += differences("".join(blocks(text, "text")), run(program, cairnd), (tutorial, "printed"))
    print("the tutorial says what happens" if failed == 0 else "FAILED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
