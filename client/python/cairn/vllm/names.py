# SPDX-License-Identifier: Apache-2.0
"""The names by which vLLM finds the connectors."""

from __future__ import annotations

import contextlib


def register() -> None:
    """Tells vLLM's factory the connectors' names. May be called again. vLLM calls it in each of its
    processes, as a plugin of the group `vllm.general_plugins`. MultiConnector also needs it,
    because it finds a connector's metrics by the name of its class."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    for name, module in (
        ("CairnConnector", "cairn.vllm"),
        ("CairnOffloadingConnector", "cairn.vllm.tier"),
    ):
        with contextlib.suppress(ValueError):  # it is registered already
            KVConnectorFactory.register_connector(name, module, name)
