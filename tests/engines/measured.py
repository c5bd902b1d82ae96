# SPDX-License-Identifier: Apache-2.0
"""An engine process for `compare.py`. It is client/examples/vllm/engine.py, writes its whole KV cache
once at its start, counts the time inside saves, and has two more commands. They work with any
connector:

    {"do": "attach", "on": false}  serves the following requests as if there were no connector, so
                                   that both are compared within one process
    {"do": "settle"}  runs steps until the connector holds no finished request any more; answers
                      with the seconds spent inside saves since the last time
"""

import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "examples" / "vllm"))

import engine  # noqa: E402

LMCACHE = ROOT / "build" / "engines" / "lmcache"
SAVES = ("save_kv_layer", "wait_for_save")  # what a step waits for
SETTLE_SECONDS_MAX = 60
# Of a cache that is all written, 0.5 GiB for five engines at once: four requests of the longest.
CACHE_BLOCKS = 640


class Connector:
    """The engine's connector, on the scheduler's and on the worker's side; there may be none."""

    def __init__(self, llm):
        from vllm.distributed.kv_transfer import kv_transfer_state

        self._state = kv_transfer_state
        self._client = llm.llm_engine.engine_core
        self._scheduler = self._client.engine_core.scheduler
        self._scheduler_side = self._scheduler.connector
        self._worker_side = kv_transfer_state._KV_CONNECTOR_AGENT
        self._save_seconds = 0.0
        if self._worker_side is not None:
            for name in SAVES:
                setattr(self._worker_side, name, self._timed(getattr(self._worker_side, name)))

    def attach(self, on):
        self.settle()  # a connector that is out is not told that a request has ended
        self._scheduler.connector = self._scheduler_side if on else None
        self._state._KV_CONNECTOR_AGENT = self._worker_side if on else None

    def settle(self):
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self._scheduler.has_requests():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the connector holds requests after {SETTLE_SECONDS_MAX} s")
            self._client.get_output()  # a step
            time.sleep(0.01)

    def take_save_seconds(self):
        seconds, self._save_seconds = self._save_seconds, 0.0
        return seconds

    def _timed(self, call):
        def timed(*arguments, **named):
            begin = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._save_seconds += time.perf_counter() - begin

        return timed


def let_lmcache_in():
    """Makes vLLM start beside LMCache. vLLM 0.32 looks for its kernels in all modules and takes the
    `__dict__` of what it finds for a dictionary. LMCache imports llvmlite, where one is not."""
    sys.path.insert(0, str(LMCACHE))
    from vllm.triton_utils import dispatcher

    def dictionary_of(value):
        found = vars(value)
        return found if isinstance(found, dict) else {}

    dispatcher.vars = dictionary_of


def touch_cache(llm):
    """An engine that has served for a while has written each page of its cache, as this does at once.
    Else page faults would be timed with whatever writes a page first."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    for cache in worker.model_runner.kv_caches:
        cache.zero_()


def started(llm):
    touch_cache(llm)
    connector = Connector(llm)

    def answer(command):
        if command["do"] == "attach":
            connector.attach(command["on"])
            return {"ok": True}
        if command["do"] == "settle":
            connector.settle()
            return {"save_seconds": connector.take_save_seconds()}
        return engine.answer(llm, command)

    return answer


if __name__ == "__main__":
    given = {} if sys.argv[2] == "-" else json.loads(sys.argv[2])
    if given.get("kv_connector", "").startswith("LMCache"):
        let_lmcache_in()
    engine.main(started, num_gpu_blocks_override=CACHE_BLOCKS)
