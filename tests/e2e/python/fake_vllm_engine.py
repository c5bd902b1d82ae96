# SPDX-License-Identifier: Apache-2.0
"""A stand-in for vLLM 0.32's engine: it calls the connector in the order that was recorded of the
real one, on a cache of numpy arrays.

Where there are several groups of layers they share memory and numbers of blocks, and what is out of
a group's window is let go of, as the hybrid manager does. Ranks have their heads and layers, in
arrays of their own, and their answers are put together as vLLM's KVOutputAggregator does.

Where the library has an emulated device the cache lies there, and what a step computes is put on the
engine's stream: it is done when the engine looks at its results."""

import functools
from types import SimpleNamespace

import fake_torch
import numpy as np
from fake_vllm import (
    ALL_LAYERS,
    DIM,
    ENGINE,
    HEADS,
    Request,
    WorkerLoRAManager,
    configs,
    kv_of,
    layer_name,
    queries_of,
    this_rank,
)


class Rank:
    """A worker: its heads, its layers, and its connector."""

    def __init__(self, connector_class, arguments, tensor, stage, block_count):
        extra, options, stages = arguments
        config, cache_config = configs(extra, **options)
        parallel = config.parallel_config
        parallel.world_size = options["tensor"] * stages
        parallel.rank = stage * options["tensor"] + tensor
        self.attention = config.compilation_config.static_forward_context
        groups, ranks = options["groups"], options["tensor"]
        per_stage = sum(len(layers) for layers, _ in groups) // stages
        mine = range(stage * per_stage, (stage + 1) * per_stage)
        heads = max(1, HEADS // ranks)
        self.heads = slice(tensor * HEADS // ranks, tensor * HEADS // ranks + heads)
        count = max(sum(layer in mine for layer in layers) for layers, _ in groups)
        memory = [
            np.full((block_count, heads, ENGINE, 2 * DIM), 9, np.uint16) for _ in range(count)
        ]
        self.is_on_device, tensors = fake_torch.is_there(), {}
        if self.is_on_device:
            fake_torch.install()
            tensors = {id(one.values): one for one in map(fake_torch.Tensor.of, memory)}
            memory = [one.values for one in tensors.values()]
        self.layers = {}  # of each of its layers the group and the array, which groups share
        for g, (layers, _) in enumerate(groups):
            here = [layer for layer in layers if layer in mine]
            cache_config.kv_cache_groups[g].layer_names = [layer_name(layer) for layer in here]
            self.layers |= {layer: (g, memory[i]) for i, layer in enumerate(here)}
        self.connector = connector_class(config, "worker", cache_config)
        self.adapters = WorkerLoRAManager()
        this_rank[0] = tensor
        self.connector.register_kv_caches(
            {
                layer_name(layer): tensors.get(id(array), array)
                for layer, (_, array) in self.layers.items()
            }
        )

    def compute(self, layer, kv, blocks, windows, first, count, found):
        """A layer of a request's tokens, on what is in the cache of those before `first`, which may
        be wrong: then it is found."""
        group, array = self.layers[layer]
        blocks = [list(table) for table in blocks]

        def act():
            found.extend(self.wrong(kv, blocks, windows, first, [layer]))
            for i in range(first, first + count):
                array[blocks[group][i // ENGINE]][:, i % ENGINE] = kv[i, layer, self.heads]

        if self.is_on_device:
            fake_torch.current_stream().put(act)
        else:
            act()

    def attend(self, step):
        """A forward, of all of a step's (kv, blocks, first, count) at once. Layers of one group have
        the same metadata."""
        for layer, (group, _) in self.layers.items():
            slots = [
                blocks[group][i // ENGINE] * ENGINE + i % ENGINE
                for _, blocks, first, count in step
                for i in range(first, first + count)
            ]
            query = [
                queries_of(kv[first : first + count, layer, self.heads])
                for kv, _, first, count in step
            ]
            if slots:
                at = self.attention[layer_name(layer)]
                metadata = SimpleNamespace(slot_mapping=np.array(slots))
                at.impl.forward(at, np.concatenate(query), None, None, None, metadata)

    def wrong(self, kv, blocks, windows, end, layers=None):
        """Where it is not what a sequence has that is computed up to `end`: layers and blocks."""
        found = []
        for layer in layers or self.layers:
            group, array = self.layers[layer]
            seen = max(0, end - windows[group] + 1) if windows[group] else 0
            for b in range(seen // ENGINE, -(-end // ENGINE)):
                tokens = slice(max(seen, b * ENGINE), min(end, (b + 1) * ENGINE))
                inside = slice(tokens.start - b * ENGINE, tokens.stop - b * ENGINE)
                wanted = kv[tokens, layer, self.heads].swapaxes(0, 1)
                if not np.array_equal(array[blocks[group][b]][:, inside], wanted):
                    found.append((layer, b))
        return found


class Engine:
    """One request at a time or many; `budget` tokens a step; its own prefix cache is off. groups: of
    each its layers and its window. tensor, stages: ranks of either kind."""

    def __init__(
        self,
        connector_class,
        extra,
        *,
        block_count=64,
        budget=512,
        groups=ALL_LAYERS,
        tensor=1,
        stages=1,
        **changed,
    ):
        options = changed | {"groups": groups, "tensor": tensor}
        if stages > 1:
            options["parallel_config__pipeline_parallel_size"] = stages
        self.windows = [window for _, window in groups]
        self.ranks = [
            Rank(connector_class, (extra, options, stages), i, stage, block_count)
            for stage in range(stages)
            for i in range(tensor)
        ]
        self.worker = self.ranks[0].connector
        config, cache_config = configs(extra, **options)
        if stages > 1:  # as vLLM: what the first worker has
            names = [layer_name(layer) for layer in self.ranks[0].layers]
            cache_config.kv_cache_groups[0].layer_names = names
        self.scheduler = connector_class(config, "scheduler", cache_config)
        self.layer_count = sum(len(layers) for layers, _ in groups)
        self.is_failing = config.kv_transfer_config.kv_load_failure_policy == "fail"
        self.errors = []  # requests that ended with one, under that policy
        self.free, self.budget = list(range(1, block_count)), budget
        self.waiting, self.running, self.done = [], [], {}
        self.questions, self.steps, self.counts = 0, 0, {}
        self._finished, self._ended_ranks, self._failed = set(), {}, set()
        self._kv = {}
        self._is_sync, self._found = False, {}  # of a step: whether it loads; what was wrong in it

    def add(self, request):
        self._kv[request.request_id] = kv_of(request.all_token_ids, self.layer_count)
        self.scheduler.on_new_request(request)
        self.waiting.append(request)
        return request

    def run(self):
        while self.waiting or self.running:
            self.step()

    def run_one(self, name, tokens, **more):
        """A request alone, until it is done and what is saved of it is put."""
        one = self.add(Request(name, tokens, **more))
        self.run()
        self.check(one)
        self.drain()
        return one

    def check_an_end(self, tokens, other):
        """A request whose load fails ends, under the policy `fail`; what it held is free, and
        another goes on."""
        free = len(self.free)
        self.add(Request("ends", tokens))
        self.run()
        assert self.errors == ["ends"] and "ends" not in self.done
        assert len(self.free) == free and not self.scheduler._scheduler._chains
        assert self.run_one("goes on", other).external == 0

    def preempt(self, request):
        self.running.remove(request)
        self._release(request)
        self.waiting.append(request)

    def abort(self, request):
        self.scheduler.request_finished_all_groups(request, request.blocks)
        self._finished.add(request.request_id)
        if not request.is_loading:
            self._drop(request)

    def step(self, step_limit=20000):
        self.steps += 1
        assert self.steps < step_limit, "the engine goes round and round"
        scheduled = self._schedule()
        tables = {request.request_id: tuple(request.blocks) for request in scheduled}
        counts = {request.request_id: tokens for request, tokens in scheduled.items()}
        metadata = self.scheduler.build_connector_meta(
            SimpleNamespace(
                num_scheduled_tokens=counts,
                kv_connector_block_state=SimpleNamespace(get_block_ids=tables.get),
            )
        )
        self.last_plan = metadata.plan
        for rank in self.ranks:
            rank.connector.bind_connector_metadata(metadata)
        step = [
            (self._kv[one.request_id], one.blocks, one.num_computed_tokens, tokens)
            for one, tokens in scheduled.items()
        ]
        for rank in self.ranks:
            for request in scheduled:
                if request.lora_request is not None:
                    rank.adapters.add_adapter(request.lora_request)
        if self._is_sync:  # or else loads begin behind the forward
            self._each(lambda rank: rank.connector.start_load_kv(None))
        self._each(lambda rank: self._forward(rank, step, scheduled))
        for request, tokens in scheduled.items():
            request.num_computed_tokens += tokens
        outputs = [self._work(rank.connector) for rank in self.ranks]
        self._is_sync = False
        self._finished = set()
        self._update(self._together(outputs))

    def _schedule(self):
        scheduled, budget = {}, self.budget
        for request in self.running + [r for r in self.waiting if not r.is_loading]:
            if budget == 0:
                break
            if request in self.waiting and not self._admit(request):
                continue
            self._let_go(request)
            tokens = min(budget, request.num_tokens - request.num_computed_tokens)
            budget -= tokens
            scheduled[request] = tokens
        return scheduled

    def _admit(self, request):
        if request.is_loaded and request.num_computed_tokens > 0:
            self.scheduler.update_state_after_alloc(request, self._blocks(request), 0)
        else:
            request.is_loaded = False
            self.questions += 1
            external, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
            if external is None:
                return False
            assert external % ENGINE == 0 and external < request.num_tokens
            wanted = -(-request.num_tokens // ENGINE)
            if len(self.free) < wanted * len(self.windows):
                return False
            request.blocks = [
                [0] * skipped + [self.free.pop(0) for _ in range(wanted - skipped)]
                for skipped in self._skipped(external)
            ]
            self.scheduler.update_state_after_alloc(request, self._blocks(request), external)
            if external:
                request.external = request.num_computed_tokens = external
                request.is_loading, self._is_sync = is_async, not is_async
            if is_async:
                return False
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _skipped(self, computed):
        """How many blocks of each group nobody looks at any more."""
        return [
            max(0, computed - window + 1) // ENGINE if window else 0 for window in self.windows
        ]

    def _let_go(self, request):
        for blocks, skipped in zip(
            request.blocks, self._skipped(request.num_computed_tokens), strict=True
        ):
            self.free += [block for block in blocks[:skipped] if block]
            blocks[:skipped] = [0] * skipped

    def _blocks(self, request):
        return SimpleNamespace(get_block_ids=lambda: tuple(map(list, request.blocks)))

    def _forward(self, rank, step, scheduled):
        rank.attend(step)
        if not scheduled:  # no forward runs
            return
        for layer in rank.layers:
            rank.connector.wait_for_layer_load(layer_name(layer))
            for request, tokens in scheduled.items():
                kv, first = self._kv[request.request_id], request.num_computed_tokens
                found = self._found.setdefault(request, [])
                rank.compute(layer, kv, request.blocks, self.windows, first, tokens, found)

    def _each(self, do):
        for rank in self.ranks:
            do(rank)

    def _work(self, worker):
        if not self._is_sync:
            worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(self._finished)
        failed = worker.get_block_ids_with_load_errors()
        stats = worker.get_kv_connector_stats()
        for name, amount in (stats.data if stats else {}).items():
            self.counts[name] = self.counts.get(name, 0) + amount
        ended = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        return results, failed, ended

    def _together(self, outputs):
        """A load has ended when all ranks say so; one that failed in any has failed."""
        finished, invalid, metas = set(), set(), []
        for results, failed_blocks, ended in outputs:
            metas += [ended] if ended is not None else []
            assert results.failed_recving <= results.finished_recving
            self._failed |= results.failed_recving
            invalid |= failed_blocks
            for request_id in results.finished_recving:
                count = self._ended_ranks[request_id] = self._ended_ranks.get(request_id, 0) + 1
                if count == len(self.ranks):
                    finished.add(request_id)
                    del self._ended_ranks[request_id]
        failed = self._failed & finished
        self._failed -= failed
        assert not invalid or self.windows == [0], "the scheduler would raise, or cut a window"
        together = functools.reduce(lambda one, other: one.aggregate(other), metas) if metas else None
        return SimpleNamespace(
            finished_recving=finished or None,
            invalid_block_ids=invalid,
            failed_recving=failed,
            kv_connector_worker_meta=together,
        )

    def _update(self, output):
        if self.ranks[0].is_on_device:
            fake_torch.current_stream().synchronize()
        found, self._found = self._found, {}
        for request in self.waiting + self.running:
            if not request.is_loading and request not in self.running:
                continue
            table = request.blocks[0]
            bad = [i for i, b in enumerate(table) if b in output.invalid_block_ids]
            if request.request_id in output.failed_recving:
                bad = [0]
            if bad:
                request.num_computed_tokens = min(request.num_computed_tokens, bad[0] * ENGINE)
                found.pop(request, None)  # what it computed in this step is dropped
                if self.is_failing and request.request_id not in self.errors:
                    self.errors.append(request.request_id)
        for request, wrong in found.items():
            request.wrong += wrong
        self.scheduler.update_connector_output(output)
        for request in list(self.waiting):
            if request.request_id in (output.finished_recving or ()):
                request.is_loading, request.is_loaded = False, True
                if request.request_id in self.errors:
                    self.abort(request)
                elif request.num_computed_tokens == 0 or request.request_id in self.done:
                    self._release(request)
        for request in list(self.running):
            if request.request_id in self.errors:
                self.abort(request)
            elif request.num_computed_tokens == request.num_tokens:
                kv, end = self._kv[request.request_id], request.num_tokens
                for rank in self.ranks:
                    request.wrong += rank.wrong(kv, request.blocks, self.windows, end)
                self.done[request.request_id] = request.wrong
                self.abort(request)

    def _drop(self, request):
        self._release(request)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def _release(self, request):
        self.free += [block for blocks in request.blocks for block in blocks if block]
        request.blocks, request.num_computed_tokens = [], 0

    def check(self, request):
        """Everything that the request computed with was right, bit for bit."""
        assert self.done[request.request_id] == []

    def drain(self):
        for rank in self.ranks:
            rank.connector._worker.drain()

    def close(self):
        self.scheduler.shutdown()
        for rank in self.ranks:
            rank.connector.shutdown()
