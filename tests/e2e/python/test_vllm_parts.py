# SPDX-License-Identifier: Apache-2.0
"""Parts of the vLLM connector alone: layouts, ranks, settings, what is refused by name, staging."""

import logging
import os
import pathlib
import re
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import fake_vllm
import numpy as np
import pytest
from cairn import DeadlineExceededError, InvalidArgumentError, Part, ResourceExhaustedError, paged
from conftest import open_space

fake_vllm.install()

from cairn.vllm import revision as of_weights  # noqa: E402
from cairn.vllm import saves  # noqa: E402
from cairn.vllm.group import PagedPart  # noqa: E402
from cairn.vllm.kinds import Shape  # noqa: E402
from cairn.vllm.layout import paged_cache  # noqa: E402
from cairn.vllm.lookup import Found, Lookups  # noqa: E402
from cairn.vllm.model import layer_index, model_of, part_of, rope_of  # noqa: E402
from cairn.vllm.plan import Load, Plan, Save  # noqa: E402
from cairn.vllm.revision import revision_of  # noqa: E402
from cairn.vllm import sizes  # noqa: E402
from cairn.vllm.settings import Settings  # noqa: E402
from cairn.vllm.worker import Worker  # noqa: E402

LAYERS, HEADS, DIM, TOKENS = 4, 2, 64, 32
BLOCKS = 10
PACKED = (BLOCKS, HEADS, TOKENS, 2 * DIM)


def plain(layer, block):
    """K and V [heads, tokens, dim] of a block, each with a way of its own to read the layout."""
    return layer[block][..., :DIM], layer[block][..., DIM:]


def transposed(layer, block):
    halves = layer[block].reshape(HEADS, 2, TOKENS * DIM)
    k = halves[:, 0].reshape(HEADS, DIM, TOKENS).swapaxes(1, 2)
    return k, halves[:, 1].reshape(HEADS, TOKENS, DIM)


def tiled(layer, block):
    halves = layer[block].reshape(HEADS, 2, TOKENS * DIM)
    k = halves[:, 0].reshape(HEADS, TOKENS // 16, DIM // 2, 16, 2)
    v = halves[:, 1].reshape(HEADS, DIM // 16, TOKENS // 2, 16, 2)
    return (
        k.transpose(0, 1, 3, 2, 4).reshape(HEADS, TOKENS, DIM),
        v.transpose(0, 2, 4, 1, 3).reshape(HEADS, TOKENS, DIM),
    )


@pytest.mark.parametrize(
    "shape, kernels, read",
    [
        (PACKED, None, plain),
        (PACKED, "vec", transposed),
        (PACKED, "amx", tiled),
    ],
)
def test_layouts(client, shape, kernels, read):
    rng = np.random.default_rng(1)
    layers = [rng.integers(0, 30000, shape, np.uint16) for _ in range(LAYERS)]
    cache = paged_cache(layers, Shape("kv", HEADS, DIM), kernels)
    assert (cache.tokens_per_block, cache.block_count) == (TOKENS, BLOCKS)
    with open_space(client) as space:
        source = np.zeros((2, LAYERS, HEADS, 2, TOKENS, DIM), np.uint16)
        paged.gather(space, cache, [4, 1], source)
    for i, block in enumerate((4, 1)):
        for layer in range(LAYERS):
            k, v = read(layers[layer], block)
            np.testing.assert_array_equal(source[i, layer, :, 0], k)
            np.testing.assert_array_equal(source[i, layer, :, 1], v)


def test_strides_say_what_shapes_do_not():
    """LBNHC and BLHNC: the same shape, other places."""
    whole = np.zeros((BLOCKS, LAYERS, TOKENS, HEADS, 2 * DIM), np.uint16)
    layers = [whole[:, i].swapaxes(1, 2) for i in range(LAYERS)]
    assert layers[0].shape == PACKED
    k = paged_cache(layers, Shape("kv", HEADS, DIM), None).native.k
    assert (k.head_stride, k.token_stride) == (4 * DIM, 4 * DIM * HEADS)
    assert k.block_stride == whole.strides[0]


@pytest.mark.parametrize(
    "shape, dtype, kernels, says",
    [
        (PACKED, np.uint16, "vec16", "kernels are 'vec16'"),
        (PACKED, np.uint16, "neon", "kernels are 'neon'"),
        (PACKED, np.uint32, "amx", "needs bf16"),
        (PACKED, np.uint32, "vec", "elements of 4 bytes"),
        ((BLOCKS, HEADS, TOKENS, DIM), np.uint16, None, r"not \[blocks, heads, tokens, 2 \* dim\]"),
        ((BLOCKS, TOKENS, 576), np.uint16, None, r"not \[blocks, heads, tokens, 2 \* dim\]"),
        ((2, BLOCKS, TOKENS, HEADS, DIM), np.uint16, None, r"not \[blocks, heads, tokens, 2 \* dim\]"),
    ],
)
def test_unknown_layouts_are_refused_by_name(shape, dtype, kernels, says):
    with pytest.raises(InvalidArgumentError, match=says):
        paged_cache([np.zeros(shape, dtype)], Shape("kv", HEADS, DIM), kernels)


def of(extra=None, **changed):
    extra = {"control": "127.0.0.1:1", **(extra or {})}
    return model_of(*fake_vllm.configs(extra, **changed), Settings.of(extra))


def test_the_space_of_a_model():
    model = of()
    group = model.spec.groups[0]
    assert model.spec.model == "fake-model"
    assert re.fullmatch("commit:c0ffee, config [0-9a-f]{32}", model.spec.weights_revision)
    assert (group.kv_heads, group.k_dim, group.rope.base) == (2, 32, 10000.0)
    assert model.geometry.ratio == 4
    assert ", awq, " in of(model_config__quantization="awq").spec.weights_revision
    assert of({"weights_revision": "mine"}).spec.weights_revision.startswith("mine, config ")


def revision(extra=None, **changed):
    return of(extra, **changed).spec.weights_revision


def rope(**parameters):
    return {"model_config__hf_text_config": SimpleNamespace(rope_parameters=parameters)}


SCALED = rope(rope_type="linear", rope_theta=1e4, factor=2.0)
LONG = rope(rope_type="longrope", rope_theta=1e4, short_factor=[1.0], long_factor=[2.0])
LLAMA4 = SimpleNamespace(model_type="llama4_text")
LLAMA4 = {"model_config__hf_text_config": LLAMA4}
LLAMA4["model_config__try_get_generation_config"] = dict
LLAMA4["model_config__override_generation_config"] = {}
TUNED = {"model_config__override_generation_config": {"attn_temperature_tuning": True}}


@pytest.mark.parametrize(
    "one, other",
    [
        ({}, SCALED),
        (SCALED, rope(rope_type="linear", rope_theta=1e4, factor=4.0)),
        (SCALED, rope(rope_type="yarn", rope_theta=1e4, factor=2.0)),
        (SCALED, rope(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
        (LONG, LONG | {"model_config__max_model_len": 131072}),
        ({}, {"model_config__dtype": "torch.float16"}),
        ({}, {"model_config__quantization_config": {"linear": "fp8"}}),
        ({}, {"model_config__hf_config": SimpleNamespace(_commit_hash="c0ffee", experts=4)}),
        ({}, {"model_config__architecture": "TransformersForCausalLM"}),
        (LLAMA4, LLAMA4 | {"model_config__max_model_len": 131072}),
        (LLAMA4, LLAMA4 | TUNED),
    ],
)
def test_what_vllm_was_told_is_in_the_name(one, other):
    assert revision(**one) == revision(**one) != revision(**other)


@pytest.mark.parametrize(
    "same",
    [
        {"model_config__max_model_len": 131072},
        {"model_config__hf_text_config": SimpleNamespace(rope_theta=1e4, eos_token_id=7)},
        {"parallel_config__pipeline_parallel_size": 2},
        {"parallel_config__data_parallel_size": 8},
        {"tensor": 2},
        TUNED,
    ],
)
def test_what_cannot_matter_is_not_in_the_name(same):
    plain_text = {"model_config__hf_text_config": SimpleNamespace(rope_theta=1e4)}
    assert of(**plain_text).spec == of(**plain_text | same).spec


HUB = "0123456789abcdef0123456789abcdef01234567"
ELSEWHERE = {"model_config__hf_config_path": "some/configuration"}


@pytest.mark.parametrize(
    "changed, weights",
    [
        ({"model_config__revision": HUB}, "commit:c0ffee"),
        (ELSEWHERE | {"model_config__revision": HUB}, f"commit:{HUB}"),
        (ELSEWHERE | {"model_config__revision": "main"}, None),
        (ELSEWHERE, None),
        ({"model_config__model_weights": "s3://bucket/model"}, None),
    ],
)
def test_which_weights_a_hub_s_model_has(changed, weights):
    assert revision({"weights_revision": "mine"}, **changed).startswith("mine, ")
    if weights is None:
        with pytest.raises(InvalidArgumentError, match="name their revision as weights_revision"):
            of(**changed)
    else:
        assert revision(**changed).startswith(f"{weights}, ")


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size is 2"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "split the tokens of a block"),
        ({"parallel_config__later_parallel_size": 2}, "later_parallel_size is 2"),
        (LONG | {"model_config__architecture": "TransformersForCausalLM"}, "rope type 'longrope'"),
    ],
)
def test_what_splits_or_turns_kv_in_a_way_that_is_not_known_is_refused(changed, says):
    with pytest.raises(InvalidArgumentError, match=says):
        of(**changed)


@pytest.mark.parametrize("method", ["dflash", "later"])
def test_drafts_that_are_not_known_are_refused_by_their_method(method):
    config, cache = fake_vllm.configs({})
    config.speculative_config = SimpleNamespace(method=method)
    with pytest.raises(InvalidArgumentError, match=f"method '{method}' is not supported"):
        model_of(config, cache, Settings("127.0.0.1:1"))
    config.speculative_config = SimpleNamespace(method="eagle", draft_tensor_parallel_size=2)
    with pytest.raises(InvalidArgumentError, match="draft_tensor_parallel_size is 2, and the model has 1"):
        model_of(config, cache, Settings("127.0.0.1:1"))
    config.speculative_config = SimpleNamespace(method="ngram")
    assert model_of(config, cache, Settings("127.0.0.1:1")).spec == of().spec


@pytest.mark.parametrize("method, lag", [("eagle", 32), ("mtp", 32), ("draft_model", 0)])
def test_a_draft_s_layers_are_a_group_and_named(method, lag):
    """Those of a draft model are numbered from 0 as the model's are; others follow the model's."""

    def model(**changed):
        config, cache = fake_vllm.configs({})
        (group,) = cache.kv_cache_groups
        is_apart = method == "draft_model"
        name = "draft_model.layers.0.attn" if is_apart else fake_vllm.layer_name(fake_vllm.LAYERS)
        group.layer_names.append(name)
        draft = SimpleNamespace(**vars(config.model_config) | {"model": "draft"} | changed)
        draft.get_num_kv_heads = lambda parallel: fake_vllm.HEADS
        draft.get_head_size = lambda: fake_vllm.DIM
        config.speculative_config = SimpleNamespace(
            method=method, draft_tensor_parallel_size=1, draft_model_config=draft
        )
        return model_of(config, cache, Settings("127.0.0.1:1"))

    made, plain = model(), of()
    number = 0 if method == "draft_model" else fake_vllm.LAYERS
    indices = [group.layer_indices for group in made.spec.groups]
    assert indices == [tuple(range(fake_vllm.LAYERS)), (number,)]
    assert [one.is_draft for one in made.layers] == [False, True] and made.is_all_or_nothing
    assert [group.table for group in made.geometry.groups] == [0, 0]
    assert made.geometry.lag == lag and not made.is_guess and not made.has_kv_alone
    others = [plain, model(dtype="torch.float16"), model(quantization="fp8")]
    commit = SimpleNamespace(_commit_hash="dead")
    others += [model(hf_config=commit)]
    names = {one.spec.weights_revision for one in (made, *others)}
    assert len(names) == 5


@pytest.mark.parametrize(
    "extra, changed, says",
    [
        ({"tokens_per_block": 48}, {}, "a multiple of the engine's block size 32"),
        ({"tokens_per_block": 2048}, {}, "from 16 to 1024"),
        ({"recipes": "exact"}, {}, "has 'recipes'"),
        ({"control": ""}, {}, "control is '', expected HOST:PORT or unix:PATH"),
        ({"load_timeout": 0}, {}, "load_timeout is 0"),
        ({"layer_wise": 1}, {}, "layer_wise is 1, expected bool"),
        ({"load_timeout": True}, {}, "load_timeout is True"),
        ({"staging_bytes": "1GiB"}, {}, "staging_bytes is '1GiB'"),
        ({}, {"model_config__hf_config": None}, "name their revision as weights_revision"),
    ],
)
def test_settings_that_are_refused(extra, changed, says):
    with pytest.raises(InvalidArgumentError, match=says):
        of(extra, **changed)


class LargeSpec(fake_vllm.FullAttentionSpec):
    page_size_bytes = 4 << 17  # 16 MiB of 32 layers, a block of the engine's

    def __init__(self):
        super().__init__(8)


def sized(extra, device="cpu", step=8192, layers=32):
    config, _ = fake_vllm.configs(extra)
    config.scheduler_config.max_num_batched_tokens = step
    config.device_config = SimpleNamespace(device_type=device)
    group = SimpleNamespace(kv_cache_spec=LargeSpec(), layer_names=[fake_vllm.layer_name(i) for i in range(layers)])
    cache = SimpleNamespace(kv_cache_groups=[group])
    return sizes.sized(Settings.of(extra), extra, config, cache, extra.get("tokens_per_block", 128)), cache


@pytest.mark.parametrize(
    ("extra", "device", "step", "staging_mib", "region_mib"),
    [
        ({}, "cpu", 1024, 2 * 8 * 64, 256),  # two steps of 8 blocks of 64 MiB; four blocks
        ({"tokens_per_block": 32}, "cpu", 1024, 2 * 32 * 16, 64),
        ({}, "cpu", 65536, 4096, 256),  # no more than that
        ({}, "cuda", 1024, 8 * 64, 256),  # one step, which is taken at once
        ({}, "cuda", 8192, 1024, 256),
        ({"staging_bytes": 1 << 20, "region_bytes": 2 << 20}, "cuda", 8192, 1, 2),  # as the user says
    ],
)
def test_sizes_are_of_the_caches_geometry(extra, device, step, staging_mib, region_mib):
    settings, _ = sized({"control": "127.0.0.1:1"} | extra, device, step)
    assert (settings.staging_bytes >> 20, settings.region_bytes >> 20) == (staging_mib, region_mib)


def test_unlike_layers_count_each_by_its_own():
    unlike = {fake_vllm.layer_name(i): SimpleNamespace(page_size_bytes=(i + 1) << 20) for i in range(3)}
    spec = type("UniformTypeKVCacheSpecs", (SimpleNamespace,), {})(block_size=32, kv_cache_specs=unlike, page_size_bytes=6 << 20)
    state = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=4096, page_size_bytes=1 << 20), layer_names=["a", "b"])
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=list(unlike)), state])
    assert sizes._block_bytes(cache, 128) == 4 * (6 << 20) + (2 << 20)


def test_sizes_of_a_small_model_are_the_defaults_and_are_said(caplog):
    extra = {"region_bytes": 96 << 20}
    settings, cache = sized(extra, layers=1, step=512)
    assert settings.staging_bytes == Settings().staging_bytes
    with caplog.at_level(logging.INFO):
        sizes.say(settings, extra, cache, 128, logging.getLogger("sizes"))
    assert "a block of 128 tokens takes 2.0 MiB here: staging_bytes 256 MiB (computed), region_bytes 96 MiB (as set)" in caplog.text


@pytest.mark.parametrize("dtype", ["torch.int8", "torch.uint8"])
def test_coded_caches_are_refused(monkeypatch, dtype):
    monkeypatch.setattr(fake_vllm.FullAttentionSpec, "dtype", dtype)
    with pytest.raises(InvalidArgumentError, match=f"the KV cache has {dtype}"):
        of()


HYBRID = (((0, 3), 160), ((1, 4), 160), ((2, 5), 0))


def test_the_space_of_a_hybrid_model():
    model = of(groups=HYBRID)
    found = [(g.layer_indices, g.window_tokens, g.kv_heads) for g in model.spec.groups]
    assert found == [((0, 3), 160, 2), ((1, 4), 160, 2), ((2, 5), 0, 2)]
    names = ["model.layers.1.attn", "model.layers.4.attn"]
    assert part_of(names, model, 0, 1, 1) == Part(range(2), range(2), 1)
    with pytest.raises(InvalidArgumentError, match="the group has 2 heads and layers"):
        part_of(names, model, 0, 1, 2)


class LaterSpec(fake_vllm.FullAttentionSpec):
    pass


@pytest.mark.parametrize(
    "change, says",
    [
        ({"kv_cache_spec": LaterSpec(2)}, "a group of KV is LaterSpec"),
        ({"kv_cache_spec.dtype": "torch.float16"}, "differ in dtype: bf16, fp16"),
        ({"kv_cache_spec.dtype": "torch.uint8"}, "the KV cache has torch.uint8"),
    ],
)
def test_groups_that_are_refused(change, says):
    config, cache = fake_vllm.configs({}, groups=HYBRID, tensor=2)
    for path, value in change.items():
        holder, *names = cache.kv_cache_groups[1], *path.split(".")
        for name in names[:-1]:
            holder = getattr(holder, name)
        setattr(holder, names[-1], value)
    with pytest.raises(InvalidArgumentError, match=says):
        model_of(config, cache, Settings("127.0.0.1:1"))


def of_unlike_heads(tensor, *heads, counts=(), total=2):
    """The groups of HYBRID with so many heads a rank. counts: what the configuration has beside."""
    config, cache = fake_vllm.configs({}, groups=HYBRID, tensor=tensor)
    model = config.model_config
    model.get_total_num_kv_heads = lambda: total
    model.hf_text_config = SimpleNamespace(num_key_value_heads=total, **dict(counts))
    for group, count in zip(cache.kv_cache_groups, heads, strict=True):
        group.kv_cache_spec.num_kv_heads = count
    return model_of(config, cache, Settings("127.0.0.1:1"))


def test_groups_of_unlike_heads_count_each_by_its_own():
    """As MiMo-V2: vLLM tells how many heads one kind of layers has, here 4, and not of the others, 8."""
    more = {"swa_num_key_value_heads": 8}.items()

    def heads(tensor, *of_rank):
        model = of_unlike_heads(tensor, *of_rank, counts=more, total=4)
        return [group.kv_heads for group in model.spec.groups]

    assert heads(1, 8, 8, 4) == heads(2, 4, 4, 2) == heads(4, 2, 2, 1) == [8, 8, 4]
    assert heads(8, 1, 1, 1) == [8, 8, 8]  # each rank's is its own, whether another has it or not
    model = of_unlike_heads(8, 1, 1, 1, counts=more, total=4)
    names = ["model.layers.1.attn", "model.layers.4.attn"]
    assert [part_of(names, model, rank, 8, 1).heads for rank in (0, 1, 7)] == [
        range(0, 1), range(1, 2), range(7, 8)
    ]
    alike = of_unlike_heads(8, 1, 1, 1, total=4)  # ranks share heads
    assert [group.kv_heads for group in alike.spec.groups] == [4, 4, 4]
    assert [part_of(names, alike, rank, 8, 1).heads for rank in (0, 1, 7)] == [
        range(0, 1), range(0, 1), range(3, 4)
    ]


def test_a_group_of_layers_with_unlike_heads_counts_a_rank_s_head_as_its_own():
    """Without the hybrid manager all layers are in one group; a rank's shape does not tell."""
    config, cache = fake_vllm.configs({}, tensor=8)
    config.model_config.get_total_num_kv_heads = lambda: 4
    config.model_config.hf_text_config = SimpleNamespace(
        num_key_value_heads=4, swa_num_key_value_heads=8
    )
    cache.kv_cache_groups[0].kv_cache_spec.num_kv_heads = 1
    assert model_of(config, cache, Settings("127.0.0.1:1")).spec.groups[0].kv_heads == 8


def test_k_and_v_of_unlike_channels():
    config, cache = fake_vllm.configs({}, groups=HYBRID)
    cache.kv_cache_groups[1].kv_cache_spec.head_size_v = 16
    groups = model_of(config, cache, Settings("127.0.0.1:1")).spec.groups
    assert [(group.k_dim, group.v_dim) for group in groups] == [(32, 32), (32, 16), (32, 32)]


def test_groups_across_the_stages_of_a_pipeline_are_refused():
    with pytest.raises(InvalidArgumentError, match="disable-hybrid-kv-cache-manager"):
        of(groups=HYBRID, parallel_config__pipeline_parallel_size=2)


def test_ranks_have_their_layers_and_heads():
    names = [f"model.layers.{i}.self_attn.attn" for i in range(4)]
    model = of()
    one = replace(model.layers[0], shape=replace(model.layers[0].shape, heads=1))
    one_each = replace(model, layers=(one,))
    assert part_of(names, one_each, 1, 2) == Part(range(4), range(1, 2))
    assert part_of(names[2:], model, 0, 1) == Part(range(2, 4), range(2))
    # Fewer heads than ranks: two ranks have the same one.
    assert [part_of(names, one_each, rank, 4).heads.start for rank in range(4)] == [0, 0, 1, 1]
    with pytest.raises(InvalidArgumentError, match="expected consecutive"):
        part_of([names[0], names[2]], model, 0, 1)
    with pytest.raises(InvalidArgumentError, match="does not say its place"):
        layer_index("model.layers.1.experts.2")


def test_rope_is_named_where_it_is_plain():
    plain_rope = fake_vllm.SimpleNamespace(
        rope_parameters={"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    )
    scaled = fake_vllm.SimpleNamespace(rope_scaling={"rope_type": "yarn"}, rope_theta=1e4)
    assert rope_of(plain_rope, 64).rotary_dims == 32
    assert rope_of(scaled, 64).kind == "none"
    # Gemma 3, as transformers 4 and 5 write it: layers of windows turn in another way.
    scaling = {"rope_type": "linear", "factor": 8.0}
    older = fake_vllm.SimpleNamespace(
        rope_scaling=scaling, rope_theta=1e6, rope_local_base_freq=1e4
    )
    by_layers = {"full_attention": scaling | {"rope_theta": 1e6}}
    by_layers["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    for config in (older, fake_vllm.SimpleNamespace(rope_parameters=by_layers)):
        assert rope_of(config, 64, is_window=True).base == 1e4
        assert rope_of(config, 64).kind == "none"


def weights(path, byte=1, size=2_000_000, name="model.safetensors", **more):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / name).write_bytes(bytes([byte]) * size)
    for file, text in more.items():
        (path / file.replace("__", ".")).write_text(text)
    return str(path)


def test_revisions_tell_weights_apart(tmp_path):
    def folder(name, *arguments, **more):
        return revision_of(weights(tmp_path / name, *arguments, **more))

    first = folder("a")
    assert first == folder("b", README="x", tokenizer_config__json="{}", optimizer__pt="x")
    assert first != folder("c", 2) and first != folder("d", size=1_999_999)
    for name in ("adapter.json", "new.ckpt", "more.pkl", "x.tensors", "modeling.py", "nobody_knows"):
        assert first != folder(name, **{name.replace(".", "__"): "{}"})
    (tmp_path / "b" / "part").mkdir()
    (tmp_path / "b" / "part" / "model.safetensors").write_bytes(b"more")
    assert first != revision_of(str(tmp_path / "b"))


@pytest.mark.parametrize("at", [0, 100 << 20, (160 << 20) - (16 << 10)])
def test_a_few_values_of_many_are_told(tmp_path, at):
    """16 KiB of 160 MiB, as a bias or a norm that was tuned; the times are as they were."""
    path = pathlib.Path(weights(tmp_path / "a")) / "model.safetensors"
    os.truncate(path, 160 << 20)
    before, times = revision_of(str(path.parent)), path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"x" * (16 << 10))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert revision_of(str(path.parent)) != before


@pytest.fixture
def reads(monkeypatch):
    """Of weights, in bytes; and files count from the moment on at which they are made."""
    monkeypatch.setattr(of_weights, "_SETTLED_NS", 0)
    found, read = [], of_weights._read

    def count(root, sizes):
        found.append(sum(sizes.values()))
        return read(root, sizes)

    monkeypatch.setattr(of_weights, "_read", count)
    return found


def test_weights_are_read_once(tmp_path, reads):
    path = weights(tmp_path / "a")
    first = revision_of(path)
    assert revision_of(path) == first and reads == [2_000_002]
    of_weights._known.clear()  # as in another process
    assert revision_of(path) == first and reads == [2_000_002]
    os.utime(tmp_path / "a" / "config.json", (1, 1))  # no other file is read for it
    assert revision_of(path) == first and reads == [2_000_002, 2]
    shutil.copytree(path, tmp_path / "b")
    assert revision_of(str(tmp_path / "b")) == first  # with times of its own


def test_what_is_kept_of_weights_is_not_believed_blindly(tmp_path, reads, monkeypatch, caplog):
    path = weights(tmp_path / "a")
    first = revision_of(path)
    kept = next(iter((pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "cairn/weights").iterdir()))
    kept.parent.chmod(0o777)  # anybody may have written there
    of_weights._known.clear()
    assert revision_of(path) == first and len(reads) == 2
    kept.parent.chmod(0o700)
    # An image of a file system, mounted in the place of another: all that a stamp has is the same.
    monkeypatch.setattr(of_weights, "_stamp", lambda path: (1, 1, os.stat(path).st_size, 1, 1))
    first = revision_of(weights(tmp_path / "b", 1))
    of_weights._known.clear()
    assert revision_of(weights(tmp_path / "b", 2)) != first
    for text in ("", "[1]", '{"model.safetensors": 1'):
        for file in kept.parent.iterdir():
            file.write_text(text)
        of_weights._known.clear()
        assert revision_of(path).startswith("bytes:")


def test_weights_that_may_still_change_are_read_again(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(of_weights, "_SETTLED_NS", 1 << 62)
    path = weights(tmp_path / "a")
    assert revision_of(path) == revision_of(path) and len(reads) == 2


def test_a_folder_without_weights_has_no_revision(tmp_path):
    """As what is left of one whose weights come from elsewhere."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="there are none in it"):
        revision_of(str(tmp_path))


def test_the_start_of_this_process_is_known():
    assert 0 <= time.time_ns() - of_weights._process_start_ns() < 3600 * 10**9


def test_links_into_a_folder_above_end(tmp_path):
    path = weights(tmp_path / "a")
    first = revision_of(path)
    (tmp_path / "a" / "again").symlink_to(path)
    assert revision_of(path) == first


def test_the_end_of_a_script(two_ranks):
    """A pool takes nothing any more then; what was staged is put."""
    worker, _ = two_ranks[1][0]
    worker._saves._puts.shutdown()
    worker.close()


class _Session:
    def __init__(self, space):
        self.space = space


class _SlowSpace:
    """Of a daemon that does not answer."""

    def match(self, keys, timeout):
        time.sleep(timeout)
        raise DeadlineExceededError("late")

    def _release(self, lease):
        time.sleep(0.1)


def test_the_end_waits_for_one_question_at_most():
    lookups = Lookups(_Session(_SlowSpace()), 0.4, logging.getLogger("test"))
    asked = [lookups.ask([bytes(32)]) for _ in range(20)]
    for lease in range(50):
        lookups.release(bytes([lease] * 16))
    began = time.monotonic()
    lookups.close()
    assert time.monotonic() - began < 2.0
    time.sleep(max(0.0, asked[-1].deadline - time.monotonic()) + 0.01)
    assert all(lookups.poll(one) == Found() for one in asked)


def test_a_look_up_that_fails_unheard_of_is_a_miss(caplog):
    lookups = Lookups(_Session(object()), 5.0, logging.getLogger("test"))
    lookups.release(bytes(16))
    for _ in range(2):
        asked = lookups.ask([bytes(32)])
        while (found := lookups.poll(asked)) is None:
            pass
        assert found == Found() and time.monotonic() < asked.deadline
    lookups.close()
    assert "a lookup failed" in caplog.text and "a lease was not given back" in caplog.text


@pytest.fixture
def two_ranks(client):
    """Workers of TP=2, each with a head of the same space, and their caches."""
    log = logging.getLogger("test")
    with open_space(client, "exact", tokens_per_block=64) as space:
        ranks = []
        for rank in range(2):
            layers = [np.zeros((BLOCKS, 1, TOKENS, 2 * DIM), np.uint16) for _ in range(LAYERS)]
            cache = paged_cache(layers, Shape("kv", 1, DIM), None)
            part = Part(heads=range(rank, rank + 1))
            settings = Settings("127.0.0.1:1", staging_bytes=3 * space.source_bytes(part))
            worker = Worker(_Session(space), settings, [PagedPart(cache, part, 1)], log)
            ranks.append((worker, layers))
        yield space, ranks
        for worker, _ in ranks:
            worker.close()


def wait_for_loads(worker):
    while True:
        worker.step(Plan(is_idle=True))
        ended = worker.take_ended()
        if ended.requests:
            return ended.requests, ended.failed_blocks


def test_ranks_put_and_get_their_slices(two_ranks):
    space, ranks = two_ranks
    rng = np.random.default_rng(3)
    keys = space.keys(range(128))
    for worker, layers in ranks:
        for layer in layers:
            layer[:] = rng.integers(0, 20000, layer.shape, np.uint16)
        assert space.match(keys, lease=False).block_count == 0  # until all ranks have put theirs
        worker.save(Plan(saves=[Save(keys, [[1, 2, 3, 4]], None, 0, False)]))
        worker.drain()
    assert space.match(keys, lease=False).block_count == 2
    for worker, layers in ranks:
        kept = [layer.copy() for layer in layers]
        for layer in layers:
            layer[:] = 0
        worker.step(Plan(loads=[Load("r", keys, [[1, 2, 3, paged.SKIPPED]], None)]))
        assert wait_for_loads(worker) == ({"r"}, set())
        for layer, before in zip(layers, kept, strict=True):
            np.testing.assert_array_equal(layer[1:4], before[1:4])
            assert not layer[4:].any() and not layer[0].any()


@pytest.mark.parametrize("gone", [1, 4])  # a load of five keys is shared out as three and two
def test_a_slice_that_is_gone_fails_from_there_on(two_ranks, gone):
    space, ranks = two_ranks
    worker, layers = ranks[0]
    keys, blocks = space.keys(range(5 * 64)), list(range(BLOCKS))
    rng = np.random.default_rng(gone)
    for layer in layers:
        layer[:] = rng.integers(0, 20000, layer.shape, np.uint16)
    for i, key in enumerate(keys):
        parent = keys[i - 1] if i else None
        worker.save(Plan(saves=[Save([key], [blocks[2 * i : 2 * i + 2]], parent, 64 * i, False)]))
        worker.drain()
    kept = [layer.copy() for layer in layers]
    for layer in layers:
        layer[:] = 0
    space.delete([keys[gone]])
    worker.step(Plan(loads=[Load("r", keys, [blocks], None)]))
    assert wait_for_loads(worker) == ({"r"}, set(blocks[2 * gone :]))
    assert worker.take_counts()["failed_blocks"] == BLOCKS - 2 * gone
    for layer, before in zip(layers, kept, strict=True):
        np.testing.assert_array_equal(layer[: 2 * gone], before[: 2 * gone])


def test_shares_of_a_load_run_at_once_and_all_end_before_it(two_ranks):
    worker, _ = two_ranks[1][0]
    both, ended = threading.Barrier(2, timeout=20), []

    def get(share):
        both.wait()
        if share[0] == 0:
            raise DeadlineExceededError("the first share")
        time.sleep(0.2)
        ended.append(share)

    with pytest.raises(DeadlineExceededError, match="the first share"):
        worker._in_shares(get, [0, 1, 2, 3])
    assert ended == [[2, 3]]


def test_a_load_is_counted_when_it_has_ended(two_ranks):
    space, ranks = two_ranks
    worker, count = ranks[0][0], ranks[0][0]._count
    worker._count = lambda **counts: time.sleep(0.2) or count(**counts)
    worker.step(Plan(loads=[Load("r", space.keys(range(64)), [[0, 1]], None)]))
    assert wait_for_loads(worker) == ({"r"}, {0, 1})
    assert worker.take_counts()["loads"] == 1


def test_saves_do_not_wait_for_the_store(two_ranks):
    space, ranks = two_ranks
    worker, _ = ranks[0]
    keys = space.keys(range(5 * 64))
    worker._saves._puts.submit(__import__("time").sleep, 0.3)  # a slow store
    worker.save(Plan(saves=[Save(keys, [[0, 1] * 5], None, 0, False)]))
    assert worker.take_counts()["dropped_blocks"] == 4  # three blocks of five are staged
    worker.drain()
    assert worker.take_counts()["saved_blocks"] == 6


def test_saves_that_fail_are_said_once_a_minute(two_ranks, caplog, monkeypatch):
    space, ranks = two_ranks
    worker, now = ranks[0][0], [100.0]

    def refuse(self, puts, timeout):
        raise ResourceExhaustedError("the store is full")

    def save():
        worker.save(Plan(saves=[Save(space.keys(range(64)), [[0, 1]], None, 0, False)]))
        worker.drain()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    monkeypatch.setattr(type(space), "put_batch", refuse)
    monkeypatch.setattr(saves, "monotonic", lambda: now[0])
    said = "cairn: 2 blocks were not saved: the store is full"
    assert save() == save() == save() == [said]
    now[0] += 60.0
    assert save() == [said, "cairn: 6 blocks were not saved: the store is full"]
    assert worker.take_counts()["dropped_blocks"] == 8


def test_without_a_daemon_loads_fail_and_saves_are_dropped(two_ranks):
    space, ranks = two_ranks
    worker, _ = ranks[0]
    keys = space.keys(range(64))
    worker._session = worker._saves._session = _Session(None)
    worker.save(Plan(saves=[Save(keys, [[0, 1]], None, 0, False)]))
    worker.step(Plan(loads=[Load("r", keys, [[3, 4]], None)]))
    assert wait_for_loads(worker) == ({"r"}, {3, 4})
    assert worker.take_counts()["dropped_blocks"] == 2
