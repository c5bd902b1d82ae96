# SPDX-License-Identifier: Apache-2.0
"""client/examples/evaluate, with a model of two layers in the place of the real ones."""

import json
import sys

import numpy as np
import pytest
from cairn import evaluate
from cairn.evaluate.calibrate import shared_tokens
from cairn.evaluate.dump import read_dump
from cairn.evaluate.judge import find_judge
from conftest import ROOT

EXAMPLE = ROOT / "client" / "examples" / "evaluate"
WIDTH, HEADS, KV_HEADS, DIM, LAYERS, VOCABULARY = 64, 4, 2, 16, 2, 90


class TinyWeights:
    """Random, in the shape of a Llama."""

    path = None

    def __init__(self):
        rng = np.random.default_rng(1)

        def matrix(*shape):
            return rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

        self.tensors = {
            "token_embd.weight": matrix(VOCABULARY, WIDTH) * 8,
            "output_norm.weight": np.ones(WIDTH, np.float32),
        }
        rows = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM}
        for layer in range(LAYERS):
            own = {f"attn_{name}": matrix(count, WIDTH) for name, count in rows.items()}
            own |= {"attn_output": matrix(WIDTH, HEADS * DIM), "ffn_gate": matrix(128, WIDTH)}
            own |= {"ffn_up": matrix(128, WIDTH), "ffn_down": matrix(WIDTH, 128)}
            own |= {f"{name}_norm": np.ones(WIDTH, np.float32) for name in ("attn", "ffn")}
            self.tensors |= {f"blk.{layer}.{name}.weight": one for name, one in own.items()}

    def field(self, name, default=None):
        own = {"embedding_length": WIDTH, "block_count": LAYERS, "rope.dimension_count": DIM}
        own |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
        return {"architecture": "llama", **own}.get(name.split(".", 1)[1], default)


class Letters:
    def encode(self, text):
        return [ord(letter) % VOCABULARY for letter in text]


@pytest.fixture
def example(monkeypatch):
    """The module dump."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import dump

    monkeypatch.setattr(dump, "load_weights", lambda name: TinyWeights())
    monkeypatch.setattr(dump, "make_tokenizer", lambda weights: Letters())
    return dump


def test_from_a_text_to_the_verdict(example, tmp_path, monkeypatch):
    arguments = [str(tmp_path), "--tokens", "256", "--scored", "20"]
    monkeypatch.setattr(sys, "argv", ["dump.py", *arguments])
    assert example.main() == 0
    dump, rest = (read_dump(tmp_path / half) for half in "01")
    assert (dump.dtype, dump.token_count, len(dump.k)) == ("bf16", 256, LAYERS)
    assert dump.q[1].shape == (HEADS, 64, DIM) and dump.k[0].shape == (KV_HEADS, 256, DIM)
    assert not dump.windows and dump.rotation_of(1).kind == "interleaved"
    assert dump.rotation_of(1).dims == DIM and dump.groups() == [[0, 1]]
    assert shared_tokens(dump, rest) < 10 and rest.token_count == 256
    assert len(json.loads((tmp_path / "1" / "scored.json").read_text())["tokens"]) == 21
    make = find_judge(f"{EXAMPLE / 'judge.py'}:make")
    judges = [make(tmp_path / half) for half in "01"]
    raw, coded, profiled = evaluate.evaluate(
        dump,
        ["raw", "kivi:2", "cairn:3.0/plain"],
        judges[0],
        calibration=[rest],
        calibration_judge=judges[1],
    )
    assert raw.kl == 0 and coded.kl > 0 and raw.same_top == raw.perplexity_ratio == 1
    assert raw.attention_error == 0 and coded.attention_error > 0
    assert 0 < profiled.kl < coded.kl


def test_too_short_a_text_is_one_line(example, tmp_path, monkeypatch, capsys):
    text = tmp_path / "text"
    text.write_text("short")
    monkeypatch.setattr(sys, "argv", ["dump.py", str(tmp_path), "--text", str(text)])
    assert example.main() == 1
    assert "halves have 2 and 3 tokens, 1281 are needed" in capsys.readouterr().err
