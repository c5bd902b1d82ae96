# SPDX-License-Identifier: Apache-2.0
"""A daemon that hands on what a tenant has left in memory does not pass test_between.py.

Each mutation is one text of the daemon replaced by another. cairnd is linked with it, and the test has to find the first tenant's word in
an answer to the second one.

usage: between_mutations.py BUILD_FOLDER LIBRARY   after that folder has built cairnd and libcairn
       between_mutations.py --texts                only whether each text stands once where it is to be replaced
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kernels"))

import mutations  # noqa: E402

SECONDS_MAX = 600
TRANSCODE = "service/get/transcode.cc"
# name: (library, file, text, what stands there instead)
MUTATIONS = {
    "nothing_decoded": (
        "cairn_service_get", TRANSCODE, "CAIRN_RETURN_IF_ERROR(DecodeInto(op, source.bytes()));", "",
    ),
    "half_decoded": (
        "cairn_service_get", TRANSCODE, "CAIRN_RETURN_IF_ERROR(DecodeInto(op, source.bytes()));",
        """Extent own = *tiers_.host().AllocateStaging(op.source_bytes);
           CAIRN_RETURN_IF_ERROR(DecodeInto(op, own.bytes()));
           std::copy_n(own.bytes().begin(), own.bytes().size() / 2, source.bytes().begin());""",
    ),
}  # fmt: skip


def link(build, folder, library, file, mutated_text):
    """cairnd with the mutated text, in the folder."""
    mutated = folder / pathlib.Path(file).name
    mutated.write_text(mutated_text)
    compiled, link_words = mutations.words_of(build, "cairnd", library)
    objects = []
    for words, made in compiled:
        if not mutations.includes(build, made, file):
            continue
        source = pathlib.Path(words[-1])
        if source != ROOT / file:  # of several, which are compiled together
            together = folder / "together.cc"
            together.write_text(source.read_text().replace(str(ROOT / file), str(mutated)))
            source = together
        objects.append(str(folder / f"{len(objects)}.o"))
        line = [*words[:-1], str(source if source != ROOT / file else mutated), "-w", "-o", objects[-1]]
        subprocess.run(line, cwd=build, check=True, capture_output=True)
    assert objects, f"{library} has no {file}"
    # Before the library that has the others, of which those are then left out.
    subprocess.run([link_words[0], *objects, *link_words[1:], "-o", folder / "cairnd"], cwd=build, check=True)


def run(build, client, name):
    """None where the mutation was caught; else what happened."""
    library, file, old, new = MUTATIONS[name]
    text = (ROOT / file).read_text()
    if text.count(old) != 1:
        return f"its text stands {text.count(old)} times in {file}"
    with tempfile.TemporaryDirectory() as folder:
        link(build, pathlib.Path(folder), library, file, text.replace(old, new))
        environment = os.environ | {"CAIRN_LIBRARY": client, "CAIRN_BIN_DIR": folder}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_between.py", "-k", "no_byte and local"]
        done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
        if done.returncode == 0:
            return "the test passes"
        return None if "AssertionError" in done.stdout and "assert SECRET not in" in done.stdout else done.stdout[-3000:]


def main():
    if sys.argv[1] == "--texts":
        counts = [(ROOT / file).read_text().count(old) for _, file, old, _ in MUTATIONS.values()]
        print(f"{len(counts)} mutations, {len(counts) - counts.count(1)} findings")
        return 0 if set(counts) == {1} else 1
    build, client = pathlib.Path(sys.argv[1]).resolve(), os.path.abspath(sys.argv[2])
    missed = 0
    for name in MUTATIONS:
        result = run(build, client, name)
        print(f"{name:24} {'caught' if result is None else 'MISSED: ' + result}", flush=True)
        missed += result is not None
    print(f"{len(MUTATIONS) - missed} of {len(MUTATIONS)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
