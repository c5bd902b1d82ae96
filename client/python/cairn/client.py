# SPDX-License-Identifier: Apache-2.0
"""A session with one daemon."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi, _ffi, _ucx, keys
from ._connection import Connection
from ._settings import control_address, tls_setting, transports_setting
from .buffer import Buffer
from .space import Space
from .transfer import TIERS
from .watch import EventWatch, Position


@dataclass(frozen=True)
class TierStats:
    tier: str
    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int
    staging_bytes: int
    quarantine_bytes: int


@dataclass(frozen=True)
class Stats:
    """The tenant's data in the daemon. image_bytes: its size; source_bytes: its decoded size."""

    tiers: tuple[TierStats, ...]
    block_count: int
    image_count: int
    image_bytes: int
    source_bytes: int
    session_count: int
    lease_count: int
    uptime_ms: int
    is_draining: bool
    daemon_version: str


@dataclass(frozen=True)
class Counters:
    """Counters of this client since it connected. hits + misses: the gets that ended as one of the
    two."""

    breaker_state: str  # "closed", "open", "half open"
    gets: int
    hits: int
    misses: int
    corrupt: int
    late: int
    puts: int
    duplicates: int
    get_bytes: int
    put_bytes: int
    reconnects: int
    breaker_opened: int


class Client:
    """Made by `connect`. Thread-safe; a context manager; not usable in a forked child.

    It keeps its session open by itself, and reopens it when the daemon is back.
    """

    def __init__(self, address: int, tenant: str = "default", control: str = "") -> None:
        self.tenant, self.control = tenant, control
        self._connection = Connection(address, tenant)
        self._handle = self._connection.handle

    def open_space(
        self,
        model: str,
        weights_revision: str,
        groups: Sequence[keys.Group],
        *,
        dtype: Any = "bf16",
        tokens_per_block: int = 128,
        recipe: str | None = None,
        timeout: float | None = None,
    ) -> Space:
        """Opens the space of a specification, and creates it at its first use.

        model, weights_revision, groups, dtype (a name of `keys.DTYPES`, or such a dtype of torch or
        numpy) and tokens_per_block are its identity. `recipe` ("raw", "exact", "kivi:4", …; None:
        the daemon's default) is used only if this call creates the space; `Space.recipe` is the
        space's current recipe.
        """
        spec = keys.SpaceSpec(model, weights_revision, tuple(groups), dtype, tokens_per_block)
        return open_in(self._connection, spec, recipe, timeout)

    def stats(self, *, timeout: float | None = None) -> Stats:
        """Returns the tenant's statistics; the capacity of tiers and uptime are the daemon's."""
        native = _abi.Stats()
        with self._handle.use() as client:
            _ffi.check(
                _ffi.library().cairn_stats_get(
                    client, _ffi.milliseconds(timeout), ctypes.byref(native)
                )
            )
        tiers = tuple(
            TierStats(
                TIERS[tier.tier],
                tier.capacity_bytes,
                tier.used_bytes,
                tier.pinned_bytes,
                tier.staging_bytes,
                tier.quarantine_bytes,
            )
            for tier in native.tiers[: native.tier_count]
        )
        return Stats(
            tiers,
            native.block_count,
            native.image_count,
            native.image_bytes,
            native.source_bytes,
            native.session_count,
            native.lease_count,
            native.uptime_ms,
            bool(native.draining),
            native.daemon_version.decode(),
        )

    def counters(self) -> Counters:
        """Returns this client's counters. Does not call the daemon."""
        native = _abi.Counters()
        with self._handle.use() as client:
            _ffi.check(_ffi.library().cairn_counters_get(client, ctypes.byref(native)))
        state = ("closed", "open", "half open")[native.breaker_state]
        names = [field[0] for field in _abi.Counters._fields_[2:]]
        return Counters(state, *(getattr(native, name) for name in names))

    def events(self, position: Position | None = None, *, snapshots: bool = False) -> EventWatch:
        """Watches the tenant's blocks enter and leave tiers, from `position`, else from now.
        snapshots: after each reset, the daemon reports what is stored."""
        return EventWatch(self._connection, None, position or Position(), snapshots)

    def recomputed(self, tokens: int, seconds: float) -> None:
        """Tells the breaker how fast the engine computes KV: `tokens` of prefill took `seconds`."""
        with self._handle.use() as client:
            _ffi.check(_ffi.library().cairn_breaker_recomputed(client, tokens, seconds))

    def should_fetch(self, tokens: int, wire_bytes: int, peer_bytes: int = 0) -> bool:
        """Returns whether getting `wire_bytes` from the daemon's tiers, and `peer_bytes` of other
        members of its cluster, is expected to be faster than recomputing `tokens`
        (`Match.wire_bytes`, `Match.peer_bytes`).

        Does not call the daemon. Also False while the store is slow or failing; `Space.match` then
        returns 0 blocks at once, except for occasional probes.
        """
        fetch = ctypes.c_int()
        with self._handle.use() as client:
            _ffi.check(
                _ffi.library().cairn_breaker_advise_peer(
                    client, tokens, wire_bytes, peer_bytes, ctypes.byref(fetch)
                )
            )
        return bool(fetch.value)

    def allocate_buffer(self, count: int, *, timeout: float | None = None) -> Buffer:
        """Allocates `count` bytes of memory of a data connection, for puts and gets with the fewest
        copies.

        Raises ResourceExhaustedError if the connection's region (`region_bytes`) is full.
        """
        address = ctypes.c_void_p()
        with self._handle.use() as client:
            _ffi.check(
                _ffi.library().cairn_buffer_allocate(
                    client, count, _ffi.milliseconds(timeout), ctypes.byref(address)
                )
            )
            return Buffer(self._handle, address.value or 0)

    def close(self) -> None:
        """Ends the session: releases its leases, aborts its puts, closes its spaces and watches.
        While views of a buffer exist, its memory and the session stay."""
        self._connection.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._handle.is_closed else ""
        return f"<cairn.Client of {self.control}, tenant {self.tenant}{closed}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_in(
    connection: Connection, spec: keys.SpaceSpec, recipe: str | None, timeout: float | None
) -> Space:
    """As `Client.open_space`."""
    native, address = native_spec(spec, recipe), ctypes.c_void_p()
    with connection.handle.use() as client:
        _ffi.check(
            _ffi.library().cairn_open_space(
                client, ctypes.byref(native), _ffi.milliseconds(timeout), ctypes.byref(address)
            )
        )
    return Space(connection, address.value or 0, spec)


def native_spec(spec: keys.SpaceSpec, recipe: str | None = None) -> _abi.SpaceSpec:
    """Returns the C form of a specification. ctypes keeps the memory alive that it points to."""
    groups = (_abi.GroupSpec * len(spec.groups))()
    for native, group in zip(groups, spec.groups, strict=True):
        layers = group.layer_indices
        native.kind = keys.GROUP_KINDS[group.kind]
        native.layer_count = len(layers)
        native.layers = (ctypes.c_uint32 * len(layers))(*layers)
        native.kv_heads, native.k_dim, native.v_dim = group.kv_heads, group.k_dim, group.v_dim
        native.window_tokens = group.window_tokens
        native.rope_kind = keys.ROPE_KINDS[group.rope.kind]
        native.rope_rotary_dims = group.rope.rotary_dims
        native.rope_base = group.rope.base
        frequencies = group.rope.inverse_frequencies
        if frequencies:
            native.rope_inverse_frequencies = (ctypes.c_double * len(frequencies))(*frequencies)
        native.state_bytes, native.row_bytes = group.state_bytes, group.row_bytes
    return _abi.SpaceSpec(
        dtype=keys.DTYPES[spec.dtype],
        model=spec.model.encode(),
        weights_revision=spec.weights_revision.encode(),
        tokens_per_block=spec.tokens_per_block,
        group_count=len(groups),
        groups=groups,
        recipe=None if recipe is None else recipe.encode(),
    )


def connect(
    control: str | None = None,
    *,
    data: str | None = None,
    tenant: str = "default",
    client_name: str = "python",
    connections: int = 0,
    window: int = 0,
    region_bytes: int = 0,
    timeout: float | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_server: str | None = None,
    transports: str | None = None,
) -> Client:
    """Opens a session with the daemon whose control plane is at `control`, "unix:PATH" or
    "HOST:PORT"; None means `$CAIRN_CONTROL`, else 127.0.0.1:50151.

    data: "unix:PATH", "tls:HOST:PORT", or "HOST:PORT" for UCX; None selects the first address that
    the daemon reports of the `transports` below. UCX is used only if it is named, here or there.
    tenant: the owner of the blocks.
    connections, window, region_bytes: number of data connections, calls in flight on each, and
    shared memory of each, allocated at once; 0 selects the default (2, 8, 64 MiB). timeout:
    seconds, at most 60; None means 2.

    tls_ca: PEM file of the CAs of the daemon's certificate, which selects TLS for a "HOST:PORT"; a
    unix socket has none. tls_cert, tls_key: PEM files of this client's certificate and key.
    tls_server: the DNS name, address or URI in the daemon's certificate; the host of `control` by
    default. None means `$CAIRN_TLS_CA`, `$CAIRN_TLS_CERT`, `$CAIRN_TLS_KEY`, `$CAIRN_TLS_SERVER`;
    "" means none. The files are read again when the client reconnects.

    transports: those of the data plane, the preferred first: some of "local", "stream" (over TLS)
    and "ucx", separated by commas. None means `$CAIRN_TRANSPORTS`, else "local", and with TLS
    "local,stream".
    """
    if control is None:
        control = control_address()
    options = _abi.ConnectOptions(
        timeout_ms=_ffi.milliseconds(timeout),
        control=control.encode(),
        data=None if data is None else data.encode(),
        tenant=tenant.encode(),
        name=client_name.encode(),
        connections=_ffi.unsigned("connections", connections),
        window=_ffi.unsigned("window", window),
        region_bytes=_ffi.unsigned("region_bytes", region_bytes, 64),
        tls_ca=tls_setting("CA", tls_ca),
        tls_cert=tls_setting("CERT", tls_cert),
        tls_key=tls_setting("KEY", tls_key),
        tls_server=tls_setting("SERVER", tls_server),
        transports=transports_setting(transports),
    )
    address = ctypes.c_void_p()
    if data is not None and not data.startswith(("unix:", "tls:")):
        _ucx.load()
    _ffi.check(_ffi.library().cairn_connect(ctypes.byref(options), ctypes.byref(address)))
    return Client(address.value or 0, tenant, control)
