# SPDX-License-Identifier: Apache-2.0
"""Pools of host memory by SGLang's own classes: each class is in docs/guides/sglang.md, moved or
refused, and the pages of those that are moved come back into other pages of another pool, as SGLang's
controller asks for them: the anchor by v1, all others by v2, each with the policy of its kind."""

import itertools
import pathlib
import re

import pytest
import sglang_pools
import torch
from conftest import ENGINES
from sglang_contract import config_of, use_package
from sglang_pools import EXAMPLES, PAGE, PAGES
from test_sglang_names import load, publish  # noqa: F401

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guides" / "sglang.md"
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def package():
    use_package(ENGINES / "sglang")
    base = load("sglang.srt.mem_cache.pool_host.base")
    # SGLang leaves 10 GiB of the machine's memory free. These pools have less than a megabyte.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


# -------------------------------------------------------------------------------------- the table


def rows_of_the_guide():
    """Of the table of pools, by the class that a row begins with: its cells."""
    text = GUIDE.read_text(encoding="utf-8").split("### Kinds of pools")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if re.match(r"\| `\w+`", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {re.sub(r"`| \(.*\)", "", row[0]): row[1:] for row in cells}


def test_every_class_of_sglang_s_is_in_the_guide():
    from cairn._sglang_pages import MOVED

    rows = rows_of_the_guide()
    assert set(rows) == set(sglang_pools.classes(load))
    assert set(EXAMPLES) == set(MOVED)
    for name, (needs, made, tested) in rows.items():
        if name in MOVED:
            policy = EXAMPLES[name][2].replace("_", " ")
            assert made in ("K and V", "a latent", "bytes") and tested == "its classes", name
            assert policy in needs, name
        else:
            assert (made, tested) == ("–", "refused by name"), name


def test_every_name_of_a_pool_is_in_the_guide():
    """A name that is new belongs into the guide, and its class into sglang_pools.py."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    text = GUIDE.read_text(encoding="utf-8")
    names = {name.value for name in PoolName if not name.value.startswith("deepseek_v4")}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_policy_of_sglang_s_is_known():
    from cairn import sglang
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

    known = {sglang._ALL_PAGES, sglang._TRAILING_PAGES, sglang._GROUPS}
    assert {policy.value for policy in PoolHitPolicy} == known


def test_what_is_not_listed_is_refused_by_its_name(daemon):
    from cairn import InvalidArgumentError
    from cairn._sglang_pages import MOVED, pages_of

    others = set(sglang_pools.classes(load)) - set(MOVED)
    assert "LogicalHostPool" in others and "AsymmetricMHATokenToKVPoolHost" in others
    config = config_of(daemon)
    for name in others:
        with pytest.raises(InvalidArgumentError, match=f"it is {name}, and Cairn does not know"):
            pages_of(sglang_pools.unmade(name, load), config, "r")
    later = type("LaterPoolHost", (type(sglang_pools.kv("page_first")),), {})
    with pytest.raises(InvalidArgumentError, match="it is LaterPoolHost"):
        pages_of(later.__new__(later), config, "r")


# -------------------------------------------------------------------------------------- the pages


def fill(pool, seed):
    """Writes different bytes into every page."""
    generator = torch.Generator().manual_seed(seed)
    for index in range(PAGES):
        page = pool.get_dummy_flat_data_page()
        count = page.numel() * page.element_size()
        drawn = torch.randint(0, 120, (count,), dtype=torch.uint8, generator=generator)
        pool.set_from_flat_data_page(index * pool.page_size, drawn.view(page.dtype))
    return pool


def page_of(pool, index):
    return pool.get_data_page(index * pool.page_size, flat=True).clone().view(torch.uint8)


def places(pool, pages):
    return torch.cat([torch.arange(pool.page_size) + page * pool.page_size for page in pages])


@pytest.fixture
def make(publish, daemon):  # noqa: F811
    """A backend with the pools of a model, by their names."""
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    publish()
    backends, revision = [], f"pools {next(_numbers)}"

    def build(pools, **changed):
        config = config_of(daemon, weights_revision=revision, recipe="exact")
        for name, value in changed.items():
            setattr(config, name, value)
        anchor = pools["kv"]
        backend = StorageBackendFactory.create_backend("dynamic", config, anchor)
        backends.append(backend)
        backend.register_mem_pool_host(anchor)
        for name, pool in pools.items():
            backend.register_mem_host_pool_v2(pool, name)
        backend.on_host_pools_registered()
        assert all(one.session.wait(10) for one in backend._pools.values())
        return backend

    yield build
    for backend in backends:
        backend.close()


def transfer(name, pool, keys, pages, policy):
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    policy = PoolHitPolicy(policy)
    return PoolTransfer(PoolName(name), places(pool, pages), keys=keys, hit_policy=policy)


def cases():
    for kind in EXAMPLES:
        for layout in sglang_pools.LAYOUTS.get(kind, sglang_pools.OTHER_LAYOUTS):
            yield kind, layout


@pytest.mark.parametrize(("kind", "layout"), list(cases()))
def test_pages_come_back_into_other_pages_of_another_pool(make, kind, layout):
    build, name, policy = EXAMPLES[kind]
    pools, others = ({name: build(layout)} for _ in range(2))
    for of in (pools, others):
        of.setdefault("kv", sglang_pools.kv(layout))
    pool, other = fill(pools[name], 1), others[name]
    assert type(pool).__name__ == kind
    keys = [f"{kind} {layout} {i}" for i in range(3)]
    first, second = make(pools), make(others)
    assert first.batch_set_v1(keys, places(pools["kv"], [4, 1, 2])) == [True] * 3
    moved = transfer(name, pool, keys, [4, 1, 2], policy)
    assert first.batch_set_v2([moved]) == {name: [True] * 3}
    wanted = transfer(name, other, keys, [0, 5, 3], policy)
    found = second.batch_exists_v2(keys, [wanted])
    assert found.kv_hit_pages == 3 and found.extra_pool_hit_pages[name] == 3
    before = page_of(other, 1)
    assert second.batch_get_v2([wanted]) == {name: [True] * 3}
    for page, place in zip([4, 1, 2], [0, 5, 3], strict=True):
        assert torch.equal(page_of(pool, page), page_of(other, place))
    assert torch.equal(page_of(other, 1), before)  # it is of no page that was asked for


@pytest.mark.parametrize("build", [sglang_pools.kv, sglang_pools.latents])
def test_packed_draft_layers_are_loaded_with_the_model_s(make, build):
    """They are in the same pages, so one is never a hit without the other."""
    is_latent = build is sglang_pools.latents
    pool = fill(build("page_first", drafts=2), 2)
    other, plain = build("layer_first", drafts=2), build("layer_first")
    keys = ["a", "b"]
    told = {"is_mla_model": is_latent}
    assert make({"kv": pool}, **told).batch_set_v1(keys, places(pool, [0, 1])) == [True] * 2
    second = make({"kv": other}, **told)
    assert second.batch_get_v1(keys, places(other, [3, 2])) == [True] * 2
    shapes = [page_of(one, page) for one, page in ((pool, 0), (other, 3))]
    assert len(shapes[0]) == len(shapes[1])
    axis = 1 if build is sglang_pools.kv else 0  # K and V come first
    from_layers = other.kv_buffer[(slice(None),) * axis + (slice(None), slice(3 * PAGE, 4 * PAGE))]
    from_pages = pool.kv_buffer[(slice(None),) * axis + (slice(0, PAGE),)].transpose(axis, axis + 1)
    assert torch.equal(from_layers.view(torch.uint8), from_pages.contiguous().view(torch.uint8))
    assert make({"kv": plain}, **told).batch_exists(keys) == 0


def test_a_prefix_ends_where_every_pool_has_what_it_needs(make):
    """A model with all of it: K and V, windows, states, an index, and a draft model's K and V."""
    pools = {
        "kv": sglang_pools.kv("page_first"),
        "swa": sglang_pools.kv("page_first", heads=1),
        "mamba": sglang_pools.states("page_first"),
        "indexer": sglang_pools.index_keys("page_first"),
        "draft": sglang_pools.kv("page_first"),
    }
    for i, pool in enumerate(pools.values()):
        fill(pool, i)
    backend = make(pools)
    keys = [f"prefix {i}" for i in range(5)]

    def of(name, some, pages, policy):
        return transfer(name, pools[name], some, pages, policy)

    def found(count=5):
        return backend.batch_exists_v2(
            keys[:count],
            [
                of("swa", keys[count - 2 : count], [0, 1], "trailing_pages"),
                of("mamba", keys[count - 1 : count], [0], "trailing_pages"),
                of("indexer", keys[:count], range(count), "all_pages"),
                of("draft", keys[:count], range(count), "all_pages"),
            ],
        )

    backend.batch_set_v1(keys, places(pools["kv"], range(5)))
    assert found().kv_hit_pages == 0
    backend.batch_set_v2(
        [
            of("swa", keys[1:], range(4), "trailing_pages"),
            of("mamba", [keys[2], keys[4]], [0, 1], "trailing_pages"),
            of("indexer", keys, range(5), "all_pages"),
            of("draft", keys[:4], range(4), "all_pages"),
        ]
    )
    assert found().restorable_prefix_pages == [3]  # the fifth page of the draft is missing
    backend.batch_set_v2([of("draft", keys[4:], [4], "all_pages")])
    assert found().restorable_prefix_pages == [3, 5]


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_every_rank_of_a_model_with_states_has_its_own(make, layout):
    """And all ranks have the same latents and the same index: the first one's is stored."""
    keys, ranks = ["a"], []
    for rank in range(2):
        pools = {
            "kv": sglang_pools.latents(layout),
            "indexer": sglang_pools.index(layout),
            "mamba": sglang_pools.states("page_first"),
        }
        fill(pools["mamba"], 10 + rank)
        for name in ("kv", "indexer"):
            fill(pools[name], 20)
        ranks.append((pools, make(pools, is_mla_model=True, tp_size=2, tp_rank=rank)))
    for rank, (pools, backend) in enumerate(ranks):
        states = transfer("mamba", pools["mamba"], keys, [0], "trailing_pages")
        assert backend.batch_set_v2([states]) == {"mamba": [True]}
        if rank == 0:
            assert backend.batch_set_v1(keys, places(pools["kv"], [0])) == [True]
            index = transfer("indexer", pools["indexer"], keys, [0], "all_pages")
            assert backend.batch_set_v2([index]) == {"indexer": [True]}
    for pools, backend in ranks:
        kept = page_of(pools["mamba"], 0)
        moved = [
            transfer("mamba", pools["mamba"], keys, [3], "trailing_pages"),
            transfer("indexer", pools["indexer"], keys, [3], "all_pages"),
        ]
        assert backend.batch_exists_v2(keys, moved).kv_hit_pages == 1
        assert backend.batch_get_v2(moved) == {"mamba": [True], "indexer": [True]}
        assert backend.batch_get_v1(keys, places(pools["kv"], [3])) == [True]
        assert torch.equal(page_of(pools["mamba"], 3), kept)
        for name in ("kv", "indexer"):
            assert torch.equal(page_of(pools[name], 3), page_of(pools[name], 0)), name
