# SPDX-License-Identifier: Apache-2.0
"""A stand-in for what vLLM 0.32's secondary tiers import, and for the part of its tiering manager that
calls them. The check against the installed package is tests/engines/tier_contract.py."""

import dataclasses
import enum
import itertools
import sys
from types import SimpleNamespace

import fake_vllm
import numpy as np
from fake_modules import install_modules


class LookupResult(enum.Enum):
    MISS, HIT, HIT_PENDING, RETRY = range(4)


class Medium(enum.Enum):
    CPU, STORAGE = "CPU", "STORAGE"


class Locality(enum.Enum):
    LOCAL, REMOTE = "LOCAL", "REMOTE"


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: object = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._primary_kv_view, self.tier_type = primary_kv_view, tier_type
        self._block_size_bytes = primary_kv_view.strides[0]
        self.locality = None

    @property
    def block_size_bytes(self):
        return self._block_size_bytes


class OffloadingConnector:
    """make: of its tier, for one in the scheduler."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self.tier = vllm_config.make()

    def on_new_request(self, request):
        told = {"kv_transfer_params": getattr(request, "kv_transfer_params", None)}
        self.tier.on_new_request(SimpleNamespace(req_id=request.request_id, **told))

    def reset_cache(self):
        self.tier.drain_jobs()
        return True


def install():
    """Puts the modules where `import vllm…` finds them."""
    fake_vllm.install()
    members = {
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector": {
            "OffloadingConnector": OffloadingConnector
        },
        "vllm.v1.kv_offload.base": {
            "LookupResult": LookupResult,
            "Medium": Medium,
            "Locality": Locality,
            "RequestOffloadingContext": type("RequestOffloadingContext", (), {}),
            "get_offload_block_hash": lambda key: key[:-4],  # before the number of the group
        },
        "vllm.v1.kv_offload.tiering.base": {
            "JobResult": JobResult,
            "SecondaryTierManager": SecondaryTierManager,
        },
    }
    install_modules(members)


def spec(**changed):
    """An OffloadingSpec, of which tiers read the configuration."""
    parallel = {"tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "rank": 0}
    parallel["is_parallelism_agnostic"] = True
    fields = {
        "groups": [SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"))],
        "model": SimpleNamespace(name="fake-model", dtype="bfloat16"),
        "cache": SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        "kv_cache_layout": "LBHNC",
        "canonical_layout": False,
        "replicated_layout": False,
    }
    fields["parallel"] = SimpleNamespace(**(parallel | changed.pop("parallel", {})))
    return SimpleNamespace(config=SimpleNamespace(**(fields | changed)))


class Primary:
    """vLLM's host memory, [chunks, bytes], and the manager's steps over one tier."""

    def __init__(self, tier_class, settings, chunk_bytes=4096, chunk_count=32, **changed):
        self.memory = np.zeros((chunk_count, chunk_bytes), np.int8)
        config, _ = fake_vllm.configs({}, **changed.pop("engine", {}))
        config.make = lambda: tier_class(
            offloading_spec=spec(**changed),
            primary_kv_view=memoryview(self.memory),
            tier_type="CairnTier",
            backpressure_detector=None,
            **settings,
        )
        self.connector = sys.modules[tier_class.__module__].CairnOffloadingConnector(
            config, "scheduler", None
        )
        self.tier = self.connector.tier
        self.begin("r")
        self._jobs = itertools.count()
        self.finished = {}

    def begin(self, request, **more):
        self.connector.on_new_request(fake_vllm.Request(request, [], **more))

    def look_up(self, keys, request="r"):
        """How many of the keys, from the first on, are hits, step by step until it is known."""
        context = SimpleNamespace(req_id=request)
        for steps in itertools.count():
            found = []
            for key in keys:
                found.append(self.tier.lookup(key, context))
                if found[-1] != LookupResult.HIT:
                    break
            self.step()
            if LookupResult.RETRY not in found:
                return sum(one == LookupResult.HIT for one in found)
            assert steps < 100000, "it is asked for ever"

    def step(self):
        self.tier.on_schedule_end(None)
        for one in self.tier.get_finished_jobs():
            self.finished[one.job_id] = one

    def end(self, request="r"):
        self.tier.on_request_finished(SimpleNamespace(req_id=request))

    def submit(self, keys, chunks, is_promotion, request="r"):
        job = SimpleNamespace(
            job_id=next(self._jobs),
            keys=keys,
            chunk_ids=np.array(chunks, np.int64),
            is_promotion=is_promotion,
            req_context=SimpleNamespace(req_id=request),
        )
        (self.tier.submit_load if is_promotion else self.tier.submit_store)(job)
        return job.job_id

    def move(self, keys, chunks, is_promotion, request="r"):
        """The result of a job."""
        number = self.submit(keys, chunks, is_promotion, request)
        while number not in self.finished:
            assert self.tier.has_pending_work()
            self.step()
        return self.finished[number]

    def store(self, keys, chunks, request="r"):
        return self.move(keys, chunks, False, request)

    def load(self, keys, chunks):
        return self.move(keys, chunks, True)
