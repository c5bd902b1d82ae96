# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs lie in memory as the compiler lays out those of cairn.h."""

import ctypes
import re
import shutil
import subprocess
import sys

import cairn
import pytest
from cairn import _abi, _ffi, errors, keys, transfer
from conftest import ROOT

PACKAGE = ROOT / "client" / "python" / "cairn"
sys.path.insert(0, str(PACKAGE.parent))
import generate_abi  # noqa: E402

HEADERS = generate_abi.read(generate_abi.HEADER, set())
STRUCTS = {
    name: getattr(_abi, generate_abi.class_name(name))
    for name in re.findall(r"^} (cairn_\w+);", HEADERS, re.MULTILINE)
    if name not in generate_abi.BYTES
}


def test_it_is_generated_from_the_headers():
    assert generate_abi.TARGET.read_text() == generate_abi.generate(), generate_abi.__doc__


def test_layouts(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    lines, expected = [], []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            member = f"(({name}*)0)->{field}"
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({member}));'
            )
            place = getattr(struct, field)
            expected.append(f"{name}.{field} {place.offset} {place.size}")
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{generate_abi.HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run([compiler, "-std=c11", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.split("\n")[:-1] == expected


def test_every_struct_is_here():
    is_struct = (of for of in vars(_abi).values() if isinstance(of, type(_abi.Slice)))
    assert {of.__name__ for of in is_struct} - {"Structure", "Sized"} == {
        of.__name__ for of in STRUCTS.values()
    }
    assert len(STRUCTS) > 30


def test_every_function_is_here():
    declared = re.findall(r"^CAIRN_API [\w ]+\*?\s*\b(cairn_\w+)\(", HEADERS, re.MULTILINE)
    assert len(declared) > 30 and list(_abi.FUNCTIONS) == declared
    used = "".join(path.read_text() for path in PACKAGE.glob("*.py") if path.name != "_abi.py")
    unused = {name for name in declared if not re.search(rf"\b{name}\b", used)}
    # cairn.keys derives names in Python, so that schedulers need no library; test_keys.py compares.
    derived = {"cairn_fingerprint", "cairn_derive_key", "cairn_derive_chain", "cairn_opaque_key"}
    # cairn_watch_open_with() and cairn_breaker_advise_peer() do the same, and more.
    older = {"cairn_watch_open", "cairn_breaker_advise"}
    assert unused == derived | older
    assert _ffi.library_version() == cairn.__version__


def test_names_of_numbers():
    def named(prefix):
        return {
            name.removeprefix(prefix).lower(): value
            for name, value in vars(_abi).items()
            if name.startswith(prefix)
        }

    assert keys.DTYPES == named("DTYPE_") and keys.GROUP_KINDS == named("GROUP_")
    assert keys.ROPE_KINDS == named("ROPE_")
    assert {name: number for number, name in transfer.TIERS.items()} == named("TIER_")
    assert list(transfer.DURABILITIES) == list(named("DURABILITY_"))
    for code, kind in errors._BY_CODE.items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).upper()
        assert getattr(_abi, {"NOT_DURABLE": "ABORTED"}.get(name, name)) == code
