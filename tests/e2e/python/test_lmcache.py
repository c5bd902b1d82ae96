# SPDX-License-Identifier: Apache-2.0
"""The client of LMCache's native_plugin adapter, as that adapter calls it."""

import os
import re
import select

import numpy as np
import pytest
from cairn import InvalidArgumentError
from cairn._elements import rows_of
from cairn._planes import Planes
from cairn.lmcache import CairnL2
from daemon import Daemon

OBJECT = 1 << 20


@pytest.fixture
def parameters(settings):
    return settings | {"connections": 2}


@pytest.fixture
def client(parameters):
    opened = CairnL2(**parameters)
    yield opened
    opened.close()


def wait(client, task):
    """The completion of a task, as LMCache's thread waits for it."""
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    seen = []
    while not any(number == task for number, *_ in seen):
        assert poller.poll(15000), "the task never ends"
        seen += client.drain_completions()
    ((_, ok, error, results),) = [one for one in seen if one[0] == task]
    return ok, error, results


def names(count, begin=0):
    return [f"model@00000000@0@{begin + i:064x}" for i in range(count)]


def bytes_of(count, size=OBJECT):
    return [memoryview(bytearray(os.urandom(size))) for _ in range(count)]


def test_objects_come_back(client):
    keys, given = names(5), bytes_of(5)
    assert wait(client, client.submit_batch_exists(keys)) == (True, "", [False] * 5)
    assert wait(client, client.submit_batch_set(keys, given)) == (True, "", None)
    assert wait(client, client.submit_batch_set(keys[:1], given[:1])) == (True, "", None)
    asked = [keys[0], *names(1, 99), keys[4]]
    assert wait(client, client.submit_batch_exists(asked)) == (True, "", [True, False, True])
    targets = [memoryview(bytearray(OBJECT)) for _ in asked]
    assert wait(client, client.submit_batch_get(asked, targets)) == (True, "", [True, False, True])
    assert targets[0] == given[0] and targets[2] == given[4]


def test_what_is_there_is_of_the_length_that_a_model_had_last(client, parameters):
    """For LMCache has memory for objects of that length only."""
    keys, others = names(2), [f"other{name}" for name in names(1)]
    assert wait(client, client.submit_batch_set(keys[:1], bytes_of(1)))[0]
    assert wait(client, client.submit_batch_set(others, bytes_of(1)))[0]
    assert wait(client, client.submit_batch_set(keys[1:], bytes_of(1, 4096)))[0]
    asked = [*keys, *others]
    assert wait(client, client.submit_batch_exists(asked))[2] == [False, True, True]
    target = [memoryview(bytearray(OBJECT))]  # as LMCache with the layout of before
    assert wait(client, client.submit_batch_get(keys[:1], target))[2] == [True]
    assert wait(client, client.submit_batch_exists(asked))[2] == [True, False, True]
    # Objects of every length go.
    assert wait(client, client.submit_batch_delete(asked))[2] == [True, True, True]


def test_a_process_finds_what_earlier_ones_stored(client, parameters):
    keys, given = names(3), bytes_of(3)
    assert wait(client, client.submit_batch_set(keys[:1], bytes_of(1, 8192)))[0]
    assert wait(client, client.submit_batch_set(keys, given))[0]
    client.close()
    later = CairnL2(**parameters)
    assert wait(later, later.submit_batch_exists([*keys, *names(1, 77)]))[2] == [True] * 3 + [False]
    assert wait(later, later.submit_batch_delete(keys[:1]))[2] == [True]
    later.close()
    # Of a store from before lengths were kept, the setting says them.
    told = CairnL2(**parameters, object_bytes=[4096, OBJECT])
    told._noted_lengths = lambda kind, deadline: []
    assert wait(told, told.submit_batch_exists(keys))[2] == [False, True, True]
    told.close()


def test_lengths_of_many_ranks_are_kept_in_one_request(client, parameters, monkeypatch):
    """LMCache's own benchmark gives each object a rank of its own."""
    keys = [f"model@{rank:08x}@0@{rank:064x}" for rank in range(64)]
    monkeypatch.setattr(client, "_append_note", None)  # the way of one kind after the other
    assert wait(client, client.submit_batch_set(keys, bytes_of(64, 4096)))[0]
    monkeypatch.undo()
    mixed = ["model@00000000@0@" + "ff" * 32, "model@00000040@0@" + "ff" * 32]
    assert wait(client, client.submit_batch_set(mixed, bytes_of(2, 8192)))[0]
    client.close()
    later = CairnL2(**parameters)
    found = wait(later, later.submit_batch_exists([*keys, *mixed]))[2]
    assert found == [False] + [True] * 63 + [True, True]
    later.close()


def test_lengths_outlive_the_daemon(bin_dir, tmp_path):
    """As objects on the SSD tier do."""
    keys, given = names(2), bytes_of(2)
    for is_first in (True, False):
        with Daemon(bin_dir, "local", tmp_path, "64MiB", f"{tmp_path}/ssd=256MiB") as daemon:
            own = CairnL2(control=daemon.control, data=daemon.data, weights_revision="r")
            if is_first:
                assert wait(own, own.submit_batch_set(keys, given))[0]
            else:
                assert wait(own, own.submit_batch_exists(keys)) == (True, "", [True, True])
            own.close()


def test_elements_that_are_named_get_smaller(parameters, caplog):
    """Whatever their order: here of 2 x 4 x 256 tokens' 256 channels, each with a spread of its own."""
    caplog.set_level("INFO", "cairn.lmcache")
    spread = 2.0 ** (np.arange(256) % 9 - 4)
    values = np.random.default_rng(1).standard_normal((2, 4, 256, 256)) * spread
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    given = memoryview(bytearray(bits.tobytes()))
    said, kept = {}, {}
    for dtype in (None, "bf16", "fp16", "fp8_e5m2"):
        caplog.clear()
        client = CairnL2(**parameters, dtype=dtype)
        assert wait(client, client.submit_batch_set(names(1), [given]))[0]
        assert wait(client, client.submit_batch_exists(names(2)))[2] == [True, False]
        target = memoryview(bytearray(len(given)))
        assert wait(client, client.submit_batch_get(names(1), [target]))[2] == [True]
        assert target == given, dtype
        client.close()
        said[dtype] = caplog.text
        if dtype is not None:
            (ratio,) = re.findall(r"1 objects as \w+: kept in 1/([0-9.]+)", caplog.text)
            kept[dtype] = float(ratio)
    assert kept["bf16"] >= 1.4 > kept["fp16"] > 0.99, kept
    assert 'say so: "dtype"' in said[None]
    assert "of another type" in said["fp8_e5m2"]


LAYERS, TOKENS, HEADS, DIM = 3, 128, 2, 64
SHAPE = {"kv_layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM}


def objects_of(count, dtype="bf16"):
    """In LMCache's order, KV_2LTD: [K and V, layers, tokens, heads, channels]."""
    kind = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32, "fp8_e4m3": np.uint8}[dtype]
    rng = np.random.default_rng(count)
    top = np.iinfo(kind).max
    return rng.integers(0, top, (count, 2, LAYERS, TOKENS, HEADS, DIM), kind, endpoint=True)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3"])
def test_objects_of_a_stated_shape_are_k_and_v(parameters, bin_dir, dtype):
    """Every byte comes back to LMCache, and K and V are what the space's readers see."""
    client = CairnL2(**parameters, dtype=dtype, **SHAPE)
    given = objects_of(3, dtype)
    views = [memoryview(bytearray(one.tobytes())) for one in given]
    assert wait(client, client.submit_batch_set(names(3), views))[:2] == (True, "")
    assert wait(client, client.submit_batch_exists(names(4)))[2] == [True] * 3 + [False]
    targets = [memoryview(bytearray(len(views[0]))) for _ in range(4)]
    assert wait(client, client.submit_batch_get(names(4), targets))[2] == [True] * 3 + [False]
    assert targets[:3] == views
    (space,) = [one for (model, _), one in client._spaces.items() if model == "lmcache"]
    (group,) = space.spec.groups
    assert (group.kind, group.kv_heads, group.k_dim, space.spec.tokens_per_block) == ("kv", HEADS, DIM, TOKENS)
    k, v = (np.zeros((LAYERS, HEADS, TOKENS, DIM), given.dtype) for _ in "kv")
    assert space.get(space.opaque_key(names(3)[1].encode()), k=k, v=v, timeout=20)
    assert np.array_equal(np.stack([k, v]), given[1].transpose(0, 1, 3, 2, 4))
    client.close()


def test_objects_of_a_stated_shape_take_every_recipe(parameters):
    client = CairnL2(**parameters, dtype="bf16", recipe="kivi:8", **SHAPE)
    values = np.random.default_rng(3).standard_normal((2, LAYERS, TOKENS, HEADS, DIM)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert wait(client, client.submit_batch_set(names(1), [memoryview(bytearray(bits.tobytes()))]))[0]
    target = bytearray(bits.nbytes)
    assert wait(client, client.submit_batch_get(names(1), [memoryview(target)]))[2] == [True]
    found = (np.frombuffer(target, np.uint16).astype(np.uint32) << 16).view(np.float32)
    off = np.abs(found.reshape(values.shape) - values).max()
    assert 0 < off < 0.05
    client.close()


LATENT = {"kv_layers": LAYERS, "latent_dim": 576}


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_objects_of_stated_latents_are_latents(parameters, dtype):
    """In LMCache's order, KV_MLA_FMT: [1, layers, tokens, channels]."""
    client = CairnL2(**parameters, dtype=dtype, **LATENT)
    kind = np.uint16 if dtype == "bf16" else np.uint8
    top = np.iinfo(kind).max
    given = np.random.default_rng(5).integers(0, top, (LAYERS, TOKENS, 576), kind, endpoint=True)
    views = [memoryview(bytearray(given.tobytes()))]
    assert wait(client, client.submit_batch_set(names(1), views))[:2] == (True, "")
    assert wait(client, client.submit_batch_exists(names(2)))[2] == [True, False]
    target = memoryview(bytearray(given.nbytes))
    assert wait(client, client.submit_batch_get(names(1), [target]))[2] == [True]
    assert target == views[0]
    (space,) = [one for (model, _), one in client._spaces.items() if model == "lmcache"]
    (group,) = space.spec.groups
    assert (group.kind, group.k_dim, space.spec.tokens_per_block) == ("latent", 576, TOKENS)
    k = np.zeros((LAYERS, 1, TOKENS, 576), kind)
    assert space.get(space.opaque_key(names(1)[0].encode()), k=k, timeout=20)
    assert np.array_equal(k[:, 0], given)
    client.close()


def test_stated_latents_take_recipes_apart_from_rows_in_any_order(parameters):
    """Those of a server that names the dtype alone come back as they were, in a group of one shape."""
    latent = {"kv_layers": 3, "latent_dim": 1536}
    assert rows_of(3 * TOKENS * 1536 * 2, "bf16") == Planes(3, 1, 1536, "bf16", True).group_of(3 * TOKENS * 1536 * 2)
    values = np.random.default_rng(3).standard_normal((3, TOKENS, 1536)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    found = []
    for more in ({"recipe": "kivi:8", **latent}, {}):
        client = CairnL2(**parameters, dtype="bf16", **more)
        assert wait(client, client.submit_batch_set(names(1), [memoryview(bytearray(bits.tobytes()))]))[0]
        target = bytearray(bits.nbytes)
        assert wait(client, client.submit_batch_get(names(1), [memoryview(target)]))[2] == [True]
        found.append((np.frombuffer(target, np.uint16).astype(np.uint32) << 16).view(np.float32))
        client.close()
    assert 0 < np.abs(found[0].reshape(values.shape) - values).max() < 0.05
    assert np.array_equal(found[1], (bits.astype(np.uint32) << 16).view(np.float32).ravel())


def test_objects_of_another_shape_than_the_stated_one_come_back_as_they_were(parameters, caplog):
    given = bytes_of(1, 96 * HEADS * DIM)[0]
    client = CairnL2(**parameters, dtype="bf16", **SHAPE)
    assert wait(client, client.submit_batch_set(names(1), [given]))[0]
    target = memoryview(bytearray(len(given)))
    assert wait(client, client.submit_batch_get(names(1), [target]))[2] == [True]
    assert target == given and "do not have the shape of adapter_params" in caplog.text
    client.close()


@pytest.mark.parametrize("count", [3, 4096 + 2, 65536 - 2])
def test_lengths_that_are_no_rows_are_kept_as_bytes(parameters, caplog, count):
    client = CairnL2(**parameters, dtype="bf16")
    given = [memoryview(bytearray(os.urandom(count)))]
    assert wait(client, client.submit_batch_set(names(1), given))[0]
    target = [memoryview(bytearray(count))]
    assert wait(client, client.submit_batch_get(names(1), target))[2] == [True]
    assert target == given
    client.close()
    assert f"objects of {count} bytes are no whole rows of bf16" in caplog.text


def test_rows_of_objects():
    """Those of engines: rows that are a multiple of a token's, or that a token's is a multiple of."""
    for layers, tokens, row in ((30, 256, 192), (32, 256, 1024), (18, 256, 256), (36, 256, 1024)):
        group, rows = rows_of(2 * layers * tokens * row * 2, "bf16")
        assert len(group.layer_indices) * rows * group.k_dim == 2 * layers * tokens * row
        assert rows == 128 and (group.k_dim % row == 0 or row % group.k_dim == 0), group
    assert rows_of(0, "bf16") is None and rows_of(3, "bf16") is None
    assert rows_of(2 * 16 * 16, "bf16")[1] == 16


def test_deleted_objects_are_gone(client):
    keys = names(2)
    wait(client, client.submit_batch_set(keys, bytes_of(2)))
    asked = [keys[0], *names(1, 7)]
    assert wait(client, client.submit_batch_delete(asked)) == (True, "", [True, False])
    assert wait(client, client.submit_batch_exists(keys))[2] == [False, True]


def test_other_weights_are_apart(client, parameters):
    wait(client, client.submit_batch_set(names(1), bytes_of(1)))
    other = CairnL2(**(parameters | {"weights_revision": "other"}), object_bytes=[OBJECT])
    assert wait(other, other.submit_batch_exists(names(1)))[2] == [False]
    other.close()


def test_without_a_daemon_every_task_ends():
    client = CairnL2(control="127.0.0.1:1", weights_revision="r1", timeout=1.0)
    for submit, *more in (
        (client.submit_batch_set, bytes_of(1)),
        (client.submit_batch_get, bytes_of(1)),
        (client.submit_batch_exists,),
    ):
        ok, error, _ = wait(client, submit(names(1), *more))
        assert not ok and "127.0.0.1:1" in error
    assert wait(client, client.submit_batch_get([], [])) == (True, "", [])
    client.close()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"control": "127.0.0.1:1"}, "adapter_params has no 'weights_revision', which tells apart"),
        ({"weights_revision": ""}, "no 'weights_revision'"),
        ({"weights_revision": 7}, "weights_revision is 7, expected str"),
        ({"colour": 1}, "'colour' .1., expected some of weights_revision, control"),
        ({"connections": 0}, "connections is 0, expected int above 0"),
        ({"connections": "4"}, "connections is '4', expected int"),
        ({"weights_revision": "r", "dtype": "fp6"}, "adapter_params: dtype is 'fp6', expected bf16"),
        ({"weights_revision": "r", "kv_heads": 2}, "adapter_params has kv_heads, and no kv_layers, head_dim, dtype"),
        ({"weights_revision": "r", "latent_dim": 576}, "adapter_params has latent_dim, and no kv_layers, dtype"),
        (
            {"weights_revision": "r", "dtype": "bf16", "kv_layers": 2, "latent_dim": 576, "head_dim": 64},
            "adapter_params has latent_dim and head_dim: an object has latents, or K and V",
        ),
        ({"weights_revision": "r", "recipe": "kivi:4"}, "recipe is 'kivi:4', which needs kv_layers"),
        ({"timeout": 61}, "timeout is 61, expected float above 0 and at most 60, in seconds"),
        ({"timeout": True}, "timeout is True, expected float"),
        ({"object_bytes": 4096}, "object_bytes is 4096, expected a list of int above 0"),
        ({"object_bytes": [4096, -1]}, r"object_bytes is \[4096, -1\], expected a list"),
    ],
)
def test_settings_that_are_wrong_are_named(given, named):
    whole = {"control": "127.0.0.1:1", "weights_revision": "r"}
    if given == {"control": "127.0.0.1:1"}:
        whole.pop("weights_revision")
    with pytest.raises(InvalidArgumentError, match=named):
        CairnL2(**(whole | given))
