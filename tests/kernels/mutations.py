# SPDX-License-Identifier: Apache-2.0
"""Kernels with a mistake in them do not pass the tests.

Each mutation is one text of a kernel body replaced by another. The emulated device, and what else of a kernel test has that body, are
compiled with it, and the test has to fail.

usage: mutations.py BUILD_FOLDER [NAME…]       after that folder has built the kernel tests; build/tsan has a list of its own
       mutations.py --texts                    only whether each text stands once where it is to be replaced
"""

import concurrent.futures
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from mutation_lists import attend, decode, encode, mine

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS_MAX = 600
PASSED = "the tests pass"
RACES_FILTER = "*StripsOfEvery*:*PlanesOfEvery*:*StepsOfEvery*:*ManyTilesOfAWarp*:*SourceBitsOfWholeHeads*:*SummedInOrder*:*OfSmallNorms*:*SmallNormsAreRows*:*HolesAreAs*"  # what the thread sanitizer runs

LAUNCHES = "cairn_kernel_device_emulated"  # the target where kernel bodies are compiled, a family a source

# name: (tests of which one has to fail, file, text, what stands there instead)
MUTATIONS = decode.MUTATIONS | encode.MUTATIONS | attend.MUTATIONS | mine.MUTATIONS
RACES = decode.RACES | encode.RACES | attend.RACES | mine.RACES


@functools.cache
def words_of(build, program, target):
    """How each source of `target` is compiled, with the object that is made of it, and how the test's program is linked: without outputs and
    without what is only for the build."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", f"bin/{program}"], check=True, text=True, capture_output=True)
    lines = lines.stdout.splitlines()
    compiled = [compile_words_of(shlex.split(line)) for line in lines if f"/{target}.dir/" in line and " -c " in line]
    # The program is linked by the last of them: ": && c++ ... && :".
    link = shlex.split(lines[-1].split("&&")[1])
    out = link.index("-o")
    return compiled, [word for i, word in enumerate(link) if i not in (out, out + 1)]


def compile_words_of(line):
    start = next(i for i, word in enumerate(line) if re.fullmatch(r".*/(c\+\+|g\+\+|clang\+\+)(-\d+)?", word))
    made = line[line.index("-o") + 1]
    pairs = {"-MT", "-MF", "-o", "-include"}
    kept = []
    words = iter(line[start:])
    for word in words:
        if word in pairs:
            next(words)
        elif word not in ("-MD", "-Winvalid-pch"):
            kept.append(word)
    return kept, made


@functools.cache
def includes(build, made, file):
    """Whether the build compiled `made` with the file."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps", made], check=True, text=True, capture_output=True).stdout
    return any(line.strip().endswith(f"/{file}") for line in listed.splitlines())


def run(build, name):
    """None where the mutation was caught; else what happened."""
    tests, file, old, new = (MUTATIONS | RACES)[name]
    text = (ROOT / file).read_text()
    if text.count(old) != 1:
        return f"its text stands {text.count(old)} times in {file}"
    for test in tests:
        if (result := run_test(build, name, test, file, text.replace(old, new))) != PASSED:
            return result
    return PASSED


def run_test(build, name, test, file, mutated_text):
    """PASSED, None where the test fails, or what happened else."""
    with tempfile.TemporaryDirectory() as folder:
        mutated = pathlib.Path(folder) / file
        mutated.parent.mkdir(parents=True)
        mutated.write_text(mutated_text)
        program, objects = pathlib.Path(folder) / "test", []
        of_test = f"kernels_{pathlib.Path(test).stem}"
        ((_, of_program),), link_words = words_of(build, of_test, of_test)
        link_words = list(link_words)
        for target in (LAUNCHES, of_test):
            for compile_words, made in words_of(build, of_test, target)[0]:
                if not includes(build, made, file):
                    continue
                objects.append(f"{folder}/{len(objects)}.o")
                # The folder stands before the tree among those that are searched. A mutation may make a warning of the compiler, which is no
                # test. -Og compiles in half the time of -O2, and compiling is most of what a mutation costs.
                line = [compile_words[0], f"-I{folder}", *compile_words[1:], "-Og", "-w", "-o", objects[-1]]
                if subprocess.run(line, cwd=build, capture_output=True).returncode != 0:
                    return "it does not compile"
                if made == of_program:
                    link_words.remove(made)
        # Before the library that has the others, of which those are then left out.
        subprocess.run([link_words[0], *objects, *link_words[1:], "-o", program], cwd=build, check=True)
        chosen = [f"--gtest_filter={RACES_FILTER}"] if name in RACES else []
        tsan = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"}
        try:
            done = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief", *chosen], capture_output=True, timeout=SECONDS_MAX,
                                  env=os.environ | tsan)
        except subprocess.TimeoutExpired:
            return f"the tests take more than {SECONDS_MAX} s"
        return PASSED if done.returncode == 0 else None


def check_texts():
    wrong = [f"{name}: its text stands {count} times in {file}" for name, (_, file, old, _) in (MUTATIONS | RACES).items()
             if (count := (ROOT / file).read_text().count(old)) != 1]
    print("\n".join([*wrong, f"{len(MUTATIONS)} mutations and {len(RACES)} races, {len(wrong)} findings"]))
    return 1 if wrong else 0


def main():
    if sys.argv[1] == "--texts":
        return check_texts()
    build = pathlib.Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or list(RACES if build.name == "tsan" else MUTATIONS)
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, result in zip(names, pool.map(lambda n: run(build, n), names)):
            print(f"{name:24} {'caught' if result is None else 'MISSED: ' + result}", flush=True)
            missed += result is not None
    print(f"{len(names) - missed} of {len(names)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
