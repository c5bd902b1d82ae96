# SPDX-License-Identifier: Apache-2.0
"""The tokenizers of GGUF files: byte-level BPE, and BPE by score as SentencePiece writes it."""

from __future__ import annotations

import heapq
from typing import Protocol

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from .weights import Weights

_SPACE = "\u2581"  # SentencePiece's mark for a space
# What Qwen 2 merges within: a contraction's tail, letters with one sign before them, one digit,
# signs with the line ends behind them, line ends, spaces.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """With the token that begins every sequence, where the model has one."""
        ...

    def decode(self, ids: list[int]) -> str: ...


def make_tokenizer(weights: Weights) -> Tokenizer:
    """The tokenizer that the file's metadata describes."""
    kind = weights.field("tokenizer.ggml.model")
    if kind == "gpt2":
        return _ByteLevel(weights)
    if kind == "llama":
        return _ByScore(weights)
    raise ValueError(f"{weights.path}: the tokenizer {kind} is not handled")


class _ByteLevel:
    """Digits stand alone; nothing is put in front. Control tokens are read as text."""

    def __init__(self, weights: Weights) -> None:
        merges = weights.field("tokenizer.ggml.merges")
        vocabulary = weights.field("tokenizer.ggml.tokens")
        self._tokenizer = tokenizers.Tokenizer(
            models.BPE(
                vocab={token: index for index, token in enumerate(vocabulary)},
                merges=[tuple(merge.split(" ")) for merge in merges],
            )
        )
        is_qwen = weights.field("tokenizer.ggml.pre") == "qwen2"
        if is_qwen:
            self._tokenizer.normalizer = normalizers.NFC()
            split = pre_tokenizers.Split(Regex(_QWEN2), "isolated")
        else:
            split = pre_tokenizers.Digits(individual_digits=True)
        in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not is_qwen)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
        self._tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode([int(token) for token in ids])


class _ByScore:
    """Of all neighbours that make a token together the pair with the best score is merged, the
    leftmost of equals, until none is left. What is no token then is spelled in bytes. Each line
    end is a token of its own, though Gemma 3 has tokens for several in a row as well."""

    def __init__(self, weights: Weights) -> None:
        self._tokens: list[str] = weights.field("tokenizer.ggml.tokens")
        self._scores: list[float] = weights.field("tokenizer.ggml.scores")
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        has_begin = weights.field("tokenizer.ggml.add_bos_token", False)
        self._begin = [weights.field("tokenizer.ggml.bos_token_id")] if has_begin else []

    def encode(self, text: str) -> list[int]:
        ids = list(self._begin)
        lines = text.replace(" ", _SPACE).split("\n")
        for index, line in enumerate(lines):
            if index:
                ids.append(self._ids["\n"])
            ids += self._encode_line(line)
        return ids

    def decode(self, ids: list[int]) -> str:
        text = "".join(self._tokens[token] for token in ids if token not in self._begin)
        return text.replace(_SPACE, " ")

    def _encode_line(self, line: str) -> list[int]:
        pieces: list[str | None] = list(line)  # None: merged into the one before
        after = list(range(1, len(pieces) + 1))
        before = list(range(-1, len(pieces) - 1))
        queue: list[tuple[float, int, str]] = []

        def offer(index: int) -> None:
            if index < 0 or after[index] >= len(pieces):
                return
            joined = f"{pieces[index]}{pieces[after[index]]}"
            if joined in self._ids:
                heapq.heappush(queue, (-self._scores[self._ids[joined]], index, joined))

        for index in range(len(pieces)):
            offer(index)
        while queue:
            _, index, joined = heapq.heappop(queue)
            second = after[index]
            if pieces[index] is None or second >= len(pieces):
                continue
            if f"{pieces[index]}{pieces[second]}" != joined:
                continue  # one of the two has grown since
            pieces[index], pieces[second] = joined, None
            after[index] = after[second]
            if after[index] < len(pieces):
                before[after[index]] = index
            offer(index)
            offer(before[index])
        return [token for piece in pieces if piece is not None for token in self._spell(piece)]

    def _spell(self, piece: str) -> list[int]:
        if piece in self._ids:
            return [self._ids[piece]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
