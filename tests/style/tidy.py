# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that a script can check in a second."""

import re
import sys

import tree

CODE = (".h", ".cc", ".inl", ".cu", ".c")
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt", ".proto", "Makefile")
LINES_MAX = 1500  # a file ends where its subject ends; longer ones want a reason
FUNCTION_LINES_MAX = 70

# shared_ptr needs a line here with its reason: (path, reason). Prometheus-cpp's and gRPC's interfaces ask for theirs.
SHARED_PTR_ALLOWED = {
    "service/daemon": "as service/tier/gpu/",
    "service/front/": "prometheus-cpp and gRPC take and return shared_ptr",
    "service/get/": "gets that wait for one read of a tier share its bytes, and the read has them too",
    "service/put/": "a device that is late keeps what it encodes, while the put goes on with it",
    "service/upkeep/pending_encodes": "the same",
    "service/upkeep/write_down": "writes under way share what describes their space, and where their chain goes",
    "service/peer/": "gRPC channels are shared_ptr",
    "service/members/": "readers keep a view while members publish the next one",
    "service/tier/gpu/": "the tier and the codec work on one device, and either may end first",
    "service/codec/": "the same; and a device that is late keeps what it reads while the processor does the work",
    "service/tier/image_facts": "names of a block are in the index, in events that tell of it and in writes of its images, which end in any order",
    "service/tier/ssd/ledger": "RocksDB's options take shared_ptr",
    "service/tier/ssd/bay": "a device that leaves is destroyed once the calls that have it are over",
    "service/tier/ssd/ssd_tier": "the same",
    "transport/local/": "a client's buffers outlive the connection that mapped their region; a thread that a peer's descriptor holds up outlives the server",
    "client/cpp/lent_pieces": "movers of a device and the mapped memory share what is registered, and either may end first",
    "client/cpp/device_impl": "the same",
    "client/cpp/side_objects": "a get may go on with a side object that the cache has let go",
    "service/peer/": "a channel's verifier and a lease outlive the session that made them",
    "service/remote/": "a run of blocks is shared by the table, its readers and the gets that wait",
    "client/cpp/rpc": "gRPC channels are shared_ptr",
    "client/cpp/tls": "gRPC credentials are shared_ptr",
    "client/cpp/control": "gRPC channels are shared_ptr",
}

BAD_NAMES = re.compile(r"(^|[_/])(manager|helper|helpers|util|utils|handler|misc|common_utils)([_./]|$)")
BAD_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"//[^\n]*", "", text)


def check_code(path, text):
    code = strip_comments(text)
    rules = [
        (r"\babsl::Mutex|absl/synchronization/mutex\.h", "", "locks are cairn::Mutex of base/mutex.h"),
        (r"\bstd::(recursive_|shared_|timed_)?mutex\b|\bstd::(lock_guard|scoped_lock|condition_variable)\b",
         "base/mutex.h", "locks are cairn::Mutex of base/mutex.h"),
        (r"\bthrow\b", "", "our code throws nothing"),
        (r"\busing namespace\b", "", "no using-directives"),
        (r"-ffast-math", "", "never fast-math"),
    ]
    for pattern, allowed, why in rules:
        if path.startswith("tests/") and ("mutex" in pattern or "namespace" in pattern):
            continue
        if path != allowed and re.search(pattern, code):
            yield f"{path}: {why}"
    if re.search(r"\b(shared_ptr|make_shared)\b", code) and not path.startswith("tests/"):
        if not path.startswith(tuple(SHARED_PTR_ALLOWED)):
            yield f"{path}: shared_ptr without a line in tests/style/tidy.py's allow-list"
    if path.endswith(".h") and "#pragma once" not in text and not path.startswith("client/c/"):
        yield f"{path}: no #pragma once"
    yield from check_functions(path, code)


def check_functions(path, code):
    """Relies on clang-format: a function starts on a line that ends in '{' and ends at a '}' of the same indent."""
    lines = code.split("\n")
    for first, line in enumerate(lines):
        start = re.match(r"( ?| {2})(\S.*)?\)( const| noexcept| override| final|\s*->\s*[\w:<>*& ]+)* \{$", line)
        if not start or re.match(r"\s*(namespace|class|struct|enum|union|if|for|while|switch|else|do)\b", line):
            continue
        close = start.group(1) + "}"
        for last in range(first + 1, len(lines)):
            if lines[last].startswith(close):
                if last - first + 1 > FUNCTION_LINES_MAX:
                    yield f"{path}:{first + 1}: function of {last - first + 1} lines; the limit is {FUNCTION_LINES_MAX}"
                break


def check(path, text):
    if BAD_NAMES.search(path):
        yield f"{path}: the name says nothing; see the words not used in CONTRIBUTING.md"
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:5]):
        yield f"{path}: no SPDX line"
    if text.count("\n") > LINES_MAX:
        yield f"{path}: {text.count(chr(10))} lines; the limit is {LINES_MAX}"
    if path != "tests/style/tidy.py" and (word := BAD_WORDS.search(text)):
        yield f"{path}: {word.group()} left in"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"
    if path.endswith(CODE):
        yield from check_code(path, text)


def main():
    return tree.report([f for path, text in tree.texts(CODE + SCRIPTS).items() for f in check(path, text)])


if __name__ == "__main__":
    sys.exit(main())
