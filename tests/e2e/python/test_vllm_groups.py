# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector where a model has groups of layers with windows, and where an engine has ranks,
driven as vLLM drives it: what is loaded is what was computed, and no more than windows show moves."""

import random
import threading

import fake_vllm
import pytest
from fake_vllm import ENGINE, HEADS, Request, prompt

fake_vllm.install()

STORE, WINDOW = 128, 160
# As Gemma 3: some groups of windows, one of full attention, layers by turns.
HYBRID = (((0, 3), WINDOW), ((1, 4), WINDOW), ((2, 5), 0))
WINDOW_BLOCKS = WINDOW // ENGINE  # that a token sees, and which end where it begins


@pytest.fixture
def settings(settings):
    return settings | {"recipe": "raw"}


@pytest.fixture
def make(make_engine):
    def build(extra, **changed):
        return make_engine(extra, **({"groups": HYBRID, "block_count": 400} | changed))

    return build


def test_a_hit_moves_no_more_than_the_windows(make, settings):
    tokens = prompt(1, 8 * STORE + 40)
    first = make(settings)
    assert first.run_one("cold", tokens).external == 0
    first.run_one("figures come with a step", prompt(2, 1))
    assert first.counts["saved_blocks"] == 3 * 8 * STORE // ENGINE
    second = make(settings)
    assert second.run_one("warm", tokens).external == 8 * STORE
    assert second.counts["loaded_blocks"] == 8 * STORE // ENGINE + 2 * WINDOW_BLOCKS
    # Of the store eight blocks of the full group, and two that have the window of the others.
    share = second.counts["loaded_bytes"] / first.counts["saved_bytes"]
    assert share == pytest.approx((8 + 2 * 2) / (3 * 8), rel=0.01)
    assert "saved_blocks" not in second.counts


def test_a_hit_needs_no_more_than_the_windows(make, settings):
    """Of what was out of the windows when saving began nothing but the full group is there."""
    tokens = prompt(3, 10 * STORE + 40)
    first = make(settings, budget=2 * STORE)
    one = first.add(Request("late", tokens))
    first.scheduler._scheduler._is_saving = False
    while one.num_computed_tokens < 6 * STORE:
        first.step()
    first.scheduler._scheduler._is_saving = True
    first.run()
    first.check(one)
    first.drain()
    second = make(settings)
    assert second.run_one("has its windows", tokens).external == 10 * STORE
    assert second.run_one("has not", tokens[: 6 * STORE + 1]).external == 0
    assert second.run_one("saved now", tokens[: 6 * STORE + 1]).external == 6 * STORE


def test_blocks_are_saved_chunk_by_chunk(make, settings):
    """Chunks that fill no block of the store: none of its groups is let go of before it is full."""
    tokens = prompt(4, 5 * STORE + 9)
    make(settings, budget=96).run_one("chunks", tokens)
    for count in range(1, 6):
        one = make(settings).run_one(f"{count}", tokens[: count * STORE + 1])
        assert one.external == count * STORE


def test_a_load_that_failed_is_computed_whole_and_asked_for_once(make, settings, caplog):
    tokens = prompt(5, 4 * STORE + 1)
    make(settings).run_one("cold", tokens)
    engine = make(settings)
    fail(engine.ranks[0], 1, 3)
    one = engine.run_one("one group failed", tokens)
    assert one.external == 4 * STORE and engine.counts["loads"] == 1
    assert "blocks of request one group failed were not loaded" in caplog.text
    assert make(settings).run_one("whole again", tokens).external == 4 * STORE


def test_what_is_lost_is_saved_again(make, settings):
    tokens = prompt(6, 4 * STORE + 1)
    make(settings).run_one("cold", tokens)
    engine = make(settings)
    space = engine.scheduler._session.space
    lose(engine, space.keys(tokens)[1])
    engine.run_one("lost", tokens)
    assert engine.counts["loads"] == 1
    assert make(settings).run_one("whole again", tokens).external == 4 * STORE


def test_under_the_policy_fail_a_request_ends_and_others_go_on(make, settings):
    tokens = prompt(7, 3 * STORE + 1)
    make(settings).run_one("cold", tokens)
    engine = make(settings, kv_transfer_config__kv_load_failure_policy="fail")
    fail(engine.ranks[0], 0, 0)
    engine.check_an_end(tokens, prompt(8, STORE + 1))


def test_one_group_of_windows_alone(make, settings):
    """As models have them whose layers all have one. Where a block fails all is computed: a shorter
    prefix would have its window where nothing was loaded."""
    groups = ((tuple(range(4)), WINDOW),)
    tokens = prompt(9, 6 * STORE + 1)
    make(settings, groups=groups).run_one("cold", tokens)
    second = make(settings, groups=groups)
    assert second.run_one("warm", tokens).external == 6 * STORE
    assert second.counts["loaded_blocks"] == WINDOW_BLOCKS
    third = make(settings, groups=groups)
    lose(third, third.scheduler._session.space.keys(tokens)[5])
    third.run_one("lost", tokens)
    assert third.counts["loads"] == 1 and third.counts["failed_blocks"] > 0


def test_blocks_that_the_engine_has_itself_are_not_loaded(make, settings):
    """A local hit: of the groups' blocks those behind it are loaded, of windows what is in them."""
    tokens = prompt(10, 4 * STORE + 1)
    make(settings).run_one("cold", tokens)
    decider = make(settings).scheduler._scheduler
    request = Request("local", tokens)
    decider.begin(request)
    local = 2 * STORE + ENGINE
    while (external := decider.answer(request, local)) is None:
        pass
    assert external == 4 * STORE - local
    count = 4 * STORE // ENGINE + 1
    null = (4 * STORE - WINDOW + 1) // ENGINE
    full = list(range(100, 100 + count))
    window = [0] * null + list(range(200, 200 + count - null))
    decider.allocated(request, (window, window, full), external)
    (load,) = decider.plan({}, lambda _: None).loads
    of_window, _, of_full = ([block for block in table if block >= 0] for table in load.blocks)
    assert of_full == full[local // ENGINE : -1] and of_window == window[null:-1]
    assert len(load.keys) == 2


def test_many_requests_with_shared_prefixes(make, settings):
    rng = random.Random(11)
    roots = [prompt(300 + i, 4 * STORE) for i in range(3)]
    engines = [make(settings, budget=256), make(settings, budget=700)]
    external = 0
    for i in range(20):
        engine, batch = engines[i % 2], []
        for j in range(3):
            tokens = rng.choice(roots)[: rng.randrange(60, 4 * STORE)]
            tokens = tokens + prompt(rng.randrange(5), rng.randrange(1, 150))
            batch.append(engine.add(Request(f"{i}.{j}", tokens)))
        if i % 3 == 0:
            engine.step()
            for one in list(engine.running)[:1]:
                engine.preempt(one)
        engine.run()
        for one in batch:
            engine.check(one)
            external += one.external
    assert external > 5000


# ------------------------------------------------------------------------------------- of ranks

SHAPES = [(2, 1), (1, 2), (2, 2), (4, 1)]  # of four ranks two each have the same of two heads


@pytest.mark.parametrize("tensor, stages", SHAPES)
def test_ranks_put_and_get_their_slices(make_engine, settings, tensor, stages):
    tokens = prompt(12, 4 * STORE + 40)
    ranks = {"tensor": tensor, "stages": stages}
    make_engine(settings, **ranks).run_one("cold", tokens)
    warm = make_engine(settings, **ranks)
    assert warm.run_one("warm", tokens).external == 4 * STORE
    assert warm.counts["loads"] == tensor * stages
    assert make_engine(settings).run_one("one rank has them all", tokens).external == 4 * STORE


def test_ranks_have_groups_too(make, settings):
    tokens = prompt(13, 6 * STORE + 1)
    make(settings, tensor=HEADS).run_one("cold", tokens)
    warm = make(settings, tensor=HEADS)
    assert warm.run_one("warm", tokens).external == 6 * STORE
    wanted = HEADS * (6 * STORE // ENGINE + 2 * WINDOW_BLOCKS)
    assert warm.counts["loaded_blocks"] == wanted
    fail(warm.ranks[1], 2, 4)
    warm.run_one("one rank failed", tokens)
    assert warm.counts["loads"] == 2 * HEADS


def test_a_block_is_there_once_all_ranks_have_put_theirs(make_engine, settings):
    tokens = prompt(14, 3 * STORE + 1)
    first = make_engine(settings, tensor=2)
    first.ranks[1].connector._worker._saves._submit = lambda put, *arguments: None
    first.run_one("one rank drops", tokens)
    second = make_engine(settings, tensor=2)
    assert second.run_one("nothing yet", tokens).external == 0
    assert second.run_one("all of it", tokens).external == 3 * STORE


@pytest.mark.parametrize("tensor, stages", [(2, 1), (1, 2)])
def test_ranks_agree_on_the_minimum(make_engine, settings, tensor, stages):
    tokens = prompt(15, 5 * STORE + 1)
    ranks = {"tensor": tensor, "stages": stages}
    make_engine(settings, **ranks).run_one("cold", tokens)
    engine = make_engine(settings, **ranks)
    fail(engine.ranks[0], 0, 4)
    fail(engine.ranks[1], 0, 2)
    one, saved = engine.add(Request("differ", tokens)), []
    while engine.waiting or engine.running:
        engine.step()
        saved += [save.first_position for save in engine.last_plan.saves]
    engine.check(one)
    assert saved == [2 * STORE] and engine.counts["loads"] == 2


def test_a_request_waits_for_the_slowest_rank(make_engine, settings):
    tokens = prompt(16, 2 * STORE + 1)
    make_engine(settings, tensor=2).run_one("cold", tokens)
    engine, may_load = make_engine(settings, tensor=2), threading.Event()
    worker = engine.ranks[1].connector._worker
    load = worker._load
    worker._load = lambda *arguments: may_load.wait(10) and load(*arguments)
    slow = engine.add(Request("slow", tokens))
    other = engine.add(Request("other", prompt(17, 40)))
    while "other" not in engine.done or not engine._ended_ranks:
        engine.step()
    for _ in range(20):
        engine.step()
    assert slow.is_loading and engine._ended_ranks == {"slow": 1}
    may_load.set()
    engine.run()
    engine.check(slow)
    engine.check(other)


def fail(rank, group, first_bad):
    """The rank's next load of a group fails from a block of the store on, its bytes left wrong."""
    worker = rank.connector._worker
    load, part = worker._load_group, worker._groups[group]

    def wrapped(space, asked, wanted, blocks, deadline):
        good, wire_bytes = load(space, asked, wanted, blocks, deadline)
        if asked is not part:
            return good, wire_bytes
        worker._load_group = load
        bad = [block for block in blocks[first_bad * STORE // ENGINE :] if block >= 0]
        for _, array in rank.layers.values():
            array[bad] = 5
        return min(good, first_bad), wire_bytes

    worker._load_group = wrapped


def lose(engine, key):
    """The engine's next lookup finds everything; then the store loses a block."""
    lookups, space = engine.scheduler._scheduler._lookups, engine.scheduler._session.space
    answer = lookups._match

    def match_and_lose(wanted):
        found = answer(wanted)
        space.delete([key])
        return found

    lookups._match = match_and_lose
