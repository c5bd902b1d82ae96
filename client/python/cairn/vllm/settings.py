# SPDX-License-Identifier: Apache-2.0
"""What a user writes in kv_connector_extra_config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class Settings:
    control: str  # of cairnd: "HOST:PORT" or "unix:PATH"
    data: str | None = None  # likewise; None: what the daemon names for this host
    tenant: str = "default"
    model: str | None = None  # None: the name that vLLM was given
    weights_revision: str | None = None  # None: of the hub's commit, or of the files' content
    tokens_per_block: int = 128  # of the store; a multiple of the engine's
    recipe: str | None = None  # if this engine makes the space; None: the daemon's default
    load_timeout: float = 2.0  # seconds that a request waits for its blocks, then it recomputes
    lookup_timeout: float = 0.5  # seconds that a request waits for what there is
    save_timeout: float = 5.0  # seconds after which a block is given up
    staging_bytes: int = 256 << 20  # of blocks that wait to be put

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        """InvalidArgumentError names what is unknown, missing, or of the wrong type or range."""
        fields = {field.name: field for field in dataclasses.fields(Settings)}
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise InvalidArgumentError(
                f"kv_connector_extra_config has {unknown[0]!r}, expected some of"
                f" {', '.join(fields)}"
            )
        if not given.get("control"):
            raise InvalidArgumentError(
                "kv_connector_extra_config has no 'control', the address of cairnd's control plane"
            )
        settings = Settings(**given)
        for name, field in fields.items():
            settings._check(name, str(field.type))
        return settings

    def _check(self, name: str, kind: str) -> None:
        value = getattr(self, name)
        if value is None and "None" in kind:
            return
        wanted: Any = str
        if kind == "int":
            wanted = int
        elif kind == "float":
            wanted = (int, float)
        is_right = isinstance(value, wanted) and not isinstance(value, bool)
        if not is_right or (kind == "float" and not 0 < value <= 60) or (
            kind == "int" and value <= 0
        ):
            raise InvalidArgumentError(
                f"kv_connector_extra_config: {name} is {value!r}, expected {kind}"
                + (" above 0 and at most 60" if kind == "float" else "")
            )
