# SPDX-License-Identifier: Apache-2.0
"""What a lossy recipe does to a real vLLM's answers, beside `exact`: `make test-engines`. One engine
computes a prompt and saves its KV, another loads it and goes on; how likely it finds the next
tokens is compared with vLLM alone, which has the prompt in its own cache. The profile of the lossy
recipe is mined by the daemon, of other texts than the prompt's."""

import argparse
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/engines", "client/examples/vllm", "client/python")]

from process import EngineProcess, config_of  # noqa: E402
from run import CACHEABLE_TOKENS, ENGINE_TOKENS, STORE_TOKENS, TOKEN_BYTES, Checks, Daemon  # noqa: E402
from smollm2 import make  # noqa: E402

NEXT_TOKENS = 32  # that are compared
LIKELIEST = 20  # of each
# vLLM computes a token alone otherwise than in a prompt: the last bits differ, without any connector too.
KL_OF_ROUNDING_MAX = 1e-3
KL_OF_LOSS_MAX = 0.05
MINE_SECONDS_MAX = 300
# What the daemon mines its profile of.
TEXTS = ("docs/internals/architecture.md", "docs/guides/operations.md", "docs/internals/durability.md", "docs/reference/metrics.md", "docs/internals/concurrency.md")
TEXT_TOKENS = 2048


def distributions(engine, tokens, following):
    """Of each token of `following`, given all before it: the likeliest with their logarithms."""
    found = []
    for count in range(len(following)):
        prompt = tokens + following[:count]
        found.append(engine.do("generate", tokens=[prompt], max_tokens=1, logprobs=LIKELIEST)["logprobs"][0][0])
    return found


def divergence(of, other):
    """KL of the likeliest of `of` and the rest as one, in nats; what `other` does not name is as likely there as the
    least that it does."""
    least = min(other.values())
    total, rest, other_rest = 0.0, 1.0, 1.0
    for token, logarithm in of.items():
        there = other.get(token, least)
        total += math.exp(logarithm) * (logarithm - there)
        rest -= math.exp(logarithm)
        other_rest -= math.exp(there)
    if rest > 1e-6 and other_rest > 1e-6:
        total += rest * math.log(rest / other_rest)
    return max(total, 0.0)


def mine(engine, daemon_log, texts):
    """Has the engine compute the texts, and waits until the daemon has mined a profile of their KV."""
    for text in texts:
        engine.do("generate", tokens=[engine.do("encode", text=text)["tokens"][:TEXT_TOKENS]], max_tokens=1)
    deadline = time.monotonic() + MINE_SECONDS_MAX
    while "mined a profile" not in daemon_log.read_text(encoding="utf-8"):
        if time.monotonic() > deadline:
            raise SystemExit(f"no profile was mined in {MINE_SECONDS_MAX} s, see {daemon_log}")
        time.sleep(0.5)
    time.sleep(3)  # the client hears of it


def save(make_engine, recipe, daemon_log, texts, tokens):
    """The prompt's KV by that recipe, in the daemon. Returns its bytes by those it has in vLLM."""
    with make_engine(recipe) as engine:
        if recipe != "exact":
            mine(engine, daemon_log, texts)
        before = engine.do("metrics")
        engine.do("generate", tokens=[tokens], max_tokens=1)
        saved, deadline = {}, time.monotonic() + 60
        while time.monotonic() < deadline:
            engine.do("generate", tokens=[tokens[50:90]], max_tokens=1)  # figures come with a step
            now = engine.do("metrics")
            saved = {name: now[name] - (before.get(name) or 0) for name in now if "saved" in name}
            if saved["vllm:cairn_saved_blocks"] >= CACHEABLE_TOKENS // ENGINE_TOKENS:
                break
            time.sleep(0.5)
    return saved["vllm:cairn_saved_bytes"] / (CACHEABLE_TOKENS * TOKEN_BYTES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/engines/smollm2")
    parser.add_argument("--recipes", nargs="*", default=["exact", "cairn:2.3"])
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    model = make(arguments.model)
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in TEXTS]
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        folder = pathlib.Path(made)
        with EngineProcess(model, None, library, folder / "alone.log") as alone:
            tokens = alone.do("prompt")["tokens"]
            answer = alone.do("generate", tokens=[tokens], max_tokens=NEXT_TOKENS)
            text, following = answer["texts"][0], answer["token_ids"][0]
            expected = distributions(alone, tokens, following)
        for recipe in arguments.recipes:
            home = folder / recipe.replace(":", "-")
            home.mkdir(mode=0o700)
            daemon = Daemon(arguments.bin_dir, home)

            def make_engine(recipe, daemon=daemon, home=home):
                config = config_of(daemon.control, recipe=recipe)
                return EngineProcess(model, config, library, home / "engine.log")

            try:
                daemon.start()
                share = save(make_engine, recipe, home / "cairnd.log", texts, tokens)
                with make_engine(recipe) as engine:
                    same, cached, _, _ = engine.generate(tokens, NEXT_TOKENS)
                    seen = distributions(engine, tokens, following)
            finally:
                daemon.kill()
            kls = [divergence(of, other) for of, other in zip(expected, seen, strict=True)]
            agree = sum(max(of, key=of.get) == max(other, key=other.get) for of, other in zip(expected, seen, strict=True))
            check(f"{recipe}: the prompt comes from Cairn", cached >= CACHEABLE_TOKENS - STORE_TOKENS, cached)
            print(f"       {recipe}: {share:.3f} of the bytes, KL {statistics.mean(kls):.2e} nats a token (most {max(kls):.2e}), {agree} of "
                  f"{len(kls)} likeliest tokens the same, text {'the same' if same == text else 'another'}", flush=True)
            if recipe == "exact":
                check("exact: as likely as without Cairn", statistics.mean(kls) < KL_OF_ROUNDING_MAX, statistics.mean(kls))
                check("exact: the same text", same == text, repr(same[:60]))
            else:
                check(f"{recipe}: nearly as likely", statistics.mean(kls) < KL_OF_LOSS_MAX, statistics.mean(kls))
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
