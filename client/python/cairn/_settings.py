# SPDX-License-Identifier: Apache-2.0
"""What a user writes for an engine's adapter: a dataclass of it, checked by its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from .errors import InvalidArgumentError

T = TypeVar("T")

REGION_BYTES = 64 << 20  # the SDK's default
CONTROL = "the address of cairnd's control plane"  # "HOST:PORT" or "unix:PATH"


def required(meaning: str) -> Any:
    """A field that has to be given."""
    return dataclasses.field(metadata={"meaning": meaning})


class Place(Protocol):
    """Where an adapter finds its space. recipe: if it makes the space; None: the daemon's."""

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


@dataclasses.dataclass(frozen=True)
class StoreSettings:
    """Of an adapter whose engine does not say which weights it has."""

    control: str = required(CONTROL)
    weights_revision: str = required("which tells apart weights of one name")
    data: str | None = None  # likewise; None: what the daemon names for this host
    tenant: str = "default"
    timeout: float = 5.0  # seconds of what the engine asks for
    region_bytes: int = REGION_BYTES  # shared memory of each `unix:` data connection


def settings_of(kind: type[T], where: str, given: Mapping[str, Any]) -> T:
    """A `kind` of what is `given` in the option `where`. InvalidArgumentError names what is unknown,
    missing, or of the wrong type or range. Numbers are above 0, seconds at most 60."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise InvalidArgumentError(
            f"{where} has {unknown[0]!r}, expected some of {', '.join(fields)}"
        )
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and not given.get(name):
            raise InvalidArgumentError(f"{where} has no {name!r}, {field.metadata['meaning']}")
    settings = kind(**given)
    for name, field in fields.items():
        _check(where, name, str(field.type), getattr(settings, name))
    return settings


def _check(where: str, name: str, kind: str, value: Any) -> None:
    if value is None and "None" in kind:
        return
    wanted: Any = str
    if kind == "int":
        wanted = int
    elif kind == "float":
        wanted = (int, float)
    elif kind == "bool":
        wanted = bool
    is_right = isinstance(value, wanted) and isinstance(value, bool) == (kind == "bool")
    if not is_right or (kind == "float" and not 0 < value <= 60) or (kind == "int" and value <= 0):
        raise InvalidArgumentError(
            f"{where}: {name} is {value!r}, expected {kind}"
            + (" above 0 and at most 60" if kind == "float" else "")
        )
