# SPDX-License-Identifier: Apache-2.0
"""What a router hears of Cairn's blocks is what vLLM says of its own, by vLLM's own classes: its hashes
of requests, the events of its block pool, and its format of them."""

import os
import subprocess
import sys
import types

import cairn
import msgspec
import numpy as np
import pytest
import zmq
from cairn.vllm.plan import Geometry
from cairn.vllm.scheduler import Scheduler
from conftest import ROOT
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

ENGINE = 16
TOKENS = list(range(1000, 1000 + 6 * ENGINE))


class _Lookups:
    is_lossless = is_open = True

    def ask(self, keys):
        return types.SimpleNamespace(keys=keys, found=None)

    def drop(self, lookup):
        pass

    def yield_to(self, seconds):
        pass


def request_of(algorithm, salt=None):
    hash_of = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(hash_of)
    return Request(
        request_id="one",
        prompt_token_ids=list(TOKENS),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=kv_cache_utils.get_request_block_hasher(ENGINE, hash_of),
    )


def saves_of(request, store_tokens):
    """What the connector's scheduler lets workers save of a prompt, in two steps."""
    geometry = Geometry(ENGINE, store_tokens)
    scheduler = Scheduler(_Lookups(), bytes(32), geometry, is_loading=False, hash_tokens=ENGINE)
    scheduler.begin(request)
    table = [list(range(1, len(TOKENS) // ENGINE + 1))]
    saves = []
    for count in (2 * store_tokens, len(TOKENS) - 2 * store_tokens):
        saves += scheduler.plan({"one": count}, lambda _: table).saves
        request.num_computed_tokens += count
    request.num_computed_tokens = 0
    return saves


def engines_events(request, block_tokens):
    """What vLLM publishes once it has computed the request."""
    pool = BlockPool(64, True, ENGINE, enable_kv_cache_events=True)
    count = len(TOKENS) // block_tokens
    pool.cache_full_blocks(request, pool.get_new_blocks(count), 0, count, block_tokens, 0)
    return pool.take_events()


def by_block(events):
    """Of each block: its hash, that of its parent, and its tokens."""
    blocks = {}
    for event in events:
        parent, size = event.parent_block_hash, event.block_size
        for i, one in enumerate(event.block_hashes):
            blocks[one] = (parent, tuple(event.token_ids[i * size : (i + 1) * size]))
            parent = one
    return blocks


@pytest.fixture(scope="module")
def tokens_daemon(bin_dir, tmp_path_factory):
    from daemon import Daemon

    os.environ["CAIRN_EVENT_TOKENS"] = "on"
    try:
        with Daemon(bin_dir, "local", tmp_path_factory.mktemp("cairnd"), "64MiB") as started:
            yield started
    finally:
        del os.environ["CAIRN_EVENT_TOKENS"]


def published(daemon, tenant, tmp_path, act):
    """Events as a router of vLLM's reads them, while `act` puts and deletes; up to the first that a
    block is gone."""
    address = f"ipc://{tmp_path}/events"
    command = [sys.executable, "-m", "cairn.events", "--control", daemon.control]
    command += ["--tenant", tenant, "--zmq", address, "--connect"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "client" / "python")}
    decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.bind(address)
        process = subprocess.Popen(command, env=environment)
        try:
            events = []
            while not any(isinstance(event, BlockRemoved) for event in events):
                assert subscriber.poll(20_000), "nothing comes"
                if not events:
                    act()
                events += decoder.decode(subscriber.recv_multipart()[2]).events
        finally:
            process.terminate()
            process.wait(10)
    assert events[0] == AllBlocksCleared()
    return [e for e in events if isinstance(e, BlockStored)], events[-1]


@pytest.mark.parametrize("store_tokens", [ENGINE, 2 * ENGINE])
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_blocks_are_named_as_vllm_names_them(tokens_daemon, tmp_path, algorithm, store_tokens):
    request = request_of(algorithm, salt="a salt")
    saves = saves_of(request, store_tokens)
    assert len(saves) == 2 and all(len(save.names) == len(save.keys) for save in saves)
    tenant = f"{algorithm}-{store_tokens}"
    with cairn.connect(tokens_daemon.control, data=tokens_daemon.data, tenant=tenant) as client:
        space = client.open_space(
            model="m",
            weights_revision="r",
            groups=[cairn.Group("state", 1, state_bytes=64)],
            dtype="bf16",
            tokens_per_block=store_tokens,
        )

        def act():
            for save in saves:
                for i, key in enumerate(save.keys):
                    space.put(
                        key,
                        source=np.zeros(64, np.uint8),
                        parent=save.keys[i - 1] if i else save.parent,
                        first_position=save.first_position + i * store_tokens,
                        names=save.names[i],
                    )
            space.delete(saves[-1].keys[-1:])

        stored, removed = published(tokens_daemon, tenant, tmp_path, act)
    theirs = by_block(engines_events(request, store_tokens))
    assert by_block(stored) == theirs
    assert removed.block_hashes == [list(theirs)[-1]]


def test_without_prefix_caching_blocks_have_no_names():
    request = request_of("sha256")
    request._block_hasher = None
    request.block_hashes = []
    assert [save.names for save in saves_of(request, ENGINE)] == [[], []]
