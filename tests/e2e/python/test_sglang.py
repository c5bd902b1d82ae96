# SPDX-License-Identifier: Apache-2.0
"""The HiCache backend as SGLang's storage threads call it, against a real cairnd."""

import itertools
import logging
import sys

import fake_sglang
import numpy as np
import pytest
from fake_sglang import (
    MambaPoolHost,
    MHATokenToKOnlyPoolHost,
    MHATokenToKVPoolHost,
    MLATokenToKVPoolHost,
    SomeNewPoolHost,
    config,
    transfer,
)

fake_sglang.install()

from cairn import FailedPreconditionError, InvalidArgumentError  # noqa: E402
from cairn import _sglang_weights as weights  # noqa: E402
from cairn._sglang_pages import pages_of  # noqa: E402
from cairn.sglang import CairnHiCache, weights_are_now  # noqa: E402
from daemon import Daemon  # noqa: E402

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
_chains = itertools.count()


@pytest.fixture(autouse=True)
def server():
    """SGLang's configuration, as it was at the end."""
    yield fake_sglang.RUNTIME
    fake_sglang.RUNTIME.publish()
    weights.WEIGHTS._before = weights.WEIGHTS._named = None


@pytest.fixture
def make(request, settings):
    """Backends that are closed at the end, each with its pool registered and its session open."""

    def build(pool, extra=None, is_open=True, **changed):
        backend = CairnHiCache(config(settings | (extra or {}), **changed), {})
        request.addfinalizer(backend.close)
        backend.register_mem_pool_host(pool)
        backend.register_mem_host_pool_v2(pool, "kv")
        backend.on_host_pools_registered()
        assert backend._session.wait(10) == is_open
        return backend

    return build


def names(count):
    """Hashes of a chain of pages as SGLang names them."""
    chain = next(_chains)
    return [f"{chain:08x}{i:056x}" for i in range(count)]


def fill(pool, seed=0):
    """As bf16 that recipes are made for."""
    values = np.random.default_rng(seed).standard_normal(pool.kv_buffer.shape, np.float32)
    pool.kv_buffer[...] = (values.view(np.uint32) >> 16).astype(np.uint16)


def tokens_of(pool, pages):
    """host_indices of pages of a pool."""
    count = pool.page_size
    return np.concatenate([np.arange(page * count, (page + 1) * count) for page in pages])


def logical(pool, page):
    """A page as [plane, layer, head, token, dim], by the pool's own reading."""
    flat = pool.get_data_page(page * pool.page_size)
    axes = {"layer_first": "lthd", "page_first": "tlhd", "page_first_direct": "lthd"}
    order = axes.get(pool.layout, "htld")
    is_latent = isinstance(pool, MLATokenToKVPoolHost)
    extents = {"l": pool.layer_num, "t": pool.page_size}
    extents["h"] = 1 if is_latent else pool.head_num
    extents["d"] = pool.kv_cache_dim if is_latent else pool.head_dim
    shaped = flat.reshape(1 if is_latent else 2, *(extents[axis] for axis in order))
    return shaped.transpose(0, *(1 + order.index(axis) for axis in "lhtd"))


def assert_same(first, first_page, second, second_page):
    assert np.array_equal(logical(first, first_page), logical(second, second_page))


@pytest.mark.parametrize(
    "kind", [MHATokenToKVPoolHost, MLATokenToKVPoolHost, MHATokenToKOnlyPoolHost]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_into_another_pool(make, kind, layout):
    if layout == "page_head" and kind is MLATokenToKVPoolHost:
        pytest.skip("SGLang has no such pool")
    pool, other = kind(layout), kind(layout)
    fill(pool)
    is_latent = kind is MLATokenToKVPoolHost
    first = make(pool, is_mla_model=is_latent)
    keys, pages = names(3), [4, 1, 2]
    assert first.batch_exists(keys) == 0
    assert first.batch_get_v1(keys, tokens_of(pool, pages)) == [False] * 3
    assert first.batch_set_v1(keys, tokens_of(pool, pages)) == [True] * 3
    second = make(other, is_mla_model=is_latent)
    assert second.batch_exists(keys) == 3
    places = [0, 5, 3]
    assert second.batch_get_v1(keys, tokens_of(other, places)) == [True] * 3
    for page, place in zip(pages, places, strict=True):
        assert_same(pool, page, other, place)
    assert not other.kv_buffer[other._page(other.page_size)].any()  # page 1: nobody's


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_that_lie_apart_are_the_same_pages(make, layout):
    pool = MHATokenToKVPoolHost(layout)
    fill(pool)
    backend, keys = make(pool), names(2)
    pages = [pool.get_data_page(i * pool.page_size) for i in range(2)]
    assert backend.batch_set(keys, pages)
    assert backend.batch_get_v1(keys, tokens_of(pool, [4, 5])) == [True, True]
    for i in range(2):
        assert_same(pool, i, pool, 4 + i)
    targets = [pool.get_dummy_flat_data_page() for _ in range(3)]
    got = backend.batch_get([*keys, *names(1)], targets)
    assert got[2] is None and got[0] is targets[0]
    assert np.array_equal(got[1], pages[1])
    assert backend.set(names(1)[0], pages[0]) and not backend.exists(names(1)[0])


def test_layouts_share_what_they_know(make):
    pools = [MHATokenToKVPoolHost(layout) for layout in LAYOUTS]
    fill(pools[0])
    keys = names(1)
    assert make(pools[0]).batch_set_v1(keys, tokens_of(pools[0], [2])) == [True]
    for pool in pools[1:]:
        assert make(pool).batch_get_v1(keys, tokens_of(pool, [1])) == [True]
        assert_same(pools[0], 2, pool, 1)


def test_recipes_apply_where_the_layout_is_known(make, client, caplog):
    pool = MHATokenToKVPoolHost("page_first")
    fill(pool)
    backend = make(pool, {"recipe": "kivi:4"})
    assert backend._session.space.recipe == "kivi:4"
    before = client.stats().image_bytes
    assert backend.batch_set_v1(names(2), tokens_of(pool, [0, 1])) == [True, True]
    kept = client.stats().image_bytes - before
    assert kept < 0.5 * 2 * pool.page_size * pool.get_size_per_token()
    assert "recipes do not apply" not in caplog.text


@pytest.mark.parametrize(
    "pool",
    [
        MHATokenToKOnlyPoolHost("page_first"),
        MHATokenToKVPoolHost("layer_first", dtype="torch.uint8"),
        MHATokenToKVPoolHost("layer_first", storage_format_tag="own"),
    ],
)
def test_other_pools_are_bytes_and_the_log_says_so_once(make, pool, caplog):
    backend = make(pool, {"recipe": "kivi:4"})
    assert backend._session.space.recipe == "raw"
    assert caplog.text.count("recipes do not apply") == 1


def test_a_chain_is_one(make):
    """What comes before is named, so that the store knows a chain, and where its tokens are."""
    pool = MHATokenToKVPoolHost("page_first")
    fill(pool)
    backend, keys = make(pool), names(4)
    backend.batch_set_v1(keys[:2], tokens_of(pool, [0, 1]))
    more = fake_sglang.SimpleNamespace(prefix_keys=keys[:2], extra_info=None)
    assert backend.batch_set_v1(keys[2:], tokens_of(pool, [2, 3]), more) == [True, True]
    space = backend._session.space
    out = np.zeros(space.source_bytes(), np.uint8)
    got = space.get(space.opaque_key(keys[3].encode()), source=out)
    assert got and got.first_position == 3 * pool.page_size
    assert backend.batch_exists([keys[0], *names(1), keys[2]]) == 1


def test_events_have_sglang_s_own_hashes(make):
    pool = MHATokenToKVPoolHost("page_first")
    fill(pool)
    backend, keys = make(pool), names(3)
    with backend._session.space.watch() as watch:
        assert watch.next(20.0).is_reset
        backend.batch_set_v1(keys[:1], tokens_of(pool, [0]))
        more = fake_sglang.SimpleNamespace(prefix_keys=keys[:1], extra_info=None)
        backend.batch_set_v1(keys[1:], tokens_of(pool, [1, 2]), more)
        found = []
        while len(found) < 3:
            found += [(e.engine_hash, e.engine_parent) for e in watch.next(20.0).events]
    own = [bytes.fromhex(key) for key in keys]
    assert found == [(own[0], b""), (own[1], own[0]), (own[2], own[1])]


def test_ranks_have_their_heads_of_one_space(make):
    pools = [MHATokenToKVPoolHost("layer_first") for _ in range(2)]
    ranks = [make(pool, tp_rank=i, tp_size=2) for i, pool in enumerate(pools)]
    keys = names(1)
    for seed, (rank, pool) in enumerate(zip(ranks, pools, strict=True)):
        fill(pool, seed)
        assert rank.batch_exists(keys) == 0
        assert rank.batch_set_v1(keys, tokens_of(pool, [0])) == [True]
        assert rank.batch_exists(keys) == 1
    whole = MHATokenToKVPoolHost("page_head", head_num=4)
    assert make(whole).batch_get_v1(keys, tokens_of(whole, [0])) == [True]
    both = np.concatenate([logical(pool, 0) for pool in pools], axis=2)
    assert np.array_equal(logical(whole, 0), both)


def test_ranks_of_bytes_are_apart(make):
    pool, keys = MHATokenToKOnlyPoolHost("layer_first"), names(1)
    assert make(pool, tp_size=2).batch_set_v1(keys, tokens_of(pool, [0])) == [True]
    assert make(pool, tp_size=2).batch_exists(keys) == 1
    assert make(pool, tp_size=2, tp_rank=1).batch_exists(keys) == 0


def test_other_weights_are_apart(make):
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(1)
    assert make(pool).batch_set_v1(keys, tokens_of(pool, [0])) == [True]
    assert make(pool, {"weights_revision": "other"}).batch_exists(keys) == 0


def revision_with(settings, server, model=None, **changed):
    """What names a space where the server runs with this."""
    server.publish(model, **changed)
    configuration = CairnHiCache(config(settings), {})._configuration
    return f"{settings['weights_revision']}, {configuration}"


def test_what_the_server_was_told_is_in_the_name(settings, server, tmp_path):
    first = revision_with(settings, server)
    assert first.startswith(settings["weights_revision"]) and ", config " in first
    scaled = fake_sglang.ModelConfig(rope_scaling={"rope_type": "linear", "factor": 4})
    longer = fake_sglang.ModelConfig()
    longer.context_len = 8192
    half = fake_sglang.ModelConfig()
    half.dtype = "torch.float16"
    scales = tmp_path / "scales.json"
    scales.write_text("{1}")
    named = [
        first,
        revision_with(settings, server, scaled),
        revision_with(settings, server, longer),
        revision_with(settings, server, half),
        revision_with(settings, server, revision="v2"),
        revision_with(settings, server, kv_cache_dtype="fp8_e5m2"),
        revision_with(settings, server, mamba_ssm_dtype="bfloat16"),
        revision_with(settings, server, quantization_param_path=str(scales)),
    ]
    scales.write_text("{2}")
    named.append(revision_with(settings, server, quantization_param_path=str(scales)))
    assert len(set(named)) == len(named)
    # Where the weights lie and which kernels run makes no other pages.
    for changed in ({"model_path": "/elsewhere"}, {"attention_backend": "fa3"}, {"tp_size": 4}):
        assert revision_with(settings, server, **changed) == first


def test_adapters_of_the_start_are_told_by_their_files(settings, server, tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"one")
    adapter = fake_sglang.SimpleNamespace(lora_name="a", lora_path=str(tmp_path))
    first = revision_with(settings, server, lora_paths=[adapter])
    assert first == revision_with(settings, server, lora_paths=[adapter])
    assert first != revision_with(settings, server)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"two")
    assert first != revision_with(settings, server, lora_paths=[adapter])
    adapter.lora_path = "nobody/has-this-adapter"
    with pytest.raises(InvalidArgumentError, match="--lora-paths: 'nobody/has-this-adapter'"):
        revision_with(settings, server, lora_paths=[adapter])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dcp_size": 2}, "--dcp-size is 2: .* Leave it at 1"),
        ({"enable_kv_cache_sharding": True}, "--enable-kv-cache-sharding is True"),
    ],
)
def test_splits_that_are_not_known_are_refused(settings, server, changed, named):
    with pytest.raises(InvalidArgumentError, match=named):
        revision_with(settings, server, **changed)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("sglang.version", "__version__", "0.5.19"),
        ("sglang.version", "__version__", "0.4.9.post2"),
        ("sglang.srt.mem_cache.utils", "storage_namespace_seed", lambda extra, salt: salt),
        ("sglang.srt.mem_cache.utils", "storage_namespace_seed", None),
    ],
)
def test_versions_that_name_pages_by_tokens_alone_are_refused(
    settings, monkeypatch, path, name, value
):
    if value is None:
        monkeypatch.delattr(sys.modules[path], name)
    else:
        monkeypatch.setattr(sys.modules[path], name, value)
    wanted = "adapters and salts would share them. Install SGLang 0.5.20 or newer"
    with pytest.raises(FailedPreconditionError, match=wanted):
        CairnHiCache(config(settings), {})


def test_versions_of_a_checkout_are_judged_by_what_they_do(settings, monkeypatch):
    monkeypatch.setattr(sys.modules["sglang.version"], "__version__", "0.0.0.dev0")
    CairnHiCache(config(settings), {}).close()


def test_a_configuration_that_cannot_be_read_is_refused(settings, monkeypatch):
    monkeypatch.delattr(sys.modules["sglang.srt.runtime_context"], "process_model_config")
    with pytest.raises(FailedPreconditionError, match="configuration.* cannot be read"):
        CairnHiCache(config(settings), {})


def test_weights_that_are_updated_are_others(make, server, caplog):
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(2)
    backend, updater = make(pool), fake_sglang.WeightUpdater()
    places = tokens_of(pool, [0, 1])
    assert backend.batch_set_v1(keys, places) == [True, True]
    assert updater.update_weights_from_disk("elsewhere")[0]
    for _ in range(2):  # nothing names these
        assert backend.batch_exists(keys) == 0
        assert backend.batch_set_v1(keys, places) == [False, False]
        assert backend.batch_get_v1(keys, places) == [False, False]
    assert caplog.text.count("no weight_version of their own") == 1
    server.server.weight_version = "step 2"
    assert backend.batch_exists(keys) == 0
    assert backend.batch_set_v1(keys, places) == [True, True]
    # Steps of one update, in which SGLang names the version with the first.
    updater.begin_weight_update()
    updater.update_weights_from_tensor([])
    server.server.weight_version = "step 3"
    assert backend.batch_exists(keys) == 0 and backend.batch_set_v1(keys, places) == [False] * 2
    updater.update_weights_from_tensor([])
    updater.end_weight_update(run_post_load=False)
    assert backend.batch_exists(keys) == 0 and backend.batch_set_v1(keys, places) == [True] * 2
    # Another process, which began with those of step 2.
    weights.WEIGHTS._before, server.server.weight_version = None, "step 2"
    assert make(MHATokenToKVPoolHost("layer_first")).batch_exists(keys) == 2


def wait_for_weights(backend, keys):
    """The next call sees the name, and all pools move."""
    backend.batch_exists(keys)
    assert all(pool.session.wait(10) for pool in backend._pools.values())


def test_weights_that_have_got_a_name(make, server, settings):
    pool, keys, name = MHATokenToKVPoolHost("layer_first"), names(2), f"trained {next(_chains)}"
    backend, updater = make(pool), fake_sglang.WeightUpdater()
    states = MambaPoolHost("page_first")
    backend.register_mem_host_pool_v2(states, "mamba")
    places, moved = tokens_of(pool, [0, 1]), transfer("mamba", states, keys[1:], [1])
    assert backend.batch_set_v1(keys, places) == [True, True]
    assert backend.batch_set_v2([moved]) == {"mamba": [True]}
    updater.update_weights_from_disk("elsewhere")
    assert backend.batch_exists(keys) == 0
    weights_are_now(name)
    wait_for_weights(backend, keys)
    assert backend.batch_exists(keys) == 0 and backend.batch_get_v2([moved]) == {"mamba": [False]}
    assert backend.batch_set_v1(keys, places) == [True, True]
    assert backend.batch_set_v2([moved]) == {"mamba": [True]}
    assert backend.batch_exists(keys) == 2 and backend.batch_get_v2([moved]) == {"mamba": [True]}
    weights_are_now(settings["weights_revision"])  # those that it began with
    wait_for_weights(backend, keys)
    assert backend.batch_exists(keys) == 2
    # An update ends the name, and so does a version of SGLang's.
    updater.update_weights_from_disk("elsewhere")
    assert backend.batch_exists(keys) == 0 and backend.batch_set_v1(keys, places) == [False, False]
    weights_are_now(name)
    wait_for_weights(backend, keys)
    assert backend.batch_exists(keys) == 2
    server.server.weight_version = "step 9"
    wait_for_weights(backend, keys)
    assert backend.batch_exists(keys) == 0
    # A server that starts with the name has the same pages.
    fake_sglang.RUNTIME.publish()
    weights.WEIGHTS._before = weights.WEIGHTS._named = None
    began_so = make(MHATokenToKVPoolHost("layer_first"), {"weights_revision": name})
    assert began_so.batch_exists(keys) == 2


def test_a_name_during_an_update_counts_after_it(make):
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(1)
    backend, updater = make(pool), fake_sglang.WeightUpdater()
    updater.begin_weight_update()
    weights_are_now(f"trained {next(_chains)}")
    assert backend.batch_set_v1(keys, tokens_of(pool, [0])) == [False]
    updater.end_weight_update(run_post_load=False)
    wait_for_weights(backend, keys)
    assert backend.batch_set_v1(keys, tokens_of(pool, [0])) == [True]


@pytest.mark.parametrize("wrong", ["", b"bytes", None])
def test_a_name_is_a_text(wrong):
    with pytest.raises(InvalidArgumentError, match="expected a name of the weights"):
        weights_are_now(wrong)


def test_updates_that_nobody_hears_of_are_refused(settings, monkeypatch):
    monkeypatch.delattr(fake_sglang.WeightUpdater, "update_weights_from_ipc")
    with pytest.raises(FailedPreconditionError, match="Updater has no update_weights_from_ipc"):
        CairnHiCache(config(settings), {})


def test_clear_forgets_all_pages(make):
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(2)
    backend = make(pool)
    backend.batch_set_v1(keys, tokens_of(pool, [0, 1]))
    backend.clear()
    assert backend.batch_exists(keys) == 0


def test_without_a_daemon_every_call_is_a_miss(make):
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(2)
    backend = CairnHiCache(config({"control": "127.0.0.1:1", "weights_revision": "r"}), {})
    backend.register_mem_pool_host(pool)
    assert backend.batch_exists(keys) == 0
    assert backend.batch_get_v1(keys, tokens_of(pool, [0, 1])) == [False, False]
    assert backend.batch_set_v1(keys, tokens_of(pool, [0, 1])) == [False, False]
    page = pool.get_dummy_flat_data_page()
    assert backend.batch_get(keys, [page, page]) == [None, None]
    assert not backend.batch_set(keys, [page, page])
    backend.close()


def test_a_daemon_that_goes_is_a_miss_and_comes_back(bin_dir, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    pool, keys = MHATokenToKVPoolHost("layer_first"), names(2)
    with Daemon(bin_dir, "local", tmp_path, "64MiB") as daemon:
        given = {"control": daemon.control, "data": daemon.data, "weights_revision": "r"}
        backend = CairnHiCache(config(given | {"timeout": 3.0}), {})
        backend.register_mem_pool_host(pool)
        assert backend._session.wait(10)
        assert backend.batch_set_v1(keys, tokens_of(pool, [0, 1])) == [True, True]
    for _ in range(3):
        assert backend.batch_get_v1(keys, tokens_of(pool, [0, 1])) == [False, False]
        assert backend.batch_exists(keys) == 0
    assert 1 <= caplog.text.count("SGLang goes on without") <= 3
    backend.close()


def test_what_cannot_be_kept_is_refused_by_name(make, settings):
    for extra, named in (
        ({"control": None}, "control is None, expected HOST:PORT or unix:PATH"),
        ({"weights_revision": ""}, "no 'weights_revision', which tells apart"),
        ({"timeout": 0}, "timeout is 0, expected float above 0"),
        ({"colour": 1}, "'colour' .1., expected some of weights_revision, control"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            CairnHiCache(config(settings | extra), {})
    backend = make(MHATokenToKVPoolHost("layer_first"))
    silent = MHATokenToKOnlyPoolHost("layer_first")
    silent.get_dummy_flat_data_page = _refuse
    with pytest.raises(InvalidArgumentError, match="it provides no pages"):
        make(silent)
    with pytest.raises(InvalidArgumentError, match="SGLang's pool 'mamba': .*provides no pages"):
        backend.register_mem_host_pool_v2(silent, "mamba")
    with pytest.raises(InvalidArgumentError, match="'kv': it is SomeNewPoolHost"):
        make(SomeNewPoolHost("layer_first"))


def test_parts_of_ranks_beside_latents_are_refused(settings):
    """SGLang stores those of the first rank alone, so no prefix would ever be a hit."""
    ranks = config(settings, is_mla_model=True, tp_size=2)
    for pool in (MHATokenToKVPoolHost("layer_first"), MHATokenToKOnlyPoolHost("layer_first")):
        with pytest.raises(InvalidArgumentError, match="each of 2 ranks has a part"):
            pages_of(pool, ranks, "r", "draft")


def _refuse():
    raise ValueError("Unsupported layout")


def test_places_that_do_not_fit_are_a_miss(make, caplog):
    pool = MHATokenToKVPoolHost("layer_first")
    backend = make(pool)
    assert backend.batch_set_v1(names(2), tokens_of(pool, [0])) == [False, False]
    assert "32 places of tokens for 2 pages of 32" in caplog.text


# ------------------------------------------------------------------------------ several pools


class Hybrid:
    """A backend whose model keeps K and V, windows of other layers, states, and an indexer."""

    def __init__(self, make, seed=0):
        self.pools = {
            "kv": MHATokenToKVPoolHost("page_first"),
            "swa": MHATokenToKVPoolHost("layer_first", layer_num=2, page_num=3),
            "mamba": MambaPoolHost("page_first"),
            "indexer": MHATokenToKOnlyPoolHost("page_first_direct", head_num=1),
        }
        self.backend = make(self.pools["kv"])
        for i, (name, pool) in enumerate(self.pools.items()):
            if seed:
                fill(pool, seed + i)
            self.backend.register_mem_host_pool_v2(pool, name)
        assert all(pool.session.wait(10) for pool in self.backend._pools.values())

    def of(self, name, keys, pages, policy="trailing_pages"):
        return transfer(name, self.pools[name], keys, pages, policy)

    def asked(self, keys):
        """As SGLang asks: a window of two pages, the last state, all of the indexer."""
        return [
            self.of("swa", keys[-2:], []),
            self.of("mamba", keys[-1:], []),
            self.of("indexer", keys, [], "all_pages"),
        ]

    def page(self, name, index):
        return self.pools[name].get_data_page(index * self.pools[name].page_size)


def test_each_pool_has_pages_of_its_own(make):
    keys, first = names(4), Hybrid(make, seed=1)
    assert all(first.backend.batch_set_v1(keys, tokens_of(first.pools["kv"], range(4))))
    stored = first.backend.batch_set_v2(
        [
            first.of("swa", keys[2:], [0, 1]),
            first.of("mamba", keys[3:], [5]),
            first.of("indexer", keys, [0, 1, 2, 3], "all_pages"),
        ]
    )
    assert stored == {"swa": [True] * 2, "mamba": [True], "indexer": [True] * 4}
    second = Hybrid(make)
    found = second.backend.batch_exists_v2(keys, second.asked(keys))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert found.extra_pool_hit_pages == {"kv": 4, "swa": 4, "mamba": 4, "indexer": 4}
    loaded = second.backend.batch_get_v2(
        [second.of("swa", keys[2:], [2, 0]), second.of("mamba", keys[2:], [0, 1])]
    )
    assert loaded == {"swa": [True, True], "mamba": [False, True]}
    for name, places in {"swa": [(0, 2), (1, 0)], "mamba": [(5, 1)]}.items():
        for given, got in places:
            assert np.array_equal(first.page(name, given), second.page(name, got))


def test_policies_that_are_not_known_are_refused_by_name(make, caplog):
    keys, one = names(2), Hybrid(make, seed=3)
    one.backend.batch_set_v1(keys, tokens_of(one.pools["kv"], range(2)))
    new = one.of("indexer", keys, [0, 1], "odd_pages")
    for _ in range(2):
        found = one.backend.batch_exists_v2(keys, [new])
        assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {"kv": 2})
    assert one.backend.batch_set_v2([new]) == {"indexer": [False, False]}
    assert one.backend.batch_get_v2([new]) == {"indexer": [False, False]}
    assert caplog.text.count("pool indexer: policy odd_pages is not known") == 1


def test_long_revisions_are_cut_to_what_a_space_may_have(make):
    """Of all that a revision says, what is over counts as well."""
    keys, long = names(1), "r" * 250
    first = MHATokenToKOnlyPoolHost("layer_first")
    assert make(first, {"weights_revision": long}, tp_size=2).batch_set_v1(keys, tokens_of(first, [0]))
    same = MHATokenToKOnlyPoolHost("layer_first")
    other = MHATokenToKOnlyPoolHost("layer_first", start_layer=3)
    assert make(same, {"weights_revision": long}, tp_size=2).batch_exists(keys) == 1
    assert make(other, {"weights_revision": long}, tp_size=2).batch_exists(keys) == 0


def test_stages_of_bytes_that_are_cut_elsewhere_are_apart(settings):
    def spec(first):
        stages = config(settings, pp_size=3, pp_rank=1)
        return pages_of(MHATokenToKOnlyPoolHost("layer_first", start_layer=first), stages, "r").spec

    assert spec(3) != spec(4) and spec(3) == spec(3)


def test_a_prefix_is_as_long_as_each_pool_lets_it_be(make):
    keys, one = names(5), Hybrid(make, seed=9)
    one.backend.batch_set_v1(keys, tokens_of(one.pools["kv"], range(5)))

    def found(*transfers):
        got = one.backend.batch_exists_v2(keys, transfers)
        return got.kv_hit_pages, got.restorable_prefix_pages

    assert found() == (5, [1, 2, 3, 4, 5])
    one.backend.batch_set_v2([one.of("indexer", keys[:3], [0, 1, 2], "all_pages")])
    assert found(one.of("indexer", keys, [], "all_pages")) == (3, [1, 2, 3])
    one.backend.batch_set_v2([one.of("swa", [keys[1], keys[2], keys[4]], [0, 1, 2])])
    window = one.of("swa", keys[-2:], [])
    assert found(window) == (3, [3]), "of a window of two pages"
    one.backend.batch_set_v2([one.of("mamba", [keys[0], keys[2]], [0, 1])])
    state = one.of("mamba", keys[-1:], [])
    assert found(state) == (3, [1, 3]) and found(state, window) == (3, [3])
    # Another form of pages that are there.
    assert found(one.of("swa", keys, [], "block_groups")) == (5, [1, 2, 3, 4, 5])
    stranger = transfer("draft", one.pools["kv"], keys, range(5))
    assert found(stranger) == (0, [])
    assert one.backend.batch_get_v2([stranger]) == {"draft": [False] * 5}


def test_ranks_of_a_latent_have_states_of_their_own(settings):
    """SGLang stores of other pools what the first rank has."""

    def spec(pool, rank):
        ranks = config(settings, is_mla_model=True, tp_size=2, tp_rank=rank)
        return pages_of(pool, ranks, "r", "mamba").spec

    states = MambaPoolHost("page_first")
    latents = MLATokenToKVPoolHost("layer_first", storage_format_tag="own")
    assert spec(states, 0) != spec(states, 1) and spec(latents, 0) == spec(latents, 1)
    assert spec(states, 0) != spec(latents, 0)


def test_pools_without_a_daemon_are_misses(settings):
    backend = CairnHiCache(config(settings | {"control": "127.0.0.1:1", "data": None}), {})
    backend.register_mem_pool_host(MHATokenToKVPoolHost("layer_first"))
    backend.register_mem_host_pool_v2(MambaPoolHost("page_first"), "mamba")
    asked = transfer("mamba", MambaPoolHost("page_first"), names(1), [0])
    assert backend.batch_set_v2([asked]) == backend.batch_get_v2([asked]) == {"mamba": [False]}
    assert backend.batch_exists_v2(asked.keys, [asked]).kv_hit_pages == 0
    backend.close()
