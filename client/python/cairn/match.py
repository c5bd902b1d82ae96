# SPDX-License-Identifier: Apache-2.0
"""The result of a match, with its lease; of an explanation; and which members have blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from . import _abi
from .errors import InvalidArgumentError
from .keys import SpaceSpec
from .transfer import TIERS, Get, GetResult, MatchedBlock, Part, Plane, slots_of


STATES = {1: "stored", 2: "incomplete", 3: "absent"}
REASONS = {
    0: "none",
    1: "unknown",
    2: "never put",
    3: "evicted",
    4: "expired",
    5: "deleted",
    6: "invalidated",
    7: "damaged",
    8: "device out",
    9: "refused",
}


@dataclass(frozen=True)
class BlockFate:
    """Where a block is, or why it is not stored.

    state: "stored", "incomplete" or "absent". reason: one of `REASONS`; "never put" means since the
    daemon started, "unknown" that it was removed before the record begins, or never put.
    missing_group: of an incomplete block."""

    state: str
    reason: str
    tiers: tuple[str, ...]
    removed_seconds: float  # since it was removed or refused
    missing_group: int | None = None


@dataclass(frozen=True)
class Explanation:
    """recorded_seconds: removals and refusals are known since so long ago."""

    blocks: list[BlockFate]
    recorded_seconds: float


@dataclass(frozen=True)
class MemberBlocks:
    """How much of a prefix a member of the cluster has.

    member: its name; "" if the daemon belongs to no cluster. block_count: from the first block on.
    tiers: of these blocks, how many are in each tier. failure: why it has not answered, and then
    what it has is unknown; "" if it has."""

    member: str
    block_count: int
    tiers: dict[str, int]
    is_self: bool = False
    is_draining: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Whereabouts:
    """members: the daemon that was asked, then the others; those that have more blocks come first.
    unasked_count: other members that were not asked, because the cluster is large."""

    members: list[MemberBlocks]
    unasked_count: int


class Matched(Protocol):
    """The interface of the space that a match belongs to."""

    spec: SpaceSpec

    def get_batch(
        self, gets: Sequence[Get], *, timeout: float | None = None
    ) -> list[GetResult]: ...

    def _release(self, lease: bytes) -> None: ...


class Match:
    """The longest stored prefix, leased until `release` (or the end of the `with` block). Its
    length is `block_count`: a miss is false."""

    def __init__(
        self,
        space: Matched,
        matched: list[bytes],
        part: Part,
        native: _abi.MatchResult,
        blocks: Any,
    ) -> None:
        self._space = space
        self._part = part
        self.keys = matched
        self.block_count = native.block_count
        self.token_count = native.token_count
        self.blocks = [
            MatchedBlock(TIERS[block.tier], block.image_bytes)
            for block in blocks[: native.block_count]
        ]
        self.lease_seconds = native.lease_ms / 1000
        self.is_shortened_by_pins = bool(native.shortened_by_pins)
        self.is_breaker_open = bool(native.breaker_open)  # the daemon was not asked
        lease = bytes(native.lease)
        self.lease = lease if any(lease) else None

    def get(
        self,
        k: Any,
        v: Any = None,
        *,
        slot_mapping: Any = None,
        decode: str = "client",
        timeout: float | None = None,
    ) -> int:
        """Gets the matched blocks into arrays [layers, heads, tokens, dim] of at least
        `token_count` tokens, from token 0 on. With `slot_mapping`, the arrays are [layers, heads,
        slots, dim], and token i goes to slot slot_mapping[i]. Returns the number of tokens
        delivered, which is smaller if a block became a miss. Raises if a get failed otherwise; see
        `Error.delivered_tokens`."""
        slots = None if slot_mapping is None else slots_of(slot_mapping)
        k_plane, v_plane = Plane("k", k, slots), None if v is None else Plane("v", v, slots)
        for plane in (k_plane, v_plane):
            if plane is not None and plane.shape[2] < self.token_count:
                raise InvalidArgumentError(
                    f"{plane.what} holds {plane.shape[2]} tokens, the match has {self.token_count}"
                )
        step = self._space.spec.tokens_per_block
        gets = [
            Get(
                key,
                k_plane.cut(i * step, step),
                None if v_plane is None else v_plane.cut(i * step, step),
                self.lease,
                self._part,
                decode,
            )
            for i, key in enumerate(self.keys)
        ]
        delivered = 0
        for result in self._space.get_batch(gets, timeout=timeout):
            if result.error is not None:
                raise result.error.after(delivered)
            if not result:
                break
            delivered += step
        return delivered

    @property
    def wire_bytes(self) -> int:
        """Size of the matched images in the daemon's own tiers, for `Client.should_fetch`."""
        return sum(block.image_bytes for block in self.blocks if block.tier != "peer")

    @property
    def peer_bytes(self) -> int:
        """Size of those that other members of the cluster have."""
        return sum(block.image_bytes for block in self.blocks if block.tier == "peer")

    def release(self) -> None:
        """Ends the lease. Later calls do nothing."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self._space._release(lease)

    def __len__(self) -> int:
        return self.block_count

    def __repr__(self) -> str:
        leased = "" if self.lease is None else ", leased"
        return f"<cairn.Match: {self.block_count} blocks, {self.token_count} tokens{leased}>"

    def __enter__(self) -> Match:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
