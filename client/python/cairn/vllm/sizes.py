# SPDX-License-Identifier: Apache-2.0
"""Computes a worker's memory for blocks from the cache's geometry, if the user sets no size."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from typing import Any

from .kinds import specs_of
from .settings import Settings

# In host memory, staging grows with need. On a device it is allocated at once, and vLLM leaves
# little room.
HOST_STAGING_MAX, DEVICE_STAGING_MAX = 4 << 30, 1 << 30
# A daemon allows a tenant 8 GiB of regions. Eight engines with two regions of 256 MiB each use
# half.
REGION_MAX = 256 << 20
REGION_BLOCKS = 4  # two are sent while two are encoded or decoded
DEVICE_BATCH = 8  # blocks that the library encodes or decodes at once on a device
_MIB = 1 << 20


def sized(
    settings: Settings,
    given: Collection[str],
    vllm_config: Any,
    kv_cache_config: Any,
    store_tokens: int,
) -> Settings:
    """Returns settings with computed sizes for the names that the user has not given. Sizes are at
    least the defaults, which suit small models. store_tokens: tokens of a store block."""
    block = _block_bytes(kv_cache_config, store_tokens)
    device = getattr(vllm_config, "device_config", None)
    is_on_device = getattr(device, "device_type", "cpu") == "cuda"
    step = -(-vllm_config.scheduler_config.max_num_batched_tokens // store_tokens)
    # In host memory, a step's blocks are put while the next step's are copied.
    staging = step * block * (1 if is_on_device else 2)
    staging_max = DEVICE_STAGING_MAX if is_on_device else HOST_STAGING_MAX
    region = REGION_BLOCKS * block * (DEVICE_BATCH if is_on_device else 1)
    found = {
        "staging_bytes": _between(settings.staging_bytes, staging, staging_max),
        "region_bytes": _between(settings.region_bytes, region, REGION_MAX),
    }
    return dataclasses.replace(settings, **{k: v for k, v in found.items() if k not in given})


def say(
    settings: Settings,
    given: Collection[str],
    kv_cache_config: Any,
    store_tokens: int,
    log: logging.Logger,
) -> None:
    sizes = (
        f"{name} {getattr(settings, name) // _MIB} MiB ({'as set' if name in given else 'computed'})"
        for name in ("staging_bytes", "region_bytes")
    )
    log.info(
        "cairn: a block of %d tokens takes %.1f MiB here: %s",
        store_tokens,
        _block_bytes(kv_cache_config, store_tokens) / _MIB,
        ", ".join(sizes),
    )


def _block_bytes(kv_cache_config: Any, tokens: int) -> int:
    """Returns the bytes of a store block, for all layers of this worker."""
    return sum(
        max(1, tokens // group.kv_cache_spec.block_size) * spec.page_size_bytes
        for group in kv_cache_config.kv_cache_groups
        for _, spec in specs_of(group)
    )


def _between(least: int, wanted: int, most: int) -> int:
    """Returns whole MiB."""
    return max(least, min(-(-wanted // _MIB) * _MIB, most))
