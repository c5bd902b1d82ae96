# SPDX-License-Identifier: Apache-2.0
"""Which recipe fits a model? Codes its KV with each, and says what that costs and what it saves.

DUMP is a folder of safetensors or npy files with tensors `k` and `v`, [layers, heads, tokens, dim],
or `k.0`, `v.0`, … by layer, [heads, tokens, dim]. Optional: `q` or `q.0`, …, queries of the last
tokens, for the error of what attention returns; `window` [layers], tokens that a layer looks back.
K and queries are after RoPE; bf16 in npy files is its bits as uint16.

A judge is the model itself: it reads on behind coded KV, and KL and perplexity come from what it
predicts. --judge MODULE:FUNCTION, or FILE.py:FUNCTION: FUNCTION(folder) gets the dump's folder and
returns judge(kv), which returns logits [positions, vocabulary], or those and the next tokens.
kv.k[layer] and kv.v[layer] are arrays [heads, tokens, dim]; bf16 is its bits as uint16.

--loss names the figure that counts and the most of it: kl=0.01, perplexity_ratio=1.01,
attention_error=0.05, kv_error=0.1 (the larger of K's and V's), k_error=…, v_error=…. Without it,
the first of kl, attention_error and kv_error that the dump allows.

No daemon is needed. Prints a table and writes evaluate.json and evaluate.html, one page that opens
anywhere. A run that was cut short goes on where it was: what evaluate.json already has for these
values, this judge and this library is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

if __name__ == "__main__":  # small products: threads that wait for each other are slower than one
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from . import _ffi, image
from ._dump import Dump, Kv, read_dump
from ._evaluate_page import make_page
from ._judge import Judge, Verdict, fingerprint_of, load_judge
from ._measure import Evaluation, copy_rate, measure
from .errors import Error, InvalidArgumentError

__all__ = ["Dump", "Evaluation", "Judge", "Kv", "Loss", "evaluate", "read_dump", "recommend"]

FORMAT = 2  # of evaluate.json; rows of another are not taken over
BAR_SECONDS = 0.1
# What a loss may be of, and the most that is taken for good where no one says.
LOSSES = {
    "kl": 0.01,
    "attention_error": 0.05,
    "kv_error": 0.1,
    "k_error": 0.1,
    "v_error": 0.1,
    "perplexity_ratio": 1.01,
}


@dataclass(frozen=True)
class Loss:
    """The figure that counts, and the most of it."""

    figure: str
    most: float

    def of(self, one: Evaluation) -> float:
        return getattr(one, self.figure)

    def __str__(self) -> str:
        return f"{self.figure} at most {self.most:g}"


def evaluate(
    dump: Dump | str | os.PathLike,
    recipes: Iterable[str] | None = None,
    judge: Judge | None = None,
    progress: Callable[[str, float, str], None] = lambda recipe, share, what: None,
) -> list[Evaluation]:
    """Codes a dump, or the one in a folder, with each recipe: all of them by default. `judge` gives
    kl, perplexity_ratio and same_top; `progress` is called with (recipe, share done, step)."""
    if not isinstance(dump, Dump):
        dump = read_dump(pathlib.Path(dump))
    verdict = None if judge is None else Verdict(judge)
    return [
        measure(dump, recipe, verdict, lambda share, what, r=recipe: progress(r, share, what))
        for recipe in recipes or image.recipes()
    ]


def recommend(found: Sequence[Evaluation], loss: Loss) -> Evaluation | None:
    """The one of fewest bits that keeps the loss, or None."""
    good = [one for one in found if loss.of(one) is not None and loss.of(one) <= loss.most]
    return min(good, key=lambda one: (one.bits, loss.of(one)), default=None)


def parse_loss(given: str | None, has_judge: bool, has_queries: bool) -> Loss:
    """FIGURE=MOST, or MOST alone of the first figure that can be had."""
    can_be_had = {"kl": has_judge, "perplexity_ratio": has_judge, "attention_error": has_queries}
    first = next(figure for figure in LOSSES if can_be_had.get(figure, True))
    figure, equals, most = (given or "").rpartition("=")
    figure = figure if equals else first
    if figure not in LOSSES:
        raise InvalidArgumentError(f"loss {given}: expected one of {', '.join(LOSSES)}, as in kl=1")
    if not can_be_had.get(figure, True):
        needed = "queries (q) in the dump" if figure == "attention_error" else "a judge (--judge)"
        raise InvalidArgumentError(f"loss {given}: {figure} needs {needed}")
    try:
        return Loss(figure, float(most) if given else LOSSES[figure])
    except ValueError:
        raise InvalidArgumentError(f"loss {given}: {most!r} is no number") from None


class _Kept:
    """What is on disk, keyed by what it was measured on: evaluate.json."""

    def __init__(self, path: pathlib.Path, dump: Dump, judge: str | None) -> None:
        self.path = path
        self._key = {
            "format": FORMAT,
            "library": _ffi.library_version(),
            "dump": dump.fingerprint(),
            "judge": judge,
        }
        self.found = {one.recipe: one for one in self._read()}

    def _read(self) -> list[Evaluation]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["key"] != self._key:
                return []
            return [Evaluation(**row) for row in kept["evaluations"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []  # none, or not one of ours: measured anew and written over

    def write(self, conclusion: dict | None = None) -> None:
        """At once or not at all: a run may be cut short in the middle of it."""
        rows = [asdict(one) for one in self.found.values()]
        kept = {"key": self._key} | (conclusion or {}) | {"evaluations": rows}
        partial = self.path.with_suffix(".json.partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.path)


class _Bar:
    """One line on a terminal, drawn over; elsewhere a line for each recipe that is done."""

    def __init__(self, recipes: Sequence[str]) -> None:
        self._recipes = recipes
        self._begin = self._recipe_begin = time.monotonic()
        self._shown, self._what = 0.0, ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, recipe: str, share: float, what: str) -> None:
        now, index = time.monotonic(), self._recipes.index(recipe)
        if share >= 1:
            took, self._recipe_begin = now - self._recipe_begin, now
            self._say(f"{recipe:12} {index + 1} of {len(self._recipes)} {took:7.1f} s", "\n")
        elif self._is_terminal and (what != self._what or now - self._shown >= BAR_SECONDS):
            self._shown, self._what = now, what
            whole = (index + share) / len(self._recipes)
            left = (now - self._begin) * (1 - whole) / whole if whole else 0
            bar = "#" * int(24 * whole)
            self._say(f"{recipe:12} [{bar:.<24}] {whole:4.0%}  {left:4.0f} s left, {what}", "")

    def _say(self, line: str, end: str) -> None:
        begin = "\r\x1b[K" if self._is_terminal else ""
        print(begin + line, end=end, file=sys.stderr, flush=True)


def make_table(found: Sequence[Evaluation]) -> str:
    lines = [
        f"{'recipe':12}{'bits':>8}{'ratio':>7}{'K error':>9}{'V error':>9}{'attention':>13}"
        f"{'KL':>21}{'ppl x':>13}{'encode':>8}{'decode':>8}  GB/s"
    ]
    for one in found:
        attention = _cell(one.attention_error, ".4f")
        kl = _cell(one.kl, ".5f") if one.kl is None else f"{one.kl:.5f} ± {one.kl_error:.5f}"
        lines.append(
            f"{one.recipe:12}{one.bits:8.3f}{one.ratio:7.2f}{one.k_error:9.4f}{one.v_error:9.4f}"
            f"{attention:>13}{kl:>21}{_cell(one.perplexity_ratio, '.4f'):>13}"
            f"{one.encode_rate / 1e9:8.2f}{one.decode_rate / 1e9:8.2f}"
        )
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "unavailable" if value is None else format(value, form)


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=os.environ.get("CAIRN_PROGRAM", "python -m cairn.evaluate"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dump", type=pathlib.Path, help="folder of safetensors or npy files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder (.)")
    parser.add_argument("--recipes", help="with commas between them (all there are)")
    parser.add_argument("--judge", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument("--loss", help="FIGURE=MOST of the recipe to recommend")
    return parser.parse_args(arguments)


def _run(wanted: argparse.Namespace) -> None:
    dump = read_dump(wanted.dump)
    loss = parse_loss(wanted.loss, wanted.judge is not None, bool(dump.q))
    wanted.out.mkdir(parents=True, exist_ok=True)
    judge_key = fingerprint_of(wanted.judge, wanted.dump) if wanted.judge else None
    kept = _Kept(wanted.out / "evaluate.json", dump, judge_key)
    recipes = wanted.recipes.split(",") if wanted.recipes else image.recipes()
    missing = [recipe for recipe in recipes if recipe not in kept.found]
    if missing:
        judge = load_judge(wanted.judge, wanted.dump) if wanted.judge else None
        verdict, bar = None if judge is None else Verdict(judge), _Bar(missing)
        for recipe in missing:
            kept.found[recipe] = measure(
                dump, recipe, verdict, lambda share, what, r=recipe: bar.show(r, share, what)
            )
            kept.write()
    _conclude(wanted, dump, loss, kept)


def _conclude(wanted: argparse.Namespace, dump: Dump, loss: Loss, kept: _Kept) -> None:
    ordered = sorted(kept.found.values(), key=lambda one: -one.bits)
    best = recommend(ordered, loss)
    about = {
        "name": wanted.dump.resolve().name,
        "tokens": dump.token_count,
        "layers": len(dump.k),
        "dtype": dump.dtype,
        "copy_rate": copy_rate(dump),
    }
    chosen = {"figure": loss.figure, "most": loss.most, "recipe": best and best.recipe}
    kept.write({"about": about, "loss": chosen})
    page_path = wanted.out / "evaluate.html"
    page_path.write_text(make_page(ordered, best, loss, about), encoding="utf-8")
    print(make_table(ordered))
    if best is None:
        print(f"\nno recipe has {loss}")
    else:
        print(f"\nwith {loss}: {best.recipe}, {best.bits:.2f} bits, {best.ratio:.2f} times smaller")
    print(f"{kept.path}\n{page_path}")


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


if __name__ == "__main__":
    sys.exit(main())
