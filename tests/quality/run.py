# SPDX-License-Identifier: Apache-2.0
"""Measures what recipes cost two real models, and keeps every figure as a line of JSON.

    build/venv/bin/python tests/quality/run.py [--models smollm2,gemma3] [--recipes kivi:4,kivi:2]
        [--tests forced,copy,written] [--texts A,B,alice] [--prefix 2048]

Without --tests it measures all that docs/quality.md shows. What RESULTS already holds is not
measured again, so a run that was cut short goes on where it was; --again measures it anew.
report.py writes the figures into docs/quality.md, which says what they mean.
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
RECIPES = "raw,exact,exact:fast,kivi:8,kivi:4,kivi:4+,kivi:2,kivi:2+"
COPY_FIRST = 300  # the token of the prefix from which the copy test repeats
# What docs/quality.md shows: (tests, texts, prefixes).
SUITE = (
    ("forced", "A,B,alice", "2048"),
    ("copy", "A", "2048"),
    ("forced", "A", "512,1024,4096"),
    ("written", "A,B,alice", "2048"),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--tests", help="forced, copy, written; without it: all of docs/quality.md")
    parser.add_argument("--texts", default="A,B,alice", help="with --tests")
    parser.add_argument("--prefix", default="2048", help="with --tests: tokens, multiples of 128")
    parser.add_argument("--scored", type=int, default=256, help="tokens")
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--again", action="store_true", help="measure what is there anew")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--cache", type=pathlib.Path, default=CACHE)
    parser.add_argument("--results", type=pathlib.Path, default=CACHE / "results.jsonl")
    return parser.parse_args()


IDENTITY = ("test", "model", "text", "prefix_tokens", "scored_tokens", "recipe")


def read_results(path: pathlib.Path) -> dict[tuple, dict]:
    """The newest line of every identity."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(row[name] for name in IDENTITY): row for row in rows}


def missing_recipes(arguments: argparse.Namespace, test: str, case, seen: dict) -> list[str]:
    recipes = arguments.recipes.split(",")
    if arguments.again:
        return recipes
    return [recipe for recipe in recipes if identity_of(test, case, recipe) not in seen]


def identity_of(test: str, case, recipe: str) -> tuple:
    return (test, case.model, case.text, case.prefix_tokens, case.scored_tokens, recipe)


def measure(
    arguments: argparse.Namespace, test: str, recipes: list[str], experiment, engine, product
) -> None:
    import texts

    case = experiment.case
    for recipe in recipes:
        begin = time.monotonic()
        coded = product.code(
            engine.model.geometry, engine.revision, recipe, experiment.k_bits, experiment.v_bits
        )
        found = experiment.written(coded) if test == "written" else experiment.forced(coded)
        row = dict(zip(IDENTITY, identity_of(test, case, recipe), strict=True))
        row |= {"bits": coded.bits} | found
        row["text_source"] = texts.version(case.text, arguments.cache)
        row["weights"] = engine.revision[:16]
        with open(arguments.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{describe(row)}  {time.monotonic() - begin:.0f} s", flush=True)


def describe(row: dict) -> str:
    line = f"{row['test']:8}{row['model']:8} {row['text']:6}{row['prefix_tokens']:5}"
    line += f" {row['recipe']:8} {row['bits']:6.3f} bits"
    if row["test"] == "written":
        return f"{line}  regret {row['regret']:.4f}, {row['same_tokens']} tokens the same"
    line += f"  KL {row['kl']:.5f} ± {row['kl_error']:.5f} (trimmed {row['kl_trimmed']:.5f})"
    return f"{line}  ppl × {row['perplexity_ratio']:.4f}  top {row['same_top']:.1%}"


def run_model(arguments: argparse.Namespace, name: str, product, seen: dict) -> None:
    from protocol import Case, Engine, Experiment

    engine = Engine(name, arguments.cache)
    suite = SUITE
    if arguments.tests:
        suite = ((arguments.tests, arguments.texts, arguments.prefix),)
    for tests, texts_named, prefixes in suite:
        wanted = itertools.product(tests.split(","), texts_named.split(","), prefixes.split(","))
        for test, text, prefix in wanted:
            copy_first = COPY_FIRST if test == "copy" else -1
            case = Case(name, text, int(prefix), arguments.scored, copy_first)
            if missing := missing_recipes(arguments, test, case, seen):
                measure(arguments, test, missing, Experiment(engine, case), engine, product)


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault(
        "CAIRN_LIBRARY", str(arguments.bin_dir.parent / "lib" / "libcairn.so")
    )
    from product import Product

    arguments.cache = arguments.cache.resolve()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    seen = read_results(arguments.results)
    with Product(arguments.bin_dir) as product:
        for name in arguments.models.split(","):
            run_model(arguments, name, product, seen)


if __name__ == "__main__":
    main()
