# SPDX-License-Identifier: Apache-2.0
"""cairn.evaluate, from files to the page."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from cairn import InvalidArgumentError, evaluate
from cairn._dump import read_dump
from conftest import make_kv

LAYERS, HEADS, TOKENS, DIM, QUERIES = 3, 2, 300, 64, 20


def write_safetensors(path, tensors):
    """tensors: {name: (safetensors dtype, array)}."""
    header, data = {"__metadata__": {"from": "a test"}}, b""
    for name, (dtype, array) in tensors.items():
        first, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [first, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def dump_folder(tmp_path):
    k, v = make_kv(1, (LAYERS, HEADS, TOKENS, DIM))
    q = np.random.default_rng(2).standard_normal((2 * HEADS, QUERIES, DIM), np.float32)
    folder = tmp_path / "dump"
    folder.mkdir()
    tensors = {"k": ("BF16", k), "v": ("BF16", v)}
    write_safetensors(folder / "a.safetensors", tensors | {"q.1": ("F32", q), "mask": ("U8", q)})
    return folder


def test_reads_npy_and_safetensors_alike(dump_folder, tmp_path):
    one = read_dump(dump_folder)
    other = tmp_path / "npy"
    other.mkdir()
    for layer in range(LAYERS):
        for name, plane in (("k", one.k), ("v", one.v)):
            np.save(other / f"{name}.{layer}.npy", plane[layer])
    two = read_dump(other)
    assert (one.dtype, one.token_count) == (two.dtype, two.token_count) == ("bf16", TOKENS)
    assert one.groups() == two.groups() == [[0, 1, 2]]
    assert list(one.q) == [1] and not two.q
    for layer in range(LAYERS):
        np.testing.assert_array_equal(one.k[layer], two.k[layer])
        np.testing.assert_array_equal(one.v[layer], two.v[layer])


def test_says_what_is_wrong_with_a_dump(tmp_path):
    with pytest.raises(InvalidArgumentError, match="no tensor k"):
        read_dump(tmp_path)
    np.save(tmp_path / "k.0.npy", np.zeros((2, 9, 8), np.float16))
    with pytest.raises(InvalidArgumentError, match="different layers"):
        read_dump(tmp_path)
    np.save(tmp_path / "v.0.npy", np.zeros((2, 7, 8), np.float16))
    with pytest.raises(InvalidArgumentError, match="other heads or tokens"):
        read_dump(tmp_path)
    beyond = {"k": {"dtype": "F16", "shape": [1, 1, 1, 9], "data_offsets": [0, 18]}}
    headers = [b"", b"{", b"[]", b"\xff", b'{"k": 1}', b'{"k": {"dtype": []}}']
    for header in [*headers, json.dumps(beyond).encode()]:
        data = len(header).to_bytes(8, "little") + header
        (tmp_path / "x.safetensors").write_bytes(data)
        with pytest.raises(InvalidArgumentError, match="x.safetensors cannot be read"):
            read_dump(tmp_path)


def test_attention_output_is_that_of_plain_loops():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((4, 3, 8), np.float32)
    k, v = rng.standard_normal((2, 2, 9, 8), np.float32)
    found = evaluate.attention_output(q, 6, k, v)
    for head in range(4):
        for index in range(3):
            seen = slice(0, 6 + index + 1)
            weight = np.exp(k[head // 2, seen] @ q[head, index] / 8**0.5)
            expected = weight @ v[head // 2, seen] / weight.sum()
            np.testing.assert_allclose(found[head, index], expected, rtol=1e-4, atol=1e-6)


def test_from_files_to_the_page(daemon, dump_folder, tmp_path, capsys):
    out = tmp_path / "report"
    arguments = [str(dump_folder), "--control", daemon.control, "--data", daemon.data]
    arguments += ["--out", str(out), "--loss", "0.2"]
    assert evaluate.main([*arguments, "--recipes", "raw,kivi:2"]) == 0
    assert evaluate.main([*arguments, "--recipes", "raw,kivi:4"]) == 0
    assert "for a loss of at most 0.2: kivi:4" in capsys.readouterr().out
    kept = json.loads((out / "evaluate.json").read_text())["evaluations"]
    rows = {row["recipe"]: row for row in kept}
    assert [row["recipe"] for row in kept] == ["raw", "kivi:2", "kivi:4"]  # raw was not run again
    assert rows["raw"]["k_error"] == rows["raw"]["v_error"] == rows["raw"]["attention_error"] == 0
    assert 16 < rows["raw"]["bits"] < 16.3 and 4.3 < rows["kivi:4"]["bits"] < 4.7
    assert 0 < rows["kivi:4"]["attention_error"] < rows["kivi:2"]["attention_error"]
    assert all(len(row["k_error_by_layer"]) == LAYERS for row in kept)
    page = (out / "evaluate.html").read_text()
    assert "kivi:4</b>" in page and not re.search(r'(src|href)="', page)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)


def test_failures_are_one_line(daemon, dump_folder, tmp_path, capsys):
    arguments = [str(dump_folder), "--control", daemon.control, "--data", daemon.data]
    assert evaluate.main([*arguments, "--out", str(tmp_path), "--recipes", "nonsense"]) == 1
    assert capsys.readouterr().err.startswith("evaluate: ")
    assert not (tmp_path / "evaluate.json").exists()
