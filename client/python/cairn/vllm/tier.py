# SPDX-License-Identifier: Apache-2.0
"""A secondary tier of vLLM's own offloading in Cairn (docs/guides/vllm.md): GPU, vLLM's host
memory, Cairn.

    {"kv_connector": "CairnOffloadingConnector", "kv_connector_module_path": "cairn.vllm.tier",
     "kv_role": "kv_both", "kv_connector_extra_config": {
       "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240, "secondary_tiers": [
         {"type": "CairnTier", "module_path": "cairn.vllm.tier",
          "control": "127.0.0.1:50151", "weights_revision": "…"}]}}

vLLM does not describe the layout of its chunks, so they are stored as bytes. With `"dtype"`, the type
of their elements, they are coded without loss, in any order. vLLM also does not tell a tier how its
chunks are named, or that weights may have changed. The connector tells the tier. In everything else,
it is vLLM's own `OffloadingConnector`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    RequestOffloadingContext,
    get_offload_block_hash,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .._deadline import time_left
from .._elements import Elements
from .._session import Session
from .._settings import StoreSettings, settings_of
from ..errors import Error, InvalidArgumentError
from ..keys import SpaceSpec
from ..space import Space
from ..transfer import Get, Names, Put
from .hints import Hint, hint_of, send
from .media import are_media_named, is_named_by_content
from .names import register
from .resolved import digest_of

_TOKENS = 16  # tokens of a block of the space, without meaning for bytes
_THREADS = 4
_SAY_SECONDS = 60.0  # seconds between two log lines about failures
_PART = 16  # chunks per call; if one chunk fails, the others fail too

log = logging.getLogger("cairn.vllm.tier")


@dataclasses.dataclass(frozen=True)
class Settings(StoreSettings):
    lookup_timeout: float = 0.5  # seconds that a request waits for a lookup
    weights_stay: bool = False  # even if vLLM resets its caches for sleep or pause
    dtype: str | None = None  # dtype of the elements of chunks

    @property
    def recipe(self) -> str:
        return "raw" if self.dtype is None else "exact"


class OfEngine:
    """The connector's knowledge of its engine, for the tiers that are created inside `here`. vLLM's
    scheduler calls it. configuration: a digest of the engine's configuration."""

    _here: ClassVar[OfEngine | None] = None

    def __init__(self, configuration: str, are_media_named: bool = True) -> None:
        self.configuration, self._are_media_named = configuration, are_media_named
        self._requests: dict[str, Any] = {}
        self.has_reset = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        OfEngine._here = self
        try:
            yield
        finally:
            OfEngine._here = None

    @staticmethod
    def found() -> OfEngine:
        if OfEngine._here is None:
            raise InvalidArgumentError(
                "the tier CairnTier is not told of adapters, media and new weights by"
                " OffloadingConnector: give its own connector, \"kv_connector\":"
                " \"CairnOffloadingConnector\", \"kv_connector_module_path\": \"cairn.vllm.tier\""
            )
        return OfEngine._here

    def begin(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def end(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def is_named(self, request_id: str) -> bool:
        """Returns whether vLLM's hashes of its chunks identify everything that they depend on. For
        adapters, they contain only a name and a path, and the files there may change."""
        request = self._requests.get(request_id)
        if request is None or request.lora_request is not None:
            return False
        names = [feature.identifier for feature in request.mm_features or ()]
        return not names or (self._are_media_named and all(map(is_named_by_content, names)))


class CairnOffloadingConnector(OffloadingConnector):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._of_engine = OfEngine(digest_of(vllm_config), are_media_named(vllm_config))
        with self._of_engine.here():
            super().__init__(vllm_config, role, kv_cache_config)

    def on_new_request(self, request: Any) -> None:
        self._of_engine.begin(request)
        super().on_new_request(request)

    def reset_cache(self) -> bool | None:
        done: bool | None = super().reset_cache()
        self._of_engine.has_reset = True
        return done


@dataclasses.dataclass
class _Asked:
    """What is known of a key, and which requests asked for it. found: None until there is an
    answer."""

    found: bool | None = None
    askers: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class _Hinted:
    """A request with a hint, and its chunks. told_count: of how many of them the daemon knows."""

    hint: Hint
    context: Any
    keys: dict[bytes, None] = dataclasses.field(default_factory=dict)
    told_count: int = 0


class CairnTier(SecondaryTierManager):
    """vLLM's scheduler calls it, and all calls return at once. Every job ends within its timeout
    and raises nothing. A failed load is a miss, and a failed save is not stored."""

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str = "LOCAL",
        **given: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        import numpy as np

        self.locality = Locality(locality)
        self._of_engine, self._is_reset_told = OfEngine.found(), False
        self._settings = settings_of(Settings, f"the tier {tier_type}", given)
        self._rows: Any = np.asarray(primary_kv_view).view(np.uint8)
        self._elements = Elements(f"the tier {tier_type}", self._settings.dtype, log)
        group, tokens = self._elements.group_of(self._rows.shape[1], _TOKENS)
        config = offloading_spec.config
        spec = SpaceSpec(
            config.model.name,
            f"{self._settings.weights_revision}, config {self._of_engine.configuration},"
            f" {_layout_of(config)}",
            (group,),
            self._elements.dtype or "bf16",
            tokens_per_block=tokens,
        )
        if self._elements.dtype is None:
            log.warning(
                "cairn: vLLM's chunks are kept as they are: recipes do not apply to bytes. If their"
                ' elements are bf16, say so: "dtype": "bf16"'
            )
        self._session = Session(self._settings, spec, "vllm tier", log)
        self._pool = ThreadPoolExecutor(_THREADS, "cairn-tier")
        self._looking = ThreadPoolExecutor(1, "cairn-tier-lookup")
        # Used only by the scheduler's thread.
        self._known: dict[bytes, _Asked] = {}
        self._keys_of: dict[str, list[bytes]] = {}  # by the request that asked
        self._unasked: list[bytes] = []
        self._hinted: dict[str, _Hinted] = {}  # by request
        self._is_hint_told = False
        self._changed = threading.Condition()
        self._running = 0  # this and all below are guarded by _changed
        self._finished: list[JobResult] = []
        self._answers: list[tuple[bytes, bool]] = []
        self._say_from = 0.0  # time at which the next failure is logged

    # ---------------------------------------------------------------------------- looking up

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        if self._session.space is None or not self._may_share(req_context):
            return LookupResult.MISS
        self._note([key], req_context)
        self._take_answers()
        asked = self._known.get(key)
        if asked is None:
            asked = self._known[key] = _Asked()
            self._unasked.append(key)
        if req_context.req_id not in asked.askers:
            asked.askers.add(req_context.req_id)
            self._keys_of.setdefault(req_context.req_id, []).append(key)
        if asked.found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if asked.found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._take_answers()
        keys, self._unasked = self._unasked, []
        if keys:
            self._looking.submit(
                self._look_up, keys, time.monotonic() + self._settings.lookup_timeout
            )
        for hinted in self._hinted.values():
            if hinted.hint.retain is not None:
                self._submit_hint(hinted, hinted.told_count)

    def on_request_finished(self, req_context: Any) -> None:
        """What it asked is forgotten, but for what others asked, too: it may change."""
        hinted = self._hinted.pop(req_context.req_id, None)
        if hinted is not None:
            self._submit_hint(hinted, 0)
        self._of_engine.end(req_context.req_id)
        for key in self._keys_of.pop(req_context.req_id, ()):
            asked = self._known[key]
            asked.askers.discard(req_context.req_id)
            if asked.found is not None and not asked.askers:
                del self._known[key]

    def _take_answers(self) -> None:
        with self._changed:
            answers, self._answers = self._answers, []
        for key, is_there in answers:
            asked = self._known.get(key)
            if asked is not None:
                asked.found = is_there
                if not asked.askers:
                    del self._known[key]

    def _look_up(self, keys: list[bytes], deadline: float) -> None:
        found = [False] * len(keys)
        try:
            space = self._session.space
            if space is not None:
                wanted = [space.opaque_key(key) for key in keys]
                found = space.contains(wanted, timeout=time_left(deadline))
        except Error as error:
            self._say(f"a look-up failed, taken as a miss: {error}")
        except Exception:  # the scheduler must not ask forever, whatever the error
            log.exception("cairn: a look-up failed, taken as a miss")
        with self._changed:
            self._answers += zip(keys, found, strict=True)

    # --------------------------------------------------------------------------------- hints

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        try:
            hint = hint_of(req_context)
        except ValueError as error:
            hint = None
            if not self._is_hint_told:
                self._is_hint_told = True
                log.warning("cairn: the hint of a request is ignored: %s", error)
        if hint is not None:
            self._hinted[req_context.req_id] = _Hinted(hint, req_context)
        return RequestOffloadingContext()

    def _note(self, keys: Iterable[bytes], req_context: Any) -> None:
        """The request's hint is for these chunks, too."""
        hinted = self._hinted.get(req_context.req_id)
        if hinted is not None:
            hinted.keys.update(dict.fromkeys(keys))

    def _submit_hint(self, hinted: _Hinted, begin: int) -> None:
        """Chunks that vLLM finds in its own memory are never looked up here. Its context of the request
        has them."""
        if not self._may_share(hinted.context):
            return
        own = getattr(hinted.context, "_offload_key_positions", {})
        hinted.keys.update(dict.fromkeys(sorted(own, key=own.__getitem__)))
        keys = list(hinted.keys)[begin:]
        hinted.told_count = len(hinted.keys)
        if keys:
            self._looking.submit(self._send_hint, keys, hinted.hint)

    def _send_hint(self, keys: list[bytes], hint: Hint) -> None:
        space = self._session.space
        try:
            if space is not None:
                send(space, [space.opaque_key(key) for key in keys], hint)
        except Error as error:
            self._say(f"a hint had no effect: {error}")
        except Exception:
            log.exception("cairn: a hint had no effect")

    # ------------------------------------------------------------------------------- of jobs

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, self._put)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, self._get)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self) -> bool:
        with self._changed:
            return bool(self._running or self._finished)

    def drain_jobs(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0)

    def _submit(self, job: Any, move: Callable[[Space, list[Any], float], list[bool]]) -> None:
        if not self._may_share(job.req_context):
            move = _none
        elif move == self._put:
            self._note(job.keys, job.req_context)
        with self._changed:
            self._running += 1
        deadline = time.monotonic() + self._settings.timeout
        self._pool.submit(self._run, job, move, deadline)

    def _run(
        self, job: Any, move: Callable[[Space, list[Any], float], list[bool]], deadline: float
    ) -> None:
        started, good = time.monotonic(), []
        keys = list(job.keys)
        rows = [self._rows[int(i)] for i in job.chunk_ids]
        try:
            space = self._session.space
            if space is not None:
                own = [Names.of(bytes(get_offload_block_hash(key))) for key in keys]
                named = list(
                    zip([space.opaque_key(key) for key in keys], rows, own, strict=True)
                )
                for first in range(0, len(named), _PART):
                    good += move(space, named[first : first + _PART], deadline)
        except Error as error:
            self._say(f"a {'load' if job.is_promotion else 'store'} failed: {error}")
        except Exception:  # vLLM waits for its jobs, whatever the error
            log.exception("cairn: a job of vLLM's failed")
        good += [False] * (len(keys) - len(good))
        is_tried = move is not _none and self._session.space is not None
        if is_tried and not job.is_promotion and not all(good):  # a failed load is a miss
            self._say(f"{good.count(False)} of {len(good)} chunks were not stored")
        moved = [key for key, is_good in zip(keys, good, strict=True) if is_good]
        result = JobResult(
            job_id=job.job_id,
            success=len(moved) == len(keys),
            successful_keys=moved if job.is_promotion and 0 < len(moved) < len(keys) else None,
            transfer_time=time.monotonic() - started,
            transfer_bytes=len(moved) * self.block_size_bytes,
        )
        with self._changed:
            if job.is_promotion:  # otherwise a missing chunk would be requested again and again
                failed = (key for key, is_good in zip(keys, good, strict=True) if not is_good)
                self._answers += ((key, False) for key in failed)
            self._finished.append(result)
            self._running -= 1
            self._changed.notify_all()

    def _say(self, text: str) -> None:
        """Logs a failure, at most once in _SAY_SECONDS, so that a missing daemon does not fill the
        log."""
        now = time.monotonic()
        with self._changed:
            if now < self._say_from:
                return
            self._say_from = now + _SAY_SECONDS
        log.warning("cairn: %s", text)

    def _put(self, space: Space, named: list[Any], deadline: float) -> list[bool]:
        puts = [Put(key, source=row, names=own) for key, row, own in named]
        results = space.put_batch(puts, timeout=time_left(deadline))
        self._elements.note(self._rows.shape[1], results)
        return [one.error is None for one in results]

    def _get(self, space: Space, named: list[Any], deadline: float) -> list[bool]:
        gets = [Get(key, source=row) for key, row, _ in named]
        return [bool(one) for one in space.get_batch(gets, timeout=time_left(deadline))]

    # ------------------------------------------------------------------------------- the rest

    def _may_share(self, req_context: Any) -> bool:
        if not self._of_engine.has_reset or self._settings.weights_stay:
            return self._of_engine.is_named(req_context.req_id)
        if not self._is_reset_told:
            self._is_reset_told = True
            log.warning(
                "cairn: vLLM has reset its caches, as it does to sleep, to pause and for new weights:"
                " nothing is cached until this engine is restarted. If its weights do not change, set"
                " \"weights_stay\": true for the tier"
            )
        return False

    def shutdown(self) -> None:
        """Ends running jobs, each within its timeout."""
        self._looking.shutdown(cancel_futures=True)
        self._pool.shutdown()
        self._session.close()
        self._rows = None  # vLLM frees its memory now


def _none(space: Space, named: list[Any], deadline: float) -> list[bool]:
    return [False] * len(named)


def _layout_of(config: Any) -> str:
    """Returns a digest of everything that a chunk's bytes depend on, except the weights."""
    fields: dict[str, Any] = {
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "dtype": str(config.model.dtype),
        "hash": config.cache.tokens_per_hash,
        "chunk": config.cache.blocks_per_chunk,
        "vllm": getattr(vllm, "__version__", ""),  # it may lay out chunks differently
        "layout": [config.kv_cache_layout, config.canonical_layout, config.replicated_layout],
    }
    parallel = config.parallel
    # vLLM 0.32 sets is_parallelism_agnostic also for its direct layout. There, the bytes of the
    # workers follow one another, so heads are in another order if the number of workers differs.
    is_canonical = config.canonical_layout and parallel.is_parallelism_agnostic
    if not (is_canonical or config.replicated_layout):
        names = ("tp_size", "pp_size", "pcp_size", "dcp_size", "rank")
        fields["ranks"] = [getattr(parallel, name) for name in names]
    text = json.dumps(fields, sort_keys=True).encode()
    return "chunks " + hashlib.sha256(text).hexdigest()[:16]


register()
