# SPDX-License-Identifier: Apache-2.0
"""What a block's name says, over an engine's life: adapters that change where they lie, weights that may
have changed, sessions that go on, media without a name of their own."""

import os

import cairn
import fake_torch
import fake_vllm
import pytest
from cairn import InvalidArgumentError
from fake_vllm import Request, SimpleNamespace, lora, prompt

fake_vllm.install()

from cairn.vllm import adapters, revision  # noqa: E402
from cairn.vllm.connector import StepEnded  # noqa: E402

STORE = 128
IMAGE, AUDIO, SPEECH = ("%064x" % i for i in range(3))


@pytest.fixture
def settings(settings):
    return settings | {"recipe": fake_torch.recipe("exact")}


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Files count from the moment on at which they are made."""
    monkeypatch.setattr(revision, "_SETTLED_NS", 0)
    adapters._loads.of_managers.clear()  # of engines before


# Engines here are in one process, where a number of vLLM's has to be of one adapter: each has its own.
def adapter(path, byte):
    """A folder of an adapter, all of whose weights are one byte."""
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    (path / "adapter_model.safetensors").write_bytes(bytes([byte]) * 70_000)
    return path


def media(identifier, offset):
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset))


def hits(engine, name, tokens, **more):
    return engine.run_one(name, tokens, **more).external


@pytest.mark.parametrize(
    "more, expected", [({"cache_salt": "mine"}, 0), ({"mm_features": [media(IMAGE, 130)]}, STORE)]
)
def test_what_kv_depends_on_is_in_the_keys(make_engine, settings, more, expected):
    tokens = prompt(1, 2 * STORE + 1)
    engine = make_engine(settings)
    engine.run_one("plain", tokens)
    assert hits(engine, "first", tokens, **more) == expected  # what is before the image
    assert hits(engine, "second", tokens, **more) == 2 * STORE


# ------------------------------------------------------------------------------------- adapters


def test_an_adapter_has_blocks_of_its_own(make_engine, settings, tmp_path):
    tokens = prompt(2, 2 * STORE + 1)
    one, other = (adapter(tmp_path / str(byte), byte) for byte in (1, 2))
    engine = make_engine(settings)
    engine.run_one("plain", tokens)
    assert hits(engine, "first", tokens, lora_request=lora(one)) == 0
    assert hits(engine, "second", tokens, lora_request=lora(one)) == 2 * STORE
    assert hits(engine, "other", tokens, lora_request=lora(other, number=2)) == 0
    copy = adapter(tmp_path / "copy", 1)
    assert hits(make_engine(settings), "copy", tokens, lora_request=lora(copy, number=3)) == 2 * STORE


def _overwrite(path):
    adapter(path, 2)


def _turn(path):
    path.rename(path.with_name("old"))
    path.symlink_to(adapter(path.with_name("new"), 2))


def _same_times(path):
    """As archives with fixed times unpack: only the inode is another."""
    file = path / "adapter_model.safetensors"
    times = file.stat()
    (path / "next").write_bytes(bytes([2]) * 70_000)
    (path / "next").rename(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [_overwrite, _turn, _same_times])
def test_an_adapter_that_changes_where_it_lies(make_engine, settings, tmp_path, change, caplog):
    """Whatever the engine has in memory, its KV has that name or none."""
    tokens = prompt(3, 2 * STORE + 1)
    path = adapter(tmp_path / "current", 1)
    engine = make_engine(settings)
    engine.run_one("old", tokens, lora_request=lora(path))
    change(path)
    # vLLM goes on with the old one: that is not what lies there.
    assert hits(engine, "not loaded", tokens, lora_request=lora(path)) == 0
    assert caplog.text.count("the engine has other weights of it") == 1
    assert hits(make_engine(settings), "new engine", tokens, lora_request=lora(path, number=2)) == 0
    again = lora(path, load_inplace=True)
    engine.run_one("loads it", tokens, lora_request=again)  # and from then on it has the new one
    assert hits(engine, "loaded", tokens, lora_request=again) == 2 * STORE
    assert hits(make_engine(settings), "warm", tokens, lora_request=lora(path, number=3)) == 2 * STORE


def test_an_adapter_that_was_loaded_before_it_changed(make_engine, settings, tmp_path):
    """As --lora-modules are, long before a request wants them."""
    tokens = prompt(4, 2 * STORE + 1)
    path = adapter(tmp_path / "current", 1)
    engine = make_engine(settings)
    engine.ranks[0].adapters.add_adapter(lora(path))
    adapter(path, 2)
    engine.run_one("old weights", tokens, lora_request=lora(path))
    assert engine.counts == {}
    assert hits(make_engine(settings), "new weights", tokens, lora_request=lora(path, number=2)) == 0


def test_an_adapter_that_changes_between_its_name_and_its_load(make_engine, settings, tmp_path):
    tokens = prompt(5, 2 * STORE + 1)
    path = adapter(tmp_path / "current", 1)
    engine = make_engine(settings)
    one = engine.add(Request("named", tokens, lora_request=lora(path)))
    adapter(path, 2)
    engine.run()
    engine.check(one)
    engine.drain()
    assert "saved_blocks" not in engine.counts
    adapter(path, 1)
    assert hits(make_engine(settings), "first", tokens, lora_request=lora(path, number=2)) == 0


def test_an_adapter_of_which_nothing_is_known(make_engine, settings, tmp_path, caplog):
    tokens = prompt(6, STORE + 1)
    engine = make_engine(settings)
    for name in ("first", "second"):
        assert hits(engine, name, tokens, lora_request=lora("some/repository")) == 0
    assert engine.counts == {}
    assert caplog.text.count("some/repository is no folder here, nor in the hub's cache") == 1
    (tmp_path / "adapter_config.json").write_text("{}")
    assert hits(engine, "none in it", tokens, lora_request=lora(tmp_path, number=2)) == 0
    assert "there are none in it" in caplog.text


def test_a_load_for_another_adapter_fails(make_engine, settings, tmp_path):
    """It was looked up before it was known what the engine has."""
    tokens = prompt(7, 2 * STORE + 1)
    path = adapter(tmp_path / "current", 1)
    make_engine(settings).run_one("cold", tokens, lora_request=lora(path))
    for number, extra in enumerate(({}, {"layer_wise": True}), 2):
        engine = make_engine(settings | extra)
        adapter(path, 2)
        engine.ranks[0].adapters.add_adapter(lora(path, number))
        adapter(path, 1)
        engine.run_one("warm", tokens, lora_request=lora(path, number))
        assert engine.counts["failed_blocks"] == 2 * STORE // 32
        assert not engine.counts.get("loaded_blocks")


def test_ranks_that_have_not_loaded_the_same():
    one = StepEnded({"a"}, {1: "x", 2: "y"})
    both = one.aggregate(StepEnded({"b"}, {1: "z", 3: None}))
    assert (both.requests, both.adapters) == ({"a", "b"}, {1: None, 2: "y", 3: None})


# ---------------------------------------------------------------------- weights, and their resets


def test_after_a_reset_nothing_is_used_or_kept(make_engine, settings, caplog):
    engine = make_engine(settings)
    tokens = prompt(8, STORE + 1)
    engine.run_one("before", tokens)
    engine.step()  # which hears of what was put
    saved = engine.counts["saved_blocks"]
    for name in ("after", "again"):
        assert engine.scheduler.reset_cache()
        assert hits(engine, name, tokens) == 0
    engine.step()
    assert engine.counts["saved_blocks"] == saved
    assert caplog.text.count('"weights_stay": true') == 1


def test_weights_that_stay_keep_their_names(make_engine, settings, caplog):
    stays = settings | {"weights_stay": True}
    one, other = make_engine(stays), make_engine(settings)
    tokens = prompt(9, STORE + 1)
    one.run_one("before", tokens)
    assert one.scheduler.reset_cache()
    assert hits(one, "after", tokens) == STORE
    one.run_one("new", prompt(10, STORE + 1))
    assert hits(other, "of the other", prompt(10, STORE + 1)) == STORE


def test_a_reset_in_the_middle_of_a_request(make_engine, settings):
    engine = make_engine(settings | {"weights_stay": True}, budget=STORE)
    tokens = prompt(11, 4 * STORE + 1)
    one = engine.add(Request("preempted", tokens))
    while one.num_computed_tokens < 2 * STORE:
        engine.step()
    engine.drain()
    engine.preempt(one)
    engine.scheduler.reset_cache()
    engine.run()
    engine.check(one)
    assert one.external == 2 * STORE


def weights(path, byte):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(bytes([byte]) * 100_000)
    return str(path)


def test_weights_that_were_read_again(make_engine, settings, tmp_path, monkeypatch, caplog):
    """Level 2 of a sleep, and a reload of a folder that training has overwritten."""
    monkeypatch.setattr(revision, "_process_start_ns", lambda: 1 << 63)
    extra = {name: value for name, value in settings.items() if name != "weights_revision"}
    path = weights(tmp_path / "model", 1)
    engine = make_engine(extra | {"weights_stay": True}, model_config__model=path)
    tokens = prompt(12, STORE + 1)
    engine.run_one("before", tokens)
    engine.scheduler.reset_cache()
    assert hits(engine, "slept", tokens) == STORE
    weights(tmp_path / "model", 2)
    engine.scheduler.reset_cache()
    assert hits(engine, "reloaded", tokens) == 0
    assert "have changed since this engine started" in caplog.text


def test_weights_that_changed_while_the_engine_began(make_engine, settings, tmp_path, monkeypatch):
    extra = {name: value for name, value in settings.items() if name != "weights_revision"}
    path = weights(tmp_path / "model", 1)
    monkeypatch.setattr(revision, "_process_start_ns", lambda: 0)
    with pytest.raises(InvalidArgumentError, match="have changed since this engine's process began"):
        make_engine(extra, model_config__model=path)


@pytest.mark.parametrize(
    "load",
    [
        lambda worker: worker.reload_weights(weights_path="/elsewhere"),
        lambda worker: worker.start_weight_update(),
    ],
)
def test_weights_that_are_loaded_without_a_reset(make_engine, settings, load, caplog):
    """As trainers do that reset vLLM's own cache alone, or none."""
    engine, other = make_engine(settings | {"weights_stay": True}), make_engine(settings)
    tokens, more = prompt(30, STORE + 1), prompt(31, STORE + 1)
    engine.run_one("before", tokens)
    load(fake_vllm.VllmWorker())
    assert hits(engine, "new weights", more) == 0  # computed, and not put
    assert hits(engine, "of the old", tokens) == 0
    assert hits(other, "old weights", more) == 0
    assert "weights were loaded into the running engine" in caplog.text


def test_weights_that_are_read_again_as_they_are(make_engine, settings, tmp_path):
    path = weights(tmp_path / "model", 1)
    engine = make_engine(settings, model_config__model=path)
    tokens = prompt(32, STORE + 1)
    engine.run_one("before", tokens)
    fake_vllm.VllmWorker().reload_weights()
    assert hits(engine, "the same", tokens) == STORE
    weights(tmp_path / "model", 2)
    fake_vllm.VllmWorker().reload_weights()
    engine.step()
    assert hits(engine, "others", tokens) == 0


# ------------------------------------------------------------------------------ media and sessions


@pytest.mark.parametrize("identifier", ["renderer0-mm-1-image-0", "my picture", "tuned:mine"])
def test_media_that_are_not_named_by_their_content(make_engine, settings, identifier, caplog):
    """Two engines have a first picture each."""
    tokens = prompt(13, 2 * STORE + 1)
    for _ in range(2):
        engine = make_engine(settings)
        assert hits(engine, "picture", tokens, mm_features=[media(identifier, 5)]) == 0
        assert engine.counts == {}
    assert "multi_modal_uuids" in caplog.text


def test_an_engine_that_names_no_media_by_their_content(make_engine, settings):
    """Then a digest is one of a number."""
    tokens = prompt(14, 2 * STORE + 1)
    config = {
        "model_config__multimodal_config": SimpleNamespace(mm_processor_cache_gb=0),
        "cache_config__enable_prefix_caching": False,
    }
    engine = make_engine(settings, **config)
    for name in ("first", "second"):
        assert hits(engine, name, tokens, mm_features=[media(IMAGE, 5)]) == 0
    assert hits(engine, "text", tokens) == 0 and hits(engine, "text again", tokens) == 2 * STORE


class Session:
    """A request that goes on, as vLLM's scheduler changes it, and what is named of it."""

    def __init__(self, scheduler, tokens, **more):
        self.scheduler = scheduler
        self.request = Request("session", tokens, resumable=True, **more)
        scheduler.begin(self.request)

    def compute(self):
        """All of its tokens, in a step. Keys that are saved."""
        request, tokens = self.request, self.request.num_tokens - self.request.num_computed_tokens
        table = [list(range(1, request.num_tokens // 32 + 2))]
        saves = self.scheduler.plan({"session": tokens}, lambda _: table).saves
        request.num_computed_tokens += tokens
        return [key for save in saves for key in save.keys]

    def go_on(self, tokens, *features):
        """Scheduler._update_request_as_session: what is not computed goes."""
        request = self.request
        del request.all_token_ids[request.num_computed_tokens :]
        for feature in features:
            feature.mm_position.offset += request.num_tokens
            request.mm_features.append(feature)
        request.all_token_ids += tokens


@pytest.fixture
def scheduler(make_engine, settings):
    return make_engine(settings).scheduler._scheduler


def test_media_that_a_session_gets_later_are_in_its_keys(scheduler):
    begin, more = prompt(15, STORE), prompt(16, STORE)
    found = []
    for audio in (AUDIO, SPEECH):
        session = Session(scheduler, begin)
        found.append(session.compute())
        session.go_on(more, media(audio, 3))
        found.append(session.compute())
        scheduler.end("session")
    first, with_audio, same, with_speech = found
    assert first == same and len(with_audio) == len(with_speech) == 1
    assert with_audio != with_speech


def test_a_session_that_takes_back_a_token(scheduler):
    """Its last one is named when it fills a block, and goes when the next part comes."""
    session = Session(scheduler, prompt(17, STORE - 1))
    session.compute()
    session.request.all_token_ids.append(7)  # sampled, and not computed
    (before,) = scheduler._chains["session"].keys(1, scheduler._fingerprint)
    session.go_on([8, *prompt(18, STORE)])
    saved = session.compute()
    assert len(saved) == 2 and saved[0] != before


def test_media_where_a_token_was(scheduler):
    """The token is the same one, what it stands for is not."""
    session = Session(scheduler, prompt(19, STORE - 1))
    session.compute()
    session.request.all_token_ids.append(7)
    chain = scheduler._chains["session"]
    before = chain.keys(1, bytes(32))
    session.go_on([7, 7], media(AUDIO, 0))
    scheduler._refresh(chain)
    assert chain.keys(1, bytes(32)) != before


def test_a_session_asks_anew_for_what_has_changed(scheduler):
    session = Session(scheduler, prompt(20, 2 * STORE))
    chain = scheduler._chains["session"]
    scheduler._ask(chain)
    asked = chain.lookup
    session.request.num_computed_tokens = STORE
    session.go_on(prompt(21, STORE))
    scheduler._ask(chain)
    assert chain.lookup is not asked and chain.lookup.keys[0] == asked.keys[0]
    assert chain.lookup.keys[1] != asked.keys[1] and asked.is_dropped


def test_a_session_whose_next_part_has_no_name(scheduler):
    session = Session(scheduler, prompt(22, STORE))
    assert len(session.compute()) == 1
    session.go_on(prompt(23, STORE), media("mine", 0))
    assert session.compute() == []


# --------------------------------------------------------------- weights that are named as they change


def tell(engine, revision):
    """What a trainer does, between steps; the next step brings it to the scheduler."""
    cairn.vllm.WorkerExtension().cairn_weights_are_now(revision)
    engine.run_one(f"is told {engine.steps}", prompt(99, 3))
    assert engine.scheduler._session.wait(30)
    assert all(rank.connector._session.wait(30) for rank in engine.ranks)


def test_weights_that_have_got_a_name(make_engine, settings):
    first, second = settings["weights_revision"], settings["weights_revision"] + " trained"
    engine = make_engine(settings)
    tokens, more = prompt(40, 2 * STORE + 1), prompt(41, STORE + 1)
    engine.run_one("before", tokens)
    tell(engine, second)
    assert hits(engine, "after", tokens) == 0
    assert hits(engine, "again", tokens) == 2 * STORE
    began_so = make_engine(settings | {"weights_revision": second})  # after the call: it is not told
    assert hits(began_so, "the same space", tokens) == 2 * STORE
    tell(engine, first)
    assert hits(engine, "back", tokens) == 2 * STORE
    engine.run_one("more", more)
    assert hits(make_engine(settings), "of the first", more) == STORE
    assert hits(make_engine(settings | {"weights_revision": second}), "of others", more) == 0


def test_a_name_after_sleep_or_a_load_is_enough(make_engine, settings):
    engine = make_engine(settings)
    tokens, name = prompt(42, STORE + 1), settings["weights_revision"]
    engine.run_one("before", tokens)
    engine.scheduler.reset_cache()  # it sleeps
    assert hits(engine, "in doubt", tokens) == 0
    tell(engine, name)
    assert hits(engine, "awake", tokens) == STORE
    fake_vllm.VllmWorker().start_weight_update()
    assert hits(engine, "loaded", tokens) == 0
    for turn in range(2):  # a name that it had, too
        tell(engine, f"{name} loaded")
        engine.run_one(f"puts {turn}", tokens)
        assert hits(engine, f"hits {turn}", tokens) == STORE
        engine.scheduler.reset_cache()


def test_a_load_after_the_name_counts(make_engine, settings):
    engine = make_engine(settings)
    tokens = prompt(43, STORE + 1)
    tell(engine, "named")
    engine.run_one("before", tokens)
    fake_vllm.VllmWorker().start_weight_update()
    assert hits(engine, "after", tokens) == 0


def test_what_was_planned_for_other_weights_is_neither_loaded_nor_saved(make_engine, settings):
    engine = make_engine(settings)
    tokens, more = prompt(44, 2 * STORE + 1), prompt(45, 2 * STORE + 1)
    engine.run_one("before", tokens)
    one, two = engine.add(Request("hits", tokens)), engine.add(Request("saves", more))
    cairn.vllm.weights_are_now("told while they wait")
    engine.run()
    engine.check(one)
    engine.check(two)
    assert hits(make_engine(settings), "saved", more) == 0


def test_a_name_is_a_text():
    for wrong in ("", b"bytes", None):
        with pytest.raises(InvalidArgumentError, match="expected a name of the weights"):
            cairn.vllm.weights_are_now(wrong)
