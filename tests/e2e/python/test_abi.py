# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs lie in memory as the compiler lays out those of cairn.h."""

import ctypes
import re
import shutil
import subprocess

import cairn
import pytest
from cairn import _ffi
from cairn.attention import NativeJob
from cairn.mine import NativeSample, NativeText
from conftest import ROOT

STRUCTS = {
    "cairn_slice": _ffi.Slice,
    "cairn_connect_options": _ffi.ConnectOptions,
    "cairn_group_spec": _ffi.GroupSpec,
    "cairn_space_spec": _ffi.SpaceSpec,
    "cairn_space_info": _ffi.SpaceInfo,
    "cairn_key_extra": _ffi.KeyExtra,
    "cairn_match_options": _ffi.MatchOptions,
    "cairn_matched_block": _ffi.MatchedBlock,
    "cairn_match_result": _ffi.MatchResult,
    "cairn_prefetch_options": _ffi.PrefetchOptions,
    "cairn_prefetch_result": _ffi.PrefetchResult,
    "cairn_view": _ffi.View,
    "cairn_memory": _ffi.Memory,
    "cairn_put_request": _ffi.PutRequest,
    "cairn_get_request": _ffi.GetRequest,
    "cairn_tier_stats": _ffi.TierStats,
    "cairn_stats": _ffi.Stats,
    "cairn_counters": _ffi.Counters,
    "cairn_paged_plane": _ffi.PagedPlane,
    "cairn_paged_cache": _ffi.PagedCache,
    "cairn_paged_request": _ffi.PagedRequest,
    "cairn_event": _ffi.Event,
    "cairn_event_batch": _ffi.EventBatch,
    "cairn_image_info": _ffi.ImageInfo,
    "cairn_image_spec": _ffi.ImageSpec,
    "cairn_attention": _ffi.Attention,
    "cairn_layer_statistics": _ffi.LayerStatistics,
    "cairn_token_budget": _ffi.TokenBudget,
    "cairn_attend_job": NativeJob,
    "cairn_sample": NativeSample,
    "cairn_sample_text": NativeText,
}
HEADER = ROOT / "client" / "c" / "cairn.h"
HEADERS = "".join(
    (HEADER.parent / name).read_text()
    for name in (
        "cairn.h",
        "cairn_attend.h",
        "cairn_events.h",
        "cairn_figures.h",
        "cairn_image.h",
        "cairn_mine.h",
        "cairn_paged.h",
        "cairn_side_objects.h",
        "cairn_tokens.h",
    )
)
PACKAGE = ROOT / "client" / "python" / "cairn"


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
        f'#include "{HEADER}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run([compiler, "-std=c11", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.split("\n")[:-1] == expected


def test_every_struct_is_here():
    declared = set(re.findall(r"^} (cairn_\w+);", HEADERS, re.MULTILINE))
    assert declared - {"cairn_key", "cairn_lease"} == set(STRUCTS)


def test_every_function_is_here():
    declared = re.findall(r"^CAIRN_API [\w ]+\*?\s*\b(cairn_\w+)\(", HEADERS, re.MULTILINE)
    assert len(declared) > 30 and set(_ffi._SIGNATURES) == set(declared)
    used = "".join(path.read_text() for path in PACKAGE.glob("*.py") if path.name != "_ffi.py")
    used += re.split(r"^_lock = ", (PACKAGE / "_ffi.py").read_text(), flags=re.MULTILINE)[1]
    unused = {name for name in declared if not re.search(rf"\b{name}\b", used)}
    # cairn.keys derives names in Python, so that schedulers need no library; test_keys.py compares.
    derived = {"cairn_fingerprint", "cairn_derive_key", "cairn_derive_chain", "cairn_opaque_key"}
    assert unused == derived
    assert _ffi.library_version() == cairn.__version__
    assert re.search(rf"#define CAIRN_ABI_VERSION {_ffi.ABI_VERSION}\b", HEADERS)
