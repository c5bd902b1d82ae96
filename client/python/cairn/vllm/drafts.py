# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: finds the layers of the draft and names their KV. A draft's layers are
groups of the model's space. A prefix is therefore a hit only if the draft's KV is stored, too. Uses
vLLM's objects, but imports nothing of vLLM.

A draft only proposes tokens, and the model verifies them. KV of another draft would lower the rate
of accepted tokens, but would not change the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import identity
from ..errors import InvalidArgumentError
from .kinds import Layers

WITHOUT_KV = {"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"}
# Drafts that compute a token's KV from the model's hidden state and the next token.
_OF_HIDDEN_STATES = {"eagle", "eagle3", "mtp"}
MOVED = {*_OF_HIDDEN_STATES, "draft_model"}
_PARTS = {"draft_model", "mtp"}  # in the names of a draft's layers


def config_of(vllm_config: Any) -> Any:
    """Returns vLLM's configuration of a draft that keeps KV, or None."""
    drafts = getattr(vllm_config, "speculative_config", None)
    return None if getattr(drafts, "method", None) not in MOVED else drafts


def check(vllm_config: Any) -> None:
    """Raises InvalidArgumentError, which names the method, for an unsupported draft."""
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
    """Returns what the draft's KV depends on besides its weights. Empty: there is no draft."""
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
    """Moves a draft's layers into groups of their own."""
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
    """Returns whether a draft's layers seem to have another shape than in the draft's
    configuration. If layers share a table of blocks, vLLM's scheduler knows only the first layer's
    shape."""
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
    """Returns the number of tokens at the end of a hit that are computed again. The draft's KV of a
    prefix's last token depends on the next token, which the prefix does not include."""
    drafts = config_of(vllm_config)
    return engine_tokens if drafts is not None and drafts.method in _OF_HIDDEN_STATES else 0


def _is_of_draft(name: str, layer_count: int) -> bool:
    """Returns whether a layer is a draft's. The numbers of such layers follow the model's, or their
    names have a part in _PARTS."""
    parts = name.split(".")
    numbers = [int(part) for part in parts if part.isdecimal()]
    return bool(_PARTS & set(parts)) or any(number >= layer_count for number in numbers[:1])
