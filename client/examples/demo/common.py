# SPDX-License-Identifier: Apache-2.0
"""What the two workers share: the plan of the run, the spaces they meet in, the terminal."""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from dataclasses import dataclass

import cairn
from lm.model import CHUNK_TOKENS, Geometry
from lm.weights import SMOLLM2, MissingModelError, Weights, find

PROFILED = "cairn:2.3"  # codes with a profile, which the prefill worker makes and installs
LOSSLESS = ("raw", "exact")
RECIPES = (*LOSSLESS, "kivi:8", "kivi:4", "kivi:2", "kivi:2+", PROFILED)
WAIT_SECONDS = 5.0  # of one call that waits for blocks; asked again until they are there
HAND_OFF_SECONDS_MAX = 500.0  # for all of them


@dataclass(frozen=True)
class Plan:
    """How many tokens of the text play which part; block_count blocks of the prompt are full."""

    prompt_tokens: int
    forced_tokens: int  # the text's own next tokens, over which distributions are compared
    written_tokens: int  # of the continuation that the model writes
    calibration_tokens: int = 512  # of the text behind all of these, for the profile

    @property
    def block_count(self) -> int:
        return self.prompt_tokens // CHUNK_TOKENS

    @property
    def cached_tokens(self) -> int:
        return self.block_count * CHUNK_TOKENS

    @property
    def text_tokens(self) -> int:
        return self.prompt_tokens + self.forced_tokens

    @property
    def all_tokens(self) -> int:
        return self.text_tokens + self.calibration_tokens

    @property
    def capacity(self) -> int:
        return self.prompt_tokens + max(self.forced_tokens, self.written_tokens)


FULL = Plan(prompt_tokens=2100, forced_tokens=256, written_tokens=32)
QUICK = Plan(prompt_tokens=532, forced_tokens=128, written_tokens=8)


def parse_worker_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True, help="HOST:PORT of the daemon's control plane")
    parser.add_argument("--data", required=True, help="unix:PATH or HOST:PORT of its data plane")
    parser.add_argument("--result", type=pathlib.Path, required=True, help="JSON file to write")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--restarted", action="store_true", help="after the daemon's restart")
    arguments = parser.parse_args()
    arguments.plan = QUICK if arguments.quick else FULL
    return arguments


def open_spaces(client: cairn.Client, geometry: Geometry, revision: str) -> dict[str, cairn.Space]:
    """One space per recipe. A recipe is a space's policy and not its identity, so spaces that shall
    differ in nothing else get names that differ. A deployment has one space per model."""
    base = geometry.kinds[0].rope_base  # all layers are of one kind
    rope = cairn.Rope(geometry.rope_pairs, rotary_dims=geometry.dim, base=base)
    group = cairn.KvGroup(
        layers=geometry.layers, kv_heads=geometry.kv_heads, dim=geometry.dim, rope=rope
    )
    return {
        recipe: client.open_space(
            model=f"SmolLM2-135M-Instruct as {recipe}",
            weights_revision=revision,
            groups=[group],
            dtype="bf16",
            tokens_per_block=CHUNK_TOKENS,
            recipe=recipe,
        )
        for recipe in RECIPES
    }


def load_weights(terminal: Terminal) -> Weights:
    try:
        path = find(SMOLLM2)
    except MissingModelError as error:
        raise SystemExit(error) from None
    return Weights(path, progress=lambda share: terminal.bar("loading the model", share))


class Terminal:
    """Lines that name the process they come from, and a bar for what takes longer, printed anew
    every few seconds: two processes share the terminal, so nothing is drawn over."""

    BAR_SECONDS = 2.0

    def __init__(self, who: str) -> None:
        self._who = who
        self._bar_begin = 0.0
        self._bar_shown = 0.0

    def say(self, text: str) -> None:
        print(f"{self._who:>8} | {text}", flush=True)

    def bar(self, what: str, share: float) -> None:
        """Call with rising `share`; 1.0 ends the bar."""
        now = time.monotonic()
        if self._bar_begin == 0.0:
            self._bar_begin = self._bar_shown = now
        is_done = share >= 1.0
        if not is_done and now - self._bar_shown < self.BAR_SECONDS:
            return
        self._bar_shown = now
        filled = int(24 * share)
        bar = "#" * filled + "." * (24 - filled)
        self.say(f"{what} [{bar}] {share:4.0%} {now - self._bar_begin:5.1f} s")
        if is_done:
            self._bar_begin = 0.0


def write_result(path: pathlib.Path, result: dict) -> None:
    path.write_text(json.dumps(result, indent=1))
