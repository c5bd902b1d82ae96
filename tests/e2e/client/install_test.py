# SPDX-License-Identifier: Apache-2.0
"""Programs outside of the tree build against what `cmake --install` leaves, one in C++ by find_package(cairn), one in C by pkg-config, the
one in C of docs/guides/cpp.md by the commands there, and work with the daemon that is installed beside it.

usage: install_test.py CMAKE BUILD CXX_PROGRAM.cc C_PROGRAM.c
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TUTORIAL = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guides" / "cpp.md"
LISTS = """
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES C CXX)
find_package(cairn 0.1 REQUIRED)
add_executable(in_cxx in_cxx.cc)
target_link_libraries(in_cxx PRIVATE cairn::client)
find_package(PkgConfig REQUIRED)
pkg_check_modules(cairn_c REQUIRED IMPORTED_TARGET cairn)
add_executable(in_c in_c.c)
target_link_libraries(in_c PRIVATE PkgConfig::cairn_c)
"""


def run(*words, **more):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **more)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.returncode}\n{done.stdout}")
    return done.stdout


def check_nothing_points_home(prefix, build):
    """What is installed works where the tree is not."""
    for path in prefix.rglob("*"):
        if path.suffix in {".cmake", ".pc"} and str(build.parents[1]) in path.read_text():
            sys.exit(f"{path} names the tree")


def check_versioned(prefix, program):
    """A program in C needs the library of the ABI that its header has, under a name that another ABI does not get."""
    (header,) = prefix.rglob("client/c/cairn.h")
    abi = re.search(r"^#define CAIRN_ABI_VERSION (\d+)$", header.read_text(), re.MULTILINE).group(1)
    (library,) = prefix.glob("lib/**/libcairn.so")
    assert f"Library soname: [libcairn.so.{abi}]" in run("readelf", "-dW", library)
    assert f"Shared library: [libcairn.so.{abi}]" in run("readelf", "-dW", program)
    assert library.resolve() == library.with_name(f"libcairn.so.{abi}").resolve()


def build_first(folder, prefix):
    """The C program of the tutorial, by its commands."""
    text = TUTORIAL.read_text()
    (folder / "first.c").write_text(re.search(r"^```c\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1))
    commands = re.search(r"^(export PKG_CONFIG_PATH=.*?)^\./first", text, re.MULTILINE | re.DOTALL).group(1)
    run("sh", "-ec", commands.replace("/opt/cairn", str(prefix)), cwd=folder)


def main():
    cmake, build, in_cxx, in_c = sys.argv[1:5]
    build = pathlib.Path(build).resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix, outside = folder / "prefix", folder / "outside"
        outside.mkdir()
        run(cmake, "--install", build, "--prefix", prefix)
        check_nothing_points_home(prefix, build)
        shutil.copy(in_cxx, outside / "in_cxx.cc")
        shutil.copy(in_c, outside / "in_c.c")
        (outside / "CMakeLists.txt").write_text(LISTS)
        (pkgconfig,) = prefix.glob("lib/**/pkgconfig")
        environment = os.environ | {"PKG_CONFIG_PATH": str(pkgconfig)}
        run(cmake, "-S", outside, "-B", outside / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", env=environment)
        run(cmake, "--build", outside / "build")
        check_versioned(prefix, outside / "build" / "in_c")
        build_first(outside, prefix)
        daemon = subprocess.Popen(
            [prefix / "bin" / "cairnd", "--control=127.0.0.1:0", "--http=off", f"--socket={folder}/cairnd.sock", "--host-bytes=64MiB"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            control = re.search(r"control=(\S+)", daemon.stdout.readline()).group(1)
            run(outside / "build" / "in_cxx", control)
            run(outside / "build" / "in_c", control)
            assert run(outside / "first", control).startswith("OK")
            assert "host" in run(prefix / "bin" / "cairnctl", "status", "--control", control)
        finally:
            daemon.kill()
            daemon.wait(10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
