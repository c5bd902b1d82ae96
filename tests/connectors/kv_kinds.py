# SPDX-License-Identifier: Apache-2.0
"""The classes of KV caches of the installed vLLM, one example each: the shape of its tensors, what of
a prefix vLLM's own manager keeps, and what the connector makes of it. Printed as a table:
`.ci/engines tests/connectors/kv_kinds.py`. test_vllm_kinds.py holds docs/guides/vllm.md against it."""

import inspect
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

import torch  # noqa: E402
from cairn import InvalidArgumentError  # noqa: E402
from cairn.vllm.kinds import shape_of  # noqa: E402
from vllm.v1 import kv_cache_interface as theirs  # noqa: E402

BLOCK, BLOCKS, PREFIX, WINDOW = 32, 40, 1024, 160
ABSTRACT = {"KVCacheSpec", "AttentionSpec"}  # of which vLLM makes none
HEADS = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
LATENT = {"num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16, "max_tp_shards": 1}
INDEX = LATENT | {
    "head_size": 132,
    "dtype": torch.uint8,
    "cache_role": theirs.SparseCacheRole.INDEXER,
}
UNLIKE = HEADS | {"head_size": 192, "head_size_v": 128}  # MiMo-V2's
# DeepSeek V4's, as vllm/models/deepseek_v4 makes them: rows of four tokens, and windows of raw keys.
V4 = {"num_kv_heads": 1, "max_tp_shards": 1, "head_size": 512, "dtype": torch.uint8}
V4 |= {"model_version": "deepseek_v4", "alignment": 576, "state_content_bytes": 584}
V4 |= {"cache_dtype_str": "fp8_ds_mla"}
CODED = HEADS | {"dtype": torch.uint8}  # as vLLM's backends customize them
OF_TOKENS = {"state_content_bytes": 2 * (64 + 4)}  # a scale of fp32 behind K, and one behind V
NVFP4 = {"num_head_slots": 4, "state_content_bytes": 64 // 2 + 64 // 16}
DS_MLA = LATENT | {"dtype": torch.uint8}
STATE = {"shapes": ((3, 192), (2, 64, 16)), "dtypes": (torch.bfloat16, torch.float32)}

# What an example of each class is made with; a tuple: of several, named by what tells them apart.
EXAMPLES = {
    "FullAttentionSpec": HEADS,
    "SlidingWindowSpec": HEADS | {"sliding_window": WINDOW},
    "MLAAttentionSpec": LATENT,
    "MLAAttentionSpec, of an index": INDEX,
    "MLAAttentionSpec, fp8_ds_mla": DS_MLA
    | {"cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 656},
    "MLAAttentionSpec, nvfp4_ds_mla": DS_MLA
    | {"cache_dtype_str": "nvfp4_ds_mla", "state_content_bytes": 352},
    "FullAttentionSpec, fp8_per_token_head": CODED
    | OF_TOKENS
    | {"kv_quant_mode": theirs.KVQuantMode.FP8_PER_TOKEN_HEAD},
    "FullAttentionSpec, int8_per_token_head": CODED
    | OF_TOKENS
    | {"kv_quant_mode": theirs.KVQuantMode.INT8_PER_TOKEN_HEAD, "dtype": torch.int8},
    "FullAttentionSpec, int4_per_token_head": CODED
    | {"kv_quant_mode": theirs.KVQuantMode.INT4_PER_TOKEN_HEAD, "state_content_bytes": 72},
    "FullAttentionSpec, nvfp4": CODED | NVFP4 | {"kv_quant_mode": theirs.KVQuantMode.NVFP4},
    "FullAttentionSpec, turboquant_k8v4": CODED
    | {"kv_quant_mode": theirs.KVQuantMode.TURBOQUANT_K8V4, "state_content_bytes": 100},
    "FullAttentionSpec, ultraquant_4bit": CODED
    | {"kv_quant_mode": theirs.KVQuantMode.ULTRAQUANT_4BIT, "state_content_bytes": 72},
    "SlidingWindowSpec, int8_per_token_head": CODED
    | OF_TOKENS
    | {"kv_quant_mode": theirs.KVQuantMode.INT8_PER_TOKEN_HEAD, "sliding_window": WINDOW},
    "MLAAttentionSpec, of DeepSeek V4": V4 | {"tokens_per_state": 4},
    "SlidingWindowMLASpec, of DeepSeek V4": V4 | {"sliding_window": WINDOW},
    "FullAttentionSpec, of unlike heads": UNLIKE,
    "SlidingWindowSpec, of unlike heads": UNLIKE | {"sliding_window": WINDOW},
    "SlidingWindowMLASpec": LATENT | {"sliding_window": WINDOW},
    "MambaSpec": STATE | {"mamba_cache_mode": "align"},
    "MambaSpec, without prefix caching": STATE,
    "HiddenStateCacheSpec": LATENT,
    "RSWASpec": HEADS | {"rswa_window": WINDOW},
    "ChunkedLocalAttentionSpec": HEADS | {"attention_chunk_size": 256},
    "CircularBufferSpec": HEADS,
    "EncoderOnlyAttentionSpec": HEADS,
    "CrossAttentionSpec": HEADS,
    "SinkFullAttentionSpec": HEADS | {"sink_len": BLOCK},
    "HiSparseHotSpec": {"page_size": 4096, "blocks_per_request": 2},
    "HiSparseResidentSpec": {"page_size": 4096},
}


def classes():
    """Names of all that this vLLM has."""
    found = vars(theirs).values()
    return {
        one.__name__
        for one in found
        if inspect.isclass(one) and issubclass(one, theirs.KVCacheSpec)
    } - ABSTRACT


def examples():
    """By the names of the table, specifications; of layers of unlike shapes, what holds them."""
    made = {
        name: getattr(theirs, name.split(",")[0])(block_size=BLOCK, **fields)
        for name, fields in EXAMPLES.items()
    }
    layers = {"0": made["MLAAttentionSpec"], "1": made["MLAAttentionSpec, of an index"]}
    made["UniformTypeKVCacheSpecs"] = theirs.UniformTypeKVCacheSpecs(
        block_size=BLOCK, kv_cache_specs=layers
    )
    return made


def tensor_of(spec):
    """A layer's cache as a worker has it: shape and strides, in elements. None: it has none."""
    if not spec.has_layer_views or isinstance(spec, theirs.UniformTypeKVCacheSpecs):
        return None
    from vllm.v1.kv_cache_layout import KVCacheLayout

    page = spec.page_size_bytes
    place = theirs.KVCacheTensor(BLOCKS * page, ["0"], BLOCKS * page, page)
    raw = torch.zeros(BLOCKS * page, dtype=torch.int8)
    try:
        (view,) = theirs.create_kv_cache_views(raw, spec, BLOCKS, KVCacheLayout.LBNHC, place)
    except NotImplementedError:  # of the base class: it is laid out elsewhere
        return None
    return view.dtype, tuple(view.shape), tuple(view.stride())


def manager_of(spec):
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.single_type_kv_cache_manager import get_manager_for_kv_cache_spec

    pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=BLOCK)
    return get_manager_for_kv_cache_spec(
        spec,
        max_in_flight_tokens=PREFIX,
        max_model_len=4096,
        block_pool=pool,
        enable_caching=True,
        kv_cache_group_id=0,
        scheduler_block_size=BLOCK,
    )


def kept_of(spec):
    """Of the blocks of a prefix those that vLLM keeps when it has computed them, by its own manager;
    a text where it has no blocks of prefixes."""
    if not spec.prefix_cacheable:
        return "no prefixes"
    if isinstance(spec, theirs.UniformTypeKVCacheSpecs):
        spec = spec.first_spec
    try:
        manager = manager_of(spec)
        manager.allocate_new_blocks("one", PREFIX, PREFIX)
        manager.remove_skipped_blocks("one", PREFIX, PREFIX)
    except (AssertionError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
        return f"not by itself: {type(error).__name__}"
    blocks = manager.req_to_blocks["one"]
    kept = [i for i, block in enumerate(blocks) if not block.is_null]
    return f"{len(kept)} of {len(blocks)}, {type(manager).__name__}"


def made_of(spec):
    """What the connector makes of it: the group's kind, or why there is none."""
    layers = [spec]
    if isinstance(spec, theirs.UniformTypeKVCacheSpecs):
        layers = list(spec.kv_cache_specs.values())
    try:
        return ", ".join(shape_of(one).kind for one in layers)
    except InvalidArgumentError as error:
        return f"refused: {error}"


def main():
    print("| vLLM's class | a layer's tensor | strides | blocks kept | in a space |")
    print("| --- | --- | --- | --- | --- |")
    for name, spec in examples().items():
        dtype, shape, strides = tensor_of(spec) or ("–", "–", "–")
        tensor = f"{str(dtype).removeprefix('torch.')} {shape}"
        print(f"| {name} | {tensor} | {strides} | {kept_of(spec)} | {made_of(spec)} |")


if __name__ == "__main__":
    main()
