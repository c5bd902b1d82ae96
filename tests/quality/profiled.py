# SPDX-License-Identifier: Apache-2.0
"""What `cairn:bits` costs two real models, offline: a profile is made, the codec codes the prefix
with it, images and all, and the model reads on. The daemon has no part in it.

    build/venv/bin/python tests/quality/profiled.py [--models smollm2,gemma3] [--texts A,B]
        [--tests forced,copy] [--profiles plain,basis,mined] [--rates 2.3,3.0,4.3]

Profiles: plain and basis, made from the calibration texts, which are never scored; mined, made from
the first 512 tokens of the prefix itself, with the calibration's queries and no losses. Each figure
is a line of JSON in RESULTS, with the profile it was measured with.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import tempfile

import run  # first: sets the paths and the number of BLAS threads

import calibration
import numpy as np
from cairn.profile import GroupSamples, Rotation, build
from lm.model import CHUNK_TOKENS, from_bits
from product import Coded
from protocol import Case, Engine, Experiment

MINED_TOKENS = 512
RATES = (2.3, 3.0, 4.3)
Profiles = list[tuple[list[int], bytes]]  # of each group: its layers, and bytes


def rotation_of(engine: Engine, base: float) -> Rotation:
    geometry = engine.model.geometry
    frequencies = base ** (-np.arange(0, geometry.dim, 2) / geometry.dim)
    return Rotation.of(geometry.rope_pairs, frequencies)


def groups_of(engine: Engine, measured: calibration.Measured, mined) -> list[GroupSamples]:
    """mined: K and V bits of a prefix, or None."""
    groups = []
    texts = measured.texts if mined is None else [tuple(x[:, :, :MINED_TOKENS] for x in mined)]
    for kind, layers in engine.model.geometry.layers_by_kind().items():
        samples = GroupSamples(
            [(from_bits(k[layers]), from_bits(v[layers])) for k, v in texts],
            rotation_of(engine, kind.rope_base),
            measured.q_squares[layers],
        )
        if mined is None:
            samples.k_loss, samples.v_loss = measured.k_loss[layers], measured.v_loss[layers]
        groups.append(samples)
    return groups


def profiles_of(engine: Engine, cache: pathlib.Path, kind: str, prefix, rates) -> Profiles:
    measured = calibration.measure(engine, cache)
    groups = groups_of(engine, measured, prefix if kind == "mined" else None)
    made = build(groups, rates, has_basis=kind == "basis")
    layers = engine.model.geometry.layers_by_kind().values()
    return list(zip(layers, made, strict=True))


def code(program: pathlib.Path, profiles: Profiles, bits: float, k: np.ndarray, v: np.ndarray):
    """What comes back of the KV of a prefix, and the seconds of encoding and decoding it."""
    k_out, v_out, total, seconds = np.empty_like(k), np.empty_like(v), 0, np.zeros(2)
    count = k.shape[2] // CHUNK_TOKENS
    with tempfile.TemporaryDirectory(prefix="cairn-profiled-") as name:
        folder = pathlib.Path(name)
        for layers, profile in profiles:
            (folder / "profile").write_bytes(profile)
            both = np.stack([k[layers], v[layers]], 2)  # [layers, heads, planes, tokens, dim]
            blocks = np.stack(np.split(both, count, 3))
            (folder / "from").write_bytes(blocks.tobytes())
            command = [program, "profile", round(bits * 10), 0, CHUNK_TOKENS, "from", "to"]
            done = subprocess.run(
                [str(part) for part in command],
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            )
            image_bytes, *took = done.stdout.split()
            total += int(image_bytes)
            seconds += [float(x) for x in took]
            coded = np.frombuffer((folder / "to").read_bytes(), np.uint16).reshape(blocks.shape)
            coded = np.concatenate(list(coded), 3)
            k_out[layers], v_out[layers] = coded[:, :, 0], coded[:, :, 1]
    return Coded(k_out, v_out, total, k.size + v.size), seconds


def measure(arguments, engine: Engine, case: Case, kind: str, kept: dict[str, Profiles]) -> None:
    experiment = Experiment(engine, case)
    prefix = (experiment.k_bits, experiment.v_bits)
    rates = [float(rate) for rate in arguments.rates.split(",")]
    profiles = kept.get(kind)
    if profiles is None:
        profiles = profiles_of(engine, arguments.cache, kind, prefix, rates)
        if kind != "mined":  # which is another one for each text
            kept[kind] = profiles
    test = "copy" if case.copy_first >= 0 else "forced"
    for rate in rates:
        coded, seconds = code(arguments.program, profiles, rate, *prefix)
        recipe = f"cairn:{rate}"
        row = dict(zip(run.IDENTITY, run.identity_of(test, case, recipe), strict=True))
        row |= {"profile": kind, "bits": coded.bits} | experiment.forced(coded)
        row |= {"weights": engine.revision[:16], "profile_bytes": sum(len(p) for _, p in profiles)}
        row["encode_seconds"], row["decode_seconds"] = map(float, seconds)
        with open(arguments.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{kind:6}{run.describe(row)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--tests", default="forced,copy")
    parser.add_argument("--texts", default="A,B", help="of forced; copy takes the first")
    parser.add_argument("--profiles", default="plain,basis")
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--prefix", type=int, default=2048)
    program = run.ROOT / "build" / "release" / "bin" / "profile_codec"
    parser.add_argument("--program", type=pathlib.Path, default=program)
    parser.add_argument("--cache", type=pathlib.Path, default=run.CACHE)
    parser.add_argument("--results", type=pathlib.Path, default=run.CACHE / "profiled.jsonl")
    arguments = parser.parse_args()
    arguments.program = arguments.program.resolve()
    texts = arguments.texts.split(",")
    for name in arguments.models.split(","):
        engine, kept = Engine(name, arguments.cache.resolve()), {}
        for test in arguments.tests.split(","):
            for text in texts if test == "forced" else texts[:1]:
                copy_first = run.COPY_FIRST if test == "copy" else -1
                case = Case(name, text, arguments.prefix, copy_first=copy_first)
                for kind in arguments.profiles.split(","):
                    measure(arguments, engine, case, kind, kept)


if __name__ == "__main__":
    main()
