# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector with layer-wise loads: a step computes with the first layers of what a request
loads while the others are on their way."""

import threading
import time

import fake_torch
import fake_vllm
import pytest
from cairn import DeadlineExceededError, paged
from fake_vllm import ENGINE, Request, prompt
from test_vllm_engine import lose

fake_vllm.install()

STORE = 128


@pytest.fixture
def settings(settings):
    return settings | {"recipe": fake_torch.recipe("exact"), "layer_wise": True}


def run(engine, *requests):
    """Runs them, and gives the plans of the steps."""
    for one in requests:
        engine.add(one)
    plans = []
    while engine.waiting or engine.running:
        engine.step()
        plans.append(engine.last_plan)
    for one in requests:
        engine.check(one)
    engine.drain()
    return plans


def test_a_load_is_of_the_step_that_computes_on_it(make_engine, settings):
    tokens = prompt(1, 4 * STORE + 40)
    make_engine(settings).run_one("cold", tokens)
    engine, one = make_engine(settings), Request("warm", tokens)
    loading = next(plan for plan in run(engine, one) if plan.loads)
    assert one.external == 4 * STORE and not loading.is_idle
    assert engine.counts["loaded_blocks"] == 4 * STORE // ENGINE
    assert not engine.scheduler._scheduler._on_their_way


def test_the_first_layer_is_used_while_the_others_are_on_their_way(
    make_engine, settings, monkeypatch
):
    tokens = prompt(2, 2 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine, begun, may_go_on = make_engine(settings), [], threading.Event()
    get, rank = paged.get, engine.ranks[0]
    compute, computed = rank.compute, []

    def get_in_turn(space, cache, *arguments, **more):
        assert not begun or may_go_on.wait(20)
        begun.append(cache.layer_count)
        return get(space, cache, *arguments, **more)

    def compute_and_let_go_on(layer, *arguments):
        computed.append((layer, len(begun)))
        may_go_on.set()
        return compute(layer, *arguments)

    monkeypatch.setattr(paged, "get", get_in_turn)
    rank.compute = compute_and_let_go_on
    assert engine.run_one("overlaps", tokens).external == 2 * STORE
    assert begun == [1] * fake_vllm.LAYERS and computed[0] == (0, 1)
    assert "failed_blocks" not in engine.counts or engine.counts["failed_blocks"] == 0


@pytest.mark.parametrize("lost", [0, 2])
def test_exactly_the_failed_blocks_are_recomputed_and_then_saved(make_engine, settings, lost):
    """What the step computed on them is neither used nor saved."""
    tokens = prompt(3 + lost, 5 * STORE + 1)
    make_engine(settings).run_one("cold", tokens[: 4 * STORE])
    engine = make_engine(settings)
    lose(engine, tokens, lost)
    plans = run(engine, Request("lost", tokens))
    assert engine.counts["loads"] == 1
    assert engine.counts["loaded_blocks"] == lost * STORE // ENGINE
    assert not any(plan.loads and plan.saves for plan in plans)
    assert [save.first_position for plan in plans for save in plan.saves][0] == lost * STORE
    assert make_engine(settings).run_one("whole again", tokens).external == 5 * STORE


def test_under_the_policy_fail_a_request_ends_and_others_go_on(make_engine, settings):
    tokens = prompt(10, 3 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine = make_engine(settings, kv_transfer_config__kv_load_failure_policy="fail")
    lose(engine, tokens, 1)
    engine.check_an_end(tokens, prompt(11, STORE + 1))
    assert not engine.scheduler._scheduler._on_their_way


def test_nothing_is_saved_that_shares_a_block_on_its_way(make_engine, settings):
    """Of another request that hit, in the same step, what the first one loads."""
    tokens = prompt(6, 4 * STORE + 1)
    make_engine(settings).run_one("cold", tokens[: 2 * STORE])
    decider = make_engine(settings).scheduler._scheduler
    loads, hits = Request("loads", tokens), Request("hits", tokens)
    for one in (loads, hits):
        decider.begin(one)
        while (external := decider.answer(one, 0)) is None:
            pass
    blocks = [list(range(1, 4 * STORE // ENGINE + 2))]
    decider.allocated(loads, blocks, external)
    decider.allocated(hits, blocks, 0)
    loads.num_computed_tokens = hits.num_computed_tokens = external
    scheduled = dict.fromkeys(["loads", "hits"], 2 * STORE + 1)
    plan = decider.plan(scheduled, lambda _: blocks)
    assert [load.request_id for load in plan.loads] == ["loads"] and plan.saves == []
    decider.loaded(["loads"], [])
    assert len(decider.plan(scheduled, lambda _: blocks).saves) == 2


def test_late_layers_are_recomputed(make_engine, settings, monkeypatch):
    tokens = prompt(7, 2 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine, never = make_engine(settings | {"load_timeout": 0.2}), threading.Event()

    def late(*arguments, timeout, **more):
        never.wait(timeout)
        raise DeadlineExceededError("late")

    monkeypatch.setattr(paged, "get", late)
    began = time.monotonic()
    one = engine.run_one("late", tokens)
    assert one.external == 2 * STORE and time.monotonic() - began < 10
    assert engine.counts["failed_blocks"] == 2 * STORE // ENGINE


def test_ranks_wait_for_their_own(make_engine, settings):
    tokens = prompt(8, 3 * STORE + 1)
    make_engine(settings, tensor=2).run_one("cold", tokens)
    warm = make_engine(settings, tensor=2)
    assert warm.run_one("warm", tokens).external == 3 * STORE
    assert warm.counts["loads"] == 2 and not warm.scheduler._scheduler._on_their_way


def test_a_model_with_windows_loads_between_steps(make_engine, settings, caplog):
    groups = ((tuple(range(4)), 160),)
    tokens = prompt(9, 4 * STORE + 1)
    make_engine(settings, groups=groups).run_one("cold", tokens)
    assert "layer_wise is off: the model has several groups of layers" in caplog.text
    assert make_engine(settings, groups=groups).run_one("warm", tokens).external == 4 * STORE
