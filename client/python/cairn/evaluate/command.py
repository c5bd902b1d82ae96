# SPDX-License-Identifier: Apache-2.0
"""Which recipe fits a model? Codes its KV with each recipe, and reports the loss and the size.

DUMP is a folder of safetensors or npy files with tensors `k` and `v`, [layers, heads, tokens, dim],
or `k.0`, `v.0`, … by layer, [heads, tokens, dim]. Optional: `q` or `q.0`, …, queries of the last
tokens, for the error of attention outputs; `window` [layers], the attention window in tokens. K and
queries are after RoPE; in npy files, bf16 is its bits as uint16, and 8-bit floats are theirs
(fp8_e4m3 as uint8, fp8_e5m2 as int8). model.json may describe their scales, and RoPE,
{"groups": [{"layers": 30, "rope": {"kind": "half", "base": 10000}}]}; so may --rope half:10000
(half: channels c and c + dim/2 are a pair; interleaved: 2c and 2c + 1).

Recipes with a profile, such as cairn:2.3, are tested with a plain profile and with one that has a
basis. Profiles are made from the dumps of other texts that --calibration names. Without any, they
are made from the first half of the dump, which is then not scored; a judge still uses it as a
prefix. --profile-out FOLDER writes the profile of the recommended recipe; --install HOST:PORT
installs it in a cairnd, for the space that model.json names.

A judge is the model itself: it continues after coded KV, and KL and perplexity are computed from
its predictions. --judge MODULE:FUNCTION, or FILE.py:FUNCTION: FUNCTION(folder) gets the dump's
folder and returns judge(kv), which returns logits [positions, vocabulary], or logits and the next
tokens. kv.k[layer] and kv.v[layer] are arrays [heads, tokens, dim]; bf16 is its bits as uint16, and
8-bit floats are given as bf16. A
judge improves profiles: for each layer it measures the loss from a coarse K and from a coarse V,
after the first --calibration dump if FUNCTION accepts that folder, else after the dump.

--loss sets a figure and its limit: kl=0.01, perplexity_ratio=1.01, attention_error=0.05,
kv_error=0.1 (the larger of K's and V's), k_error=…, v_error=…. The default is the first of kl,
attention_error and kv_error that the dump allows. A limit of kl or perplexity_ratio includes two
standard errors; a limit of an error holds in every layer.

Without --recipes, eight are measured: the recipes of docs/guides/choose-a-recipe.md and their
neighbours. --all measures every recipe of the library.

Only --install needs a daemon. Prints a table and writes evaluate.json and evaluate.html, a
self-contained page. An interrupted run continues where it stopped: results in evaluate.json for the
same values, judge and library are not measured again.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from .._model import parse_rope
from .._profile import profile_id
from ..errors import Error, FailedPreconditionError, InvalidArgumentError
from .bench import Bench
from .calibrate import BANK, KINDS
from .choice import Loss, parse_loss, recommend
from .dump import Dump, read_dump
from .install import install
from .judge import find_judge, fingerprint_of
from .kept import Kept
from .losses import Losses
from .measure import copy_rate
from .notes import Notes
from .page import make_page
from .recipes import USUAL, candidates
from .terminal import Bar, make_table, verdict_of


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=os.environ.get("CAIRN_PROGRAM", "python -m cairn.evaluate"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dump", type=pathlib.Path, help="folder of safetensors or npy files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder (.)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--recipes", help="with commas between them (the usual eight)")
    which.add_argument("--all", action="store_true", help="every recipe there is")
    parser.add_argument("--judge", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument("--loss", help="FIGURE=MOST of the recipe to recommend")
    parser.add_argument(
        "--calibration",
        type=pathlib.Path,
        action="append",
        default=[],
        metavar="DUMP",
        help="of another text of the same model, to make profiles of; any number of times",
    )
    parser.add_argument("--rope", help="KIND:BASE of all layers, where model.json has none")
    parser.add_argument("--profile-out", type=pathlib.Path, metavar="FOLDER", help="for profiles")
    parser.add_argument("--install", metavar="HOST:PORT", help="of a cairnd: gives it the profile")
    return parser.parse_args(arguments)


def _read(folder: pathlib.Path, rope: str | None) -> Dump:
    dump = read_dump(folder)
    return dump if rope is None else dump.with_rope(parse_rope(rope))


def _run(wanted: argparse.Namespace) -> None:
    dump = _read(wanted.dump, wanted.rope)
    calibration = [_read(folder, wanted.rope) for folder in wanted.calibration]
    loss = parse_loss(wanted.loss, wanted.judge is not None, bool(dump.q))
    named = wanted.recipes.split(",") if wanted.recipes else USUAL
    tried = candidates(None if wanted.all else named)
    wanted.out.mkdir(parents=True, exist_ok=True)
    folders = [wanted.dump, *wanted.calibration[:1]]
    judge_key = fingerprint_of(wanted.judge, *folders) if wanted.judge else None
    kept = Kept(wanted.out / "evaluate.json", dump, judge_key, calibration)
    missing = [one for one in tried if one.name not in kept.found]
    bench, not_measured = Bench(dump, calibration, tried), {}
    refused = ""
    if wanted.judge and (missing or wanted.profile_out or wanted.install):
        refused = _judge_by(wanted, bench, calibration, kept)
    bar = Bar([one.name for one in missing])
    for one in missing:
        try:
            kept.found[one.name] = bench.measure(
                one, lambda share, what, name=one.name: bar.show(name, share, what)
            )
            kept.write()
        except FailedPreconditionError as error:
            not_measured[one.name] = str(error)
            bar.skip(one.name)
    _conclude(wanted, bench, loss, kept, not_measured, refused)


def _judge_by(
    wanted: argparse.Namespace, bench: Bench, calibration: Sequence[Dump], kept: Kept
) -> str:
    """Loads the judge of the dump and, if there is one, of the first calibration. Returns the
    reason if the latter cannot be loaded."""
    judge_of, behind, refused = find_judge(wanted.judge), None, ""
    judge = judge_of(wanted.dump)
    if calibration:
        try:
            behind = calibration[0], judge_of(wanted.calibration[0])
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            refused = str(error)
    if kept.losses.is_judged != (behind is None):
        kept.losses = Losses(behind is None)
    bench.judge_by(judge, behind, kept.losses, kept.write)
    return refused


def _conclude(
    wanted: argparse.Namespace,
    bench: Bench,
    loss: Loss,
    kept: Kept,
    not_measured: dict[str, str],
    refused: str,
) -> None:
    ordered = sorted(kept.found.values(), key=lambda one: -one.bits)
    if not ordered:
        raise InvalidArgumentError("; ".join(f"{x}: {why}" for x, why in not_measured.items()))
    best, dump = recommend(ordered, loss), bench.dump
    others = list(zip(map(str, wanted.calibration), bench.calibration.texts, strict=False))
    notes = Notes(dump, bench.calibration, others, bool(wanted.judge), kept.losses, refused)
    about = {
        "name": wanted.dump.resolve().name,
        "tokens": dump.token_count,
        "layers": len(dump.k),
        "dtype": dump.dtype,
        "copy_rate": copy_rate(dump),
        "notes": notes.facts(ordered),
        "warnings": notes.warnings(ordered),
        "not_measured": not_measured,
    }
    chosen = {"figure": loss.figure, "most": loss.most, "recipe": best and best.name}
    kept.write({"about": about, "loss": chosen})
    page_path = wanted.out / "evaluate.html"
    page_path.write_text(make_page(ordered, best, loss, about), encoding="utf-8")
    print(make_table(ordered, about), end="\n\n")
    print(verdict_of(best, loss))
    if wanted.profile_out is not None or wanted.install is not None:
        kind = (best and best.profile) or KINDS[0]
        print("the bank:" if kind == BANK else f"the {kind} profile:")
        _give_profiles(wanted, bench, kind, best.recipe if best and best.profile else None)
    print(f"{kept.path}\n{page_path}")


def _give_profiles(
    wanted: argparse.Namespace, bench: Bench, kind: str, recipe: str | None
) -> None:
    """Gives a profile for each group of layers to the named folder and daemon."""
    profiles = bench.profiles(kind)
    if wanted.profile_out is not None:
        wanted.profile_out.mkdir(parents=True, exist_ok=True)
        for index, profile in enumerate(profiles):
            suffix = BANK if kind == BANK else "profile"
            path = wanted.profile_out / f"group-{index}.{suffix}"
            path.write_bytes(profile)
            print(f"{path}: {len(profile)} bytes, {profile_id(profile).hex()}")
    if wanted.install is not None:
        for line in install(wanted.install, bench.dump, recipe, profiles, kind == BANK):
            print(f"installed in {wanted.install}, {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parse_arguments(arguments)
    try:
        _run(wanted)
    except (Error, OSError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nevaluate: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0
