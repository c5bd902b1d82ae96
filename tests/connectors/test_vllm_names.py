# SPDX-License-Identifier: Apache-2.0
"""What K and V depend on is in the name of a space, with vLLM's own configuration."""

from cairn.vllm.model import model_of
from cairn.vllm.settings import Settings


def kv_cache_config(vllm_config):
    """As a worker finds it in a model without windows."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    spec = FullAttentionSpec(
        block_size=vllm_config.cache_config.block_size,
        num_kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        dtype=model.dtype if vllm_config.cache_config.cache_dtype == "auto" else torch.uint8,
    )
    names = [f"model.layers.{i}.self_attn.attn" for i in range(model.get_total_num_hidden_layers())]
    return KVCacheConfig(0, [], [KVCacheGroupSpec(names, spec)])


def space_of(vllm_config):
    settings = Settings.of(vllm_config.kv_transfer_config.kv_connector_extra_config)
    return model_of(vllm_config, kv_cache_config(vllm_config), settings).spec


def test_equal_options_make_equal_names(vllm_config):
    one = space_of(vllm_config())
    assert one == space_of(vllm_config())
    assert one.weights_revision.startswith("files:") and one.groups[0].kv_heads == 2
