# SPDX-License-Identifier: Apache-2.0
"""Writes cairn/_abi.py: the constants, structs and functions of client/c/cairn.h for ctypes.

    python client/python/generate_abi.py

Run it when a header of the C ABI has changed; a test compares.
"""

from __future__ import annotations

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parent / "c" / "cairn.h"
TARGET = HERE / "cairn" / "_abi.py"

BEGIN = '''# SPDX-License-Identifier: Apache-2.0
"""The C ABI for `_ffi`. Generated from client/c/cairn.h by generate_abi.py: do not edit."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure
ALIASES

class Sized(Structure):
    """A struct that begins with struct_bytes, zero but for that."""

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields)
        self.struct_bytes = ctypes.sizeof(type(self))

'''
SCALARS = {
    "char": "char",
    "double": "f64",
    "float": "f32",
    "int": "integer",
    "int32_t": "i32",
    "int64_t": "i64",
    "size_t": "size",
    "uint8_t": "u8",
    "uint32_t": "u32",
    "uint64_t": "u64",
}
# ctypes calls them c_uint32 and so on, without the "_t", but c_size_t.
ALIASES = {name if name == "size_t" else name.removesuffix("_t"): alias for name, alias in SCALARS.items()}
ALIASES |= {"char_p": "text", "void_p": "pointer"}
BYTES = {"cairn_key": "u8 * 32", "cairn_lease": "u8 * 16"}
# Arguments that callers have as bytes or as an address: keys and leases, elements, handles.
UNTYPED = {"void", "float", "uint8_t", *BYTES}


def read(path: pathlib.Path, seen: set[str]) -> str:
    """Reads a header without comments. Inserts the headers of this folder that it includes first.
    """
    if path.name in seen:
        return ""
    seen.add(path.name)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(
        r'#include "(\w+\.h)"', lambda found: read(path.parent / found[1], seen), text
    )


def class_name(struct: str) -> str:
    return "".join(word.capitalize() for word in struct.removeprefix("cairn_").split("_"))


def pointer_to(base: str, structs: set[str], is_plain: bool) -> str:
    """is_plain: for a call that only reads the memory, and accepts arrays of any kind."""
    if base == "char":
        return "text"
    if base in structs:
        return f"POINTER({class_name(base)})"
    return "pointer" if is_plain or base in UNTYPED or base not in SCALARS else f"POINTER({SCALARS[base]})"


def type_of(declared: str, structs: set[str], is_argument: bool) -> str:
    """Returns the ctypes type of a declared type such as `const uint32_t*`."""
    base = re.sub(r"\bconst\b|\*", "", declared).strip()
    stars = declared.count("*")
    if stars == 2:
        return "POINTER(pointer)"
    if stars == 1:
        return pointer_to(base, structs, is_argument and "const" in declared)
    return BYTES.get(base) or SCALARS.get(base) or class_name(base)


def fields_of(body: str, structs: set[str]) -> list[str]:
    fields = []
    for declared in filter(None, (part.strip() for part in body.split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+(?:\* const\*|\*)?) (.+)", declared).groups()
        for name in names.split(","):
            name, count = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", name.strip()).groups()
            of = type_of(kind, structs, is_argument=False)
            fields.append(f'("{name}", {of} * {count})' if count else f'("{name}", {of})')
    return fields


def arguments_of(body: str, structs: set[str]) -> list[str]:
    arguments = []
    for declared in filter(None, (part.strip() for part in body.split(","))):
        if declared == "void":
            continue
        kind, _, count = re.fullmatch(r"(.+?)\b(\w+)(\[\d+\])?", declared).groups()
        arguments.append("pointer" if count else type_of(kind, structs, is_argument=True))
    return arguments


def listed(begin: str, items: list[str], end: str) -> str:
    """Formats a list on one line if it fits, otherwise one item per line."""
    line = f"{begin}{', '.join(items)}{end}"
    if len(line) <= 100 and "\n" not in line:
        return line
    indent = " " * (len(begin) - len(begin.lstrip()))
    return f"{begin}\n" + "".join(f"{indent}    {item},\n" for item in items) + f"{indent}{end}"


def generate(header: pathlib.Path = HEADER) -> str:
    text = read(header, set())
    constants = re.findall(r"#define CAIRN_(\w+) ([\d.]+) *$", text, re.MULTILINE)
    for body in re.findall(r"\benum \{(.*?)\};", text, re.DOTALL):
        constants += re.findall(r"CAIRN_(\w+) = (\d+)", body)
    parts = [BEGIN, *(f"{name} = {value}" for name, value in constants)]
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL)
    known = {name for name, _ in structs} - BYTES.keys()
    for struct, body in structs:
        if struct in known:
            fields = fields_of(" ".join(body.split()), known)
            base = "Sized" if fields[0].startswith('("struct_bytes"') else "Structure"
            declared = listed("    _fields_ = [", fields, "]")
            parts.append(f'\n\nclass {class_name(struct)}({base}):\n    """{struct}"""\n\n{declared}')
    rows = []
    declarations = re.compile(r"^CAIRN_API ([\w ]+?\*?) ?(cairn_\w+)\((.*?)\);", re.DOTALL | re.MULTILINE)
    for returned, function, body in declarations.findall(text):
        result = "None" if returned == "void" else type_of(returned, known, is_argument=False)
        arguments = arguments_of(" ".join(body.split()), known)
        rows.append(listed(f'    "{function}": ({result}, [', arguments, "])"))
    parts.append("\n\n# The result and the arguments. Handles are pointers, keys byte strings.")
    parts.append("FUNCTIONS: dict[str, tuple[object, list[object]]] = {")
    imports = (f"from ctypes import c_{name} as {alias}\n" for name, alias in sorted(ALIASES.items()))
    parts[0] = BEGIN.replace("ALIASES", "".join(imports))
    return "\n".join([*parts, *(f"{row}," for row in rows), "}"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generate(), encoding="utf-8")
