# SPDX-License-Identifier: Apache-2.0
"""The demo's text and its tokens.

text.txt is chapters I and II of "Alice's Adventures in Wonderland" by Lewis Carroll (1865, in the
public domain), from the Millennium Fulcrum edition 2.9 with each paragraph joined into one line.
"""

from __future__ import annotations

import pathlib

import numpy as np
from lm.tokenizer import Tokenizer


def read_text() -> str:
    return (pathlib.Path(__file__).parent / "text.txt").read_text(encoding="ascii")


def encode(tokenizer: Tokenizer, count: int) -> np.ndarray:
    """The first `count` tokens of the text."""
    ids = tokenizer.encode(read_text())
    if len(ids) < count:
        raise SystemExit(f"text.txt holds {len(ids)} tokens, {count} were asked for")
    return np.array(ids[:count], np.uint32)
