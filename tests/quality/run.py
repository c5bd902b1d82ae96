# SPDX-License-Identifier: Apache-2.0
"""Measures what recipes cost three real models, and keeps every figure as a line of JSON.

    build/venv/bin/python tests/quality/run.py [--models smollm2,gemma3,qwen2.5]
        [--recipes kivi:4,kivi:2] [--profiles plain,basis,mined,evaluate,daemon]
        [--tests forced,copy,written] [--texts A,B,alice] [--prefix 2048] [--daemon]

Without --tests it measures all that docs/results/quality.md shows. What RESULTS already holds, of the same
weights and the same text, is not measured again, so a run that was cut short goes on where it was;
--again measures it anew. --recipes takes names with a profile too, cairn:2.3/basis. Coding is the
codec's, through the C ABI; with --daemon it is a cairnd's, whose rows stand beside the codec's, and with
--dtype fp8_e4m3 that of an engine which keeps its cache in 8-bit floats (scale 1).
A model that is not there is skipped, and said to be.
report.py writes the figures into docs/results; quality.md there says what they mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import sys
import time

# One BLAS thread: results that repeat, and cores left for others. Before numpy is loaded.
for blas in ("OPENBLAS", "OMP", "MKL", "BLIS"):
    os.environ.setdefault(f"{blas}_NUM_THREADS", "1")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("client/python", "client/examples")]
sys.path.append(str(ROOT / "client" / "examples" / "demo"))

CACHE = ROOT / "build" / "quality-cache"
COPY_FIRST = 300  # the token of the prefix from which the copy test repeats
# Of the kinds of profile that not all recipes are measured with: those that are.
USER_RECIPES = "cairn:2.3,cairn-hot:2.4,cairn:4.3"
ONLY_WITH = {"mined": "cairn:2.3", "evaluate": USER_RECIPES, "daemon": USER_RECIPES}
# What docs/results/quality.md shows: (tests, texts, prefixes, profiles of recipes that need one, recipes or
# None: all there are).
SUITE = (
    ("forced", "A,B,alice", "2048", "plain,basis,mined", None),
    ("forced", "alice", "2048", "plain,basis", "cairn:2.2"),
    ("forced", "A,B,alice", "2048", "evaluate,daemon", USER_RECIPES),
    ("copy", "A", "2048", "plain,basis", None),
    ("forced", "A", "512,1024,4096", "plain", None),
    ("written", "A,B,alice", "2048", "plain", None),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="smollm2,gemma3,qwen2.5")
    parser.add_argument("--tests", help="forced, copy, written; without it: all of docs/results/quality.md")
    parser.add_argument("--texts", default="A,B,alice", help="with --tests")
    parser.add_argument("--prefix", default="2048", help="with --tests: tokens, multiples of 128")
    parser.add_argument("--scored", type=int, default=256, help="tokens")
    parser.add_argument("--recipes", help="all there are")
    parser.add_argument("--profiles", default="plain,basis", help="with --tests; others, too")
    parser.add_argument("--daemon", action="store_true", help="code by way of a cairnd")
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp8_e4m3", "fp8_e5m2"),
        default="bf16",
        help="of the cache: KV is rounded to it, and coded from it",
    )
    parser.add_argument("--again", action="store_true", help="measure what is there anew")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE)
    parser.add_argument("--results", type=pathlib.Path, default=CACHE / "results.jsonl")
    return parser.parse_args()


MAGNITUDES = "mixkvq"  # recipes that heed those of queries
IDENTITY = (
    "test", "model", "text", "prefix_tokens", "scored_tokens", "recipe", "profile", "through"
)  # fmt: skip


def read_results(path: pathlib.Path) -> dict[tuple, dict]:
    """The newest line of every identity."""
    if not path.exists():
        return {}
    rows = [{"profile": None} | json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(row[name] for name in IDENTITY): row for row in rows}


def wanted_of(recipes: str | None, kinds: list[str]) -> list:
    """Recipes; those that need a profile with each of `kinds`, or with the one that a name says.
    An unknown name is an error that the caller sees."""
    import eviction
    from cairn.evaluate.calibrate import KINDS
    from cairn.evaluate.recipes import Candidate, candidates

    names = recipes.split(",") if recipes else None
    found = [one for one in eviction.READERS if names is None or one.recipe in names]
    coded = None if names is None else [n for n in names if n not in eviction.ONLY_PLANNED]
    ours = [] if coded is None else [n for n in coded if n.rpartition("/")[2] in ONLY_WITH]
    found += [Candidate(*name.rsplit("/", 1)) for name in ours]
    for one in candidates(None if coded is None else [n for n in coded if n not in ours]):
        if one.profile not in KINDS or (coded is not None and one.name in coded):
            found.append(one)  # without a profile, with a bank, or with the kind that was named
        elif one.profile == KINDS[0]:  # where each of them is once
            for kind in kinds:
                if one.recipe in ONLY_WITH.get(kind, one.recipe).split(","):
                    found.append(Candidate(one.recipe, kind))
    return found


def identity_of(test: str, case, one, through: str) -> tuple:
    place = (case.model, case.text, case.prefix_tokens, case.scored_tokens)
    return (test, *place, one.recipe, one.profile, through)


def through_of(one, coder) -> str:
    """What codes it: readers are not the daemon's."""
    import eviction

    return "codec" if one in eviction.READERS else coder.NAME


def is_current(row: dict | None, sources: dict) -> bool:
    """A row of the same weights and text. Older rows have no digest of the text."""
    return row is not None and all(row.get(name, now) == now for name, now in sources.items())


def measure(
    arguments: argparse.Namespace, test: str, wanted: list, experiment, profiles, coder
) -> None:
    import eviction
    from cairn import FailedPreconditionError
    from cairn.evaluate.code import Inputs

    case, engine = experiment.case, experiment.engine
    prefix = experiment.k_bits, experiment.v_bits
    for one in wanted:
        begin = time.monotonic()
        is_reader = one in eviction.READERS
        made = profiles.of(one.profile, prefix) if one.profile and not is_reader else None
        inputs = Inputs()
        if one.recipe.startswith(MAGNITUDES):
            inputs = Inputs(query_magnitudes=dict(enumerate(profiles.query_magnitudes())))
        try:
            about = engine.model.geometry, engine.revision, one.recipe
            if is_reader:
                coded = eviction.code(one, experiment)
            else:
                coded = coder.code(*about, *prefix, made, inputs)
        except FailedPreconditionError as error:
            print(f"{one.name} is not measured: {error}")
            continue
        found = experiment.written(coded) if test == "written" else experiment.forced(coded)
        identity = identity_of(test, case, one, through_of(one, coder))
        row = dict(zip(IDENTITY, identity, strict=True))
        row |= {"bits": coded.bits} | found | sources_of(engine, case, arguments.cache)
        with open(arguments.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{describe(row)}  {time.monotonic() - begin:.0f} s", flush=True)


def sources_of(engine, case, cache: pathlib.Path) -> dict:
    """What a row is of, besides its identity."""
    import texts

    digest = engine.text_digest(case.text, case.prefix_tokens + case.scored_tokens + 1)
    source = texts.version(case.text, cache)
    return {"text_source": source, "text_digest": digest, "weights": engine.revision[:16]}


def describe(row: dict) -> str:
    line = f"{row['test']:8}{row['model']:8} {row['text']:6}{row['prefix_tokens']:5}"
    line += f" {row['recipe']:10} {row['profile'] or '':6}"
    line += f"{row['bits']:6.3f} bits"
    if row["test"] == "written":
        return f"{line}  regret {row['regret']:.4f}, {row['same_tokens']} tokens the same"
    line += f"  KL {row['kl']:.5f} ± {row['kl_error']:.5f} (trimmed {row['kl_trimmed']:.5f})"
    return f"{line}  ppl × {row['perplexity_ratio']:.4f}  top {row['same_top']:.1%}"


def run_model(arguments: argparse.Namespace, name: str, coder, seen: dict) -> None:
    import eviction
    from profiles import Profiles
    from protocol import Case, Engine, Experiment

    engine = Engine(name, arguments.cache)
    profiles = Profiles(engine, arguments.cache, arguments.bin_dir)
    suite = SUITE
    if arguments.tests:
        suite = ((arguments.tests, arguments.texts, arguments.prefix, arguments.profiles, None),)
    for tests, texts_named, prefixes, kinds, recipes in suite:
        if recipes and arguments.recipes not in (None, recipes):
            continue
        cases = itertools.product(tests.split(","), texts_named.split(","), prefixes.split(","))
        for test, text, prefix in cases:
            copy_first = COPY_FIRST if test == "copy" else -1
            case = Case(name, text, int(prefix), arguments.scored, copy_first)
            sources = sources_of(engine, case, arguments.cache)
            wanted = [
                one
                for one in wanted_of(arguments.recipes or recipes, kinds.split(","))
                if test != "written" or one not in eviction.READERS
                if arguments.again
                or not is_current(
                    seen.get(identity_of(test, case, one, through_of(one, coder))), sources
                )
            ]
            if wanted:
                measure(arguments, test, wanted, Experiment(engine, case), profiles, coder)


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault(
        "CAIRN_LIBRARY", str(arguments.bin_dir.parent / "lib" / "libcairn.so")
    )
    from coder import Codec
    from lm.weights import MissingModelError
    from product import Product

    arguments.cache = arguments.cache.resolve()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    seen = read_results(arguments.results)
    wanted_of(arguments.recipes, arguments.profiles.split(","))  # a wrong name ends it here
    if arguments.daemon and arguments.dtype != "bf16":
        raise SystemExit("--daemon measures a cache of bf16: leave --dtype out")
    with Product(arguments.bin_dir) if arguments.daemon else Codec(arguments.dtype) as coder:
        for name in arguments.models.split(","):
            try:
                run_model(arguments, name, coder, seen)
            except MissingModelError as missing:
                print(f"{name} is skipped: {missing}")


if __name__ == "__main__":
    main()
