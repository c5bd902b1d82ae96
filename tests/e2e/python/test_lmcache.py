# SPDX-License-Identifier: Apache-2.0
"""The client of LMCache's native_plugin adapter, as that adapter calls it."""

import os
import select

import pytest
from cairn import InvalidArgumentError
from cairn.lmcache import CairnL2

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


def test_lengths_are_apart(client, parameters):
    keys = names(2)
    given = bytes_of(1) + bytes_of(1, 4096)
    assert wait(client, client.submit_batch_set(keys, given))[0]
    assert wait(client, client.submit_batch_exists(keys))[2] == [True, True]
    other = CairnL2(**parameters, object_bytes=[4096])  # of another process, which knows one of them
    assert wait(other, other.submit_batch_exists(keys))[2] == [False, True]
    other.close()


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
    client = CairnL2("127.0.0.1:1", "r1", timeout=1.0, object_bytes=[OBJECT])
    for submit, *more in (
        (client.submit_batch_set, bytes_of(1)),
        (client.submit_batch_get, bytes_of(1)),
        (client.submit_batch_exists,),
    ):
        ok, error, _ = wait(client, submit(names(1), *more))
        assert not ok and "127.0.0.1:1" in error
    assert wait(client, client.submit_batch_get([], [])) == (True, "", [])
    client.close()


def test_weights_have_to_be_named():
    with pytest.raises(InvalidArgumentError, match="weights_revision"):
        CairnL2("127.0.0.1:1", "")
