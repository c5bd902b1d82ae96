# SPDX-License-Identifier: Apache-2.0
"""The wheel installs into a bare virtual environment and works there, with nothing else."""

import os
import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest
from conftest import ROOT, Daemon

PROGRAM = """
import array, ctypes, pathlib, sys
import cairn
from cairn import _ffi

control, data = sys.argv[1:3]
assert "numpy" not in sys.modules
where = _ffi.library_path()
assert where.parent == pathlib.Path(cairn.__file__).parent and sys.prefix in str(where), where
with cairn.connect(control, data=data, tenant="wheel") as client:
    group = cairn.KvGroup(layers=2, kv_heads=1, dim=8)
    space = client.open_space("bare", "r1", [group], tokens_per_block=16, recipe="raw")
    (key,) = space.keys(range(16))
    def plane(first):
        words = memoryview(array.array("H", range(first, first + 256)))
        return words.cast("B").cast("H", (2, 1, 16, 8))
    k, v, k_out, v_out = plane(0), plane(1000), plane(0), plane(0)
    space.put(key, k, v)
    with space.match([key]) as match:
        assert match.get(k_out, v_out) == 16
    assert k_out.tobytes() == k.tobytes() and v_out.tobytes() == v.tobytes()
    with client.allocate_buffer(space.source_bytes()) as buffer:
        assert space.get(key, source=buffer.memory)
        assert buffer.memory[:256].tobytes() == k.tobytes()[:256]
    image = bytearray(space.image_bytes_max())
    assert space.get(key, image=image)
    cairn.image.verify(image)

own = str(pathlib.Path(sys.prefix))
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
names = ("grpc", "protobuf", "absl", "ucp", "ucs", "uct")
foreign = [path for path in loaded if any(n in pathlib.Path(path).name for n in names)
           and own not in path and "lib-dynload" not in path]
assert not foreign, foreign
print("wheel works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    lib_dir = pathlib.Path(os.environ["CAIRN_LIBRARY"]).parent
    builder = ROOT / "client" / "python" / "build_wheel.py"
    subprocess.run([sys.executable, builder, "--out", out, "--lib-dir", lib_dir], check=True)
    (built,) = out.glob("kvcairn-*-py3-none-*.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quiet = ["--no-index", "--disable-pip-version-check", "-q"]
    subprocess.run([python, "-m", "pip", "install", *quiet, wheel], check=True)
    return python


def test_it_has_the_templates_of_pages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "client" / "python"
    wanted = {str(path.relative_to(folder)) for path in (folder / "cairn" / "pages").glob("*.html")}
    assert len(wanted) >= 3 and wanted <= names


def test_a_wheel_without_its_library_is_refused(tmp_path):
    package = tmp_path / "package"
    shutil.copytree(
        ROOT / "client" / "python", package, ignore=shutil.ignore_patterns("*.so", "build")
    )
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", tmp_path / "out"],
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "build_wheel.py" in done.stderr
    assert not list(tmp_path.glob("out/*.whl"))


def run_program(python, daemon, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CAIRN_", "PYTHON"))}
    done = subprocess.run(
        [python, "-c", PROGRAM, daemon.control, daemon.data],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "wheel works\n"


def test_it_names_its_connectors_to_vllm(bare_python):
    named = (
        "from importlib.metadata import entry_points\n"
        "for point in entry_points(group='vllm.general_plugins'): print(point.value, point.load())"
    )
    done = subprocess.run([bare_python, "-c", named], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("cairn.vllm:register <function register"), done.stderr


def test_the_laboratory_is_an_extra(bare_python):
    extras = (
        "from importlib.metadata import metadata\n"
        "print(sorted(metadata('kvcairn').get_all('Provides-Extra')))"
    )
    done = subprocess.run([bare_python, "-c", extras], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['evaluate', 'events', 'vllm']\n", done.stderr
    called = [bare_python, "-m", "cairn.evaluate", "--help"]
    done = subprocess.run(called, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "[evaluate]" in done.stderr
    assert "Traceback" not in done.stderr


def test_local(bare_python, daemon, tmp_path):
    run_program(bare_python, daemon, tmp_path)


def test_ucx(bare_python, bin_dir, tmp_path):
    if not (bin_dir.parent / "lib" / "libcairn_ucx.so").exists():
        pytest.skip("built without UCX")
    with Daemon(bin_dir, "ucx", tmp_path) as started:
        run_program(bare_python, started, tmp_path)
