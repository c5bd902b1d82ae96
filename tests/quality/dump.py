# SPDX-License-Identifier: Apache-2.0
"""Writes a model's KV of a text as cairn.evaluate reads it: for trying that, and for codecs to be.

    build/venv/bin/python tests/quality/dump.py smollm2 A /tmp/dump [--tokens 2048] [--queries 64]

client/examples/evaluate/dump.py does it for any text, with tokens to score.
"""

from __future__ import annotations

import argparse
import pathlib

import run  # first: sets the paths and the number of BLAS threads

import models
import texts
from lm.kv_dump import write_kv_dump
from protocol import Engine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=tuple(models.MODELS))
    parser.add_argument("text", choices=(*texts.SCORED, *texts.CALIBRATION))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--queries", type=int, default=64, help="of the last tokens (64)")
    parser.add_argument("--cache", type=pathlib.Path, default=run.CACHE)
    arguments = parser.parse_args()
    engine = Engine(arguments.model, arguments.cache.resolve())
    tokens = engine.text_tokens(arguments.text, arguments.tokens)
    write_kv_dump(engine.model, tokens, arguments.folder, arguments.queries)


if __name__ == "__main__":
    main()
