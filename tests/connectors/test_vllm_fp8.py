# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector with caches of 8-bit floats: vLLM's own specifications, managers and arrays, and
its CPU kernels, where they write such a cache."""

import dataclasses
import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from cairn import InvalidArgumentError  # noqa: E402
from cairn.tensors import describe  # noqa: E402
from cairn.vllm import layout  # noqa: E402
from cairn.vllm.kinds import Shape, shape_of  # noqa: E402
from cairn.vllm.layout import TILED, TRANSPOSED, paged_cache  # noqa: E402
from test_vllm_kinds import attn, cached, coded, make, prompt, store_tokens  # noqa: E402, F401
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVQuantMode,
    MLAAttentionSpec,
    get_kv_quant_mode,
)

FP8, INT8 = KVQuantMode.FP8_PER_TOKEN_HEAD, KVQuantMode.INT8_PER_TOKEN_HEAD
KINDS = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def heads(cache_dtype, dtype=torch.uint8):
    return FullAttentionSpec(
        block_size=32,
        num_kv_heads=2,
        head_size=64,
        dtype=dtype,
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
    )


def latent(cache_dtype):
    return MLAAttentionSpec(
        block_size=64,
        num_kv_heads=1,
        head_size=576,
        dtype=torch.uint8,
        max_tp_shards=1,
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
        cache_dtype_str=cache_dtype,
    )


@pytest.mark.parametrize("cache_dtype", KINDS)
@pytest.mark.parametrize("spec_of", [heads, latent])
def test_they_are_elements(spec_of, cache_dtype):
    assert shape_of(spec_of(cache_dtype), cache_dtype).dtype == KINDS[cache_dtype]


OF_TOKENS = ["fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"]


@pytest.mark.parametrize("cache_dtype", OF_TOKENS)
def test_scales_of_tokens_are_moved_with_their_rows(cache_dtype):
    """vLLM's backend says how many bytes a row has. Where it does not, the cache is refused."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    spec = TritonAttentionBackend.customize_spec(heads(cache_dtype))
    shape = shape_of(spec, cache_dtype)
    row = 2 * (64 // (2 if "int4" in cache_dtype else 1) + 4)  # K and V, each with a scale
    assert (shape.kind, shape.slots, shape.bytes, shape.dtype) == ("opaque_rows", 2, 2 * row, None)
    assert not shape.is_replicated and cache_dtype.upper() in shape.layout
    with pytest.raises(InvalidArgumentError, match=f"rows of {cache_dtype.upper()}.* not tell the size"):
        shape_of(heads(cache_dtype), cache_dtype)


@pytest.mark.parametrize("cache_dtype", ["turboquant_k8v4", "turboquant_3bit_nc", "ultraquant_4bit"])
def test_other_codings_are_refused_by_name(cache_dtype):
    mode = get_kv_quant_mode(cache_dtype).name
    for size in (None, 100):
        spec = dataclasses.replace(heads(cache_dtype), state_content_bytes=size)
        with pytest.raises(InvalidArgumentError, match=f"{mode}.* a coding that Cairn does not know"):
            shape_of(spec, cache_dtype)


@pytest.mark.parametrize("mode", [FP8, INT8])
@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC"])
def test_what_is_loaded_before_vllm_s_first_step_keeps_its_scales(make, mode, layout):  # noqa: F811
    """vLLM's implementation sets the scales of all tokens to 1 when it first sees its cache: see
    `Rank` in test_vllm_kinds.py, whose engines call it as vLLM does."""
    kind = functools.partial(coded, mode=mode)
    first = make(kind, layout=layout)
    tokens = prompt(15, 4 * store_tokens(first) + 9)
    first.run(tokens)
    second = make(kind, layout=layout, is_open=False)
    assert second.scheduler.connector._session.wait(30)
    assert cached(second.run(tokens)) == 4 * store_tokens(first)  # its very first request
    assert first.failures == second.failures == []
    assert all(layer.impl is not None for layer in second.ranks[0].layers)


def test_bytes_that_vllm_does_not_name_are_refused():
    with pytest.raises(InvalidArgumentError, match="torch.uint8 .--kv-cache-dtype other"):
        shape_of(heads("auto"), "other")


@pytest.mark.parametrize("cache_dtype", ["fp8", "fp8_e5m2"])
def test_what_one_engine_computes_another_loads(make, cache_dtype):  # noqa: F811
    """Every byte, whatever it stands for: the model of the test writes NaN, too."""

    def kind():
        return {attn(i): heads(cache_dtype) for i in range(4)}

    first, second = (make(kind, kv_cache_dtype=cache_dtype) for _ in range(2))
    assert first.worker._model.spec.dtype == KINDS[cache_dtype]
    step = store_tokens(first)
    tokens = prompt(11, 4 * step + 9)
    first.run(tokens)
    assert cached(second.run(tokens)) == 4 * step
    assert first.failures == second.failures == []


def test_another_kind_of_float_is_another_space(make):  # noqa: F811
    def engine(cache_dtype):
        def kind():
            return {attn(i): heads(cache_dtype) for i in range(4)}

        return make(kind, kv_cache_dtype=cache_dtype)

    first, second = engine("fp8_e4m3"), engine("fp8_e5m2")
    tokens = prompt(12, 2 * store_tokens(first) + 9)
    first.run(tokens)
    assert cached(second.run(tokens)) == 0
    assert second.failures == []


@pytest.mark.parametrize("kernels", [TILED, TRANSPOSED])
@pytest.mark.parametrize("cache_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_vllms_kernels_write_where_the_layout_says(kernels, cache_dtype):
    """K and V of small whole numbers, written by the kernel that vLLM's CPU backend would choose."""
    ops = pytest.importorskip("vllm._custom_ops")
    if kernels == TILED and not torch.cpu._is_amx_tile_supported():
        pytest.skip("the processor has no AMX")
    tokens, count, dim = 32, 2, 64
    kind = torch.float8_e4m3fn if cache_dtype.endswith("e4m3") else torch.float8_e5m2
    codes = torch.arange(8.0).to(kind).view(torch.uint8)
    place = torch.arange(tokens * count * dim).reshape(tokens, count, dim)
    key, value = place * 5 % 8, place * 3 % 7
    cache = torch.zeros(3, count, tokens, 2 * dim, dtype=torch.uint8)
    k, v = cache.view(3, count, 2 * tokens, dim).chunk(2, dim=2)
    slots = torch.arange(tokens) + tokens
    try:
        ops.cpu_attn_reshape_and_cache(
            key.bfloat16(), value.bfloat16(), k, v, slots, kernels, 1.0, 1.0, cache_dtype
        )
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"vLLM's build has no such kernel: {error}")
    assert paged_cache([cache], Shape("kv", count, dim), kernels).tokens_per_block == tokens
    _, of_k, of_v = layout._of_processor(describe("cache", cache), Shape("kv", count, dim), kernels)
    block = cache[1].reshape(-1)
    for plane, wanted in ((of_k, key), (of_v, value)):
        for token, head, channel in ((0, 0, 0), (1, 1, 1), (17, 0, 33), (31, 1, 63), (6, 1, 18)):
            at = plane.head * head + plane.offset + _place(plane, token, channel)
            assert block[at] == codes[wanted[token, head, channel]], (plane, token, head, channel)


def _place(plane, token, channel):
    tokens, dims = plane.tokens_per_run or 1 << 30, plane.dims_per_run or 1 << 30
    return (
        token // tokens * plane.token_run
        + token % tokens * plane.token
        + channel // dims * plane.dim_run
        + channel % dims * plane.dim
    )


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_what_cairn_evaluate_reads_is_what_torch_means(dtype):
    np = pytest.importorskip("numpy")
    from cairn.capture import DUMP_DTYPES
    from cairn.evaluate.dump import as_float, as_stored

    kind = torch.float8_e4m3fn if dtype == "fp8_e4m3" else torch.float8_e5m2
    codes = torch.arange(256, dtype=torch.uint8)
    ours = as_float(codes.numpy().view(DUMP_DTYPES[dtype]))
    np.testing.assert_array_equal(ours, codes.view(kind).float().numpy())
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(1)) * 20
    wanted = values.to(kind).view(torch.uint8).numpy()
    np.testing.assert_array_equal(as_stored(values.numpy(), dtype).view(np.uint8), wanted)


def test_scales_of_a_capture_are_where_vllm_keeps_them():
    from types import SimpleNamespace

    from cairn.vllm.tap import scales_of
    from vllm.model_executor.layers.attention import attention

    layer = torch.nn.Module()
    attention.set_default_quant_scales(layer, register_buffer=True)
    assert not scales_of([{0: layer}])
    layer._k_scale_float, layer._v_scale_float = 0.25, 0.5
    found = scales_of([{3: layer}, {4: SimpleNamespace()}])
    assert (found.k, found.v) == ({3: 0.25}, {3: 0.5})
