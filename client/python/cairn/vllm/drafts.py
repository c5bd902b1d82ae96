# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: which layers are the draft's, and what names their KV. A draft's layers are
groups of the model's space, so that a prefix is a hit only if the draft's KV is there, too. Takes
vLLM's objects, and imports nothing of it.

A draft only proposes tokens, and the model verifies them: KV of another draft would lower the rate of
accepted tokens, and change no output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import identity
from ..errors import InvalidArgumentError
from .kinds import Layers

WITHOUT_KV = {"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"}
# Drafts that compute a token's KV from the model's hidden state and the token after it.
_OF_HIDDEN_STATES = {"eagle", "eagle3", "mtp"}
MOVED = {*_OF_HIDDEN_STATES, "draft_model"}
_PARTS = {"draft_model", "mtp"}  # of names of a draft's layers


def config_of(vllm_config: Any) -> Any:
    """Returns vLLM's configuration of a draft that keeps KV, or None."""
    drafts = getattr(vllm_config, "speculative_config", None)
    return None if getattr(drafts, "method", None) not in MOVED else drafts


def check(vllm_config: Any) -> None:
    """Raises InvalidArgumentError, which names the method, for a draft that is not handled."""
    drafts = getattr(vllm_config, "speculative_config", None)
    method = getattr(drafts, "method", None)
    if drafts is not None and method not in WITHOUT_KV | MOVED:
        raise InvalidArgumentError(
            f"speculative decoding with method {method!r} is not supported: Cairn does not know which"
            " KV its draft keeps. Start vLLM without --speculative-config, or with one of the methods"
            f" {', '.join(sorted(WITHOUT_KV | MOVED))}"
        )
    if method in MOVED:
        ranks = vllm_config.parallel_config.tensor_parallel_size
        of_draft = getattr(drafts, "draft_tensor_parallel_size", None)
        if of_draft not in (None, ranks):
            raise InvalidArgumentError(
                f"draft_tensor_parallel_size is {of_draft}, and the model has {ranks} ranks: Cairn"
                f" needs {ranks} for both"
            )


def name_of(vllm_config: Any) -> str:
    """Returns what the draft's KV depends on besides its weights; empty: there is no draft."""
    drafts = config_of(vllm_config)
    if drafts is None:
        return ""
    model = drafts.draft_model_config
    text = identity.digest(
        model.hf_config,
        method=drafts.method,
        dtype=str(model.dtype),
        quantization=getattr(model, "quantization", None),
    )
    return f"draft {text[:16]}"


def apart(vllm_config: Any, layers: Sequence[Layers]) -> list[Layers]:
    """Returns the groups with a draft's layers in groups of their own."""
    if config_of(vllm_config) is None:
        return list(layers)
    count = vllm_config.model_config.get_total_num_hidden_layers()
    found: list[Layers] = []
    for one in layers:
        of_draft = tuple(name for name in one.names if _is_of_draft(name, count))
        of_model = tuple(name for name in one.names if name not in of_draft)
        found += [replace(one, names=of_model)] if of_model else []
        found += [replace(one, names=of_draft, is_draft=True)] if of_draft else []
    if not any(one.is_draft for one in found):
        names = [name for one in layers for name in one.names]
        raise InvalidArgumentError(
            f"speculative decoding: Cairn does not find the draft's layers among {names[-4:]}. Start"
            " vLLM without --speculative-config"
        )
    return found


def is_guess(vllm_config: Any, layers: Sequence[Layers]) -> bool:
    """Returns whether a draft's layers seem to have another shape than the draft's configuration says:
    vLLM's scheduler knows only the first shape of layers that share a table of blocks."""
    drafts = config_of(vllm_config)
    if drafts is None:
        return False
    model, parallel = drafts.draft_model_config, vllm_config.parallel_config
    wanted = (model.get_num_kv_heads(parallel), model.get_head_size())
    return any(
        one.is_draft and one.shape.kind == "kv" and (one.shape.heads, one.shape.dim) != wanted
        for one in layers
    )


def lag_of(vllm_config: Any, engine_tokens: int) -> int:
    """Returns how many tokens at the end of a hit are computed again. The draft's KV of a prefix's last
    token depends on the token after it, which the prefix does not name."""
    drafts = config_of(vllm_config)
    return engine_tokens if drafts is not None and drafts.method in _OF_HIDDEN_STATES else 0


def _is_of_draft(name: str, layer_count: int) -> bool:
    """A draft's layers follow the model's, or its name is a part of theirs."""
    parts = name.split(".")
    numbers = [int(part) for part in parts if part.isdecimal()]
    return bool(_PARTS & set(parts)) or any(number >= layer_count for number in numbers[:1])
