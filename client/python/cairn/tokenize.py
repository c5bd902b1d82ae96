# SPDX-License-Identifier: Apache-2.0
"""Turns the text on stdin into token ids, for `cairnctl explain`.

    python -m cairn.tokenize TOKENIZER TARGET < TEXT

TOKENIZER is a tokenizer.json, or its folder. TARGET is the file that gets the ids. Needs the package
tokenizers.
"""

from __future__ import annotations

import pathlib
import sys


def token_ids(tokenizer: pathlib.Path, text: str) -> list[int]:
    """Returns the ids that engines compute for a plain prompt, with the model's special tokens."""
    from tokenizers import Tokenizer

    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    return list(Tokenizer.from_file(str(path)).encode(text).ids)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        ids = token_ids(pathlib.Path(sys.argv[1]), sys.stdin.buffer.read().decode())
    except ImportError:
        print(f"{sys.executable} lacks the package tokenizers", file=sys.stderr)
        return 1
    except Exception as error:  # the package raises Exception itself
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    pathlib.Path(sys.argv[2]).write_text(" ".join(map(str, ids)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
