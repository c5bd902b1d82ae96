# SPDX-License-Identifier: Apache-2.0
"""A space of blocks: match, put, get."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from . import _abi, _ffi, keys
from ._connection import Connection
from ._handle import handle_within
from ._side_objects import SideObjects
from .errors import Error, FailedPreconditionError, NotDurableError, from_code
from .match import REASONS, STATES, BlockFate, Explanation, Match, MemberBlocks, Whereabouts
from .transfer import (
    DURABILITIES,
    TIERS,
    WHOLE,
    Get,
    GetResult,
    Names,
    Part,
    Prefetched,
    Put,
    PutResult,
    Recorder,
    check_key,
    choice_of,
    fill,
    fill_names,
    fill_statistics,
    native_key,
)
from .watch import EventWatch, Position


class Space(SideObjects):
    """Made by `Client.open_space`. Thread-safe. Arrays are [layers, heads, tokens, dim].

    An array may come from numpy, torch or anything with DLPack or the buffer protocol, with any
    strides, or be a list of one array [heads, tokens, dim] per layer. bf16 elements may be a
    bfloat16 type (torch, ml_dtypes) or their bits as uint16.

    In place of `k` and `v`, a put or a get accepts contiguous bytes of any type: `source`, the
    elements as [layers, heads, plane (K, V), tokens, dim], or `image`, a block as it is stored
    (`cairn.image` reads images). From and into a `Buffer` these move with the fewest copies.

    With `slot_mapping`, k and v are an engine's whole cache, [layers, heads, slots, dim], and token
    i is at slot slot_mapping[i]. A get skips tokens with slot -1.
    """

    def __init__(self, connection: Connection, address: int, spec: keys.SpaceSpec) -> None:
        self._connection = connection  # keeps the session open
        self._handle = handle_within(
            connection.handle, self, "space", address, _ffi.library().cairn_space_close
        )
        self.spec = spec
        info = _abi.SpaceInfo()
        with self._handle.use() as space:
            _ffi.check(_ffi.library().cairn_space_info_get(space, ctypes.byref(info)))
        self.fingerprint = bytes(info.fingerprint)
        self.recipe = info.recipe.decode()
        self.was_created = bool(info.created)
        self._capture: Recorder | None = None
        connection.opened.add(self)

    @property
    def tenant(self) -> str:
        return self._connection.tenant

    # -------------------------------------------------------------------------------- naming

    def keys(self, tokens: Iterable[int], extras: Sequence[keys.KeyExtra] = ()) -> list[bytes]:
        """Returns the keys of all full blocks of a token sequence. See
        `cairn.keys.derive_chain`."""
        return keys.derive_chain(self.fingerprint, tokens, self.spec.tokens_per_block, extras)

    def opaque_key(self, engine_key: bytes) -> bytes:
        """Returns the key of a block that an engine identifies by its own hash."""
        return keys.opaque_key(self.fingerprint, engine_key)

    def source_bytes(self, part: Part | None = None) -> int:
        """Returns the size in bytes of a block, or of a part of it, in the `source` form."""
        return self._bytes_of(_ffi.library().cairn_space_source_bytes, part)

    def image_bytes_max(self, part: Part | None = None) -> int:
        """Returns the largest size in bytes of an image of a block, or of a part of it, for all
        recipes."""
        return self._bytes_of(_ffi.library().cairn_space_image_bytes_max, part)

    # -------------------------------------------------------------------------------- reading

    def match(
        self,
        wanted: Sequence[bytes],
        *,
        part: Part | None = None,
        token_limit: int = 0,
        wait: float = 0.0,
        lease: bool = True,
        timeout: float | None = None,
    ) -> Match:
        """Finds the longest stored prefix of the blocks `wanted`, and leases it in the same call.

        wait: seconds to wait for all of them, before it returns the blocks found. token_limit:
        limits the prefix to this many tokens. part: the layers and heads that are needed; None
        means all. timeout: of the call; None means `wait` and half a second. A miss is not an
        error: `block_count` is then 0.
        """
        options = _abi.MatchOptions(
            **_wanted_of(part, timeout),
            token_limit=_ffi.unsigned("token_limit", token_limit),
            wait_ms=_ffi.wait_milliseconds(wait),
            no_lease=0 if lease else 1,
        )
        result = _abi.MatchResult()
        blocks = (_abi.MatchedBlock * max(1, len(wanted)))()
        call = _ffi.library().cairn_match
        self._ask(call, wanted, ctypes.byref(options), ctypes.byref(result), blocks)
        matched = list(wanted[: result.block_count])
        return Match(self, matched, part or Part(), result, blocks)

    def prefetch(
        self, wanted: Sequence[bytes], *, part: Part | None = None, timeout: float | None = None
    ) -> Prefetched:
        """Tells the daemon to read blocks into memory, the most urgent first, after all reads that
        gets wait for. Returns at once; `match` reports a block's tier."""
        options = _abi.PrefetchOptions(**_wanted_of(part, timeout))
        result = _abi.PrefetchResult()
        call = _ffi.library().cairn_prefetch
        self._ask(call, wanted, ctypes.byref(options), ctypes.byref(result))
        return Prefetched(
            result.in_memory_count,
            result.on_their_way_count,
            result.absent_count,
            result.refused_count,
        )

    def get(
        self,
        key: bytes,
        k: Any = None,
        v: Any = None,
        *,
        source: Any = None,
        image: Any = None,
        slot_mapping: Any = None,
        lease: bytes | None = None,
        part: Part | None = None,
        decode: str = "client",
        timeout: float | None = None,
    ) -> GetResult:
        """Gets one block, or a part of it, into the caller's arrays: k and v, or `source`, or
        `image`, which must be at least `image_bytes_max()` long.

        Returns True if the block was found; the arrays then hold it, verified. After False (a miss)
        or an exception their content is unspecified. lease: from a match; while the match is held,
        the block is not evicted. Daemons do not read the lease today. decode: "client" moves the
        image, "daemon" the source bytes.
        """
        one = Get(key, k, v, lease, part or WHOLE, decode, source, image, slot_mapping)
        result = self.get_batch([one], timeout=timeout)[0]
        if result.error is not None:
            raise result.error
        return result

    def get_batch(self, gets: Sequence[Get], *, timeout: float | None = None) -> list[GetResult]:
        """Runs many gets, pipelined. Each has its own result and its own error."""
        requests = (_abi.GetRequest * len(gets))()
        held = []  # keeps the memory alive until the call ends
        for request, one in zip(requests, gets, strict=True):
            request.struct_bytes = ctypes.sizeof(_abi.GetRequest)
            request.decode = choice_of("decode", one.decode, ("client", "daemon"))
            request.key = native_key("key", one.key)
            if one.lease is not None:
                request.lease[:] = one.lease
            request.slice = one.part.native()
            held.append(fill(request.target, self.spec, one))
        reason = self._run("get", requests, timeout)
        return [
            GetResult(
                request.status == 0,
                TIERS.get(request.tier, "none"),
                request.wire_bytes,
                request.first_position,
                _failure("get", request.status, reason),
                request.bytes,
            )
            for request in requests
        ]

    def contains(self, wanted: Sequence[bytes], *, timeout: float | None = None) -> list[bool]:
        """Returns which blocks are stored whole. Takes no lease."""
        present = (ctypes.c_uint8 * max(1, len(wanted)))()
        self._ask(_ffi.library().cairn_contains, wanted, _ffi.milliseconds(timeout), present)
        return [bool(there) for there in present[: len(wanted)]]

    def explain(self, wanted: Sequence[bytes], *, timeout: float | None = None) -> Explanation:
        """Returns which tiers have each block, or why it is not stored. Takes no lease. `cairnctl
        explain` does this for two requests and compares them. Raises UnimplementedError if the
        daemon is older."""
        fates = (_abi.BlockFate * max(1, len(wanted)))()
        recorded = ctypes.c_uint64()
        call = _ffi.library().cairn_explain
        self._ask(call, wanted, _ffi.milliseconds(timeout), fates, ctypes.byref(recorded))
        blocks = [_fate_of(fate, _tiers_in(fate.tiers)) for fate in fates[: len(wanted)]]
        return Explanation(blocks, recorded.value / 1000)

    def where(self, prefix: Sequence[bytes], *, timeout: float | None = None) -> Whereabouts:
        """Returns how much of a prefix each member of the daemon's cluster has, for routers.

        Fetches nothing, takes no lease, and counts as no match. Members are waited for until the
        timeout, for two seconds at most. Raises ResourceExhaustedError if too many of these calls
        are running, and UnimplementedError if the daemon is older."""
        members = (_abi.MemberBlocks * _abi.WHERE_MEMBERS_MAX)()
        count, unasked = ctypes.c_size_t(), ctypes.c_uint32()
        call = _ffi.library().cairn_where
        self._ask(
            call,
            prefix,
            _ffi.milliseconds(timeout),
            members,
            len(members),
            ctypes.byref(count),
            ctypes.byref(unasked),
        )
        return Whereabouts([_member_of(one) for one in members[: count.value]], unasked.value)

    # -------------------------------------------------------------------------------- hints

    def retain(
        self,
        prefix: Sequence[bytes],
        seconds: float,
        *,
        priority: int = 1,
        timeout: float | None = None,
    ) -> int:
        """Has the blocks evicted after all blocks of a lower priority (1 to 5), for 1 to 604800
        `seconds`. Pins nothing. A block may be named before it is put, and the last hint on a block
        replaces earlier ones. Returns how many of the blocks are stored now. Raises
        ResourceExhaustedError, and changes nothing, if the tenant has its share of the hints."""
        count = ctypes.c_uint32()
        whole, rank = _ffi.unsigned("seconds", round(seconds)), _ffi.unsigned("priority", priority)
        call = _ffi.library().cairn_retain
        self._ask(call, prefix, whole, rank, _ffi.milliseconds(timeout), ctypes.byref(count))
        return count.value

    def demote(
        self, prefix: Sequence[bytes], *, after: float = 0.0, timeout: float | None = None
    ) -> int:
        """Has the blocks evicted before others once `after` seconds, at most 604800, have passed,
        unless they are used after the call. Returns and raises as `retain`."""
        count = ctypes.c_uint32()
        call = _ffi.library().cairn_demote
        seconds = _ffi.unsigned("after", round(after))
        self._ask(call, prefix, seconds, _ffi.milliseconds(timeout), ctypes.byref(count))
        return count.value

    # -------------------------------------------------------------------------------- writing

    def put(
        self,
        key: bytes,
        k: Any = None,
        v: Any = None,
        *,
        source: Any = None,
        image: Any = None,
        slot_mapping: Any = None,
        parent: bytes | None = None,
        first_position: int = 0,
        part: Part | None = None,
        is_derived: bool = False,
        encode: str = "daemon",
        query_squares: Any = None,
        query_magnitudes: Any = None,
        token_scores: Any = None,
        is_durable: bool = False,
        names: Names | None = None,
        timeout: float | None = None,
    ) -> PutResult:
        """Puts one block, or this rank's part of it: k and v, or `source`, or `image`.

        parent: the key of the block before it, None for the first. first_position: position of its
        first token in the sequence. is_derived: it was computed from a prefix that was stored
        lossily. encode: the side that encodes it with the space's recipe, "daemon" or "client" (not
        for `ott`). v is None for a latent.

        query_squares: statistics from which the daemon mines a profile, float32 or float16 [layers,
        heads, k_dim] of the part: the mean of the squared queries after RoPE, over the block's
        tokens and over the query heads that read the head of K. Finite, not negative.
        query_magnitudes: for mixkvq, the same mean of |q|. token_scores: for arkv, float32 or
        float16 [layers, heads, tokens] of the part, made by `cairn.arkv`. Neither is allowed with
        `image`.

        names: the engine's own names of the block, for events.

        is_durable: returns once the block, and all blocks before it, survive a power loss. If the
        block is stored but not durable, raises `NotDurableError` with the reason.
        """
        one = Put(
            key,
            k,
            v,
            parent,
            first_position,
            part or WHOLE,
            is_derived,
            encode,
            source,
            image,
            query_squares,
            query_magnitudes,
            token_scores,
            slot_mapping,
            is_durable,
            names,
        )
        result = self.put_batch([one], timeout=timeout)[0]
        if result.error is not None:
            raise result.error
        return result

    def put_batch(self, puts: Sequence[Put], *, timeout: float | None = None) -> list[PutResult]:
        """Runs many puts, pipelined. Each has its own result and its own error."""
        requests = (_abi.PutRequest * len(puts))()
        named: list[tuple[_abi.Names, Names]] = []
        held = []  # keeps the memory alive until the call ends
        for request, one in zip(requests, puts, strict=True):
            request.struct_bytes = ctypes.sizeof(_abi.PutRequest)
            request.encode = choice_of("encode", one.encode, ("daemon", "client"))
            request.key = native_key("key", one.key)
            if one.parent is not None:
                request.parent = native_key("parent", one.parent)
            request.slice = one.part.native()
            request.first_position = _ffi.unsigned("first_position", one.first_position, 64)
            request.derived = 1 if one.is_derived else 0
            request.durable = 1 if one.is_durable else 0
            held.append(fill(request.source, self.spec, one))
            held.append(fill_statistics(request, self.spec, one))
            if one.names is not None:
                named.append((request.names, one.names))
        if named:
            held.append(fill_names(named))
        reason = self._run("put", requests, timeout)
        results = [
            _put_result(request, _failure("put", request.status, reason)) for request in requests
        ]
        record = self._capture
        if record is not None:
            record(puts, results)
        return results

    def delete(self, unwanted: Sequence[bytes], *, timeout: float | None = None) -> int:
        """Deletes blocks; returns how many existed."""
        count = ctypes.c_uint64()
        call = _ffi.library().cairn_delete
        self._ask(call, unwanted, _ffi.milliseconds(timeout), ctypes.byref(count))
        return count.value

    def invalidate(self, *, timeout: float | None = None) -> int:
        """Deletes every block of the space; returns how many existed."""
        count = ctypes.c_uint64()
        with self._handle.use() as space:
            _ffi.check(
                _ffi.library().cairn_invalidate(
                    space, _ffi.milliseconds(timeout), ctypes.byref(count)
                )
            )
        return count.value

    # -------------------------------------------------------------------------------- the rest

    def watch(self, position: Position | None = None, *, snapshots: bool = False) -> EventWatch:
        """Watches the space's blocks enter and leave tiers, from `position`, else from now.
        snapshots: after each reset, the daemon reports what is stored."""
        return EventWatch(self._connection, self._handle, position or Position(), snapshots)

    def with_weights(self, weights_revision: str, *, timeout: float | None = None) -> Space:
        """Opens the space of the same model with other weights, with this one's recipe if it is new.
        Call it when the weights of a running engine have changed: from then on, look up and put in
        that space only. This space and its blocks stay."""
        from .client import open_in  # which imports this module

        spec = dataclasses.replace(self.spec, weights_revision=weights_revision)
        return open_in(self._connection, spec, self.recipe, timeout)

    def close(self) -> None:
        """Closes the space in this client; its blocks stay."""
        self._handle.close()

    def __repr__(self) -> str:
        spec, closed = self.spec, ", closed" if self._handle.is_closed else ""
        return (
            f"<cairn.Space {self.fingerprint.hex()[:12]} of {spec.model}, weights"
            f" {spec.weights_revision}, {spec.dtype}, blocks of {spec.tokens_per_block} tokens,"
            f" recipe {self.recipe}{closed}>"
        )

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, call: Any, wanted: Sequence[bytes], *more: Any) -> None:
        """Makes a call about keys."""
        joined = b"".join(check_key("a key", key) for key in wanted)
        with self._handle.use() as space:
            _ffi.check(call(space, joined, len(wanted), *more))

    def _bytes_of(self, question: Any, part: Part | None) -> int:
        count = ctypes.c_uint64()
        native = (part or Part()).native()
        with self._handle.use() as space:
            _ffi.check(question(space, ctypes.byref(native), ctypes.byref(count)))
        return count.value

    def _run(self, verb: str, requests: Any, timeout: float | None) -> str:
        """Runs requests, which then have their statuses. For a single request that failed, returns
        the library's error text."""
        library, limit = _ffi.library(), _ffi.milliseconds(timeout)
        with self._handle.use() as space:
            if len(requests) == 1:
                call = library.cairn_put if verb == "put" else library.cairn_get
                requests[0].status = call(space, requests, limit)
                return _ffi.last_error() if requests[0].status != _abi.OK else ""
            many = library.cairn_put_batch if verb == "put" else library.cairn_get_batch
            _ffi.check(many(space, requests, len(requests), limit))
            return ""

    def _tap(self, record: Recorder | None) -> None:
        """Sets the function that is called after every put from now on."""
        if record is not None and self._capture is not None:
            raise FailedPreconditionError("the space has a capture already")
        self._capture = record

    def _release(self, lease: bytes) -> None:
        with self._connection.handle.use() as client:
            _ffi.check(_ffi.library().cairn_release(client, lease, 1, 0))


@functools.cache
def _tiers_in(bits: int) -> tuple[str, ...]:
    return tuple(name for number, name in TIERS.items() if bits >> number & 1)


def _fate_of(fate: _abi.BlockFate, tiers: tuple[str, ...]) -> BlockFate:
    state = STATES.get(fate.state, "unknown")
    return BlockFate(
        state,
        REASONS.get(fate.reason, "unknown"),
        tiers,
        fate.removed_ms / 1000,
        fate.missing_group if state == "incomplete" else None,
    )


def _member_of(member: _abi.MemberBlocks) -> MemberBlocks:
    tiers = {name: member.tier_counts[i] for i, name in TIERS.items() if member.tier_counts[i]}
    return MemberBlocks(
        member.member.decode(),
        member.block_count,
        tiers,
        bool(member.is_self),
        bool(member.is_draining),
        member.failure.decode(),
    )


def _wanted_of(part: Part | None, timeout: float | None) -> dict[str, Any]:
    """Returns the first options of a match and of a prefetch."""
    fields: dict[str, Any] = {"timeout_ms": _ffi.milliseconds(timeout)}
    if part is not None:
        fields |= {"slices": ctypes.pointer(part.native()), "slice_count": 1}
    return fields


def _put_result(request: Any, error: Error | None) -> PutResult:
    durability = DURABILITIES[request.durability]
    if isinstance(error, NotDurableError):
        error.durability = durability
    return PutResult(bool(request.duplicate), request.image_bytes, error, durability)


def _failure(what: str, status: int, reason: str) -> Error | None:
    is_answer = status == _abi.OK or (what == "get" and status == _abi.NOT_FOUND)
    return None if is_answer else from_code(status, reason or f"{what}: {_ffi.status_name(status)}")
