# SPDX-License-Identifier: Apache-2.0
"""The tap of the vLLM connector: what the stand-in engine computes becomes dumps for evaluate."""

import fake_vllm
import numpy as np
import pytest
from cairn import evaluate
from cairn.evaluate.dump import read_dump
from fake_vllm import DIM, HEADS, LAYERS, Request, kv_of, prompt, queries_of

fake_vllm.install()

STORE = 128
QUERIES = 64  # of the last tokens


@pytest.fixture
def capture(settings, tmp_path):
    return settings | {
        "recipe": "exact",
        "capture": str(tmp_path / "dumps"),
        "capture_sequences": 2,
        "capture_tokens": 3 * STORE,
    }


def check(folder, tokens, count, heads=slice(None), layers=range(LAYERS), has_queries=True):
    """That a dump has the KV of the first tokens, and the queries of the last of these."""
    dump = read_dump(folder)
    assert dump.token_count == count and sorted(dump.k) == list(layers)
    kv = kv_of(tokens[:count], max(LAYERS, max(layers) + 1))
    for layer in layers:
        mine = kv[:, layer, heads]
        np.testing.assert_array_equal(dump.k[layer], mine[..., :DIM].swapaxes(0, 1))
        np.testing.assert_array_equal(dump.v[layer], mine[..., DIM:].swapaxes(0, 1))
        if has_queries:
            queries = queries_of(mine)[-QUERIES:].swapaxes(0, 1)
            np.testing.assert_array_equal(dump.q[layer], queries)
    return dump


def written(tmp_path, name="dumps"):
    return sorted(path.name for path in (tmp_path / name).glob("*"))


def test_what_is_computed_becomes_dumps(make_engine, capture, tmp_path):
    engine = make_engine(capture, budget=200)  # chunks that end within blocks
    prompts = [prompt(1, 3 * STORE + 70), prompt(2, 3 * STORE)]
    for i, tokens in enumerate(prompts):
        assert engine.run_one(f"{i}", tokens).external == 0
    engine.ranks[0].connector._tap._writer.join(10)
    assert written(tmp_path) == ["0", "1"]
    for i, tokens in enumerate(prompts):
        dump = check(tmp_path / "dumps" / f"{i}", tokens, 3 * STORE)
    assert dump.about.model == "fake-model" and dump.about.weights_revision.startswith("engine")
    (found,) = evaluate.evaluate(dump, ["kivi:4"])
    assert found.bits < 8


def test_a_full_tap_is_out_of_the_way(make_engine, capture, tmp_path):
    engine = make_engine(capture)
    attention = engine.ranks[0].attention.values()
    assert all("forward" in vars(at.impl) for at in attention)
    for i in range(3):
        engine.run_one(f"{i}", prompt(10 + i, 4 * STORE))
    tap = engine.ranks[0].connector._tap
    tap._writer.join(10)
    assert not any("forward" in vars(at.impl) for at in attention)
    assert not tap._queries and engine.worker._session.space._capture is None
    assert written(tmp_path) == ["0", "1"]


def test_prefixes_that_are_there_already_are_captured_whole(make_engine, capture, tmp_path):
    """As a system prompt that all requests begin with: nobody puts its blocks again."""
    plain = {name: value for name, value in capture.items() if "capture" not in name}
    root = prompt(20, 2 * STORE)
    make_engine(plain).run_one("before", root + prompt(21, 30))
    engine = make_engine(capture)
    tokens, other = (root + prompt(seed, STORE + 5) for seed in (22, 23))
    assert engine.run_one("hits", tokens).external == 2 * STORE
    assert engine.run_one("hits again", other).external == 2 * STORE
    engine.ranks[0].connector._tap._writer.join(10)
    assert written(tmp_path) == ["0", "1"]
    check(tmp_path / "dumps" / "0", tokens, 3 * STORE)
    check(tmp_path / "dumps" / "1", other, 3 * STORE)


def test_the_end_of_the_engine_writes_what_there_is(make_engine, capture, tmp_path):
    tokens = prompt(30, 2 * STORE + 1)
    engine = make_engine(capture)
    engine.run_one("short", tokens)
    assert written(tmp_path) == []
    engine.worker.shutdown()
    assert written(tmp_path) == ["0"]
    check(tmp_path / "dumps" / "0", tokens, 2 * STORE)


def test_ranks_have_folders_of_their_own(make_engine, capture, tmp_path):
    tokens = prompt(40, 2 * STORE + 1)
    engine = make_engine(capture, tensor=2)
    engine.run_one("two", tokens)
    for rank in engine.ranks:
        rank.connector.shutdown()
    for rank in range(HEADS):
        assert written(tmp_path, f"dumps/rank{rank}") == ["0"]
        check(tmp_path / "dumps" / f"rank{rank}" / "0", tokens, 2 * STORE, slice(rank, rank + 1))


def test_groups_with_windows(make_engine, capture, tmp_path):
    groups = (((0, 2), 160), ((1, 3), 0))
    tokens = prompt(50, 3 * STORE + 20)
    engine = make_engine(capture, groups=groups, block_count=200, budget=150)
    engine.run_one("windows", tokens)
    engine.worker.shutdown()
    check(tmp_path / "dumps" / "0", tokens, 3 * STORE)


def test_a_folder_that_is_not_empty_is_left_alone(make_engine, capture, tmp_path, caplog):
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "mine").write_text("x")
    engine = make_engine(capture)
    engine.run_one("goes on", prompt(60, 3 * STORE + 1))
    assert "nothing is captured" in caplog.text and written(tmp_path) == ["mine"]


def test_what_goes_wrong_ends_the_tap_alone(make_engine, capture, tmp_path, caplog):
    engine = make_engine(capture)
    engine.ranks[0].connector._tap._see = None  # not what a layer expects
    tap = engine.ranks[0].connector._tap
    tap._keep = None
    del tap._see
    one = engine.run_one("goes on", prompt(70, 3 * STORE + 1))
    assert one.external == 0 and "nothing more is captured" in caplog.text
    engine.run_one("and on", prompt(71, 3 * STORE + 1))
    assert engine.counts["saved_blocks"] > 0


def test_without_a_daemon_nothing_is_captured(make_engine, capture, tmp_path):
    engine = make_engine(capture | {"control": "127.0.0.1:1", "data": None}, wait=False)
    one = engine.add(Request("alone", prompt(80, 2 * STORE + 1)))
    engine.run()
    engine.check(one)
    engine.worker.shutdown()
    assert written(tmp_path) == []
