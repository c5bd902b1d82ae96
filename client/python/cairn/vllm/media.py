# SPDX-License-Identifier: Apache-2.0
"""Finds out whether vLLM names media by their content. Other names do not identify the content."""

from __future__ import annotations

import re
from typing import Any

# A digest, after the adapter's name if encoders have adapters. Other names come from the caller
# (multi_modal_uuids), or are numbers that start again with each engine.
_OF_CONTENT = re.compile(r"(?:.*:)?[0-9a-f]{64,}", re.DOTALL)


def is_named_by_content(identifier: str) -> bool:
    return _OF_CONTENT.fullmatch(identifier) is not None


def are_media_named(vllm_config: Any) -> bool:
    """Returns False if vLLM caches nothing of media, because it then computes no digest of them."""
    media = getattr(vllm_config.model_config, "multimodal_config", None)
    cache = getattr(vllm_config, "cache_config", None)
    return media is None or media.mm_processor_cache_gb > 0 or bool(cache.enable_prefix_caching)
