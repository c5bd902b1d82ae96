# SPDX-License-Identifier: Apache-2.0
"""Checks the arrows between folders, the homes of foreign headers, and that neither includes nor imports make a circle.

A unit is a folder, or a few files of one, that the arrows treat alike. The longest matching prefix of a path names its unit.
"""

import ast
import re
import sys

import tree

SERVICE_BELOW = {"service/limits", "service/memory", "service/tier", "service/index", "service/codec", "service/state"}
# What coding a tile is made of, and what stands above it.
CODING = {f"codecs/{d}" for d in "types numbers checksum pack side recipe backend format stages forms".split()}
CODECS = CODING | {"codecs/image", "codecs/transform", "codecs/mine"}
PATH = {"base", "proto", "kernels", "transport", "service/config"} | CODECS | SERVICE_BELOW

# unit -> what it may include besides itself
ARROWS = {
    "base": set(),
    "codecs/types": set(),
    "codecs/numbers": set(),
    "codecs/checksum": set(),
    "codecs/pack": {"codecs/types", "codecs/numbers"},
    "codecs/side": {"codecs/types", "codecs/numbers", "codecs/pack"},
    "codecs/recipe": {"codecs/types", "codecs/numbers", "codecs/pack", "codecs/side"},
    "codecs/backend": {"codecs/types", "codecs/numbers", "codecs/checksum", "codecs/pack", "codecs/side"},
    "codecs/format": CODING - {"codecs/format", "codecs/stages", "codecs/forms"},
    "codecs/stages": CODING - {"codecs/stages", "codecs/forms"},
    "codecs/forms": CODING,
    "codecs/image": CODING,
    "codecs/transform": CODING | {"codecs/image"},
    "codecs/mine": CODING - {"codecs/stages", "codecs/forms"},
    "kernels": CODECS,
    "proto": {"base"} | CODECS,
    "transport": {"base", "proto", "codecs/checksum"},
    "client": {"base", "proto", "kernels", "transport"} | CODECS,
    # cairnctl checks files with the daemon's own code.
    "client/cli": {"base", "proto", "kernels", "transport", "client", "service/policy"} | CODECS,
    "service/limits": {"base", "proto"} | CODECS,
    "service/config": {"base", "service/limits", "service/policy"} | CODECS,
    "service/policy": {"base"},
    "service/members": {"base", "proto", "service/config", "service/limits"},
    # A member is a client of the others.
    "service/peer": {"base", "proto", "transport", "client", "service/config", "service/limits", "service/members"},
    "service/memory": {"base", "transport", "kernels", "service/limits"},
    "service/tier": PATH - {"transport", "service/config", "service/tier", "service/index", "service/codec", "service/state"},
    # The tier on drives; those above know its seam alone.
    "service/tier/ssd": {"base", "proto", "service/limits", "service/tier"} | CODECS,
    # The tier on a device, likewise.
    "service/tier/gpu": {"base", "kernels", "service/limits", "service/memory", "service/tier"} | CODECS,
    "service/index": {"base", "proto", "service/limits", "service/memory", "service/tier"} | CODECS,
    # What a device codes for those above.
    "service/codec": {"base", "kernels", "service/limits", "service/memory", "service/tier", "service/index"} | CODECS,
    # What put, get and front share of a running daemon: spaces, sessions, the path pool, requests and replies.
    "service/state": PATH - {"service/state"},
    "service/put": PATH,
    "service/get": PATH,
    "service/upkeep": PATH,
    # Puts what other members have.
    "service/remote": PATH | {"service/put", "service/members", "service/peer", "client"},
    "service/front": PATH | {"service/put", "service/get", "service/upkeep", "service/members", "service/peer", "service/remote"},
}
EVERYTHING = {"service", "tests"}  # service/main.cc and the daemon wire it all; nobody includes tests/

UNITS = [
    ("service/limits", "service/limits"),
    ("service/config", "service/config"),
    ("service/policy/", "service/policy"),
    ("client/cli/", "client/cli"),
    ("service/spaces", "service/state"),
    ("service/space_coding", "service/state"),
    ("service/mining_turns", "service/state"),
    ("service/audit", "service/state"),
    ("service/sessions", "service/state"),
    ("service/path_pool", "service/state"),
    ("service/recovery", "service/state"),
    ("service/active_backend", "service/state"),
    ("service/request", "service/state"),
    ("service/op_pool", "service/state"),
    ("service/replies", "service/state"),
    ("service/loan_budget", "service/state"),
    ("service/data_metrics", "service/state"),
    ("service/tier/ssd/", "service/tier/ssd"),
    ("service/tier/gpu/", "service/tier/gpu"),
] + [(f"service/{d}/", f"service/{d}") for d in "memory tier index codec members peer put get upkeep remote front".split()]
UNITS += [(f"{d}/", d) for d in sorted(CODECS)]

# header pattern -> where it may be included (tests may include anything)
HOMES = [
    (r"cuda|cub/|thrust/|nvtx", ["kernels/"]),
    (r"uc[pst]/", ["transport/ucx/"]),
    (r"rocksdb/", ["service/tier/ssd/ledger"]),
    (r"liburing", ["service/tier/ssd/uring_engine"]),
    (r"prometheus/|civetweb", ["service/front/"]),
    (r"grpc(pp)?/|.*\.grpc\.pb\.h$", ["service/front/", "service/process", "service/members/etcd_source", "service/peer/", "client/cpp/"]),
    (r".*\.pb\.h$|google/protobuf/",
     ["proto/", "service/front/", "service/process", "service/members/kubernetes_source", "service/peer/", "client/"]),
    (r"curl/", ["service/members/kubernetes_source"]),
    (r"(imm|x86|[nwstepa]mm)intrin\.h$|(imm|x86)intrin", ["codecs/backend/cpu/", "codecs/checksum"]),
    (r"openssl/evp\.h", ["proto/sha256", "transport/tls/"]),
    (r"openssl/", ["transport/tls/"]),
    (r"yaml-cpp/", ["service/config", "service/policy/"]),
    (r"(gtest|gmock|benchmark)/", []),
    # codecs and kernels build with nothing but a compiler; the C ABI's header is C.
    (r"absl/", ["base/", "proto/", "transport/", "service/", "client/"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
SOURCES = (".h", ".cc", ".inl", ".cu", ".c")


def unit_of(path):
    for prefix, unit in UNITS:
        if path.startswith(prefix):
            return unit
    return path.split("/")[0]


def includes(text):
    return [m.group(2) for m in INCLUDE.finditer(text)]


def check_arrows(files):
    findings = []
    for path, text in files.items():
        source = unit_of(path)
        for target_path in includes(text):
            if "/" not in target_path or target_path.split("/")[0] not in TOP:
                continue
            target = unit_of(target_path)
            if target == source or source in EVERYTHING and target != "tests" or source == "tests":
                continue
            if target not in ARROWS.get(source, set()):
                findings.append(f"{path}: {source} may not include {target_path} ({target})")
    return findings


def check_homes(files):
    findings = []
    for path, text in files.items():
        if path.startswith("tests/"):
            continue
        for header in includes(text):
            for pattern, homes in HOMES:
                if re.match(pattern, header):
                    if not path.startswith(tuple(homes)):
                        findings.append(f"{path}: <{header}> has its home in {' '.join(homes) or 'tests/'}")
                    break
    return findings


def find_circle(graph):
    """One circle of the graph {node: set of nodes} as a list, or None."""
    state, trail = {}, []

    def visit(node):
        state[node] = 1
        trail.append(node)
        for target in sorted(graph.get(node, ())):
            if state.get(target) == 1:
                return trail[trail.index(target):] + [target]
            if target not in state and (circle := visit(target)):
                return circle
        trail.pop()
        state[node] = 2
        return None

    for node in sorted(graph):
        if node not in state and (circle := visit(node)):
            return circle
    return None


def check_circles(files):
    findings = []
    by_file = {p: {h for h in includes(t) if h in files and h != p} for p, t in files.items()}
    if circle := find_circle(by_file):
        findings.append("circle of files: " + " -> ".join(circle))
    by_unit = {}
    for path, targets in by_file.items():
        units = {unit_of(t) for t in targets} - {unit_of(path)}
        by_unit.setdefault(unit_of(path), set()).update(units)
    if circle := find_circle(by_unit):
        findings.append("circle of folders: " + " -> ".join(circle))
    return findings


PACKAGE = "client/python/"


def loaded_imports(node):
    """Import statements that run when a module is loaded. Those that only type checkers see count, too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from loaded_imports(child)


def imported_files(path, text, files):
    """Files of the package that the file imports by relative imports, as the package itself does throughout."""
    for found in loaded_imports(ast.parse(text)):
        if not isinstance(found, ast.ImportFrom) or not found.level:
            continue
        folder = path.split("/")[: -found.level] + (found.module or "").split(".")
        base = "/".join(part for part in folder if part)
        for name in found.names:
            candidates = f"{base}/{name.name}.py", f"{base}/{name.name}/__init__.py", f"{base}.py", f"{base}/__init__.py"
            yield next((file for file in candidates if file in files), path)


def check_python_circles(files):
    graph = {p: set(imported_files(p, t, files)) - {p} for p, t in files.items()}
    circle = find_circle(graph)
    return ["circle of modules: " + " -> ".join(circle)] if circle else []


TOP = {"base", "codecs", "kernels", "proto", "transport", "service", "client", "tests"}


def main():
    files = {p: t for p, t in tree.texts(SOURCES).items() if p.split("/")[0] in TOP}
    package = {p: t for p, t in tree.texts((".py",)).items() if p.startswith(PACKAGE)}
    return tree.report(
        check_arrows(files) + check_homes(files) + check_circles(files) + check_python_circles(package)
    )


if __name__ == "__main__":
    sys.exit(main())
