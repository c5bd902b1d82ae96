# SPDX-License-Identifier: Apache-2.0
"""A digest of the model configuration that an engine uses. K and V depend on the configuration, and
not only on the weight files (docs/internals/formats/key.md).

    revision = f"{commit}, config {identity.digest(config.to_dict(), dtype=str(config.dtype))}"

Engines that share a space must have equal digests. Pure Python, without an engine's packages.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping, Set
from typing import Any

from .errors import InvalidArgumentError

# Fields of a configuration, at any depth, on which K and V do not depend, each with its reason.
# Every other field, known or not, is in the digest.
LEFT_OUT = {
    "_name_or_path": "where the files lie; the weights' revision names their content",
    "name_or_path": "likewise",
    "_commit_hash": "the commit of the file, whose fields are in the digest",
    "transformers_version": "of the library that wrote the file, or that read it",
    "bos_token_id": "the token that a text begins with: a block's tokens are in its key",
    "eos_token_id": "likewise, and where generating ends",
    "pad_token_id": "the token that fills a batch up: engines with blocks of KV fill none up",
    "max_model_len": "of the engine: its connector adds it where the rotation depends on it",
}
# Models that compute with the ids of special tokens, by the beginning of their `model_type`. For
# them, the digest includes these ids.
READS_SPECIAL_TOKENS = {
    "longcat_flash": "embeds the tokens since the last eos_token_id",
    "qwen4_exp": "likewise",
    "moondream3": "puts bos_token_id's embedding before an image",
    "funaudiochat": "embeds pad_token_id of a sound as zeros",
    "dots3_note": "likewise",
}
_SPECIAL_TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id"}

_DEPTH_MAX = 32


def digest(*configs: Any, **beside: Any) -> str:
    """Returns 32 hexadecimal digits. They are equal if all fields except `LEFT_OUT` are equal, in
    any order.

    configs: the configuration as the engine has it after overrides: a mapping, or an object with
    `to_dict()`, such as one of transformers. The configuration of a part of the model may follow.
    beside: other settings of the engine that K and V depend on and that are not in the
    configuration (the dtype of the computation, quantization, …); None is a value like any other.

    Numbers are compared by value (1 equals 1.0), lists and tuples by their entries. Raises
    InvalidArgumentError, which names the field, for a value without a text that is the same in
    every process, such as a lambda.
    """
    canonical = [_configuration(config) for config in configs]
    canonical.append(_canonical(beside, ("beside",), set()))
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _configuration(config: Any) -> Any:
    config = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    fields = config if isinstance(config, Mapping) else vars(config)
    left_out = set(LEFT_OUT)
    if str(fields.get("model_type")).startswith(tuple(READS_SPECIAL_TOKENS)):
        left_out -= _SPECIAL_TOKENS
    return _canonical(fields, ("config",), left_out)


def _canonical(value: Any, place: tuple[str, ...], left_out: Set[str]) -> Any:
    """Returns a value that JSON writes in only one way. place: the path of the value, for
    errors."""
    if len(place) > _DEPTH_MAX:
        raise InvalidArgumentError(f"{place[0]} is nested more than {_DEPTH_MAX} deep")
    if isinstance(value, enum.Enum):
        return _canonical(value.value, place, left_out)
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {
            str(name): _canonical(field, (*place, str(name)), left_out)
            for name, field in value.items()
            if name not in left_out
        }
    if isinstance(value, (list, tuple)):
        return [_canonical(entry, (*place, str(i)), left_out) for i, entry in enumerate(value)]
    if isinstance(value, Set):
        entries = [_canonical(entry, place, left_out) for entry in value]
        return sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True))
    return _canonical(_plain(value, place), place, left_out)


def _plain(value: Any, place: tuple[str, ...]) -> Any:
    """Returns the plain content of an object."""
    kind = type(value)
    if isinstance(value, type) or kind.__name__ == "function":
        if "<" not in value.__qualname__:  # else its name is not unique
            return f"{value.__module__}.{value.__qualname__}"
    elif kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(value)
    elif callable(getattr(value, "to_dict", None)):
        return value.to_dict()
    elif callable(getattr(value, "tolist", None)):  # an array
        return value.tolist()
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {"": kind.__qualname__, **{name: getattr(value, name) for name in names}}
    elif hasattr(value, "__dict__") and not callable(value):
        return {"": kind.__qualname__, **vars(value)}
    raise InvalidArgumentError(
        f"{'.'.join(place)} is {value!r}: K and V may depend on it, and it has no text that"
        " another process would give it, too"
    )
