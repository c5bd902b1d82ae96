# SPDX-License-Identifier: Apache-2.0
"""States of sequences in Cairn: bytes whose layout only the engine knows, under the tokens that they
are of. For engines that hand out a sequence's state in one piece, as llama.cpp does.

A state is cut into pieces of one length, the blocks of a space of opaque states. Pieces are named
by what the whole state holds, so that those of two runs never mix; a head, named by the tokens, in a
space of its own, says which state it is."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

import cairn

PIECE_BYTES = 1 << 20
_HEAD = struct.Struct("<Q32s")  # the state's bytes, and their SHA-256


class States:
    """model, revision: all that a state depends on besides its tokens: the weights, the engine's
    version, its settings. step: states are kept of multiples of so many tokens."""

    def __init__(self, client: cairn.Client, model: str, revision: str, step: int = 64) -> None:
        def open_space(state_bytes: int) -> cairn.Space:
            return client.open_space(
                model,
                revision,
                [cairn.Group("state", 1, state_bytes=state_bytes)],
                tokens_per_block=16,  # of no meaning for bytes
                recipe="raw",
            )

        self._step = step
        self._heads, self._pieces = open_space(_HEAD.size), open_space(PIECE_BYTES)

    def boundary(self, tokens: Sequence[int]) -> int:
        """Of how many of these tokens a state is kept: one at least is left to compute."""
        return max(0, len(tokens) - 1) // self._step * self._step

    def keep(self, tokens: Sequence[int], state: bytes) -> None:
        """Puts the state that a sequence has after these tokens. The head comes last: who finds it
        finds the pieces."""
        digest = hashlib.sha256(state).digest()
        pieces = [
            state[first : first + PIECE_BYTES].ljust(PIECE_BYTES, b"\0")
            for first in range(0, len(state), PIECE_BYTES)
        ]
        puts = [
            cairn.Put(self._piece(digest, index), source=piece)
            for index, piece in enumerate(pieces)
        ]
        for result in self._pieces.put_batch(puts):
            if result.error is not None:
                raise result.error
        self._heads.put(self._head(tokens), source=_HEAD.pack(len(state), digest))

    def find(self, tokens: Sequence[int]) -> tuple[int, bytes | None]:
        """The state of the longest beginning of these tokens that is kept, and their number."""
        counts = list(range(self.boundary(tokens), 0, -self._step))
        if counts:
            there = self._heads.contains([self._head(tokens[:count]) for count in counts])
            for count, is_there in zip(counts, there, strict=True):
                state = self._get(tokens[:count]) if is_there else None
                if state is not None:
                    return count, state
        return 0, None

    def _get(self, tokens: Sequence[int]) -> bytes | None:
        """None: it, or a piece of it, is not there any more."""
        head = bytearray(_HEAD.size)
        if not self._heads.get(self._head(tokens), source=head):
            return None
        count, digest = _HEAD.unpack(head)
        pieces = [bytearray(PIECE_BYTES) for _ in range(-(-count // PIECE_BYTES))]
        gets = [
            cairn.Get(self._piece(digest, index), source=piece)
            for index, piece in enumerate(pieces)
        ]
        if not all(self._pieces.get_batch(gets)):
            return None
        state = b"".join(pieces)[:count]
        return state if hashlib.sha256(state).digest() == digest else None

    def _head(self, tokens: Sequence[int]) -> bytes:
        digest = hashlib.sha256(array("i", tokens).tobytes()).digest()
        return self._heads.opaque_key(digest)

    def _piece(self, digest: bytes, index: int) -> bytes:
        return self._pieces.opaque_key(digest + index.to_bytes(4, "little"))
