# SPDX-License-Identifier: Apache-2.0
"""The secondary tier against the installed vLLM, of `make test-engines`: its factory loads it, and
chunks that one tiering manager has offloaded another one brings back into its own host memory.
Without an engine, whose offloading needs a GPU."""

import argparse
import os
import pathlib
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
for path in ("client/python", "client/examples/vllm", "tests/engines"):
    sys.path.insert(0, str(ROOT / path))

CHUNKS, CHUNK_BYTES = 24, 1 << 16
WAIT_SECONDS_MAX = 60.0


def manager_of(name, control, revision="r"):
    from cairn.vllm.tier import OfEngine
    from vllm.v1.kv_offload import config
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    tier = {"type": "CairnTier", "module_path": "cairn.vllm.tier"}
    tier |= {"control": control, "weights_revision": revision}
    parallel = config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True)
    spec = TieringOffloadingSpec(
        config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(16, ("layers.0", "layers.1"), 0),),
            worker_kv_bytes_per_block=CHUNK_BYTES,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": 2 * CHUNKS * CHUNK_BYTES, "secondary_tiers": [tier]},
            engine_id=f"cairn-{os.getpid()}-{name}",
            model=config.OffloadingModelConfig("some/model", "bfloat16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=parallel,
            kv_cache_layout="LBHNC",
        )
    )
    engine = OfEngine("of a configuration")
    with engine.here():
        manager = spec.get_manager()
    manager.of_engine = engine
    manager.secondary_tiers[0]._session.wait(10)
    return manager


def begin(manager, context):
    """A request has come, as the connector says it."""
    manager.of_engine.begin(
        types.SimpleNamespace(request_id=context.req_id, lora_request=None, mm_features=[])
    )
    manager.on_new_request(context)


def rows_of(manager):
    import numpy as np

    return np.asarray(manager.primary_tier.get_kv_memoryview()).view(np.uint8)


def step_until(manager, is_over):
    from vllm.v1.kv_offload.base import ScheduleEndContext

    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_over():
        manager.on_schedule_end(ScheduleEndContext((), ()))
        if time.monotonic() > deadline:
            raise SystemExit("the tiering manager does not get on")
        time.sleep(0.001)


def offload(manager, keys, content):
    from vllm.v1.kv_offload.base import ReqContext

    context = ReqContext("stores")
    begin(manager, context)
    prepared = manager.prepare_store(keys, context)
    rows_of(manager)[prepared.store_spec.chunk_ids] = content
    manager.complete_store(keys, context)
    manager.on_request_finished(context)
    step_until(manager, lambda: not manager.has_pending_work())


def bring_back(manager, keys, name="loads"):
    """Which are hits in the end, and what is in host memory of them."""
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    context, found = ReqContext(name), {}
    begin(manager, context)

    def is_over():
        found.update((key, manager.lookup(key, context)) for key in keys)
        return set(found.values()) <= {LookupResult.HIT, LookupResult.MISS}

    step_until(manager, is_over)
    hits = [key for key in keys if found[key] is LookupResult.HIT]
    content = []
    if hits:
        content = rows_of(manager)[manager.prepare_load(hits, context).chunk_ids].copy()
        manager.complete_load(hits, context)
    manager.on_request_finished(context)
    return hits, content


def compare(check, daemon):
    import numpy as np
    from vllm.v1.kv_offload.base import make_offload_key

    keys = [make_offload_key(bytes([i]) * 32, 0) for i in range(CHUNKS)]
    content = np.random.default_rng(1).integers(0, 256, (CHUNKS, CHUNK_BYTES), np.uint8)
    first = manager_of("first", daemon.control)
    check("what nobody stored is a miss", bring_back(first, keys[:3])[0] == [])
    offload(first, keys, content)
    second = manager_of("second", daemon.control)
    hits, got = bring_back(second, [*keys, make_offload_key(b"x" * 32, 0)])
    check("another manager finds all chunks", hits == keys, len(hits))
    check("and their bytes", np.array_equal(got, content))
    other = manager_of("other", daemon.control, "of another training")
    check("other weights hit nothing", bring_back(other, keys)[0] == [])
    third = manager_of("third", daemon.control)
    daemon.kill()
    began = time.monotonic()
    check("without a daemon there are misses", bring_back(third, keys)[0] == [])
    offload(third, keys[:2], content[:2])
    check("and nobody waits", time.monotonic() - began < 15, f"{time.monotonic() - began:.1f} s")
    hits, got = bring_back(third, keys[:2], "again")
    check("vLLM's own memory serves on", hits == keys[:2] and np.array_equal(got, content[:2]))
    for manager in (first, second, other, third):
        manager.shutdown()
    check("and is let go of", True)


def main():
    from run import Checks, Daemon

    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    arguments = parser.parse_args()
    library = arguments.bin_dir.resolve().parent / "lib" / "libcairn.so"
    os.environ.setdefault("CAIRN_LIBRARY", str(library))
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="cairn-engines-") as made:
        daemon = Daemon(arguments.bin_dir, pathlib.Path(made))
        try:
            daemon.start()
            compare(check, daemon)
        finally:
            daemon.kill()
    if check.failed:
        raise SystemExit(f"{check.failed} of the checks failed")


if __name__ == "__main__":
    main()
