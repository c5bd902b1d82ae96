# SPDX-License-Identifier: Apache-2.0
"""The connector's metrics in vLLM's log and at its /metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.v1.metrics.utils import create_metric_per_engine

# Sums since the start of the engine. Blocks are the engine's.
COUNTERS = {
    "loads": "Loads of requests from Cairn",
    "load_seconds": "Time in loads, between steps",
    "loaded_blocks": "Blocks loaded from Cairn",
    "loaded_bytes": "Bytes that moved for loads",
    "failed_blocks": "Blocks that were not loaded, and so recomputed",
    "saved_blocks": "Blocks put into Cairn",
    "saved_bytes": "Bytes that Cairn holds for them",
    "query_squares_blocks": "Blocks put with their squared queries",
    "dropped_blocks": "Blocks not saved: no daemon, too slow, or too much waits already",
    "save_seconds": "Time that saves took of steps",
    "put_seconds": "Time in puts, beside steps",
}


class CairnStats(KVConnectorStats):
    """`data` has sums, by the names in COUNTERS."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"cairn {name}": round(amount, 4) for name, amount in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class CairnPromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(
                    name=f"vllm:cairn_{name}", documentation=text, labelnames=labelnames
                ),
                per_engine_labelvalues,
            )
            for name, text in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, amount in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(amount)
