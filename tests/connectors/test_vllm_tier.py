# SPDX-License-Identifier: Apache-2.0
"""The tier under the installed vLLM's tiering manager: the hints of requests, in the context that vLLM
itself makes of a request."""

import os
import types

import tier_contract


def test_hints_reach_the_tier_in_vllm_s_own_context(daemon, monkeypatch):
    from cairn import Space
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler
    from vllm.v1.kv_offload.base import make_offload_key

    told = []

    def retain(space, keys, seconds, *, priority=1):
        told.append(("retain", seconds, priority, list(keys)))
        return was(space, keys, seconds, priority=priority)

    was = Space.retain
    monkeypatch.setattr(Space, "retain", retain)
    manager = tier_contract.manager_of("hints", daemon.control, f"hints {os.getpid()}")
    space = manager.secondary_tiers[0]._session.space
    keys = [make_offload_key(bytes([i]) * 32, 0) for i in range(4)]
    request = types.SimpleNamespace(
        request_id="agent",
        kv_transfer_params={"cairn": {"retain": 60, "priority": 3}},
        kv_hints=None,
    )
    context = scheduler._create_req_context(request)
    for i, key in enumerate(keys):
        context.set_offload_key_position(key, 16 * (i + 1))
    tier_contract.begin(manager, context)
    prepared = manager.prepare_store(keys[:2], context)
    tier_contract.rows_of(manager)[prepared.store_spec.chunk_ids] = 1
    manager.complete_store(keys[:2], context)
    tier_contract.step_until(manager, lambda: not manager.has_pending_work())
    manager.on_request_finished(context)
    named = [space.opaque_key(key) for key in keys]
    manager.secondary_tiers[0]._looking.submit(bool).result()  # behind the hints
    manager.shutdown()
    assert told and all(one[:3] == ("retain", 60, 3) for one in told)
    assert set(told[-1][3]) == set(named), "all of the request's chunks, when it ends"
