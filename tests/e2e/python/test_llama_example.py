# SPDX-License-Identifier: Apache-2.0
"""The example for llama.cpp, with a stand-in for its binding: states of sequences, kept whole."""

import ctypes
import hashlib
import random
import sys
import types

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "client" / "examples" / "llama"))

STATE_BYTES = 40_000  # of a token


class FakeLlama:
    """llama_cpp.Llama, as far as the example goes. Its state is a number of bytes for each token, each
    after those before it."""

    def __init__(self, path, n_ctx, seed, verbose):
        self.ctx, self.n_tokens, self.input_ids = self, 0, [0] * n_ctx
        self.kept, self.computed = b"", 0

    def reset(self):
        self.kept, self.n_tokens = b"", 0

    def eval(self, tokens):
        assert self.kept == state_of(self.input_ids[: self.n_tokens])
        self.input_ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)
        self.kept = state_of(self.input_ids[: self.n_tokens])
        self.computed += len(tokens)


def state_of(tokens):
    seed = hashlib.sha256(str(list(tokens)).encode()).digest()
    return random.Random(seed).randbytes(STATE_BYTES * len(tokens)) if len(tokens) else b""


def fake_binding():
    binding = types.ModuleType("llama_cpp")
    binding.Llama, binding.__version__ = FakeLlama, "0"

    def get_data(context, memory, count, sequence):
        assert (len(memory), sequence) == (count, 0)
        ctypes.memmove(memory, context.kept, count)
        return count

    def set_data(context, memory, count, sequence):
        if binding.is_refusing:
            return 0
        context.kept = bytes(memory)[:count]
        return count

    binding.is_refusing = False
    binding.llama_state_seq_get_size = lambda context, sequence: len(context.kept)
    binding.llama_state_seq_get_data = get_data
    binding.llama_state_seq_set_data = set_data
    return binding


@pytest.fixture
def example(monkeypatch):
    binding = fake_binding()
    monkeypatch.setitem(sys.modules, "llama_cpp", binding)
    monkeypatch.delitem(sys.modules, "run", raising=False)
    import run

    yield run, binding
    sys.modules.pop("run", None)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(random.Random(str(tmp_path)).randbytes(100_000))
    return path


def test_a_second_engine_takes_the_state(example, client, weights):
    run, _ = example
    tokens = list(range(200))
    first = run.Engine(weights, 512)
    states = run.States(client, "model", first.revision)
    assert run.serve(first, states, tokens) == 0
    second = run.Engine(weights, 512)
    assert run.serve(second, states, tokens) == 192
    assert second._llama.computed == 8 and second.state() == first.state()
    # Others have its beginning alone, of which the state is taken once it is kept.
    other = tokens[:130] + [7] * 100
    for taken in (0, 192):
        third = run.Engine(weights, 512)
        assert run.serve(third, states, other) == taken
        assert third.state() == state_of(other)
    longer = run.Engine(weights, 512)
    assert run.serve(longer, states, tokens + [9] * 80) == 192


def test_other_weights_and_short_prompts_hit_nothing(example, client, weights, tmp_path):
    run, _ = example
    engine = run.Engine(weights, 512)
    run.serve(engine, run.States(client, "model", engine.revision), list(range(100)))
    another = tmp_path / "another.gguf"
    another.write_bytes(b"x" + weights.read_bytes()[1:])
    other = run.Engine(another, 512)
    assert other.revision != engine.revision
    assert run.serve(other, run.States(client, "model", other.revision), list(range(100))) == 0
    states = run.States(client, "model", engine.revision)
    assert states.find(list(range(64))) == (0, None)  # one token is left to compute
    assert states.find([]) == (0, None)


def test_a_state_that_lost_a_piece_is_computed(example, client, weights):
    run, _ = example
    tokens = list(range(300))
    engine = run.Engine(weights, 512)
    states = run.States(client, "model", engine.revision)
    run.serve(engine, states, tokens[:150])
    run.serve(run.Engine(weights, 512), states, tokens)
    digest = hashlib.sha256(state_of(tokens[:256])).digest()
    assert states._pieces.delete([states._piece(digest, 3)]) == 1
    again = run.Engine(weights, 512)
    assert run.serve(again, states, tokens) == 128  # the shorter one is whole
    assert again.state() == state_of(tokens)
    assert run.serve(run.Engine(weights, 512), states, tokens) == 256


def test_states_of_two_runs_never_mix(client, example):
    """Of the same tokens, but other bits, as another number of threads makes them."""
    run, _ = example
    states = run.States(client, "model", "mixed")
    tokens = list(range(64))
    for fill in (b"a", b"b"):
        states.keep(tokens, fill * (3 << 20))
    count, state = states.find(tokens + [1])
    assert count == 64 and state in (b"a" * (3 << 20), b"b" * (3 << 20))


def test_a_state_that_the_engine_refuses_is_computed(example, client, weights):
    run, binding = example
    tokens = list(range(100))
    engine = run.Engine(weights, 512)
    states = run.States(client, "model", engine.revision)
    run.serve(engine, states, tokens)
    binding.is_refusing = True
    second = run.Engine(weights, 512)
    assert run.serve(second, states, tokens) == 0
    assert second.state() == state_of(tokens)
