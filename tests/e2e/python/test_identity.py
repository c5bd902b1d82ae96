# SPDX-License-Identifier: Apache-2.0
"""The digest of a configuration: equal where K and V are, however it is written."""

import dataclasses
import enum
from types import SimpleNamespace

import cairn
import numpy as np
import pytest
from cairn.identity import LEFT_OUT, READS_SPECIAL_TOKENS, digest

PLAIN = {
    "model_type": "llama",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "vision_config": {"depth": 2},
}


@dataclasses.dataclass(frozen=True)
class Scale:
    __slots__ = ("bits",)
    bits: int


class Kind(enum.Enum):
    DEFAULT = "default"


def test_it_does_not_change_from_release_to_release():
    """A change makes every tier cold once: a line in the changelog."""
    assert digest(PLAIN, dtype="torch.bfloat16") == "2f8ed02cc7eb249c01fab2287465c60c"


@pytest.mark.parametrize(
    "same",
    [
        dict(reversed(PLAIN.items())),
        PLAIN | {"rope_parameters": {"rope_theta": 10000, "rope_type": Kind.DEFAULT}},
        PLAIN | {"rms_norm_eps": np.float64(1e-6), "vision_config": {"depth": np.int64(2)}},
        PLAIN | {"vision_config": {"depth": 2, "_name_or_path": "/elsewhere"}},
        SimpleNamespace(**PLAIN),
        SimpleNamespace(to_dict=lambda: PLAIN),
        *(PLAIN | {name: 7} for name in LEFT_OUT),
    ],
)
def test_equal_configurations(same):
    assert digest(same) == digest(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN | {"rms_norm_eps": 1e-5},
        PLAIN | {"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 10000.0}},
        PLAIN | {"vision_config": {"depth": 3}},
        PLAIN | {"a_field_of_a_later_release": None},
        PLAIN | {"vision_config": None},
        {name: value for name, value in PLAIN.items() if name != "vision_config"},
    ],
)
def test_other_configurations(other):
    assert digest(other) != digest(PLAIN)


def test_what_stands_beside():
    assert digest(PLAIN, dtype="fp16") != digest(PLAIN, dtype="bf16") != digest(PLAIN)
    assert digest(PLAIN, dtype="fp16", heads=1) == digest(PLAIN, heads=1, dtype="fp16")
    assert digest(PLAIN, eos_token_id=1) != digest(PLAIN, eos_token_id=2)  # is not left out there
    assert digest(PLAIN | {"x": 1}) != digest(PLAIN, x=1)
    assert digest(PLAIN, scale=Scale(8)) == digest(PLAIN, scale=Scale(8))
    assert digest(PLAIN, scale=Scale(8)) != digest(PLAIN, scale=Scale(4))
    assert digest(PLAIN, PLAIN) != digest(PLAIN) != digest(PLAIN, {})


@pytest.mark.parametrize("kind", READS_SPECIAL_TOKENS)
def test_special_tokens_that_a_model_computes_with(kind):
    one, other = ({"model_type": kind, "bos_token_id": token} for token in (1, 2))
    assert digest(one) != digest(other)


def test_what_has_no_text_is_refused_by_name():
    with pytest.raises(cairn.InvalidArgumentError, match="config.rope_parameters.made is <func"):
        digest({"rope_parameters": {"made": lambda: 0}})
    around = {}
    around["again"] = around
    with pytest.raises(cairn.InvalidArgumentError, match="more than 32 deep"):
        digest(around)
