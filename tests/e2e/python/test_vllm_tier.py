# SPDX-License-Identifier: Apache-2.0
"""The secondary tier of vLLM's offloading, as its tiering manager calls it."""

import fake_vllm
import fake_vllm_tier
import numpy as np
import pytest
from cairn import InvalidArgumentError, Space
from fake_vllm_tier import LookupResult, Primary
from own_daemon import OwnDaemon

fake_vllm_tier.install()

from cairn.vllm.tier import CairnTier  # noqa: E402


SCALED = fake_vllm_tier.SimpleNamespace(rope_scaling={"rope_type": "yarn", "factor": 4.0})


@pytest.fixture
def make(request, settings):
    def build(extra=None, wait=True, **changed):
        patient = {"lookup_timeout": 10.0, "timeout": 20.0}  # a busy machine is no fault of the tier's
        primary = Primary(CairnTier, settings | patient | (extra or {}), **changed)
        request.addfinalizer(lambda: primary.tier._rows is not None and primary.tier.shutdown())
        assert not wait or primary.tier._session.wait(10)
        return primary

    return build


def names(count, begin=0, group=0):
    return [bytes([begin + i]) * 32 + group.to_bytes(4, "big") for i in range(count)]


def fill(primary, seed=1):
    primary.memory[:] = np.random.default_rng(seed).integers(-128, 128, primary.memory.shape)


def test_chunks_come_back_in_another_process(make):
    first, second = make(), make()
    fill(first)
    keys = names(20)
    assert first.look_up(keys) == 0
    stored = first.store(keys, range(20))
    assert stored.success and stored.transfer_bytes == 20 * 4096
    assert second.look_up([*keys, *names(1, 99)]) == 20
    places = list(range(31, 11, -1))
    loaded = second.load(keys, places)
    assert loaded.success and loaded.successful_keys is None
    np.testing.assert_array_equal(second.memory[places], first.memory[:20])
    assert not second.memory[:12].any()
    assert second.tier.locality.value == "LOCAL" and not second.tier.has_pending_work()


def test_chunks_whose_elements_are_named_get_smaller(make, caplog):
    caplog.set_level("INFO", "cairn.vllm.tier")
    first, second = (make({"dtype": "bf16"}) for _ in range(2))
    assert first.tier._session.space.spec.groups[0].kind == "latent"
    values = np.random.default_rng(3).standard_normal((len(first.memory), 2048)).astype(np.float32)
    first.memory[:] = (values.view(np.uint32) >> 16).astype(np.uint16).view(first.memory.dtype)
    keys = names(20)
    assert first.store(keys, range(20)).success
    assert second.load(keys, range(20)).success
    np.testing.assert_array_equal(second.memory[:20], first.memory[:20])
    assert "objects as bf16: kept in 1/1." in caplog.text
    assert make().look_up(keys) == 0, "of bytes it is another space"


def test_a_load_in_part_says_what_came(make):
    primary = make()
    fill(primary)
    keys = names(3)
    primary.store([keys[0], keys[2]], [0, 2])
    loaded = primary.load(keys, [5, 6, 7])
    assert not loaded.success and loaded.successful_keys == [keys[0], keys[2]]
    np.testing.assert_array_equal(primary.memory[5], primary.memory[0])
    nothing = primary.load(names(2, 50), [8, 9])
    assert not nothing.success and nothing.successful_keys is None


def test_what_failed_to_load_is_a_miss_for_who_asked(make):
    """Or else it would be looked up, found and loaded for ever."""
    primary = make()
    keys = names(2)
    primary.store(keys, [0, 1])
    assert primary.look_up(keys) == 2
    space = primary.tier._session.space
    space.delete([space.opaque_key(key) for key in keys])
    assert primary.look_up(keys) == 2  # what is known is not asked again
    assert not primary.load(keys, [2, 3]).success
    assert primary.look_up(keys) == 0
    primary.store(keys, [0, 1])
    primary.end()
    primary.begin("another")
    assert primary.look_up(keys, "another") == 2


def test_what_is_known_is_forgotten_with_who_asked(make):
    primary = make()
    keys = names(3)
    for request in ("a", "b", "c"):
        primary.begin(request)
    assert primary.look_up(keys[:2], "a") == 0 and primary.look_up(keys[1:], "b") == 0
    primary.end("a")
    known = dict(primary.tier._known)
    primary.end("b")
    assert keys[0] not in known and not primary.tier._known and not primary.tier._keys_of
    # A request may end before its answer is there.
    context = fake_vllm_tier.SimpleNamespace(req_id="c")
    assert primary.tier.lookup(keys[0], context) == LookupResult.RETRY
    primary.end("c")
    while primary.tier._known:
        primary.step()


@pytest.mark.parametrize(
    "changed",
    [
        {"kv_cache_layout": "LBNHC"},
        {"model": fake_vllm_tier.SimpleNamespace(name="fake-model", dtype="float16")},
        {"parallel": {"is_parallelism_agnostic": False, "tp_size": 2}},
        {"parallel": {"tp_size": 2}},
        {"engine": {"model_config__hf_text_config": SCALED}},  # which no layout says
        {"cache": fake_vllm_tier.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=2)},
    ],
)
def test_chunks_of_another_layout_are_apart(make, changed):
    first, other = make(), make(**changed)
    first.store(names(1), [0])
    assert first.look_up(names(1)) == 1 and other.look_up(names(1)) == 0


@pytest.mark.parametrize("layout", ["canonical_layout", "replicated_layout"])
def test_engines_with_other_ranks_share_what_has_no_ranks_in_it(make, layout):
    first, other = make(**{layout: True}), make(**{layout: True}, parallel={"tp_size": 2})
    first.store(names(1), [0])
    assert other.look_up(names(1)) == 1


def test_canonical_chunks_that_vllm_does_not_vouch_for(make):
    """Some layers may lie in them as ranks have them."""
    changed = {"canonical_layout": True}
    one = make(**changed, parallel={"is_parallelism_agnostic": False})
    other = make(**changed, parallel={"is_parallelism_agnostic": False, "tp_size": 2})
    one.store(names(1), [0])
    assert one.look_up(names(1)) == 1 and other.look_up(names(1)) == 0


def test_a_hint_keeps_the_chunks_of_its_request(bin_dir, make):
    with OwnDaemon(bin_dir, "16MiB") as own:
        own.start()
        primary = make(own.settings, chunk_bytes=64 << 10)
        fill(primary)
        primary.begin("agent", kv_transfer_params={"cairn": {"retain": 600, "priority": 2}})
        primary.begin("ended", kv_transfer_params={"cairn": {"demote": 0}})
        kept, plain, ended = names(8), names(8, 20), names(8, 40)
        assert primary.store(plain, range(8)).success
        assert primary.store(ended, range(8), "ended").success
        assert primary.store(kept, range(8), "agent").success
        primary.step()
        primary.end("ended")
        space = primary.tier._session.space
        for first in range(0, 400, 20):
            others = [bytes([200, i >> 8, i & 255]).ljust(36, b"x") for i in range(first, first + 20)]
            assert primary.store(others, range(20)).success
        assert all(space.contains([space.opaque_key(key) for key in kept]))
        assert not any(space.contains([space.opaque_key(key) for key in [*plain, *ended]]))


def test_a_hint_is_for_chunks_that_are_looked_up_and_in_vllm_s_memory(make, monkeypatch):
    told = []
    monkeypatch.setattr(Space, "retain", lambda space, keys, seconds, **_: told.append(list(keys)))
    monkeypatch.setattr(Space, "demote", lambda space, keys, after: told.append((after, list(keys))))
    primary = make()
    space, keys = primary.tier._session.space, names(3)
    primary.begin("a", kv_transfer_params={"cache_control": {"type": "ephemeral"}})
    context = primary.tier._hinted["a"].context
    context._offload_key_positions = {keys[1]: 32, keys[0]: 16}
    assert primary.look_up(keys[2:], "a") == 0
    primary.end("a")
    primary.begin("b", kv_transfer_params={"cairn": {"demote": 300}})
    assert primary.look_up(keys[:1], "b") == 0
    primary.end("b")
    own = [space.opaque_key(keys[i]) for i in (2, 0, 1)]
    primary.tier._looking.submit(bool).result()  # behind the hints
    assert told == [own, own, (300, own[1:2])], "as it comes, and when it ends"
    assert not primary.tier._hinted


def test_hints_that_are_wrong_or_of_unnamed_chunks_have_no_effect(make, caplog, monkeypatch):
    told = []
    monkeypatch.setattr(Space, "retain", lambda space, keys, seconds, **_: told.append(keys))
    primary = make()
    for request in ("a", "b"):
        primary.begin(request, kv_transfer_params={"cairn": {"retain": 0}})
    assert caplog.text.count("the hint of a request is ignored: kv_transfer_params.cairn.retain") == 1
    adapter = fake_vllm_tier.SimpleNamespace(lora_name="a", lora_path="/a", lora_int_id=1)
    hint = {"cairn": {"retain": 60}}
    primary.begin("c", kv_transfer_params=hint, lora_request=adapter)
    primary.look_up(names(1), "c")
    primary.end("c")
    primary.tier._looking.submit(bool).result()  # behind a hint
    assert told == []


IMAGE = "5" * 64


def media(identifier):
    return [fake_vllm_tier.SimpleNamespace(identifier=identifier)]


@pytest.mark.parametrize(
    "more",
    [
        {"lora_request": fake_vllm.lora("/adapters/current")},
        {"mm_features": media("renderer0-mm-1-image-0")},
        {"mm_features": media(IMAGE) + media("mine")},
    ],
)
def test_chunks_that_vllm_does_not_name_by_what_they_depend_on(make, more):
    """Its hashes say where an adapter lies, and what a caller calls an image."""
    first, other = make(), make()
    for primary in (first, other):
        primary.begin("unnamed", **more)
        primary.begin("named", mm_features=media(IMAGE))
    assert not first.store(names(2), [0, 1], "unnamed").success
    assert first.store(names(2), [0, 1], "named").success
    assert other.look_up(names(2), "named") == 2 and other.look_up(names(2), "unnamed") == 0
    assert other.look_up(names(2), "nobody knows it") == 0


def test_media_of_an_engine_without_caches(make):
    config = {
        "model_config__multimodal_config": fake_vllm_tier.SimpleNamespace(mm_processor_cache_gb=0),
        "cache_config__enable_prefix_caching": False,
    }
    primary = make(engine=config)
    primary.begin("image", mm_features=media(IMAGE))
    assert not primary.store(names(1), [0], "image").success
    assert primary.store(names(1), [0]).success  # texts have names


def test_after_a_reset_nothing_is_kept_unless_weights_stay(make, caplog):
    first, stays = make(), make({"weights_stay": True})
    for primary in (first, stays):
        primary.store(names(1), [0])
        primary.connector.reset_cache()
    assert first.look_up(names(1)) == 0 and not first.store(names(1, 9), [1]).success
    assert stays.look_up(names(2)) == 1 and stays.store(names(1, 9), [1]).success
    assert caplog.text.count("nothing is cached until this engine is restarted") == 1


def test_the_tier_of_another_connector_is_refused(make):
    with pytest.raises(InvalidArgumentError, match="CairnOffloadingConnector"):
        CairnTier(fake_vllm_tier.spec(), memoryview(np.zeros((2, 2))), "CairnTier")


def test_draining_ends_all_jobs_and_the_end_lets_go_of_memory(make):
    primary = make()
    numbers = [primary.submit(names(8), range(8), False) for _ in range(5)]
    primary.tier.drain_jobs()
    primary.step()
    assert sorted(primary.finished) == numbers
    view = primary.tier._primary_kv_view
    primary.tier.shutdown()
    view.release()


def test_without_a_daemon_there_are_misses_and_failed_jobs(make):
    primary = make({"control": "127.0.0.1:1", "data": None}, wait=False)
    assert primary.look_up(names(2)) == 0
    assert not primary.store(names(2), [0, 1]).success
    assert not primary.load(names(2), [0, 1]).success


@pytest.mark.parametrize(
    "extra, says",
    [
        ({"weights_revision": ""}, "no 'weights_revision'"),
        ({"recipe": "exact"}, "the tier CairnTier has 'recipe'"),
        ({"lookup_timeout": 0}, "lookup_timeout is 0"),
    ],
)
def test_settings_that_are_refused(make, extra, says):
    with pytest.raises(InvalidArgumentError, match=says):
        make(extra)


def test_a_region_out_of_its_limits_is_said(make, caplog):
    """It is the session that hands region_bytes on, of every adapter."""
    primary = make({"region_bytes": 1}, wait=False)
    assert not primary.tier._session.wait(10)
    assert "region_bytes is 1" in caplog.text
