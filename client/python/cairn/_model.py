# SPDX-License-Identifier: Apache-2.0
"""The description of the model of a dump: model.json in the folder of the tensors.

    {"model": "my-model", "weights_revision": "…", "tenant": "default", "tokens_per_block": 128,
     "scales": {"k": {"0": 0.5}, "v": {"0": 0.25}},
     "groups": [{"layers": 30, "window_tokens": 0,
                 "rope": {"kind": "half", "rotary_dims": 64, "base": 10000.0}}]}

The file specifies a space with the arguments of `Client.open_space`. All of its fields are
optional. `layers` is a count or a list. Without a group, the RoPE of a layer is unknown. Defaults
of kv_heads, k_dim and v_dim come from the tensors. `scales`: by plane and layer, what an engine
multiplies elements that are 8-bit floats by; 1 where there is none.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from .errors import InvalidArgumentError
from .keys import ROPE_KINDS, Group, Rope, SpaceSpec

FILE = "model.json"


@dataclasses.dataclass(frozen=True)
class Scales:
    """By layer, what 8-bit floats of K and of V are multiplied by; 1 for others."""

    k: Mapping[int, float] = dataclasses.field(default_factory=dict)
    v: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.k or self.v)


@dataclasses.dataclass(frozen=True)
class ModelAbout:
    groups: tuple[Group, ...] = ()
    model: str | None = None
    weights_revision: str = ""
    tenant: str = "default"
    tokens_per_block: int = 128
    scales: Scales = Scales()

    def group_of(self, layer: int) -> Group | None:
        """Returns the group of K and V that has the layer."""
        kv = (group for group in self.groups if group.kind == "kv")
        return next((group for group in kv if layer in group.layer_indices), None)


def read_model(folder: pathlib.Path) -> ModelAbout:
    """Reads FOLDER/model.json; returns an empty description if there is none. Raises
    InvalidArgumentError."""
    path = folder / FILE
    if not path.exists():
        return ModelAbout()
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}") from None


def write_model(
    folder: pathlib.Path, spec: SpaceSpec, tenant: str, scales: Scales = Scales()
) -> None:
    """Writes the description of a space for `read_model`."""
    about: dict[str, Any] = {
        "model": spec.model,
        "weights_revision": spec.weights_revision,
        "tenant": tenant,
        "tokens_per_block": spec.tokens_per_block,
        "groups": [
            dataclasses.asdict(group) | {"layers": list(group.layer_indices)}
            for group in spec.groups
        ],
    }
    if scales:
        about["scales"] = {"k": dict(scales.k), "v": dict(scales.v)}
    (folder / FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def parse_rope(given: str) -> Rope:
    """Parses KIND:BASE or KIND:BASE:ROTARY_DIMS, for example half:10000. By default all dims are
    rotated."""
    kind, _, rest = given.partition(":")
    base, _, dims = rest.partition(":")
    try:
        return _checked(Rope(kind, int(dims or 0), float(base)))
    except ValueError:
        raise InvalidArgumentError(
            f"rope {given}: expected KIND:BASE, as in half:10000 or interleaved:100000"
        ) from None


def _parse(read: dict[str, Any]) -> ModelAbout:
    groups = []
    for group in read.get("groups", []):
        layers = group["layers"]
        layers = tuple(range(layers)) if isinstance(layers, int) else tuple(map(int, layers))
        rope = dict(group.get("rope") or {})
        rope["inverse_frequencies"] = tuple(map(float, rope.get("inverse_frequencies", ())))
        changed = {"kind": group.get("kind", "kv"), "layers": layers, "rope": _checked(Rope(**rope))}
        groups.append(Group(**(group | changed)))
    seen = [layer for group in groups for layer in group.layer_indices]
    if len(set(seen)) != len(seen):
        raise ValueError("a layer is in two groups")
    names = ("model", "weights_revision", "tenant", "tokens_per_block")
    scales = Scales(**{name: _scales_of(of) for name, of in read.get("scales", {}).items()})
    given = {name: read[name] for name in names if name in read}
    return ModelAbout(tuple(groups), scales=scales, **given)


def _scales_of(read: dict[str, Any]) -> dict[int, float]:
    found = {int(layer): float(scale) for layer, scale in read.items()}
    if not all(math.isfinite(scale) and scale > 0 for scale in found.values()):
        raise ValueError("a scale is not above 0")
    return found


def _checked(rope: Rope) -> Rope:
    if rope.kind not in ROPE_KINDS:
        raise ValueError(f"rope is {rope.kind!r}, expected one of {', '.join(ROPE_KINDS)}")
    if rope.kind != "none" and not (rope.base > 1 or rope.inverse_frequencies):
        raise ValueError("rope has no base")
    if rope.rotary_dims < 0 or rope.rotary_dims % 2:
        raise ValueError(f"{rope.rotary_dims} channels do not turn in pairs")
    return rope
