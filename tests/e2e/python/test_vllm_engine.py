# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector, driven as vLLM drives it, against a real cairnd: what is loaded is what was
computed, whatever fails."""

import random
import signal
import threading
import time

import fake_torch
import fake_vllm
import pytest
from fake_vllm import ENGINE, Request, prompt

fake_vllm.install()

from cairn.vllm import CairnConnector  # noqa: E402
from daemon import Daemon  # noqa: E402

STORE = 128


@pytest.fixture
def settings(settings):
    return settings | {"recipe": fake_torch.recipe("exact")}


def test_a_second_engine_loads_what_the_first_computed(make_engine, settings):
    tokens = prompt(1, 5 * STORE + 40)
    first = make_engine(settings)
    assert first.run_one("cold", tokens).external == 0
    second = make_engine(settings)
    assert second.run_one("warm", tokens).external == 5 * STORE
    assert second.counts["loaded_blocks"] == 5 * STORE // ENGINE
    assert "saved_blocks" not in second.counts  # all that is full was loaded


def test_one_token_is_always_computed(make_engine, settings):
    tokens = prompt(2, 2 * STORE)
    make_engine(settings).run_one("cold", tokens)
    assert make_engine(settings).run_one("warm", tokens).external == 2 * STORE - ENGINE


def test_only_full_blocks_are_saved_chunk_by_chunk(make_engine, settings):
    engine = make_engine(settings, budget=96)
    saved = []
    one = engine.add(Request("chunks", prompt(3, 2 * STORE + 100)))
    while engine.waiting or engine.running:
        engine.step()
        saved += [save.first_position for save in engine.last_plan.saves]
    engine.check(one)
    assert saved == [0, STORE]


def test_a_preempted_request_comes_back_with_one_question(make_engine, settings):
    engine = make_engine(settings, budget=128)
    tokens = prompt(4, 4 * STORE + 10)
    one = engine.add(Request("preempted", tokens))
    while one.num_computed_tokens < 3 * STORE:
        engine.step()
    engine.drain()
    asked = []
    lookups = engine.scheduler._scheduler._lookups
    ask = lookups.ask
    lookups.ask = lambda keys: asked.append(len(keys)) or ask(keys)
    engine.preempt(one)
    taken, engine.free = engine.free, []  # no block is free: it is asked again in each step
    for _ in range(93):
        engine.step()
    engine.free = taken
    engine.run()
    engine.check(one)
    assert engine.questions > 93 and asked == [4]
    assert one.external == 3 * STORE


def test_engines_of_other_weights_meet_nothing(make_engine, settings, caplog):
    tokens = prompt(5, 2 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    with caplog.at_level("INFO"):
        other = make_engine(settings | {"weights_revision": "other"})
    assert other.run_one("other", tokens).external == 0
    assert "weights other" in caplog.text and "new, so nothing is in it" in caplog.text


def test_engines_that_turn_k_otherwise_meet_nothing(make_engine, settings):
    tokens = prompt(5, 2 * STORE + 1)
    for factor, hits in ((1.0, 0), (1.0, 2 * STORE), (4.0, 0)):
        turned = {"rope_type": "linear", "rope_theta": 1e4, "factor": factor}
        config = fake_vllm.SimpleNamespace(rope_parameters=turned)
        engine = make_engine(settings, model_config__hf_text_config=config)
        assert engine.run_one(f"factor {factor}", tokens).external == hits


class WritesIntoItsConfiguration(CairnConnector):
    """Of an engine whose model does so, in the worker's process, when the scheduler has its copy."""

    def __init__(self, vllm_config, role, kv_cache_config):
        config = vllm_config.model_config.hf_text_config = fake_vllm.SimpleNamespace(bias=False)
        config.bias = role == "worker"
        super().__init__(vllm_config, role, kv_cache_config)


def test_a_worker_s_space_is_the_scheduler_s(make_engine, settings, caplog):
    tokens = prompt(5, 2 * STORE + 1)
    with caplog.at_level("INFO"):
        engine = make_engine(settings, connector_class=WritesIntoItsConfiguration)
        assert engine.run_one("cold", tokens).external == 0
    assert "this worker's space is the scheduler's" in caplog.text
    assert engine.run_one("again", tokens).external == 2 * STORE
    plain = fake_vllm.SimpleNamespace(bias=False)
    shares = make_engine(settings, model_config__hf_text_config=plain)
    assert shares.run_one("another", tokens).external == 2 * STORE


def test_prompts_without_tokens_are_left_alone(make_engine, settings):
    engine = make_engine(settings)
    tokens = prompt(7, STORE + 1)
    engine.run_one("embeds", tokens, prompt_embeds=object())
    assert engine.run_one("again", tokens, prompt_embeds=object()).external == 0
    assert engine.counts == {}


def test_roles(make_engine, settings):
    tokens = prompt(9, STORE + 1)
    make_engine(settings, role="kv_consumer").run_one("reads", tokens)
    producer = make_engine(settings, role="kv_producer")
    producer.run_one("writes", tokens)
    assert producer.run_one("again", tokens).external == 0
    assert make_engine(settings, role="kv_consumer").run_one("warm", tokens).external == STORE


def test_many_requests_with_shared_prefixes(make_engine, settings):
    """Every block that was loaded is what the engine would have computed, bit for bit."""
    rng = random.Random(10)
    roots = [prompt(100 + i, 2 * STORE + 60) for i in range(4)]
    engines = [make_engine(settings, budget=256), make_engine(settings, budget=700)]
    external = 0
    for i in range(30):
        batch = []
        for j in range(3):
            root = rng.choice(roots)[: rng.randrange(60, 2 * STORE + 60)]
            tail = prompt(rng.randrange(5), rng.randrange(1, 150))
            batch.append(engines[i % 2].add(Request(f"{i}.{j}", root + tail)))
        engines[i % 2].run()
        for one in batch:
            engines[i % 2].check(one)
            external += one.external
    assert external > 5000


def test_blocks_with_losses_are_never_put_back(make_engine, settings):
    """What was loaded stays out, what is computed on it is marked as derived."""
    lossy = settings | {"recipe": "kivi:4"}
    tokens = prompt(16, 4 * STORE + 1)
    first = make_engine(lossy)
    first.run_one("cold", tokens[: 2 * STORE + 70])
    engine, saves = make_engine(lossy, budget=100), []
    one = engine.add(Request("on losses", tokens))
    while engine.waiting or engine.running:
        engine.step()
        saves += [(save.first_position, save.is_derived) for save in engine.last_plan.saves]
    assert one.external == 2 * STORE and saves == [(2 * STORE, True), (3 * STORE, True)]
    engine.drain()
    # The last block is loaded but for its end, and what is computed of it is not a whole one.
    saves = []
    again = engine.add(Request("in the last block", tokens[: 4 * STORE]))
    while engine.waiting or engine.running:
        engine.step()
        saves += engine.last_plan.saves
    assert again.external == 4 * STORE - ENGINE and saves == []


# --------------------------------------------------------------------------------- what fails


def test_a_failed_first_block_is_asked_for_once(make_engine, settings):
    """A store that says yes and then has nothing must not keep a request for ever."""
    tokens = prompt(11, 3 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine = make_engine(settings)
    lose(engine, tokens, 0)
    one = engine.run_one("first lost", tokens)
    assert engine.counts["loads"] == 1 and one.external == 3 * STORE
    assert engine.counts["failed_blocks"] == 3 * STORE // ENGINE


def test_exactly_the_failed_blocks_are_recomputed_and_then_saved(make_engine, settings):
    tokens = prompt(12, 4 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine = make_engine(settings)
    lose(engine, tokens, 2)
    saved = []
    one = engine.add(Request("middle lost", tokens))
    while engine.waiting or engine.running:
        engine.step()
        plan = engine.last_plan
        assert not (plan.loads and plan.saves)
        saved += [save.first_position for save in plan.saves]
    engine.check(one)
    assert engine.counts["loaded_blocks"] == 2 * STORE // ENGINE
    assert saved == [2 * STORE]
    engine.drain()
    assert make_engine(settings).run_one("whole again", tokens).external == 4 * STORE


def test_under_the_policy_fail_a_request_ends_and_others_go_on(make_engine, settings, caplog):
    tokens = prompt(21, 3 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine = make_engine(settings, kv_transfer_config__kv_load_failure_policy="fail")
    assert caplog.text.count("kv_load_failure_policy is 'fail'") == 1
    lose(engine, tokens, 1)
    engine.check_an_end(tokens, prompt(22, STORE + 1))


def test_an_abort_in_mid_load_gives_everything_back(make_engine, settings):
    tokens = prompt(13, 2 * STORE + 1)
    make_engine(settings).run_one("cold", tokens)
    engine = make_engine(settings)
    begin_loads = _hold_loads(engine)
    one = engine.add(Request("aborted", tokens))
    while not one.is_loading:
        engine.step()
    engine.done["aborted"] = None
    engine.abort(one)
    begin_loads.set()
    while one.is_loading:
        engine.step()
    assert len(engine.free) == 63 and not engine.scheduler._scheduler._chains


def test_no_daemon_at_start(make_engine, settings, caplog):
    engine = make_engine(settings | {"control": "127.0.0.1:1", "data": None}, wait=False)
    tokens = prompt(14, 2 * STORE + 1)
    one = engine.add(Request("alone", tokens))
    engine.run()
    engine.check(one)
    deadline = time.monotonic() + 10
    while "no cache at 127.0.0.1:1" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert caplog.text.count("no cache at 127.0.0.1:1") <= 2  # once for each side


def test_a_daemon_that_is_killed_or_stopped(make_engine, settings, bin_dir, tmp_path):
    tokens = prompt(15, 4 * STORE + 1)
    with Daemon(bin_dir, "local", tmp_path, "128MiB") as own:
        extra = settings | {"control": own.control, "data": own.data, "load_timeout": 0.5}
        engine = make_engine(extra, budget=2048)
        engine.run_one("cold", tokens)
        worker = engine.worker._worker
        load = worker._load

        def stop_and_load(*arguments):
            own.process.send_signal(signal.SIGSTOP)
            load(*arguments)

        worker._load = stop_and_load
        one = engine.add(Request("stopped", tokens))
        begin = time.monotonic()
        engine.run()
        engine.check(one)
        assert one.external == 4 * STORE and time.monotonic() - begin < 20
        own.process.send_signal(signal.SIGCONT)
        own.kill()
        killed = engine.add(Request("killed", tokens))
        engine.run()
        engine.check(killed)


def test_a_full_daemon(make_engine, settings, bin_dir, tmp_path):
    """What it does not take is dropped, or evicts what was there; the engine computes all the same."""
    with Daemon(bin_dir, "local", tmp_path, "16MiB") as own:
        engine = make_engine(settings | {"control": own.control, "data": own.data, "recipe": "raw"})
        for i in range(24):
            engine.run_one(f"r{i}", prompt(200 + i, 8 * STORE + 1))
        assert engine.counts["saved_blocks"] > 0
        engine.run_one("again", prompt(200, 8 * STORE + 1))


def test_a_draining_daemon(make_engine, settings, bin_dir, tmp_path):
    tokens = prompt(17, 4 * STORE + 1)
    with Daemon(bin_dir, "local", tmp_path, "128MiB") as own:
        engine = make_engine(settings | {"control": own.control, "data": own.data})
        engine.run_one("cold", tokens)
        begin_loads = _hold_loads(engine)
        one = engine.add(Request("in the drain", tokens))
        while not one.is_loading:
            engine.step()
        own.process.send_signal(signal.SIGTERM)
        begin_loads.set()
        engine.run()
        engine.check(one)
        engine.run_one("after it", tokens)


def _hold_loads(engine):
    """Loads wait for this event."""
    worker, event = engine.worker._worker, threading.Event()
    load = worker._load
    worker._load = lambda *arguments: event.wait(10) and load(*arguments)
    return event


def lose(engine, tokens, block):
    """The engine's next lookup finds everything; then the store loses a block."""
    scheduler = engine.scheduler._scheduler
    space = engine.scheduler._session.space
    keys = space.keys(tokens)
    lookups = scheduler._lookups
    answer = lookups._match

    def match_and_lose(wanted):
        found = answer(wanted)
        space.delete([keys[block]])
        return found

    lookups._match = match_and_lose
