# SPDX-License-Identifier: Apache-2.0
"""Installs the profiles that `cairn.evaluate` made in a running daemon."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..client import connect
from ..errors import FailedPreconditionError
from ..keys import Group
from .dump import Dump


def install(
    control: str, dump: Dump, recipe: str | None, profiles: Sequence[bytes], are_banks: bool
) -> list[str]:
    """Installs into the space that model.json names; opens it with `recipe` if it is new. Returns
    one line for each group. Raises FailedPreconditionError if the dump does not name the space."""
    about = dump.about
    if about.model is None:
        raise FailedPreconditionError(
            "model.json in the dump's folder does not name the space:"
            " model, weights_revision and groups, as Client.open_space has them"
        )
    groups = [_whole(dump, group) for group in about.groups]
    by_layers = dict(zip(map(tuple, dump.groups()), profiles, strict=True))
    lines = []
    with (
        connect(control, tenant=about.tenant, client_name="evaluate") as client,
        client.open_space(
            about.model,
            about.weights_revision,
            groups,
            dtype=dump.dtype,
            tokens_per_block=about.tokens_per_block,
            recipe=recipe,
        ) as space,
    ):
        for index, group in enumerate(groups):
            profile = by_layers.get(tuple(sorted(group.layer_indices)))
            if profile is not None:
                give = space.install_bank if are_banks else space.install_profile
                name = give(index, profile).hex()
                lines.append(f"group {index} of {about.model} ({space.recipe}): {name}")
    if not lines:
        raise FailedPreconditionError("the groups of model.json are not those of the dump")
    return lines


def _whole(dump: Dump, group: Group) -> Group:
    """Returns the group with missing counts taken from the tensors."""
    layer = next((layer for layer in group.layer_indices if layer in dump.k), None)
    if group.kind != "kv" or group.kv_heads or layer is None:
        return group
    heads, _, k_dim = dump.k[layer].shape
    v_dim = dump.v[layer].shape[2]
    return dataclasses.replace(group, kv_heads=heads, k_dim=k_dim, v_dim=v_dim)
