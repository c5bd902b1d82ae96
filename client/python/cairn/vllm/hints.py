# SPDX-License-Identifier: Apache-2.0
"""Reads from a request how long its prefix is worth keeping. docs/guides/vllm.md lists the fields.

    kv_transfer_params={"cairn": {"retain": 3600, "priority": 2}}
    kv_transfer_params={"cairn": {"demote": 300}}
    kv_transfer_params={"cache_control": {"type": "ephemeral", "ttl": "1h"}}

Also reads vLLM's own `kv_hints` with the actions "retain" and "demote", whose payloads have the
same fields.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..space import Space

log = logging.getLogger("vllm.cairn")

SECONDS_MAX = 604_800
PRIORITY_MAX = 5
EPHEMERAL_SECONDS = 300  # the default of cache_control without a ttl, in its API's documentation
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Hint:
    """retain: seconds from now. None: a demotion, `demote` seconds after the end of the request."""

    retain: int | None = None
    priority: int = 1
    demote: int = 0


def hint_of(request: Any) -> Hint | None:
    """Returns the hint of a vLLM request, or of the context that a tier gets of it; None: it has none. Raises ValueError, which names the
    field."""
    params = getattr(request, "kv_transfer_params", None)
    params = params if isinstance(params, Mapping) else {}
    if params.get("cairn") is not None:
        return _own(params["cairn"], "kv_transfer_params.cairn")
    if params.get("cache_control") is not None:
        return _cache_control(params["cache_control"])
    for action in getattr(getattr(request, "kv_hints", None), "actions", None) or ():
        if action.action_type in ("retain", "demote"):
            return _own_action(action.action_type, action.payload)
    return None


def send(space: Space, keys: Sequence[bytes], hint: Hint) -> None:
    """Raises as `Space.retain` does."""
    if hint.retain is not None:
        space.retain(keys, hint.retain, priority=hint.priority)
    else:
        space.demote(keys, after=hint.demote)


def _own(fields: Any, where: str) -> Hint | None:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{where} is no object")
    unknown = set(fields) - {"retain", "priority", "demote"}
    if unknown:
        raise ValueError(f"{where}.{min(unknown)} is not a known field")
    if "retain" in fields and "demote" in fields:
        raise ValueError(f"{where} has retain and demote")
    if "retain" in fields:
        return Hint(
            _whole(fields["retain"], f"{where}.retain", 1, SECONDS_MAX),
            _whole(fields.get("priority", 1), f"{where}.priority", 1, PRIORITY_MAX),
        )
    if "demote" in fields:
        return Hint(demote=_whole(fields["demote"], f"{where}.demote", 0, SECONDS_MAX))
    if fields:
        raise ValueError(f"{where} has priority without retain")
    return None


def _own_action(kind: str, payload: Mapping[str, Any]) -> Hint | None:
    """Parses {"seconds": …, "priority": …} for retain, {"seconds": …} for demote."""
    fields = dict(payload)
    seconds = fields.pop("seconds", 0 if kind == "demote" else None)
    return _own({kind: seconds} | fields, f"kv_hints.{kind}")


def _cache_control(fields: Any) -> Hint:
    where = "kv_transfer_params.cache_control"
    if not isinstance(fields, Mapping) or fields.get("type", "ephemeral") != "ephemeral":
        raise ValueError(f"{where}.type is not ephemeral")
    ttl = fields.get("ttl")
    if ttl is None:
        return Hint(EPHEMERAL_SECONDS)
    unit = _UNITS.get(ttl[-1:]) if isinstance(ttl, str) and ttl[:-1].isdigit() else None
    if unit is None:
        raise ValueError(f"{where}.ttl is {ttl!r}, expected a number and s, m, h or d")
    return Hint(_whole(int(ttl[:-1]) * unit, f"{where}.ttl", 1, SECONDS_MAX))


def _whole(value: Any, where: str, least: int, most: int) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value != round(value) or not least <= value <= most:
        raise ValueError(f"{where} is {value!r}, expected a whole number from {least} to {most}")
    return int(value)
