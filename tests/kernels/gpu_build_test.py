# SPDX-License-Identifier: Apache-2.0
"""A build with CUDA on a machine without a driver does what one without CUDA does, and says that devices are unavailable.

Looks at what cairnd, cairnctl and libcairn.so are linked with, starts them, and runs with them the tests of the demo and of caches on
devices. Skipped where CUDA is not built in; where there is a device, what it says of its absence is left out.

usage: gpu_build_test.py BUILD_FOLDER       gpu_build_test.py build/gpu
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from nvcc import ROOT, SKIPPED  # noqa: E402

REASON = r"unavailable: no CUDA (driver|device)\b.*"


def run(words, **more):
    return subprocess.run([str(word) for word in words], text=True, capture_output=True, timeout=900, **more)


def check(is_right, *said):
    if not is_right:
        print("WRONG", *said, sep="\n")
        sys.exit(1)


def check_links(build):
    """The runtime is static and looks for the driver when it is asked: none is needed to start."""
    for name in ("bin/cairnd", "bin/cairnctl", "lib/libcairn.so"):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", build / name]).stdout)
        check(needed, f"{name} has no dynamic section")
        check(not [library for library in needed if re.match(r"libcuda|libnv", library)], name, *needed)
        print(f"{name} needs {', '.join(sorted(needed))}")


def check_absence(build):
    """What an operator is told."""
    doctor = run([build / "bin/cairnctl", "doctor", "--control", "127.0.0.1:1"]).stdout
    check(re.search(rf"^ok +gpu +{REASON}$", doctor, re.MULTILINE), doctor)
    version = run([build / "bin/cairnctl", "version"]).stdout
    check(re.search(rf"^devices {REASON}$", version, re.MULTILINE), version)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        flags = ["--control=127.0.0.1:0", "--http=127.0.0.1:0", f"--socket={folder}/s", "--host-bytes=64MiB"]
        flags += [f"--ssd={folder}/tier=256MiB", "--ssd-io=threads"]
        daemon = run([build / "bin/cairnd", *flags, "--gpu=0=1GiB"])
    check(daemon.returncode == 1 and re.search(rf"cannot start.*gpu: {REASON}", daemon.stderr), daemon.stderr)
    print(daemon.stderr.strip().splitlines()[-1])


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    version = run([build / "bin/cairnctl", "version"])
    check(version.returncode == 0, version.stdout, version.stderr)
    print(version.stdout)
    if "built without device kernels" in version.stdout:
        print("skipped: built without nvcc")
        return SKIPPED
    check_links(build)
    if "unavailable: " in version.stdout:
        check_absence(build)
    environment = dict(os.environ, CAIRN_BIN_DIR=str(build / "bin"), CAIRN_LIBRARY=str(build / "lib/libcairn.so"))
    tests = [ROOT / "tests/e2e/python" / name for name in ("test_abi.py", "test_demo.py", "test_device.py", "test_paged.py", "test_store.py")]
    ran = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], env=environment, cwd=ROOT)
    check(ran.returncode == 0, ran.stdout, ran.stderr)
    print(ran.stdout.strip().splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
