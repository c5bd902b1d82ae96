# SPDX-License-Identifier: Apache-2.0
"""The squared queries that the vLLM connector puts with blocks: of the stand-in engine's queries."""

import fake_vllm
import numpy as np
import pytest
from cairn import InvalidArgumentError
from cairn.space import Space
from fake_vllm import DIM, HEADS, LAYERS, kv_of, prompt, queries_of
from test_statistics import added

fake_vllm.install()

STORE = 128


@pytest.fixture
def squares(settings):
    return settings | {"recipe": "exact", "query_squares": True}


@pytest.fixture
def puts(monkeypatch):
    """All that are put."""
    seen, put_batch = [], Space.put_batch

    def spy(space, puts, **more):
        seen.extend(puts)
        return put_batch(space, puts, **more)

    monkeypatch.setattr(Space, "put_batch", spy)
    return seen


def check(put, tokens, layers=range(LAYERS), heads=slice(None), layer_count=LAYERS):
    """That a put brings the mean over its tokens and over the query heads of each head of K."""
    kv = kv_of(tokens, layer_count)[put.first_position : put.first_position + STORE]
    for place, layer in enumerate(layers):
        queries = queries_of(kv[:, layer, heads]).astype(np.float64)
        each = np.square(queries).reshape(STORE, -1, 2, DIM).mean((0, 2))
        np.testing.assert_allclose(put.query_squares[place], each, rtol=1e-5)


def counts(engine):
    """They come with a step."""
    engine.run_one("figures", prompt(99, 5))
    return engine.counts


def test_blocks_that_a_step_computes_whole_bring_squares(make_engine, squares, puts, daemon):
    before = added(daemon)
    tokens = prompt(1, 7 * STORE + 70)
    engine = make_engine(squares, budget=200)
    engine.run_one("chunks", tokens)
    with_squares = [put.first_position // STORE for put in puts if put.query_squares is not None]
    # Chunks begin at 0, 200, 400, 600, 800: blocks 1, 3, 4 and 6 are of two each.
    assert with_squares == [0, 2, 5] and len(puts) == 7
    for put in puts:
        if put.query_squares is not None:
            check(put, tokens)
    assert added(daemon) - before == 3
    assert counts(engine)["query_squares_blocks"] == 3 * STORE // 32


def test_requests_of_one_step(make_engine, squares, puts):
    prompts = [prompt(10 + i, STORE + 9 * i) for i in range(3)]
    engine = make_engine(squares)
    for i, tokens in enumerate(prompts):
        engine.add(fake_vllm.Request(f"{i}", tokens))
    engine.run()
    engine.drain()
    assert len(puts) == 3
    for put, tokens in zip(puts, prompts, strict=True):
        check(put, tokens)


def test_what_another_engine_computed_brings_none(make_engine, squares, puts):
    root = prompt(20, 2 * STORE)
    make_engine(squares).run_one("before", root + prompt(21, 30))
    puts.clear()
    engine = make_engine(squares)
    tokens = root + prompt(22, STORE + 1)
    assert engine.run_one("hits", tokens).external == 2 * STORE
    (put,) = puts
    check(put, tokens)


def test_without_the_setting_there_are_none(make_engine, settings, puts):
    engine = make_engine(settings | {"recipe": "exact"})
    engine.run_one("plain", prompt(30, 2 * STORE + 1))
    assert [put.query_squares for put in puts] == [None, None]
    assert not any("forward" in vars(at.impl) for at in engine.ranks[0].attention.values())


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2)])
def test_ranks_bring_what_they_have(make_engine, squares, puts, tensor, stages):
    tokens = prompt(40, 2 * STORE + 1)
    make_engine(squares, tensor=tensor, stages=stages).run_one("ranks", tokens)
    assert len(puts) == 2 * tensor * stages
    for put in puts:
        heads = slice(put.part.heads.start, put.part.heads.stop)
        check(put, tokens, put.part.layers, heads)


def test_groups_with_windows(make_engine, squares, puts):
    groups = (((0, 2), 160), ((1, 3), 0))
    tokens = prompt(50, 3 * STORE + 20)
    make_engine(squares, groups=groups, block_count=200).run_one("windows", tokens)
    assert sorted(put.part.group for put in puts) == [0, 0, 0, 1, 1, 1]
    for put in puts:
        check(put, tokens, groups[put.part.group][0])


def test_beside_a_capture(make_engine, squares, puts, tmp_path):
    capture = {"capture": str(tmp_path / "dumps"), "capture_sequences": 1, "capture_tokens": STORE}
    engine = make_engine(squares | capture)
    engine.run_one("both", prompt(60, 2 * STORE + 1))
    engine.ranks[0].connector._tap._writer.join(10)  # that one is out of the way
    assert (tmp_path / "dumps" / "0" / "q.0.npy").exists()
    puts.clear()
    tokens = prompt(61, 2 * STORE + 1)
    engine.run_one("one", tokens)
    for put in puts:
        check(put, tokens)
    assert len(puts) == 2


def test_queries_that_are_not_finite_bring_none(make_engine, squares, puts, monkeypatch):
    def with_nan(kv):
        queries = queries_of(kv)
        if len(kv) > STORE:
            queries[STORE + 3, 1, 5] = np.nan
        return queries

    monkeypatch.setattr("fake_vllm_engine.queries_of", with_nan)
    tokens = prompt(70, 2 * STORE + 1)
    engine = make_engine(squares)
    engine.run_one("nan", tokens)
    first, second = puts
    check(first, tokens)
    assert second.query_squares is None and counts(engine)["saved_blocks"] == 2 * STORE // 32


def test_a_layer_that_is_not_seen_takes_the_squares_of_all(make_engine, squares, puts, caplog):
    engine = make_engine(squares)
    last = engine.ranks[0].attention[fake_vllm.layer_name(LAYERS - 1)].impl
    del last.forward
    engine.run_one("not whole", prompt(80, 2 * STORE + 1))
    assert [put.query_squares for put in puts] == [None, None]
    assert caplog.text.count("not all of the engine's attention is seen") == 1


def test_what_goes_wrong_ends_the_tap_alone(make_engine, squares, puts, caplog, monkeypatch):
    def flat(kv):
        queries = queries_of(kv)
        return queries.reshape(len(queries), -1)

    monkeypatch.setattr("fake_vllm_engine.queries_of", flat)
    engine = make_engine(squares)
    for i in range(2):
        engine.run_one(f"{i}", prompt(90 + i, STORE + 1))
    assert [put.query_squares for put in puts] == [None, None]
    assert caplog.text.count("puts bring no squared queries any more: queries have shape") == 1
    assert counts(engine)["saved_blocks"] == 2 * STORE // 32


def test_what_cannot_be_tapped_is_said_at_start(make_engine, squares):
    for changed, text in (
        ({"tensor": 2 * HEADS}, "4 ranks share 2 heads of K"),
        ({"scheduler_config__max_num_batched_tokens": 100}, "a step computes up to 100 tokens"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"query_squares: {text}"):
            make_engine(squares, **changed)


def test_attention_that_cannot_be_seen_is_said_at_start(make_engine, squares, monkeypatch):
    monkeypatch.setattr("fake_vllm._Attention", object)
    with pytest.raises(InvalidArgumentError, match="query_squares: attention of SimpleNamespace"):
        make_engine(squares)


def test_an_engine_that_only_loads_taps_nothing(make_engine, squares):
    engine = make_engine(squares, role="kv_consumer", tensor=2 * HEADS)
    assert not any("forward" in vars(at.impl) for at in engine.ranks[0].attention.values())
