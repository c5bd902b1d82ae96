# SPDX-License-Identifier: Apache-2.0
"""The user's settings in kv_connector_extra_config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._settings import REGION_BYTES, control_field, settings_of


@dataclasses.dataclass(frozen=True)
class Settings:
    control: str = control_field()
    data: str | None = None  # likewise; UCX if HOST:PORT; None: a socket that the daemon names
    tenant: str = "default"
    model: str | None = None  # None: vLLM's name of the model
    weights_revision: str | None = None  # None: the hub's commit, or a digest of the files
    # Tokens of a store block, a multiple of the engine's. None: 128, or the engine's if it has
    # states.
    tokens_per_block: int | None = None
    recipe: str | None = None  # used if this engine creates the space; None: the daemon's default
    # A step computes with a request's first layers while others are being loaded.
    layer_wise: bool = False
    # Seconds that a request waits for its blocks before it recomputes them.
    load_timeout: float = 2.0
    lookup_timeout: float = 0.5  # seconds that a request waits for a lookup
    save_timeout: float = 5.0  # seconds after which a block is dropped
    weights_stay: bool = False  # even if vLLM resets its caches for sleep or pause
    # Minimum sizes if the user sets none; `sizes` computes them.
    staging_bytes: int = 256 << 20  # blocks that wait to be put
    region_bytes: int = REGION_BYTES  # shared memory of each `unix:` data connection
    # As in `cairn.connect`; None: from the environment, $CAIRN_TLS_CA and so on.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server: str | None = None
    transports: str | None = None  # as in `cairn.connect`
    # Puts include squared queries, from which the daemon mines profiles.
    query_squares: bool = False
    capture: str | None = None  # folder for dumps of computed KV; None: no capture
    capture_sequences: int = 2  # number of sequences
    capture_tokens: int = 2048  # maximum tokens of each

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        return settings_of(Settings, "kv_connector_extra_config", given)
