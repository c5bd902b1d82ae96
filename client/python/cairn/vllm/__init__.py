# SPDX-License-Identifier: Apache-2.0
"""A connector for vLLM's `--kv-transfer-config` that keeps the KV cache in Cairn
(docs/guides/vllm.md).

    {"kv_connector": "CairnConnector", "kv_connector_module_path": "cairn.vllm",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
     "kv_connector_extra_config": {"control": "127.0.0.1:50151"}}

If the package is installed, `register` has told vLLM the connectors' names, and you can omit the
module path. The default of `control` is `$CAIRN_CONTROL`, else 127.0.0.1:50151.

Only `connector`, `stats` and `tier` import vLLM. `scheduler` decides and `worker` moves blocks
without vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .names import register
from .reloads import WorkerExtension, weights_are_now

if TYPE_CHECKING:
    from .connector import CairnConnector

__all__ = ["CairnConnector", "WorkerExtension", "register", "weights_are_now"]


def __getattr__(name: str) -> Any:
    if name == "CairnConnector":  # imported when vLLM asks for it
        from .connector import CairnConnector

        return CairnConnector
    raise AttributeError(f"module {__name__} has no attribute {name}")
