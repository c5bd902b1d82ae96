# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM names media by their content, or otherwise: then a name says nothing of them."""

from __future__ import annotations

import re
from typing import Any

# A digest, behind the adapter's name where encoders have adapters, too. Other names are the caller's
# (multi_modal_uuids), or numbers that begin anew with each engine.
_OF_CONTENT = re.compile(r"(?:.*:)?[0-9a-f]{64,}", re.DOTALL)


def is_named_by_content(identifier: str) -> bool:
    return _OF_CONTENT.fullmatch(identifier) is not None


def are_media_named(vllm_config: Any) -> bool:
    """vLLM makes no digest of media where it keeps nothing of them."""
    media = getattr(vllm_config.model_config, "multimodal_config", None)
    cache = getattr(vllm_config, "cache_config", None)
    return media is None or media.mm_processor_cache_gb > 0 or bool(cache.enable_prefix_caching)
