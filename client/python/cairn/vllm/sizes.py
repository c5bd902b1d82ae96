# SPDX-License-Identifier: Apache-2.0
"""How much memory a worker needs for its blocks: of its cache's geometry, where the user names no size."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from typing import Any

from .kinds import specs_of
from .settings import Settings

# In host memory staging is taken as blocks need it; on a device all at once, and vLLM leaves little.
HOST_STAGING_MAX, DEVICE_STAGING_MAX = 4 << 30, 1 << 30
# A daemon lets one tenant have 8 GiB of regions. Eight engines, each with two regions of 256 MiB, take half.
REGION_MAX = 256 << 20
REGION_BLOCKS = 4  # of which two are on their way while two are encoded or decoded
DEVICE_BATCH = 8  # blocks that the library encodes or decodes at once on a device
_MIB = 1 << 20


def sized(
    settings: Settings,
    given: Collection[str],
    vllm_config: Any,
    kv_cache_config: Any,
    store_tokens: int,
) -> Settings:
    """With the sizes that are not among the names that the user has given. No smaller than the
    defaults, which suit small models. store_tokens: of a block of the store's."""
    block = _block_bytes(kv_cache_config, store_tokens)
    device = getattr(vllm_config, "device_config", None)
    is_on_device = getattr(device, "device_type", "cpu") == "cuda"
    step = -(-vllm_config.scheduler_config.max_num_batched_tokens // store_tokens)
    # In host memory a step's blocks are put while the next one's are copied.
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
    """Of the store's, of all layers that this worker has."""
    return sum(
        max(1, tokens // group.kv_cache_spec.block_size) * spec.page_size_bytes
        for group in kv_cache_config.kv_cache_groups
        for _, spec in specs_of(group)
    )


def _between(least: int, wanted: int, most: int) -> int:
    """Whole MiB."""
    return max(least, min(-(-wanted // _MIB) * _MIB, most))
