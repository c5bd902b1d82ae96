# SPDX-License-Identifier: Apache-2.0
"""The settings of an engine's adapter: a dataclass, whose fields are checked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from .errors import InvalidArgumentError

T = TypeVar("T")

REGION_BYTES = 64 << 20  # the SDK's default


def control_address() -> str:
    """Returns the default control address of cairnd: `$CAIRN_CONTROL`, else the daemon's
    default."""
    return os.environ.get("CAIRN_CONTROL") or "127.0.0.1:50151"


def tls_setting(name: str, given: str | None) -> bytes | None:
    """Returns `given`, else `$CAIRN_TLS_name`; None if it is empty."""
    value = os.environ.get(f"CAIRN_TLS_{name}") if given is None else given
    return value.encode() if value else None


def transports_setting(given: str | None) -> bytes | None:
    """Returns `given`, else `$CAIRN_TRANSPORTS`; None if it is empty."""
    value = os.environ.get("CAIRN_TRANSPORTS") if given is None else given
    return value.encode() if value else None


def control_field() -> Any:
    """Returns a field for the control plane of cairnd, "HOST:PORT" or "unix:PATH"."""
    return dataclasses.field(default_factory=control_address, metadata={"kind": "address"})


def required(meaning: str) -> Any:
    """Returns a field that the user must set."""
    return dataclasses.field(metadata={"meaning": meaning})


class Place(Protocol):
    """The part of the settings that selects a space. recipe: used if the adapter creates the space;
    None: the daemon's default."""

    @property
    def control(self) -> str: ...
    @property
    def data(self) -> str | None: ...
    @property
    def tenant(self) -> str: ...
    @property
    def recipe(self) -> str | None: ...
    @property
    def region_bytes(self) -> int: ...
    @property
    def tls_ca(self) -> str | None: ...
    @property
    def tls_cert(self) -> str | None: ...
    @property
    def tls_key(self) -> str | None: ...
    @property
    def tls_server(self) -> str | None: ...
    @property
    def transports(self) -> str | None: ...


@dataclasses.dataclass(frozen=True)
class StoreSettings:
    """Settings of an adapter whose engine does not tell the revision of its weights."""

    weights_revision: str = required("which tells apart weights of one name")
    control: str = control_field()
    data: str | None = None  # likewise, UCX if HOST:PORT; None: a socket that the daemon names
    tenant: str = "default"
    timeout: float = 5.0  # seconds, for each call of the engine
    region_bytes: int = REGION_BYTES  # shared memory of each `unix:` data connection
    # As in `connect`; None: from the environment, $CAIRN_TLS_CA and so on.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server: str | None = None
    transports: str | None = None  # as in `connect`


def settings_of(kind: type[T], where: str, given: Mapping[str, Any]) -> T:
    """Makes a `kind` from `given`, the value of the option `where`. Raises InvalidArgumentError,
    which names the field that is unknown, missing, or of the wrong type or range, its value, and
    the expected values."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"{where} is {given!r}, expected names with values")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in fields:
            raise InvalidArgumentError(
                f"{where} has {name!r} ({value!r}), expected some of {', '.join(fields)}"
            )
    for name, field in fields.items():
        is_missing = given.get(name) is None or given[name] == ""
        if "meaning" in field.metadata and is_missing:
            raise InvalidArgumentError(f"{where} has no {name!r}, {field.metadata['meaning']}")
        if name in given:
            _check(where, name, field.metadata.get("kind", str(field.type)), given[name])
    return kind(**given)


def _check(where: str, name: str, kind: str, value: Any) -> None:
    optional = " | None"
    if value is None and kind.endswith(optional):
        return
    is_right, expected = _KINDS[kind.removesuffix(optional)]
    if not is_right(value):
        raise InvalidArgumentError(f"{where}: {name} is {value!r}, expected {expected}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 60


# For each type of a field: the check of a value, and the text of the error about the expected
# values.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "str, a text in quotes"),
    "address": (
        lambda value: isinstance(value, str) and value != "",
        "HOST:PORT or unix:PATH, in quotes",
    ),
    "bool": (lambda value: isinstance(value, bool), "bool, true or false"),
    "int": (_is_count, "int above 0"),
    "float": (_is_seconds, "float above 0 and at most 60, in seconds"),
    "Sequence[int]": (
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_count, value)),
        "a list of int above 0",
    ),
}
