# SPDX-License-Identifier: Apache-2.0
"""Cairn's client for Python: put KV blocks, match prefixes, get blocks back.

    client = cairn.connect("127.0.0.1:50151")
    space = client.open_space("my-model", revision, [cairn.KvGroup(layers=30, kv_heads=3, dim=64)])
    keys = space.keys(token_ids)
    space.put(keys[0], k, v)                    # arrays [layers, heads, tokens, dim]
    with space.match(keys) as match:            # the longest prefix that is there, leased
        tokens = match.get(k_out, v_out)        # verified, decoded; never wrong bytes

Every call has a deadline, in seconds. A block that is missing or damaged is a miss and not an
exception; the caller recomputes it. The package needs only the standard library.
"""

import importlib
from typing import Any

from . import image, keys
from ._ffi import library_version
from ._trace import trace
from .buffer import Buffer
from .capture import Capture
from .client import Client, Counters, Stats, TierStats, connect
from .errors import (
    DataLossError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotDurableError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from .keys import Group, KeyExtra, KvGroup, Rope, SpaceSpec
from .match import BlockFate, Explanation, Match, MemberBlocks, Whereabouts
from .space import Space
from .transfer import Get, GetResult, MatchedBlock, Names, Part, Prefetched, Put, PutResult

__version__ = "0.1.0"

# Modules that are loaded at their first use; some need numpy.
_LATER = ("aio", "arkv", "attention", "bank", "evaluate", "layerwise", "mine", "paged", "profile")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return importlib.import_module(f".{name}", __name__)


__all__ = [
    "BlockFate",
    "Buffer",
    "Capture",
    "Client",
    "Counters",
    "DataLossError",
    "DeadlineExceededError",
    "Error",
    "Explanation",
    "FailedPreconditionError",
    "Get",
    "GetResult",
    "Group",
    "InternalError",
    "InvalidArgumentError",
    "KeyExtra",
    "KvGroup",
    "Match",
    "MatchedBlock",
    "MemberBlocks",
    "Names",
    "NotDurableError",
    "NotFoundError",
    "Part",
    "PermissionDeniedError",
    "Prefetched",
    "Put",
    "PutResult",
    "ResourceExhaustedError",
    "Rope",
    "Space",
    "SpaceSpec",
    "Stats",
    "TierStats",
    "UnavailableError",
    "UnimplementedError",
    "Whereabouts",
    "connect",
    "image",
    "keys",
    "library_version",
    "trace",
]
