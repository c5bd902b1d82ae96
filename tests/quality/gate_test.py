# SPDX-License-Identifier: Apache-2.0
"""Compares bits and KL of every recipe, on SmolLM2 and two short texts, with gate.txt. A change of a
recipe's size or loss therefore shows as a changed line of that file; `--write` writes it anew. The
prefixes are much shorter than those of docs/results/quality.md, and profiles are made from the
prefix itself, so do not choose a recipe by these figures.

usage: gate_test.py [--write | TEXT…]       all texts if none is named
"""

import pathlib
import sys
import tempfile

import run  # first: sets the paths and the number of BLAS threads

try:
    import numpy as np
    from lm.weights import SMOLLM2, MissingModelError
except ImportError as missing:
    print(f"skipped: {missing.name} is missing (make deps)")
    sys.exit(77)

import texts
from cairn.evaluate.calibrate import BANK, make_banks
from cairn.evaluate.code import Inputs
from cairn.evaluate.recipes import candidates, rates_of
from cairn.profile import GroupSamples, build
from calibration import rotation_of
from coder import Codec
from lm.model import from_bits
from protocol import Case, Engine, Experiment
from texts import Text

GATE = pathlib.Path(__file__).with_name("gate.txt")
PREFIX, SCORED = 256, 64
TEXTS = {
    "novel": Text("Alice's Adventures in Wonderland", "", "client/examples/demo/text.txt", 0),
    "licence": Text("the Apache licence", "", "LICENSE", 0),
}
# The forward pass rounds otherwise on another processor, which moves codes next to an edge.
BITS_SHARE, KL_SHARE, KL_LEAST = 0.005, 0.3, 3e-5


def measure(cache: pathlib.Path, named: list[str]) -> dict[tuple[str, str], tuple[float, float]]:
    """By recipe and text: bits an element, KL in nats."""
    texts.SCORED.update(TEXTS)
    engine, wanted, found = Engine(SMOLLM2, cache), candidates(), {}
    geometry = engine.model.geometry
    for text in named:
        experiment = Experiment(engine, Case(SMOLLM2, text, PREFIX, SCORED))
        k_bits, v_bits = experiment.k_bits, experiment.v_bits
        prefix = from_bits(k_bits), from_bits(v_bits)
        groups, made = [GroupSamples([prefix], rotation_of(geometry, 0))], {None: None}
        for one in wanted:
            if one.profile not in made:
                made[one.profile] = (
                    make_banks(groups)
                    if one.profile == BANK
                    else build(groups, rates_of(wanted), has_basis=one.profile == "basis")
                )
            inputs = Inputs()
            if one.recipe.startswith(run.MAGNITUDES):  # K's stand for the queries'
                inputs = Inputs(query_magnitudes=dict(enumerate(np.abs(prefix[0]).mean(2))))
            coded = Codec().code(
                geometry, engine.revision, one.recipe, k_bits, v_bits, made[one.profile], inputs
            )
            found[one.name, text] = coded.bits, experiment.forced(coded)["kl"]
    return found


def read() -> dict[tuple[str, str], tuple[float, float]]:
    lines = (line.split() for line in GATE.read_text().splitlines() if not line.startswith("#"))
    return {(name, text): (float(bits), float(kl)) for name, text, bits, kl in lines}


def write(found: dict[tuple[str, str], tuple[float, float]]) -> None:
    rows = [f"{name:22} {text:8} {bits:7.3f} {kl:9.5f}\n" for (name, text), (bits, kl) in found.items()]
    GATE.write_text("# recipe, text, bits an element, KL: gate_test.py --write\n" + "".join(rows))


def differing(found: dict, listed: dict) -> list[str]:
    said = []
    for row in sorted(found.keys() | listed.keys()):
        if row not in found or row not in listed:
            said.append(f"{row} is {'not listed' if row in found else 'listed, and there is no such recipe'}")
            continue
        (bits, kl), (bits_listed, kl_listed) = found[row], listed[row]
        if abs(bits - bits_listed) > BITS_SHARE * bits_listed + 0.0005:
            said.append(f"{row} takes {bits:.3f} bits, listed are {bits_listed:.3f}")
        if abs(kl - kl_listed) > KL_SHARE * kl_listed + KL_LEAST:
            said.append(f"{row} has a KL of {kl:.5f}, listed is {kl_listed:.5f}")
    return said


def main() -> int:
    named = [word for word in sys.argv[1:] if word != "--write"] or list(TEXTS)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(pathlib.Path(folder), named)
        except MissingModelError as missing:
            print(f"skipped: {missing}")
            return 77
    if "--write" in sys.argv:
        write(found)
    said = differing(found, {row: listed for row, listed in read().items() if row[1] in named})
    print(*said, f"{len(found)} figures of recipes and texts, {len(said)} differ", sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
