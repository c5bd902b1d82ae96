# SPDX-License-Identifier: Apache-2.0
"""How much of a prefix the members of a cluster have, as Space.where tells it; here, one daemon.
tests/e2e/client/where_test.cc has clusters."""

import cairn
import pytest
from conftest import TOKENS, make_kv, open_space


def test_a_daemon_without_a_cluster_answers_for_itself(client):
    space = open_space(client)
    keys = space.keys(range(4 * TOKENS))
    for i in (0, 1, 3):
        space.put(keys[i], *make_kv(i), parent=keys[i - 1] if i else None, first_position=i * TOKENS)
    told = space.where(keys)
    (only,) = told.members
    assert only == cairn.MemberBlocks("", 2, {"host": 2}, is_self=True)
    assert told.unasked_count == 0
    assert space.where([]).members[0].block_count == 0
    with pytest.raises(cairn.InvalidArgumentError):
        space.where(keys[:1] * 65537)
