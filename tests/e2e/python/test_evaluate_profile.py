# SPDX-License-Identifier: Apache-2.0
"""cairn.evaluate and the profiles that it makes."""

import dataclasses
import html
import json

import numpy as np
import pytest
from cairn import InvalidArgumentError, evaluate
from cairn.evaluate.calibrate import calibration_of, make_profiles
from cairn.evaluate.code import Group, code
from cairn.evaluate.dump import Dump, as_float, read_dump
from cairn._model import parse_rope
from cairn._profile import Rotation, profile_id
from cairn.profile import turn
from conftest import make_kv
from test_evaluate import (  # noqa: F401
    DIM,
    HEADS,
    LAYERS,
    QUERIES,
    dump_folder,
    rows_of,
    run,
    write_safetensors,
)


def with_rope(tmp_path, count=1200):
    """A dump of other values whose K has turned, with what says so."""
    folder = tmp_path / f"turned{count}"
    folder.mkdir()
    rotation = Rotation.of("half", 10000.0 ** (-np.arange(0, DIM, 2) / DIM))
    rng = np.random.default_rng(count)
    k = rng.standard_normal((LAYERS, HEADS, count, DIM), np.float32) + 4 * (np.arange(DIM) % 3)
    k = turn(k, rotation, 0, 1)
    v = rng.standard_normal((LAYERS, HEADS, count, DIM), np.float32)
    planes = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (k, v)]
    write_safetensors(folder / "a.safetensors", dict(zip("kv", (("BF16", x) for x in planes))))
    rope = {"kind": "half", "rotary_dims": DIM, "base": 10000.0}
    (folder / "model.json").write_text(json.dumps({"groups": [{"layers": LAYERS, "rope": rope}]}))
    return folder


def test_profiles_are_of_tokens_that_are_not_scored(tmp_path, capsys):
    folder, out = with_rope(tmp_path), tmp_path / "out"
    arguments = ["--recipes", "kivi:2,cairn:2.3,cairn:5.5/plain", "--loss", "k_error=0.4"]
    assert run(folder, out, *arguments, "--profile-out", str(tmp_path / "profiles")) == 0
    rows, printed = rows_of(out), capsys.readouterr()
    assert list(rows) == ["kivi:2", "cairn:2.3/plain", "cairn:2.3/basis", "cairn:5.5/plain"]
    assert rows["cairn:2.3/plain"]["bits"] == pytest.approx(2.3, abs=0.15)
    assert rows["cairn:5.5/plain"]["bits"] == pytest.approx(5.5, abs=0.15)
    assert rows["cairn:2.3/plain"]["k_error"] < rows["kivi:2"]["k_error"] / 2
    assert "with k_error at most 0.4 in every layer: cairn:2.3/" in printed.out
    profile = (tmp_path / "profiles" / "group-0.profile").read_bytes()
    assert profile[:4] == b"CKVP" and profile_id(profile).hex() in printed.out
    page = html.unescape((out / "evaluate.html").read_text())
    assert "Profiles are made of 512 tokens of the dump's beginning" in page
    # What a profile is made from may be as odd as it likes: it is not scored.
    before = rows["kivi:2"]["v_error"]
    dump = read_dump(folder)
    changed = {i: np.array(v) for i, v in dump.v.items()}
    for v in changed.values():
        v[:, :512] ^= 0x8000
    (found,) = evaluate.evaluate(dataclasses.replace(dump, v=changed), ["kivi:2"])
    assert found.v_error == before


def test_profiles_are_of_another_text_where_there_is_one(tmp_path):
    one, other = with_rope(tmp_path), with_rope(tmp_path, 300)
    (found,) = evaluate.evaluate(one, ["cairn:3.0/plain"], calibration=[other])
    assert found.bits == pytest.approx(3.0, abs=0.2) and found.name == "cairn:3.0/plain"
    assert run(one, tmp_path, "--calibration", str(other), "--recipes", "cairn:3.0") == 0
    assert rows_of(tmp_path)["cairn:3.0/plain"]["bits"] == found.bits
    kept = json.loads((tmp_path / "evaluate.json").read_text())
    assert f"300 tokens of {other}, without queries" in kept["about"]["notes"][0]
    assert list(kept["about"]["not_measured"]) == ["cairn:3.0/basis"]
    with pytest.raises(InvalidArgumentError, match="the calibration's layers"):
        k, v = make_kv(5, (1, 1, 128, 16))
        small = Dump("bf16", dict(enumerate(k)), dict(enumerate(v)), {}, {})
        evaluate.evaluate(one, ["cairn:3.0/plain"], calibration=[small])


def test_steps_follow_queries(tmp_path):
    dump = read_dump(with_rope(tmp_path))
    q = np.full((2 * HEADS, QUERIES, DIM), 0.1, np.float32)
    q[:, :, :4] = q[:, :, DIM // 2 : DIM // 2 + 4] = 10.0  # of pairs that turn together
    groups = dump.groups()
    flat = make_profiles(dump, calibration_of(dump, []), [3.0], "plain")
    heard = dataclasses.replace(dump, q=dict.fromkeys(range(LAYERS), q))
    weighted = make_profiles(heard, calibration_of(heard, []), [3.0], "plain")
    found = [
        code(dump, [Group(*both) for both in zip(groups, made, strict=True)], "cairn:3.0")
        for made in (flat, weighted)
    ]
    errors = []
    for one in found:
        pairs = [(as_float(one.kv.k[i]), as_float(dump.k[i][:, :1152])) for i in range(LAYERS)]
        errors.append(sum(np.square(coded - exact)[..., :4].sum() for coded, exact in pairs))
    assert errors[1] < errors[0] / 2


def test_says_what_is_wrong_with_model_json(dump_folder):
    path = dump_folder / "model.json"
    for text in (
        "{",
        "[]",
        '{"groups": 1}',
        '{"groups": [{}]}',
        '{"groups": [{"layers": 3, "rope": {"kind": "none"}}, {"layers": [2]}]}',
        '{"groups": [{"layers": 3, "rope": {"kind": "twisted", "base": 10}}]}',
        '{"groups": [{"layers": 3, "rope": {"kind": "half"}}]}',
        '{"groups": [{"layers": 3, "rope": {"kind": "half", "base": 9, "rotary_dims": 3}}]}',
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match="model.json cannot be read"):
            read_dump(dump_folder)
    wide = {"kind": "half", "base": 9.0, "rotary_dims": 2 * DIM}
    path.write_text(json.dumps({"groups": [{"layers": [1], "window_tokens": 7, "rope": wide}]}))
    with pytest.raises(InvalidArgumentError, match="more channels turn"):
        read_dump(dump_folder)
    wide["rotary_dims"] = DIM // 2
    path.write_text(json.dumps({"groups": [{"layers": [1], "window_tokens": 7, "rope": wide}]}))
    dump = read_dump(dump_folder)
    assert dump.windows == {1: 7} and dump.groups() == [[0, 2], [1]]
    assert dump.rotation_of(1).dims == DIM // 2 and dump.rotation_of(0).kind == "none"
    assert dump.with_rope(parse_rope("interleaved:500000")).rotation_of(0).dims == DIM
    for given in ("half", "half:", "twisted:10", "half:0", "half:100:3"):
        with pytest.raises(InvalidArgumentError, match=f"rope {given}: expected KIND:BASE"):
            parse_rope(given)


def test_a_chain_goes_on_from_block_to_block(tmp_path):
    dump = read_dump(with_rope(tmp_path))
    groups = [Group(layers) for layers in dump.groups()]
    chain, local = (code(dump, groups, name) for name in ("ott:2", "ott:2/local"))
    assert chain.image_bytes != local.image_bytes
    (found,) = evaluate.evaluate(dump, ["ott:2/local"])
    assert found.name == "ott:2/local" and found.profile is None
