# SPDX-License-Identifier: Apache-2.0
"""Dumps what a small language model keeps of the two halves of a text, for cairn.evaluate.

    python client/examples/evaluate/dump.py /tmp/dump [--model smollm2] [--text FILE]
    cairnctl evaluate /tmp/dump/0 --calibration /tmp/dump/1 \\
        --judge client/examples/evaluate/judge.py:make --out /tmp/report

FOLDER/0 and FOLDER/1 are of the halves: the first is measured, the second calibrates. In each,
kv.safetensors is the KV of a prefix, with queries of its last tokens, and scored.json has the
tokens that follow it, on which judge.py scores what the model predicts behind coded KV. The
packages and models that this needs are those of `make deps`, in build/venv.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")  # before numpy is loaded
EXAMPLES = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(EXAMPLES))

try:
    import numpy as np
    from lm import weights as lm_weights
    from lm.kv_dump import write_kv_dump
    from lm.model import Model
    from lm.tokenizer import make_tokenizer
except ImportError as missing:
    sys.exit(f"{missing.name} is missing; `make deps` installs all that is needed in build/venv")

# Where the parts of Gemma's file are joined; dump and judge agree on it.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "cairn-examples"


def load_weights(name: str) -> lm_weights.Weights:
    CACHE.mkdir(parents=True, exist_ok=True)
    return lm_weights.Weights(lm_weights.find(name, CACHE))


def show(share: float) -> None:
    end = "\n" if share >= 1 else ""
    if sys.stderr.isatty() or end:
        bar = "#" * int(30 * share)
        print(f"\rreading the text [{bar:.<30}] {share:4.0%}", end=end, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    models = (lm_weights.SMOLLM2, lm_weights.GEMMA3)
    parser.add_argument("--model", choices=models, default=lm_weights.SMOLLM2)
    parser.add_argument("--text", type=pathlib.Path, default=EXAMPLES / "demo" / "text.txt")
    parser.add_argument("--tokens", type=int, default=1024, help="of each prefix (1024)")
    parser.add_argument("--scored", type=int, default=256, help="tokens behind it (256)")
    wanted = parser.parse_args()
    try:
        weights = load_weights(wanted.model)
    except lm_weights.MissingModelError as error:
        print(error, file=sys.stderr)
        return 1
    text, tokenizer = wanted.text.read_text(encoding="utf-8"), make_tokenizer(weights)
    middle, needed = len(text) // 2, wanted.tokens + wanted.scored + 1
    halves = [tokenizer.encode(half) for half in (text[:middle], text[middle:])]
    if min(map(len, halves)) < needed:
        has = " and ".join(str(len(half)) for half in halves)
        print(f"{wanted.text}: its halves have {has} tokens, {needed} are needed", file=sys.stderr)
        return 1
    model = Model(weights)
    for index, ids in enumerate(halves):
        folder = wanted.folder / str(index)
        write_kv_dump(model, np.array(ids[: wanted.tokens]), folder, progress=show)
        scored = {"model": wanted.model, "tokens": ids[wanted.tokens : needed]}
        (folder / "scored.json").write_text(json.dumps(scored) + "\n")
        print(f"{folder}: {wanted.tokens} tokens, and {wanted.scored} to be scored")
    return 0


if __name__ == "__main__":
    sys.exit(main())
