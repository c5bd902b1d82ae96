# SPDX-License-Identifier: Apache-2.0
"""The client of LMCache's native_plugin adapter, as that adapter calls it."""

import os
import select

import pytest
from cairn import InvalidArgumentError
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
