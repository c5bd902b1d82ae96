# SPDX-License-Identifier: Apache-2.0
"""The HiCache backend against the installed SGLang, of `make test-engines`: its factory loads it, and
pages of its own pools of host memory come back. Without an engine, whose kernels need a GPU: of
SGLang there is the package alone, beside vLLM's torch.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import tempfile
import types
import warnings
from unittest.mock import MagicMock

ROOT = pathlib.Path(__file__).resolve().parents[2]
for path in ("client/python", "client/examples/demo", "client/examples/vllm", "tests/engines"):
    sys.path.insert(0, str(ROOT / path))

MEM_CACHE = "sglang.srt.mem_cache"
UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 64, 32, 5


def use_package(folder):
    """Makes `sglang…` importable without the servers that its top module brings along, and without
    what those need and this environment has not."""
    sys.path.append(str(folder))
    top = types.ModuleType("sglang")
    top.__path__ = [str(folder / "sglang")]
    sys.modules["sglang"] = top
    warnings.simplefilter("ignore")
    for _ in range(20):
        try:
            return importlib.import_module(f"{MEM_CACHE}.pool_host.mha")
        except ModuleNotFoundError as error:
            absent = MagicMock(__path__=[], __spec__=None)
            sys.modules[error.name] = absent
            print(f"       | without {error.name}", flush=True)
    raise SystemExit("SGLang's pools cannot be imported")


def published(folder, **options):
    """A context in which SGLang's process has a configuration, as its scheduler has."""
    fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": DIM}
    fields |= {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": HEADS}
    fields |= {"num_hidden_layers": LAYERS, "max_position_embeddings": 4096, "vocab_size": 1000}
    (folder / "config.json").write_text(json.dumps(fields))
    for _ in range(20):
        try:
            importlib.import_module("sglang.srt.server_args")
            context = importlib.import_module("sglang.srt.runtime_context").get_context()
            importlib.import_module(UPDATER)
            return context.override_server_args(model_path=str(folder), **options)
        except ModuleNotFoundError as error:
            sys.modules[error.name] = MagicMock(__path__=[], __spec__=None)
    raise SystemExit("SGLang's configuration cannot be imported")


def pool_of(module, layout, dtype):
    import torch
    from sglang.srt.mem_cache import device_pool_info as info

    def buffers():
        shape = ((PAGES - 1) * PAGE, HEADS, DIM)
        return tuple(torch.zeros(shape, dtype=dtype) for _ in range(LAYERS))

    k, v = buffers(), buffers()
    pointers = torch.zeros(LAYERS, dtype=torch.uint64)
    described = info.MHABufferInfo(
        buffers=info.KVBuffers(
            k=k, v=v, k_data_ptrs=pointers, v_data_ptrs=pointers, layout=info.KVBufferLayout.NHD
        ),
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    pool = module.MHATokenToKVPoolHost(
        described,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=(PAGES - 1) * PAGE,
        start_layer=0,
        end_layer=LAYERS - 1,
    )
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape).to(dtype))
    return pool


def config_of(daemon, **extra):
    """The configuration of a storage backend that is Cairn, of one rank."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    given = {
        "backend_name": "cairn",
        "module_path": "cairn.sglang",
        "class_name": "CairnHiCache",
        "interface_v1": 1,
        "control": daemon.control,
    }
    return HiCacheStorageConfig(
        0, 1, 0, 1, 0, 1, False, False, False, "synthetic", extra_config=given | extra
    )


def backend_of(pool, daemon, **extra):
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    named = {"weights_revision": f"contract {pool.layout} {pool.dtype}"}
    config = config_of(daemon, **named | extra)
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    backend.register_mem_pool_host(pool)
    backend.on_host_pools_registered()
    return backend


def check_layout(check, module, daemon, layout, dtype, name):
    """name: what a space calls the elements."""
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    pool = pool_of(module, layout, dtype)
    backend = backend_of(pool, daemon)
    what = f"{layout} {dtype}"
    if not backend._session.wait(10):
        return check(f"{what}: a session", False)
    keys = [f"{i:064x}" for i in range(4)]
    given = [pool.get_data_page(i * PAGE).clone() for i in range(4)]
    places = torch.arange(4 * PAGE)
    check(f"{what}: stores", all(backend.batch_set_v1(keys[:2], places[: 2 * PAGE])))
    more = HiCacheStorageExtraInfo(prefix_keys=keys[:2])
    check(f"{what}: goes on", all(backend.batch_set_v1(keys[2:], places[2 * PAGE :], more)))
    check(f"{what}: finds", backend.batch_exists([*keys, "f" * 64]) == 4)
    pool.kv_buffer.zero_()
    check(f"{what}: loads", all(backend.batch_get_v1(keys, places)))
    same = [torch.equal(pool.get_data_page(i * PAGE), page) for i, page in enumerate(given)]
    check(f"{what}: bit for bit", all(same))
    apart = backend.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    check(f"{what}: apart", all(torch.equal(*pair) for pair in zip(apart, given, strict=True)))
    space = backend._session.space
    check(f"{what}: elements are known", (space.spec.dtype, space.spec.groups[0].kind) == (name, "kv"))
    backend.close()
    return None


def check_pools(check, module, daemon):
    """K and V, and those of windows beside them, as the controller of hybrid models keeps them."""
    import torch
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    pool, window = (pool_of(module, layout, torch.bfloat16) for layout in LAYOUTS[:2])
    backend = backend_of(pool, daemon, weights_revision="pools")
    for name, one in ((PoolName.KV, pool), (PoolName.SWA, window)):
        backend.register_mem_host_pool_v2(one, name)
    if not all(one.session.wait(10) for one in backend._pools.values()):
        return check("pools: sessions", False)
    keys, policy = [f"{i:064x}" for i in range(4)], PoolHitPolicy.TRAILING_PAGES
    trailing = PoolTransfer(PoolName.SWA, torch.arange(2 * PAGE), keys=keys[2:], hit_policy=policy)
    given = [window.get_data_page(i * PAGE).clone() for i in range(2)]
    check("pools: stores K and V", all(backend.batch_set_v1(keys, torch.arange(4 * PAGE))))
    check("pools: stores windows", backend.batch_set_v2([trailing]) == {PoolName.SWA: [True] * 2})
    found = backend.batch_exists_v2(keys, [trailing])
    check("pools: finds", found.kv_hit_pages == 4 and found.restorable_prefix_pages == [4])
    window.kv_buffer.zero_()
    check("pools: loads", backend.batch_get_v2([trailing])["swa"] == [True] * 2)
    same = [torch.equal(window.get_data_page(i * PAGE), page) for i, page in enumerate(given)]
    check("pools: bit for bit", all(same))
    backend.close()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang", type=pathlib.Path, default=ROOT / "build/engines/sglang")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    arguments = parser.parse_args()
    bin_dir = arguments.bin_dir.resolve()
    os.environ.setdefault("CAIRN_LIBRARY", str(bin_dir.parent / "lib" / "libcairn.so"))
    if not (arguments.sglang / "sglang").is_dir():
        raise SystemExit(f"{arguments.sglang} has no SGLang: make test-engines")
    module = use_package(arguments.sglang.resolve())
    import torch
    from daemon import Daemon
    from run import Checks

    # SGLang leaves 10 GiB of the machine's memory free. These pools have less than a megabyte.
    importlib.import_module(f"{MEM_CACHE}.pool_host.base").HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-sglang-") as folder:
        folder = pathlib.Path(folder)
        with published(folder), Daemon(bin_dir, "local", folder, "64MiB") as daemon:
            for layout in LAYOUTS:
                check_layout(check, module, daemon, layout, torch.bfloat16, "bf16")
            check_pools(check, module, daemon)
        # SGLang keeps 8-bit floats as bytes: its setting tells what they are.
        for name in ("fp8_e4m3", "fp8_e5m2"):
            with published(folder, kv_cache_dtype=name), Daemon(
                bin_dir, "local", folder, "64MiB"
            ) as daemon:
                check_layout(check, module, daemon, "page_first", torch.uint8, name)
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
