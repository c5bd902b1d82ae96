# SPDX-License-Identifier: Apache-2.0
"""What a user writes in kv_connector_extra_config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._settings import REGION_BYTES, control_field, settings_of


@dataclasses.dataclass(frozen=True)
class Settings:
    control: str = control_field()
    data: str | None = None  # likewise, UCX if HOST:PORT; None: a socket that the daemon names
    tenant: str = "default"
    model: str | None = None  # None: the name that vLLM was given
    weights_revision: str | None = None  # None: of the hub's commit, or of the files' content
    # Of the store, a multiple of the engine's; None: 128, or the engine's own where it keeps states.
    tokens_per_block: int | None = None
    recipe: str | None = None  # if this engine makes the space; None: the daemon's default
    layer_wise: bool = False  # a step computes with a request's first layers while others come
    load_timeout: float = 2.0  # seconds that a request waits for its blocks, then it recomputes
    lookup_timeout: float = 0.5  # seconds that a request waits for what there is
    save_timeout: float = 5.0  # seconds after which a block is given up
    weights_stay: bool = False  # though vLLM resets its caches, to sleep or to pause
    # Where a user names none, these are the least: `sizes` computes them.
    staging_bytes: int = 256 << 20  # of blocks that wait to be put
    region_bytes: int = REGION_BYTES  # shared memory of each `unix:` data connection
    # As in `cairn.connect`; None: of the environment, $CAIRN_TLS_CA and so on.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server: str | None = None
    transports: str | None = None  # as in `cairn.connect`
    query_squares: bool = False  # puts bring squared queries, which the daemon mines profiles with
    capture: str | None = None  # a folder for dumps of what is computed; None: nothing is captured
    capture_sequences: int = 2  # how many
    capture_tokens: int = 2048  # of each, at most

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        return settings_of(Settings, "kv_connector_extra_config", given)
