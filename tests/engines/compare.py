# SPDX-License-Identifier: Apache-2.0
"""Compares vLLM's KV connectors: Cairn's, LMCache's and the example that comes with vLLM. They run
in the same vLLM, with the same model and prompts, on the same machine: `make bench-engines`.

    .ci/engines tests/engines/compare.py [--rounds N] [--quick] [--only NAME ...] [--json FILE]

--only exact squares compares saves with and without the connector's setting `query_squares`.

Saves: each connector has an engine process, and the engines take turns. In each round an engine
computes one prompt with its connector and one without. So saving is compared within a process,
because two processes of the same setting differ by 14 %. Then four requests at once generate, with
the connector and without.

Loads: new engine processes, whose own caches are empty, load the prompts in turn. Beside them, vLLM
without a connector computes each prompt, and then hits its own cache.

A prompt has 2,048 tokens, which is a whole number of blocks for every connector, and 8 more, which
are always computed. Round 0 warms up and is not counted. Figures are medians of the other rounds.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
for folder in ("tests/bench", "tests/engines", "client/examples/vllm", "client/python"):
    sys.path.insert(0, str(ROOT / folder))

from arrays import cpu_seconds  # noqa: E402
from process import EngineProcess  # noqa: E402
from quality import TEXTS, mine  # noqa: E402
from run import TOKEN_BYTES  # noqa: E402
from smollm2 import make  # noqa: E402
from stores import Alone, Cairn, Example, LmCache  # noqa: E402

HIT_TOKENS = 2048
PROMPT_TOKENS = HIT_TOKENS + 8
TEXT_TOKENS = 24
# The last token made has no KV: each request leaves KV of 256 tokens.
AT_ONCE, START_TOKENS, MADE_TOKENS = 4, 64, 193
FIRST_TOKEN = 1000  # a prompt with another first token shares no block with the first
SETTLE_SECONDS = 1.0  # after each answer: saves may go on beside the engine
STORE_GIB = 1
# The prompts are cut from these pages of docs/. The profile of cairn:2.3 is mined from others.
PAGES = ("internals/formats/image", "internals/formats/ssd", "internals/formats/frame", "install/cluster", "guides/cpp")
BYTES = ("kept_bytes", "kept_allocated", "generated_bytes", "generated_allocated")
NAMES = {
    "alone": lambda arguments, folder: Alone(),
    "example": lambda arguments, folder: Example(folder),
    "lmcache": lambda arguments, folder: LmCache(folder, STORE_GIB),
    "exact": lambda arguments, folder: Cairn(arguments.bin_dir, folder, "exact", STORE_GIB),
    "cairn:2.3": lambda arguments, folder: Cairn(arguments.bin_dir, folder, "cairn:2.3", STORE_GIB),
    "squares": lambda arguments, folder: Cairn(
        arguments.bin_dir, folder, "exact", STORE_GIB, query_squares=True
    ),
}
USUAL = [name for name in NAMES if name != "squares"]
# Cairn's goals.
HIT_SECONDS_MAX, FASTER_MIN, SAVE_SHARE_MAX = 0.075, 10, 0.01
KEPT_MAX = {"exact": 0.67, "cairn:2.3": 0.16}


class Side:
    """A setting: its store, its engine process while there is one, and a list for each figure with
    its value in every round."""

    def __init__(self, store):
        self.store, self.name, self.engine = store, store.name, None
        self.figures = defaultdict(list)
        self.texts = []

    def ask(self, prompts, count):
        """Has the engine continue all prompts at once, `count` tokens each.

        first_token: seconds until the last prompt has its first token. rate: tokens a second after
        that. cpu: CPU-seconds of engine and store, until SETTLE_SECONDS later. save_share: part of
        the time that was spent inside saves. cached: tokens of the prompt from any cache."""
        pids = (self.engine.process.pid, *self.store.pids)
        before = cpu_seconds(pids)
        answer = self.engine.do("generate", tokens=prompts, max_tokens=count)
        saves = self.engine.do("settle")["save_seconds"]
        time.sleep(SETTLE_SECONDS)
        first = max(answer["first_token"])
        return {
            "first_token": first,
            "rate": len(prompts) * (count - 1) / max(answer["seconds"] - first, 1e-9),
            "cpu": cpu_seconds(pids) - before,
            "save_share": saves / answer["seconds"],
            "cached": min(answer["cached"]),
            "text": answer["texts"][0],
        }

    def note(self, what, asked, *names):
        for name in names:
            self.figures[f"{what}_{name}"].append(asked[name])

    def median(self, name):
        values = self.figures.get(name)
        return statistics.median(values) if values else None


def turns(sides, number):
    """The sides in an order that differs from round to round."""
    return sides[number % len(sides) :] + sides[: number % len(sides)]


@contextlib.contextmanager
def engines(sides, arguments, folder):
    """Starts an engine for each side, one after the other. All end with the context."""
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    with contextlib.ExitStack() as stack:
        for side in sides:
            print(f"starting an engine: {side.name}", file=sys.stderr, flush=True)
            log = folder / f"{side.name.replace(' ', '-').replace(':', '-')}.log"
            side.engine = EngineProcess(
                arguments.made_model, side.store.config, library, log, HERE / "measured.py"
            )
            stack.enter_context(side.engine)
        yield


def prompts_of(engine, count):
    """Cuts the pages into prompts."""
    text = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
    tokens = engine.do("encode", text=text)["tokens"]
    if len(tokens) < count * PROMPT_TOKENS:
        raise SystemExit(f"--rounds: the pages make {len(tokens) // PROMPT_TOKENS - 1} at most")
    return [tokens[i * PROMPT_TOKENS : (i + 1) * PROMPT_TOKENS] for i in range(count)]


def other(prompt, number):
    """A prompt that shares no block with it."""
    return [FIRST_TOKEN + number, *prompt[1:]]


def save_prompts(side, number, prompt):
    """Computes one prompt with the connector and one without; which is first alternates."""
    for on in (True, False) if number % 2 else (False, True):
        side.engine.do("attach", on=on)
        asked = side.ask([prompt if on else other(prompt, number)], 1)
        if asked["cached"]:
            raise SystemExit(f"{side.name}: {asked['cached']} tokens of a new prompt were cached")
        if number:
            side.note("save" if on else "plain", asked, "first_token", "cpu", "save_share")
    side.engine.do("attach", on=True)


def generate(side, number, prompt, made_tokens):
    """Generates for four requests at once, with the connector and without."""
    for on in (True, False) if number % 2 else (False, True):
        side.engine.do("attach", on=on)
        starts = [
            other(prompt[100 * i : 100 * i + START_TOKENS], 100 + 10 * number + 2 * i + on)
            for i in range(AT_ONCE)
        ]
        asked = side.ask(starts, made_tokens)
        if number:
            side.note("saving" if on else "plain", asked, "rate")
            side.note("saving" if on else "generating", asked, "save_share", "cpu")
    side.engine.do("attach", on=True)


def load(side, number, prompt):
    """Takes the prompt from the store, or computes it without one and then hits vLLM's own cache.
    Keeps the text that follows."""
    asked = side.ask([prompt], 1)
    if number == 0:
        side.note("first_load", asked, "first_token")
        return
    is_alone = side.store.config is None
    side.note("recompute" if is_alone else "hit", asked, "first_token", "cpu", "cached")
    if is_alone:
        side.note("hit", side.ask([prompt], 1), "first_token", "cpu", "cached")
    side.texts.append(side.ask([prompt], TEXT_TOKENS)["text"])


def run(sides, arguments, folder):
    rounds = range(arguments.rounds + 1)
    savers = [side for side in sides if side.store.config is not None]
    with engines(savers, arguments, folder):
        prompts = prompts_of(savers[0].engine, len(rounds))
        for side in savers:
            side.engine.do("generate", tokens=[prompts[0][50:90]], max_tokens=4)
            if getattr(side.store, "recipe", "exact") != "exact":
                print(f"mining a profile: {side.name}", file=sys.stderr, flush=True)
                texts = [(ROOT / name).read_text(encoding="utf-8") for name in TEXTS]
                mine(side.engine, side.store.log, texts)
        with counting_bytes(savers, "kept", len(rounds) * HIT_TOKENS):
            for number in rounds:
                for side in turns(savers, number):
                    progress("saves", number, side)
                    save_prompts(side, number, prompts[number])
        tokens = len(rounds) * AT_ONCE * (START_TOKENS + arguments.made_tokens - 1)
        with counting_bytes(savers, "generated", tokens):
            for number in rounds:
                for side in turns(savers, number):
                    progress("generates", number, side)
                    generate(side, number, prompts[number], arguments.made_tokens)
    with engines(sides, arguments, folder):
        for side in sides:
            side.engine.do("generate", tokens=[prompts[0][50:90]], max_tokens=4)
        for number in rounds:
            for side in turns(sides, number):
                progress("loads", number, side)
                load(side, number, prompts[number])


@contextlib.contextmanager
def counting_bytes(sides, what, tokens):
    """Notes how the bytes that the stores gain meanwhile compare with the KV of `tokens` tokens in
    vLLM."""
    before = [side.store.kept() for side in sides]
    yield
    for side, was in zip(sides, before, strict=True):
        kept, allocated = (now - then for now, then in zip(side.store.kept(), was, strict=True))
        side.figures[f"{what}_bytes"] = [kept / (tokens * TOKEN_BYTES)]
        side.figures[f"{what}_allocated"] = [allocated / (tokens * TOKEN_BYTES)]


def progress(what, number, side):
    print(f"{what}, round {number}: {side.name}", file=sys.stderr, flush=True)


def shown(values, form="{:.0f}", scale=1.0):
    """The median, and in brackets the lowest and the highest value."""
    if not values:
        return "–"
    one = form.format(statistics.median(values) * scale)
    if len(values) == 1:
        return one
    return f"{one} ({form.format(min(values) * scale)}–{form.format(max(values) * scale)})"


def over(side, above, below):
    """The ratio of two figures in each round, in which they were measured one after the other."""
    pairs = zip(side.figures[above], side.figures[below], strict=True)
    return [a / b for a, b in pairs]


def extra(side, alone):
    """Seconds that a hit took in each round more than vLLM's own hit of the same prompt."""
    pairs = zip(side.figures["hit_first_token"], alone.figures["hit_first_token"], strict=True)
    return [a - b for a, b in pairs]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join("---" for _ in head) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def report(sides, arguments):
    alone = next((side for side in sides if side.store.config is None), None)
    print(f"Medians of {arguments.rounds} rounds, in brackets the lowest and the highest.\n")
    report_loads(sides, alone)
    stores = [side for side in sides if side is not alone]
    report_saves(stores)
    rows = [
        [side.name, *(shown(side.figures[name], "{:.3f}") for name in BYTES)] for side in stores
    ]
    head = ["bytes kept, over those in vLLM", "of prompts", "as allocated"]
    table([*head, "of what four at once computed", "as allocated"], rows)
    report_goals(stores, alone)


def report_loads(sides, alone):
    rows = []
    if alone:
        row = ["vLLM alone, computed", shown(alone.figures["recompute_first_token"], scale=1e3)]
        row += ["–", "–", "0", "1.0", shown(alone.figures["recompute_cpu"], "{:.2f}"), "–"]
        rows.append(row)
    for side in sides:
        row = ["vLLM alone, a hit in its own cache" if side is alone else side.name]
        row.append(shown(side.figures["hit_first_token"], scale=1e3))
        more = extra(side, alone) if alone and side is not alone else []
        row.append(shown(more, scale=1e3))
        first = [] if side is alone else side.figures["first_load_first_token"]
        row += [shown(first, scale=1e3), shown(side.figures["hit_cached"])]
        row.append(f"{times_faster(side, alone):.1f}" if alone else "–")
        row.append(shown(side.figures["hit_cpu"], "{:.2f}"))
        same = sum(a == b for a, b in zip(side.texts, alone.texts if alone else [], strict=False))
        rows.append([*row, f"{same} of {len(alone.texts)}" if more else "–"])
    head = ["loads", "first token, ms", "ms more than vLLM's own hit", "a process's first, ms"]
    head += ["tokens from it", "times as fast as computed", "CPU-s"]
    table([*head, "texts as of vLLM's own hit"], rows)


def times_faster(side, alone):
    return alone.median("recompute_first_token") / side.median("hit_first_token")


def report_saves(stores):
    rows = []
    for side in stores:
        row = [side.name, shown(over(side, "save_first_token", "plain_first_token"), "{:.3f}")]
        row.append(shown(side.figures["save_save_share"], "{:.2f} %", 100))
        row.append(shown(over(side, "save_cpu", "plain_cpu"), "{:.2f}"))
        row.append(shown(side.figures["saving_rate"], "{:.1f}"))
        row.append(shown(over(side, "saving_rate", "plain_rate"), "{:.3f}"))
        row.append(shown(side.figures["saving_save_share"], "{:.2f} %", 100))
        rows.append([*row, shown(over(side, "saving_cpu", "generating_cpu"), "{:.3f}")])
    head = ["saves, over the same without the connector", "first token", "time in saves", "CPU-s"]
    head += ["four at once: tokens/s", "over those without", "time in saves", "CPU-s"]
    table(head, rows)


def report_goals(stores, alone):
    """Says of each of Cairn's goals whether this run meets it."""
    for side in stores:
        limit = KEPT_MAX.get(getattr(side.store, "recipe", ""))
        if limit is None:
            continue
        hit, kept = side.median("hit_first_token"), side.median("kept_bytes")
        limit_ms = 1e3 * HIT_SECONDS_MAX
        say = [(f"first token of a hit after {limit_ms:.0f} ms at most", hit <= HIT_SECONDS_MAX)]
        if alone:
            is_met = times_faster(side, alone) >= FASTER_MIN
            say.append((f"{FASTER_MIN} times as fast as computing", is_met))
        share = max(side.median("saving_save_share"), side.median("save_save_share"))
        say.append((f"{SAVE_SHARE_MAX:.0%} of the time in saves at most", share <= SAVE_SHARE_MAX))
        say.append((f"{limit} of the bytes at most", kept <= limit))
        for what, is_met in say:
            print(f"{side.name}: goal, {what}: {'met' if is_met else 'missed'}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs")
    parser.add_argument("--only", nargs="*", choices=list(NAMES), default=USUAL)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.made_tokens = MADE_TOKENS
    if arguments.quick:
        arguments.rounds, arguments.made_tokens = 1, 17
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    os.environ.setdefault("PYTHONHASHSEED", "0")  # LMCache's keys are of vLLM's hashes
    arguments.made_model = make(arguments.model)
    sides = []
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-compare-"))
        for name in arguments.only:
            folder = pathlib.Path(made) / name.replace(":", "-")
            folder.mkdir(mode=0o700)
            store = NAMES[name](arguments, folder)
            if store.config is not None:
                stack.callback(store.stop)
            sides.append(Side(store))
        run(sides, arguments, pathlib.Path(made))
    report(sides, arguments)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        figures = [{"name": side.name, "texts": side.texts, **side.figures} for side in sides]
        whole = {"rounds": arguments.rounds, "sides": figures}
        arguments.json.write_text(json.dumps(whole, indent=1))


if __name__ == "__main__":
    main()
