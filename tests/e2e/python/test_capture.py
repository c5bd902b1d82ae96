# SPDX-License-Identifier: Apache-2.0
"""cairn.Capture: what goes through a space's put becomes a dump that cairn.evaluate reads."""

import json
import sys

import cairn
import numpy as np
import pytest
from cairn import Capture, InvalidArgumentError, Part, Put, evaluate
from cairn._model import Scales
from cairn.evaluate.dump import as_float, as_stored, read_dump
from conftest import DIM, HEADS, LAYERS, ROOT, TOKENS, make_kv, open_space

BLOCKS = 9  # 288 tokens


def make_sequence(seed, blocks=BLOCKS):
    return make_kv(seed, (LAYERS, HEADS, blocks * TOKENS, DIM))


def cut(plane, index):
    return plane[:, :, index * TOKENS : (index + 1) * TOKENS]


def puts_of(space, seed, k, v, form="arrays"):
    """The puts of a whole sequence, in order."""
    count = k.shape[2] // TOKENS
    keys = space.keys(np.arange(count * TOKENS, dtype=np.uint32) + 1000 * seed)
    found = []
    for index, key in enumerate(keys):
        where = {"parent": keys[index - 1] if index else None, "first_position": index * TOKENS}
        planes = cut(k, index), cut(v, index)
        if form == "lists":
            found.append(Put(key, *(list(plane) for plane in planes), **where))
        elif form == "source":
            found.append(Put(key, source=np.stack(planes, 2).copy(), **where))
        elif form == "parts":
            for head in range(HEADS):
                one = [plane[:, head : head + 1] for plane in planes]
                part = Part(heads=range(head, head + 1))
                found.append(Put(key, *one, part=part, **where))
        else:
            found.append(Put(key, *planes, **where))
    return found


@pytest.mark.parametrize("form", ["arrays", "lists", "source", "parts"])
def test_a_capture_is_a_dump_of_what_was_put(client, tmp_path, form):
    k, v = make_sequence(1)
    with open_space(client) as space, Capture(space, tmp_path / "c") as capture:
        for one in puts_of(space, 1, k, v, form):
            assert space.put_batch([one])[0].error is None
        q = np.ones((2 * HEADS, 3, DIM), np.float32)
        last = space.keys(np.arange(BLOCKS * TOKENS, dtype=np.uint32) + 1000)[-1]
        capture.add_queries(last, {2: q})
        assert not capture.is_full and capture.error is None
        (folder,) = capture.close()
    assert folder == tmp_path / "c" / "0" and not capture.close()
    dump = read_dump(folder)
    assert (dump.dtype, dump.token_count) == ("bf16", BLOCKS * TOKENS)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(dump.k[layer], k[layer])
        np.testing.assert_array_equal(dump.v[layer], v[layer])
    np.testing.assert_array_equal(dump.q[2], q)
    assert dump.rotation_of(0).kind == "half" and dump.about.model == "synthetic"
    assert (dump.about.tenant, dump.about.tokens_per_block) == ("test", TOKENS)
    (found,) = evaluate.evaluate(dump, ["cairn:3.0/plain"])
    assert found.bits == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_a_capture_of_8_bit_floats(client, tmp_path, dtype):
    """Its elements are coded as they are; a judge gets them as bf16, multiplied by their scales."""
    values = np.random.default_rng(5).standard_normal((2, LAYERS, HEADS, BLOCKS * TOKENS, DIM))
    k, v = (as_stored(plane.astype(np.float32) * 4, dtype).view(np.uint8) for plane in values)
    scales = Scales({0: 0.5, 2: 0.125}, {1: 2.0})
    with (
        open_space(client, dtype=dtype) as space,
        Capture(space, tmp_path / "c", scales=scales) as capture,
    ):
        for one in puts_of(space, 1, k, v):
            assert space.put_batch([one])[0].error is None
        (folder,) = capture.close()
    dump = read_dump(folder)
    assert (dump.dtype, dump.scales) == (dtype, scales)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(dump.k[layer].view(np.uint8), k[layer])
        np.testing.assert_array_equal(dump.v[layer].view(np.uint8), v[layer])
    given = []

    def judge(kv):
        given.append(kv)
        return np.stack([as_float(kv.k[0])[0, :4], as_float(kv.v[1])[0, :4]]).reshape(8, -1)

    recipes = ["exact", "kivi:4", "cairn:3.0/plain"]
    exact, coarse, profiled = evaluate.evaluate(dump, recipes, judge)
    assert (exact.kl, exact.kv_error) == (0.0, 0.0) and exact.bits < 8.05
    assert coarse.kl > 0 and 0.01 < coarse.kv_error < 0.3 and coarse.bits < 5
    assert profiled.bits == pytest.approx(3.0, abs=0.4)
    assert given[0].dtype == "bf16"
    wanted = as_float(dump.k[0]) * np.float32(0.5), as_float(dump.v[0])
    for plane, values in zip((given[0].k, given[0].v), wanted, strict=True):
        whole = plane[0].shape[1]  # of blocks of 128 tokens
        np.testing.assert_array_equal(as_float(plane[0]), values[:, :whole])


def test_a_full_capture_lets_go(client, tmp_path):
    with open_space(client) as space, Capture(space, tmp_path, tokens_max=4 * TOKENS) as capture:
        for seed in (1, 2):
            assert not capture.is_full
            space.put_batch(puts_of(space, seed, *make_sequence(seed)))
        assert capture.is_full and space._capture is None
        Capture(space, tmp_path / "another").close()  # there is room for one
        space.put_batch(puts_of(space, 3, *make_sequence(3)))
        folders = capture.close()
        assert [read_dump(folder).token_count for folder in folders] == [4 * TOKENS] * 2
        one = make_sequence(1)[0]
        np.testing.assert_array_equal(read_dump(folders[0]).k[3], one[3, :, : 4 * TOKENS])


def test_the_longest_sequences_are_kept_within_bounds(client, tmp_path):
    block_bytes = 2 * LAYERS * HEADS * TOKENS * DIM * 2
    bounds = {"sequences": 1, "every": 2, "bytes_max": 12 * block_bytes}
    with open_space(client) as space, Capture(space, tmp_path, **bounds) as capture:
        # Every other one is taken. 8 goes to the place of 2; of the last one 4 blocks fit beside it.
        for seed, blocks in enumerate([2, 9, 3, 9, 8, 9, 9]):
            space.put_batch(puts_of(space, seed + 1, *make_sequence(seed + 1, blocks)))
        (folder,) = capture.close()
    assert capture.error is None
    assert read_dump(folder).token_count == 8 * TOKENS


def test_sequences_that_begin_alike_are_apart(client, tmp_path):
    """As prompts of one template: what they share is kept once, and counted once."""
    block_bytes = 2 * LAYERS * HEADS * TOKENS * DIM * 2
    made = [make_sequence(seed, 8) for seed in (21, 22, 23)]
    names = [np.full(8 * TOKENS, i, np.uint32) for i in range(3)]
    for i in (1, 2):  # the first five blocks are those of the first
        names[i][: 5 * TOKENS] = 0
        for mine, shared in zip(made[i], made[0], strict=True):
            mine[:, :, : 5 * TOKENS] = shared[:, :, : 5 * TOKENS]
    bounds = {"sequences": 3, "tokens_max": 8 * TOKENS, "bytes_max": (8 + 3 + 3) * block_bytes}
    with open_space(client) as space, Capture(space, tmp_path, **bounds) as capture:
        for (k, v), name in zip(made, names, strict=True):
            keys, parent = space.keys(name), None
            for i, key in enumerate(keys):
                space.put(key, cut(k, i), cut(v, i), parent=parent, first_position=i * TOKENS)
                parent = key
            q = np.full((HEADS, 1, DIM), name[-1], np.float32)
            capture.add_queries(keys[-1], {1: q})
        assert capture.is_full and capture.error is None
        folders = capture.close()
    for i, folder in enumerate(folders):
        dump = read_dump(folder)
        assert dump.token_count == 8 * TOKENS and dump.q[1].max() == i
        np.testing.assert_array_equal(dump.k[3], made[i][0][3])


def test_a_fork_outlives_what_it_began_with(client, tmp_path):
    block_bytes = 2 * LAYERS * HEADS * TOKENS * DIM * 2
    bounds = {"sequences": 1, "tokens_max": 6 * TOKENS, "bytes_max": 9 * block_bytes}
    with open_space(client) as space, Capture(space, tmp_path, **bounds) as capture:
        k, v = make_sequence(24, 6)

        def put(tokens):
            keys = space.keys(np.array(tokens, np.uint32).repeat(TOKENS))
            for i, key in enumerate(keys):
                parent = keys[i - 1] if i else None
                space.put(key, cut(k, i), cut(v, i), parent=parent, first_position=i * TOKENS)

        put([1, 2, 3])
        put([1, 2, 4, 5])
        put([6])  # the shortest goes, but for what the other has of it
        put([1, 2, 4, 5, 7, 8])
        (folder,) = capture.close()
    assert capture.error is None and read_dump(folder).token_count == 6 * TOKENS
    np.testing.assert_array_equal(read_dump(folder).v[0], v[0])


def test_what_is_not_whole_is_not_written(client, tmp_path):
    k, v = make_sequence(4)
    with open_space(client) as space, Capture(space, tmp_path) as capture:
        puts = puts_of(space, 4, k, v, "parts")
        del puts[2 * 5]  # a half of the block 5
        space.put_batch(puts)
        space.put(bytes([7] * 32), cut(k, 0), cut(v, 0), parent=bytes([9] * 32), first_position=32)
        bad = Put(bytes([8] * 32), cut(k, 0), cut(v, 0), parent=None, first_position=5)
        space.put_batch([bad])
        (folder,) = capture.close()
    assert read_dump(folder).token_count == 5 * TOKENS


def test_a_rank_captures_its_part(client, tmp_path):
    k, v = make_sequence(5)
    mine = Part(layers=range(1, 3), heads=range(1, 2))
    with open_space(client) as space, Capture(space, tmp_path, parts=[mine]) as capture:
        keys = space.keys(np.arange(BLOCKS * TOKENS, dtype=np.uint32))
        for i, key in enumerate(keys):
            planes = [np.ascontiguousarray(cut(p, i)[1:3, 1:2]) for p in (k, v)]
            parent = keys[i - 1] if i else None
            space.put(key, *planes, parent=parent, first_position=i * TOKENS, part=mine)
        (folder,) = capture.close()
    dump = read_dump(folder)
    assert sorted(dump.k) == [1, 2]
    np.testing.assert_array_equal(dump.k[2], k[2, 1:2])


def test_a_broken_capture_fails_no_put(client, tmp_path):
    k, v = make_sequence(6)
    narrow = Part(heads=range(1))  # whole blocks are put all the same
    with open_space(client) as space, Capture(space, tmp_path, parts=[narrow]) as capture:
        results = space.put_batch(puts_of(space, 6, k, v))
        assert [result.error for result in results] == [None] * BLOCKS
        assert isinstance(capture.error, InvalidArgumentError) and space._capture is None
        assert capture.close() == []
        with pytest.raises(InvalidArgumentError, match="1 or more"):
            Capture(space, tmp_path, every=0)
        (tmp_path / "file").touch()
        with pytest.raises(InvalidArgumentError, match="is not empty"):
            Capture(space, tmp_path)


def test_evaluate_gives_a_captured_space_its_profile(client, daemon, tmp_path, capsys):
    with open_space(client, "cairn:4.3") as space, Capture(space, tmp_path / "c") as capture:
        puts = puts_of(space, 1, *make_sequence(1))
        assert all(one.error is None for one in space.put_batch(puts))
        (folder,) = capture.close()
        out = ["--out", str(tmp_path / "out"), "--profile-out", str(tmp_path / "p")]
        dump = [str(folder), "--recipes", "cairn:4.3/plain", "--loss", "kv_error=1"]
        assert evaluate.main([*dump, *out, "--install", daemon.control]) == 0
        profile = (tmp_path / "p" / "group-0.profile").read_bytes()
        assert space.side_object(space.current_profile(0)) == profile
        assert space.current_profile(0).hex() in capsys.readouterr().out
        banked = [str(folder), "--recipes", "patternkv:4", "--loss", "kv_error=1"]
        banked += ["--out", str(tmp_path / "banked"), *out[2:]]
        assert evaluate.main([*banked, "--install", daemon.control]) == 0
        bank = (tmp_path / "p" / "group-0.bank").read_bytes()
        assert space.side_object(space.current_bank(0)) == bank
        assert "the bank:" in capsys.readouterr().out
    assert evaluate.main([*dump, *out, "--install", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("evaluate: ")


def test_the_example(client, daemon, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "client" / "examples" / "evaluate"))
    import capture
    from test_evaluate_example import Letters, TinyWeights

    monkeypatch.setattr(capture, "load_weights", lambda name: TinyWeights())
    monkeypatch.setattr(capture, "make_tokenizer", lambda weights: Letters())
    monkeypatch.setattr(capture, "revision_of", lambda path: "tiny")
    arguments = ["--control", daemon.control, "--data", daemon.data, "--tokens", "512"]
    monkeypatch.setattr(sys, "argv", ["capture.py", str(tmp_path / "c"), *arguments])
    assert capture.main() == 0
    assert "cairnctl evaluate" in capsys.readouterr().out
    dumps = [read_dump(tmp_path / "c" / name) for name in ("0", "1")]
    assert [dump.token_count for dump in dumps] == [512, 512] and len(dumps[0].q) == 2
    assert json.loads((tmp_path / "c" / "0" / "model.json").read_text())["weights_revision"]
    found = evaluate.evaluate(dumps[0], ["cairn:2.3/basis"], calibration=dumps[1:])
    assert found[0].attention_error < 0.5
    assert cairn.Capture is Capture
