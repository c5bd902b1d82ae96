# SPDX-License-Identifier: Apache-2.0
"""The connector that vLLM calls, in its scheduler and in its workers."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from .._session import Session
from .. import keys
from ..errors import InvalidArgumentError
from ..transfer import Part
from .adapters import LoadedAdapters
from .cuda import Cuda, Stream
from .device_bytes import DeviceBytes
from .group import BytesPart, GroupPart, PagedPart
from .layout import coded_arrays, cuda_device, paged_cache
from .lookup import Lookups
from .media import are_media_named
from .model import Model, layer_index, layout_of, model_of, part_of
from .names import register
from .plan import Plan
from .reloads import Reloads
from .revision import Stamp, changed_since_start, stamps_of
from .scheduler import Scheduler
from .settings import Settings
from .sizes import say, sized
from .squares import Squares
from .staging import Staging
from .stats import CairnPromMetrics, CairnStats
from .tap import Tap
from .worker import OnDevice, Worker

log = init_logger("vllm.cairn")

CAPTURE_TRIES = 16  # number of requests that are put whole for each captured sequence


class PlanMetadata(KVConnectorMetadata):
    """revision, groups_name: those of the space for which the plan has keys. weights: the name of
    the weights for which the plan is made, from `weights_are_now`; None: the weights with which the
    engine started."""

    def __init__(self, plan: Plan, model: Model, weights: str | None = None) -> None:
        self.plan, self.revision = plan, model.spec.weights_revision
        self.groups_name = model.groups_name
        self.weights = weights


class StepEnded(KVConnectorWorkerMetadata):
    """A worker's report of a step. requests: requests whose layer-wise loads ended in it; all ranks
    end them in the same step. adapters: revisions of the adapters that vLLM has loaded; None:
    unknown, or ranks differ. has_other_weights: the weights are neither those at the start nor the
    last named ones. model: this worker's model, if the scheduler has planned for another one.
    weights: the name of the worker's weights, if the scheduler may not know it."""

    def __init__(
        self,
        requests: set[str],
        adapters: dict[int, str | None],
        has_other_weights: bool = False,
        model: Model | None = None,
        weights: str | None = None,
    ) -> None:
        self.weights = weights
        self.requests, self.adapters = requests, adapters
        self.has_other_weights, self.model = has_other_weights, model

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepEnded:
        assert isinstance(other, StepEnded)
        adapters = self.adapters | other.adapters
        for number in self.adapters.keys() & other.adapters.keys():
            if self.adapters[number] != other.adapters[number]:
                adapters[number] = None
        is_other = self.has_other_weights or other.has_other_weights
        model, weights = self.model or other.model, self.weights or other.weights
        is_other = is_other or weights != (other.weights or self.weights)
        return StepEnded(self.requests | other.requests, adapters, is_other, model, weights)


class CairnConnector(KVConnectorBase_V1, SupportsHMA):
    """Tokens name blocks, so engines of one model share them. Loads run between steps, or layer by
    layer during a step. Blocks that are not loaded in time are recomputed. Saves are copied before
    the next step and put during it. The engine continues whatever the daemon does."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config
        given = config.kv_connector_extra_config
        self._settings = Settings.of(given)
        self._folder = vllm_config.model_config.model
        self._stamps = self._stamps_of_weights()
        is_named = self._settings.weights_revision is not None
        if not is_named and changed_since_start(self._stamps.values()):
            raise InvalidArgumentError(
                f"files in {self._folder} have changed since this engine's process began: which of"
                " them it has read is not known. Start it again, or name what it has as"
                " weights_revision in kv_connector_extra_config"
            )
        self._model = model_of(vllm_config, kv_cache_config, self._settings)
        self._is_loading, self._is_saving = config.is_kv_consumer, config.is_kv_producer
        is_bytes = self._model.layers[0].shape.is_bytes
        is_possible = not (self._model.is_all_or_nothing or is_bytes)
        self._is_layer_wise = self._settings.layer_wise and is_possible
        if self._settings.layer_wise and not is_possible:
            log.warning(
                "cairn: layer_wise is off: the model has several groups of layers, windows, states or"
                " coded rows"
            )
        is_scheduler = role == KVConnectorRole.SCHEDULER
        if not is_scheduler:  # a scheduler moves no blocks
            tokens = self._model.geometry.store_tokens
            self._settings = sized(self._settings, given, vllm_config, kv_cache_config, tokens)
            say(self._settings, given, kv_cache_config, tokens, log)
        name = f"vllm {'scheduler' if is_scheduler else 'worker'} {config.engine_id}"
        # If layers have several shapes, the scheduler knows only one, and its workers tell it the
        # others.
        known = None if is_scheduler and self._model.is_guess else self._model.spec
        self._session = Session(self._settings, known, name, log)
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._tap: Tap | None = None
        self._squares: Squares | None = None
        self._failed_blocks: set[int] = set()
        self._loads_ended: set[str] = set()
        self._layers: dict[str, int] = {}  # this worker's layers, with numbers from 0
        self._adapters, self._reloads = LoadedAdapters(), Reloads()
        self._weights: str | None = None  # the name from `weights_are_now`
        self._agreed: str | None = None  # worker: the last name that the scheduler knew, too
        self._is_renamed = False  # worker: the scheduler does not know the name yet
        self._is_reset_told = False
        self._is_told = True  # worker: the scheduler plans for this worker's groups
        self._is_stale = False  # worker: the scheduler plans for other weights
        if not is_scheduler:
            self._reloads.watch()
            if getattr(vllm_config, "lora_config", None) is not None:
                self._adapters.watch()
            return
        if config.kv_load_failure_policy != "recompute":
            log.warning(
                "cairn: kv_load_failure_policy is %r: a request whose blocks cannot be loaded"
                " ends with an error; 'recompute' computes them",
                config.kv_load_failure_policy,
            )
        self._scheduler = Scheduler(
            Lookups(self._session, self._settings.lookup_timeout, log),
            keys.fingerprint(self._settings.tenant, self._model.spec),
            self._model.geometry,
            is_loading=self._is_loading,
            is_saving=self._is_saving,
            recorded=CAPTURE_TRIES * self._settings.capture_sequences
            if self._settings.capture is not None
            else 0,
            hash_tokens=getattr(kv_cache_config, "hash_block_size", None),
            is_media_named=are_media_named(vllm_config),
            weights_stay=self._weights_stay,
        )

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a lost save is only a later miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of a whole forward pass would not contain the waits for layers."""
        return bool(extra_config.get("layer_wise", False))

    # ------------------------------------------------------------------------ scheduler's side

    def on_new_request(self, request: Any) -> None:
        self._decider.begin(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self._decider.answer(request, num_computed_tokens)
        return tokens, bool(tokens) and not self._is_layer_wise

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._decider.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        blocks_of = scheduler_output.kv_connector_block_state.get_block_ids
        states = getattr(scheduler_output.kv_connector_block_state, "boundary_state_offloads", {})
        plan = self._decider.plan(
            scheduler_output.num_scheduled_tokens,
            blocks_of,
            {
                request_id: {(table, tokens): block for table, block, tokens in offered}
                for request_id, offered in states.items()
            },
        )
        return PlanMetadata(plan, self._model, self._weights)

    def update_connector_output(self, connector_output: Any) -> None:
        ended = getattr(connector_output, "kv_connector_worker_meta", None)
        if ended:
            self._decider.adapters_loaded(ended.adapters)
            if ended.has_other_weights:
                self._decider.stop()
            elif ended.weights is not None:
                self._follow_weights(ended.weights)
            if ended.model is not None:
                self._follow_worker(ended.model)
        self._decider.loaded(
            {*(connector_output.finished_recving or ()), *(ended.requests if ended else ())},
            connector_output.invalid_block_ids or (),
            connector_output.failed_recving,
        )

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._decider.end(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """vLLM calls it before it sleeps, when it pauses, and for new weights, without the reason.
        """
        if not self._settings.weights_stay and not self._is_reset_told:
            self._is_reset_told = True
            log.warning(
                "cairn: vLLM has reset its caches, as it does to sleep, to pause and for new weights:"
                " nothing is cached until this engine is restarted. If its weights do not change, set"
                " \"weights_stay\": true in kv_connector_extra_config"
            )
        self._decider.reset()
        return True

    def _weights_stay(self) -> bool:
        if not self._settings.weights_stay:
            return False
        if self._stamps_of_weights() != self._stamps:
            log.warning(
                "cairn: files in %s have changed since this engine started, and it may have read them"
                " again: nothing is cached until it is restarted",
                self._folder,
            )
            return False
        log.info("cairn: vLLM has reset its caches, and the weights stay: so do the names of blocks")
        return True

    def _stamps_of_weights(self) -> dict[str, Stamp]:
        """Returns the stamps of the files of the model's folder, which vLLM may read again."""
        return stamps_of(self._folder) if os.path.isdir(self._folder) else {}

    def _follow_worker(self, model: Model) -> None:
        """Takes over a worker's groups. If layers of different shapes share a table of blocks, vLLM
        tells its scheduler one shape, and its workers all."""
        if model.spec.groups == self._model.spec.groups:
            return
        self._model = model = model.with_revision_of(self._model)
        log.info("cairn: layers are of %d shapes, as a worker says", len(model.spec.groups))
        self._is_layer_wise = self._settings.layer_wise and not model.is_all_or_nothing
        self._decider.move(keys.fingerprint(self._settings.tenant, model.spec), model.geometry)
        self._session.move(model.spec)

    def _follow_weights(self, weights: str) -> None:
        """Takes over the new name of the weights. Earlier requests were partly computed with the
        old weights, so nothing of them is saved."""
        if weights == self._weights and not self._decider.is_off:
            return
        self._weights = weights
        self._stamps = self._stamps_of_weights()
        settings = dataclasses.replace(self._settings, weights_revision=weights)
        self._model = model = self._model.of_weights(self._vllm_config, settings)
        log.info("cairn: the engine's weights are now %s", model.spec.weights_revision)
        self._decider.go_on()
        self._decider.move(keys.fingerprint(self._settings.tenant, model.spec), model.geometry)
        self._session.move(model.spec)

    @property
    def _decider(self) -> Scheduler:
        assert self._scheduler is not None, "a call of the scheduler's side, in a worker"
        return self._scheduler

    # --------------------------------------------------------------------------- worker's side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        groups = self._model.layers
        of_groups = [group.names for group in groups] if len(groups) > 1 else [kv_caches]
        names = [sorted(of, key=layer_index) for of in of_groups]
        number = cuda_device(next(iter(kv_caches.values())))
        cuda = None if number is None else Cuda(number, log)
        stream = None if cuda is None else cuda.open_stream()
        if any(group.shape.slots for group in groups):
            self._set_scales(kv_caches)
        arrays = [self._arrays(i, [kv_caches[name] for name in of]) for i, of in enumerate(names)]
        parts = [
            self._group_part(i, of, arrays[i], cuda, stream) for i, of in enumerate(names)
        ]
        device = None
        if cuda is not None and stream is not None:
            device = OnDevice(cuda, stream, self._staging(cuda, parts, arrays))
        else:
            self._check_queries()
            self._squares = self._squares_of(kv_caches, [part.part for part in parts])
            self._tap = self._tap_of(kv_caches, [part.part for part in parts])
        self._layers = {name: i for i, name in enumerate(sorted(kv_caches, key=layer_index))}
        self._worker = Worker(
            self._session,
            self._settings,
            parts,
            log,
            self._tap,
            self._is_layer_wise,
            device,
            self._adapters,
            self._squares,
        )

    def _check_queries(self) -> None:
        """Capture and squared queries need K, in blocks of one size."""
        sizes = {group.block_tokens for group in self._model.layers}
        for name in ("capture", "query_squares"):
            is_wanted = getattr(self._settings, name)
            if is_wanted and not (self._model.has_kv_alone and len(sizes) == 1):
                raise InvalidArgumentError(
                    f"kv_connector_extra_config: {name} needs K and V in blocks of one size, and this"
                    " model has latents, states, coded rows, a draft, or groups of unlike block size"
                )

    def _staging(
        self, cuda: Cuda, parts: list[GroupPart], arrays: list[list[Any]]
    ) -> Staging | None:
        if self._settings.capture is not None:
            raise InvalidArgumentError(
                "kv_connector_extra_config: capture records KV of host memory, and this engine's"
                " lies on a CUDA device"
            )
        if not self._is_saving:
            return None
        if self._settings.query_squares:
            raise InvalidArgumentError(
                "kv_connector_extra_config: query_squares: queries are seen in host memory, and this"
                " engine's KV lies on a CUDA device"
            )
        if not any(part.is_writer for part in parts):
            return None  # another rank puts the same blocks
        tokens, room = self._model.geometry.store_tokens, self._settings.staging_bytes
        shapes = [group.shape for group in self._model.layers]
        staging = Staging(cuda, parts, arrays, shapes, tokens, room)
        step = self._vllm_config.scheduler_config.max_num_batched_tokens
        if staging.slot_count * tokens < step:
            log.warning(
                "cairn: staging_bytes holds %d tokens, and a step computes up to %d, for which it"
                " takes %d: of longer steps blocks are not saved",
                staging.slot_count * tokens,
                step,
                -(-step // tokens) * sum(room.slot_bytes for room in staging.rooms),
            )
        return staging

    def _tap_of(self, names: Iterable[str], parts: list[Part]) -> Tap | None:
        folder = self._settings.capture
        if folder is None or not self._is_saving:
            return None
        layers = self._attention_of(names, parts)
        parallel = self._vllm_config.parallel_config
        if parallel.world_size > 1:
            folder = os.path.join(folder, f"rank{parallel.rank}")
        return Tap(self._settings, folder, parts, layers, self._model.geometry.engine_tokens, log)

    def _squares_of(self, names: Iterable[str], parts: list[Part]) -> Squares | None:
        if not self._settings.query_squares or not self._is_saving:
            return None
        reason, geometry = "", self._model.geometry
        ranks = self._vllm_config.parallel_config.tensor_parallel_size
        step = self._vllm_config.scheduler_config.max_num_batched_tokens
        for group in self._model.spec.groups:
            if group.kv_heads < ranks:  # each rank sees only some of a head's queries
                reason = f"{ranks} ranks share {group.kv_heads} heads of K"
        if step < geometry.store_tokens:
            reason = (
                f"a step computes up to {step} tokens, and only blocks that one computes whole,"
                f" here {geometry.store_tokens}, are seen whole"
            )
        layers = self._attention_of(names, parts)
        for layer in (layer for of in layers for layer in of.values()):
            if not callable(getattr(getattr(layer, "impl", None), "forward", None)):
                reason = f"attention of {type(layer).__name__} calls no forward that can be seen"
        if reason:
            raise InvalidArgumentError(f"kv_connector_extra_config: query_squares: {reason}")
        dims = [group.shape.dim for group in self._model.layers]
        return Squares(parts, dims, layers, geometry.engine_tokens, log)

    def _attention_of(self, names: Iterable[str], parts: list[Part]) -> list[dict[int, Any]]:
        """Returns for each group the engine's layers by their indices, in the order of the part."""
        of = self._vllm_config.compilation_config.static_forward_context
        known = {layer_index(name): of[name] for name in names}
        layers: list[dict[int, Any]] = []
        for part, group in zip(parts, self._model.spec.groups, strict=True):
            mine = group.layer_indices[part.layers.start : part.layers.stop]
            layers.append({index: known[index] for index in mine})
        return layers

    def _arrays(self, group: int, arrays: list[Any]) -> list[Any]:
        """Returns a group's arrays; of coded rows, as they are in memory."""
        of = self._model.layers[group]
        if not of.shape.slots:
            return arrays
        layout = layout_of(self._vllm_config, self._kv_cache_config)
        return coded_arrays(arrays, of.shape, of.block_tokens, layout)

    def _set_scales(self, kv_caches: dict[str, Any]) -> None:
        """vLLM's Triton kernels set the scales of all tokens to 1 when they first see a cache. Makes
        them do so now, because later they would overwrite what was loaded before."""
        layers = self._vllm_config.compilation_config.static_forward_context
        for name, cache in kv_caches.items():
            begin = getattr(getattr(layers.get(name), "impl", None), "_ensure_scale_caches", None)
            if callable(begin):
                begin(cache)

    def _group_part(
        self,
        group: int,
        names: list[str],
        arrays: list[Any],
        cuda: Cuda | None,
        stream: Stream | None,
    ) -> GroupPart:
        """Returns this worker's part of a group. arrays: in the order of the names."""
        model, parallel = self._model, self._vllm_config.parallel_config
        rank = _tensor_rank(parallel)
        part = part_of(names, model, rank, parallel.tensor_parallel_size, group)
        of = model.layers[group]
        is_writer = not of.shape.is_replicated or rank == 0
        if of.shape.is_bytes:
            tokens = 0 if of.shape.is_state else arrays[0].shape[2]  # [blocks, 1, tokens, bytes]
            if of.shape.slots:
                tokens = of.block_tokens
            block_bytes = of.shape.bytes * (tokens or 1)
            split = of.block_tokens // tokens if tokens else 1
            if cuda is None or stream is None:
                return BytesPart(arrays, block_bytes, part, split, is_writer, tokens)
            return DeviceBytes(
                cuda, stream, arrays, block_bytes, part, split, is_writer, tokens
            )
        cache = paged_cache(
            arrays,
            of.shape,
            self._kernels(names[0]),
            None if stream is None else stream.number,
        )
        return PagedPart(cache, part, of.block_tokens // cache.tokens_per_block, is_writer)

    def _kernels(self, layer_name: str) -> str | None:
        """Returns the name of the layout in vLLM's CPU backend. None: another backend."""
        layers = self._vllm_config.compilation_config.static_forward_context
        return getattr(layers.get(layer_name), "isa", None)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, PlanMetadata)
        if connector_metadata.groups_name != self._model.groups_name:
            self._is_told = False  # the scheduler does not know this worker's groups yet
            return
        self._is_told = True
        self._look_at_weights()
        self._is_stale = connector_metadata.weights != self._weights
        if self._is_stale:
            # Either the scheduler does not know the new weights yet, or this worker was not told of
            # them.
            self._adapters.have_other_weights |= connector_metadata.weights != self._agreed
        else:
            self._agreed = self._weights
            self._follow(connector_metadata.revision)
        for one in (self._tap, self._squares):
            if one is not None:
                one.begin(self._plan)

    def _follow(self, revision: str) -> None:
        """Moves to the space that the scheduler names. Before the first step, a worker may have
        another name for it, because vLLM changes the configuration while it builds models."""
        spec = self._model.spec
        if spec.weights_revision != revision:
            log.info("cairn: this worker's space is the scheduler's, of weights %s", revision)
            spec = dataclasses.replace(spec, weights_revision=revision)
            self._model = dataclasses.replace(self._model, spec=spec)
            is_open = self._session.space is not None
            self._session.move(spec)
            if is_open:  # the new space opens soon, and this step may then load
                self._session.wait(self._settings.load_timeout)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._look_at_weights()
        if self._worker is not None:
            self._worker.step(self._plan)

    def _look_at_weights(self) -> None:
        """Checks whether the weights are still those of the space. vLLM may have loaded others."""
        weights = self._reloads.take_name()
        if weights is not None:
            self._weights, self._is_renamed = weights, True
            self._stamps = self._stamps_of_weights()
            self._adapters.have_other_weights = False
        loads = self._reloads.take()
        if self._adapters.have_other_weights or not any(loads.values()):
            return
        if loads["others"] or self._stamps_of_weights() != self._stamps:
            self._adapters.have_other_weights = True
            log.warning(
                "cairn: weights were loaded into the running engine: nothing is cached until it is"
                " restarted, or until cairn.vllm.weights_are_now names them"
            )

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._is_layer_wise and self._worker is not None:  # otherwise loads end between steps
            self._worker.wait_layer(self._layers[layer_name])

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass  # all layers of a block at once, after the step

    def wait_for_save(self) -> None:
        self._look_at_weights()
        if self._worker is not None:
            self._worker.save(self._plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        ended = self._worker.take_ended()
        if self._model.is_all_or_nothing:
            return KVConnectorTransferResults(
                finished_recving=ended.requests, failed_recving=ended.failed_requests
            )
        self._failed_blocks |= ended.failed_blocks
        self._loads_ended |= ended.layer_wise
        return KVConnectorTransferResults(finished_recving=ended.requests)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> StepEnded | None:
        ended, self._loads_ended = self._loads_ended, set()
        adapters = self._adapters.take_news()
        is_other = self._adapters.have_other_weights
        model = None if self._is_told else self._model
        weights = self._weights if self._is_stale or self._is_renamed else None
        self._is_renamed = False
        if not (ended or adapters or is_other or model or weights):
            return None
        return StepEnded(ended, adapters, is_other, model, weights)

    def get_kv_connector_stats(self) -> CairnStats | None:
        counts = {} if self._worker is None else self._worker.take_counts()
        return CairnStats(data=counts) if counts else None

    @property
    def _plan(self) -> Plan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PlanMetadata)
        if not self._is_told:
            return Plan(is_idle=metadata.plan.is_idle)
        return _without_blocks(metadata.plan) if self._is_stale else metadata.plan

    # -------------------------------------------------------------------------------- the rest

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        self._session.close()
        self._scheduler = self._worker = None  # the old space's blocks stay

    def take_events(self) -> Iterable[Any]:
        return ()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> CairnStats:
        return CairnStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> CairnPromMetrics:
        return CairnPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _without_blocks(plan: Plan) -> Plan:
    """Returns a plan without blocks, for a plan for other weights than the worker's: its loads find
    nothing, so their requests continue, and nothing is saved."""
    loads = [
        dataclasses.replace(load, keys=[hashlib.sha256(key).digest() for key in load.keys])
        for load in plan.loads
    ]
    return Plan(loads=loads, is_idle=plan.is_idle)


def _tensor_rank(parallel: Any) -> int:
    if parallel.tensor_parallel_size == 1:
        return 0
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return get_tensor_model_parallel_rank()


register()
