# SPDX-License-Identifier: Apache-2.0
"""The classes of host memory pools of the installed SGLang: an example of each that Cairn moves, made
by that class's own constructor, and the names of all others. test_sglang_pools.py moves their pages,
and holds docs/guides/sglang.md against them."""

import importlib
import inspect
import pkgutil
import types

PAGE, PAGES, LAYERS = 32, 6, 3
HEADS, DIM, LATENT, ROTARY = 2, 64, 512, 64
LAYOUTS = {
    "MHATokenToKVPoolHost": ("layer_first", "page_first", "page_first_direct", "page_head"),
    "MambaPoolHost": ("page_first", "page_first_direct"),
}
OTHER_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
_MEM_CACHE = "sglang.srt.mem_cache"
_ABSTRACT = {"HostKVCache"}


def modules(load):
    """SGLang's modules with pools of host memory. load: imports one."""
    folder = load(f"{_MEM_CACHE}.pool_host")
    names = [f"{folder.__name__}.{one.name}" for one in pkgutil.iter_modules(folder.__path__)]
    return [load(name) for name in (*names, f"{_MEM_CACHE}.memory_pool_host")]


def classes(load):
    """By name, every class of pools that this SGLang has."""
    base = load(f"{_MEM_CACHE}.pool_host.base").HostKVCache
    return {
        one.__name__: one
        for module in modules(load)
        for one in vars(module).values()
        if inspect.isclass(one)
        and one.__module__.startswith(_MEM_CACHE)
        and (issubclass(one, base) or one.__name__.endswith("HostPool"))
    }.keys() - _ABSTRACT


def capacity(**changed):
    return {
        "device_capacity_tokens": (PAGES - 1) * PAGE,
        "start_layer": 0,
        "end_layer": LAYERS - 1,
    } | changed


def kv(layout, dtype=None, drafts=0, heads=HEADS):
    """drafts: layers of draft models that SGLang packs behind the target's."""
    import torch
    from sglang.srt.mem_cache import device_pool_info as info
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    dtype = dtype or torch.bfloat16

    def buffers(layers):
        shape = ((PAGES - 1) * PAGE, heads, DIM)
        k, v = ([torch.zeros(shape, dtype=dtype) for _ in range(layers)] for _ in range(2))
        pointers = torch.zeros(layers, dtype=torch.uint64)
        return info.MHABufferInfo(
            buffers=info.KVBuffers(
                k=tuple(k),
                v=tuple(v),
                k_data_ptrs=pointers,
                v_data_ptrs=pointers,
                layout=info.KVBufferLayout.NHD,
            ),
            page_size=PAGE,
            head_num=heads,
            head_dim=DIM,
            v_head_dim=DIM,
            dtype=dtype,
            device=torch.device("cpu"),
        )

    more = {"draft_buffer_infos": [buffers(1) for _ in range(drafts)], "pin_memory": False}
    return MHATokenToKVPoolHost(buffers(LAYERS), 1.0, 0, PAGE, layout, **more, **capacity())


def latents(layout, dtype=None, drafts=0):
    import torch
    from sglang.srt.mem_cache import device_pool_info as info
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    dtype, width = dtype or torch.bfloat16, LATENT + ROTARY

    def rows(layers, slots):
        shape = ((PAGES - 1) * PAGE, 1, width)
        return info.MLABufferInfo(
            buffers=tuple(torch.zeros(shape, dtype=dtype) for _ in range(layers)),
            data_ptrs=torch.zeros(layers, dtype=torch.uint64),
            layer_indices=slots,
            device_layer_num=LAYERS,
            page_size=PAGE,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=ROTARY,
            kv_cache_dim=width,
            dtype=dtype,
            device=torch.device("cpu"),
        )

    more = {"draft_buffer_infos": [rows(1, (0,)) for _ in range(drafts)], "pin_memory": False}
    target = rows(LAYERS, tuple(range(LAYERS)))
    return MLATokenToKVPoolHost(
        target, 1.0, 0, PAGE, layout, target_layer_num=LAYERS, **more, **capacity()
    )


def index(layout):
    """Of sparse attention as in DeepSeek V3.2: keys of 128 channels in 8 bits, and their scales."""
    import torch
    from sglang.srt.mem_cache.pool_host import dsa

    rows = 128 + 4
    device = types.SimpleNamespace(
        index_head_dim=128,
        quant_block_size=128,
        index_page_size=PAGE,
        page_size=PAGE,
        skip_topk_layers=[False, True, False],  # the second layer uses the first one's choice
        store_dtype=torch.uint8,
        start_layer=0,
        end_layer=LAYERS - 1,
        layer_num=LAYERS,
        device="cpu",
        index_k_with_scale_buffer=[
            torch.zeros((PAGES, PAGE * rows), dtype=torch.uint8) for _ in range(LAYERS)
        ],
        is_layer_owned=lambda layer: True,
        owned_layer_range=(0, LAYERS),
        layer_shard_enabled=False,
    )
    decl = dsa.make_dsa_indexer_pool_decl(device)
    return dsa.DSAIndexerPoolHost(decl, latents(layout), pin_memory=False)


def states(layout, extra=True):
    """extra: with states that lie beside them for each checkpoint."""
    import torch
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    slots = PAGES - 1
    described = MambaStateBufferInfo(
        temporal=torch.zeros((LAYERS, slots, 4, 16, 16), dtype=torch.float32),
        conv=(torch.zeros((LAYERS, slots, 96, 3), dtype=torch.bfloat16),),
        extra_checkpoint_buffers=(torch.zeros((slots, 7), dtype=torch.bfloat16),) if extra else (),
    )
    return MambaPoolHost(described, 1.0, 0, device_capacity=slots, pin_memory=False, layout=layout)


def index_keys(layout):
    """MiniMax's index."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKOnlyPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost

    device = MHATokenToKOnlyPool(
        (PAGES - 1) * PAGE, PAGE, torch.bfloat16, 1, DIM, LAYERS, "cpu", False
    )
    return MHATokenToKOnlyPoolHost(device, kv(layout), layout, pin_memory=False)


def compressed_index(layout):
    """Qwen's index: one key for four tokens."""
    import torch
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost

    rows = [torch.zeros((PAGES * PAGE // 4, 1, DIM), dtype=torch.bfloat16) for _ in range(LAYERS)]
    device = types.SimpleNamespace(qsa_compress_ratio=4, qsa_compressed_k_buffer_pool=rows)
    return QSAIndexerPoolHost(device, kv(layout))


def _page_rows(count):
    import torch
    from sglang.srt.mem_cache.device_pool_info import PageRowBufferInfo

    slab = torch.zeros((LAYERS, PAGES, count), dtype=torch.uint8)
    rows = tuple(slab[i] for i in range(LAYERS))
    return PageRowBufferInfo(slab=slab, rows=rows, row_bytes=count, page_size=PAGE, num_pages=PAGES)


def nvfp4_kv(layout):
    from sglang.srt.mem_cache.pool_host.minimax_m3_nvfp4 import MiniMaxM3Nvfp4MainKVPoolHost

    rows = _page_rows(PAGE * 2 * (DIM // 2 + DIM // 16))
    return MiniMaxM3Nvfp4MainKVPoolHost(rows, 1.0, 0, PAGE, layout, pin_memory=False, **capacity())


def nvfp4_index(layout):
    from sglang.srt.mem_cache.pool_host.minimax_m3_nvfp4 import MiniMaxM3Nvfp4IndexKPoolHost

    rows = _page_rows(PAGE * (DIM // 2 + DIM // 16))
    layers = {"start_layer": 0, "end_layer": LAYERS - 1}
    return MiniMaxM3Nvfp4IndexKPoolHost(rows, nvfp4_kv(layout), layout, pin_memory=False, **layers)


# By class: what makes an example, the name that SGLang gives such a pool, and what a prefix needs.
EXAMPLES = {
    "MHATokenToKVPoolHost": (kv, "kv", "all_pages"),
    "MLATokenToKVPoolHost": (latents, "kv", "all_pages"),
    "DSAIndexerPoolHost": (index, "indexer", "all_pages"),
    "MambaPoolHost": (states, "mamba", "trailing_pages"),
    "MHATokenToKOnlyPoolHost": (index_keys, "indexer", "all_pages"),
    "QSAIndexerPoolHost": (compressed_index, "indexer", "all_pages"),
    "MiniMaxM3Nvfp4MainKVPoolHost": (nvfp4_kv, "kv", "all_pages"),
    "MiniMaxM3Nvfp4IndexKPoolHost": (nvfp4_index, "indexer", "all_pages"),
}


def unmade(name, load):
    """An instance of a class that is refused: by its name, before anything else is looked at."""
    (module,) = {
        vars(module)[name].__module__ for module in modules(load) if name in vars(module)
    }
    kind = vars(importlib.import_module(module))[name]
    return kind.__new__(kind)
