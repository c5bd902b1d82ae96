# SPDX-License-Identifier: Apache-2.0
"""cairn.evaluate, from files to the page."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from cairn import InvalidArgumentError, evaluate, image
from cairn.evaluate.code import Group, parts_of
from cairn.evaluate.dump import Dump, as_float, as_stored, read_dump
from cairn.evaluate.page import make_page
from cairn.evaluate.measure import attention_output
from cairn.evaluate.recipes import BANKED, PROFILED, USUAL
from cairn.evaluate import Loss, parse_loss, recommend
from conftest import ROOT, make_kv

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
    np.save(other / "q.1.npy", one.q[1])
    two = read_dump(other)
    assert (one.dtype, one.token_count) == (two.dtype, two.token_count) == ("bf16", TOKENS)
    assert one.groups() == two.groups() == [[0, 1, 2]]
    assert list(one.q) == list(two.q) == [1] and not one.windows
    assert one.fingerprint() == two.fingerprint()
    for layer in range(LAYERS):
        np.testing.assert_array_equal(one.k[layer], two.k[layer])
        np.testing.assert_array_equal(one.v[layer], two.v[layer])
    np.save(other / "window.npy", np.array([0, 16, 0]))
    three = read_dump(other)
    assert three.windows == {1: 16} and three.fingerprint() != one.fingerprint()


@pytest.mark.parametrize(
    ("dtype", "codes", "values"),
    [
        ("fp8_e4m3", [0, 1, 7, 8, 56, 57, 0x7E, 0x80, 0xB8], [0, 2**-9, 7 / 512, 2**-6, 1, 1.125, 448, -0.0, -1]),
        ("fp8_e5m2", [0, 1, 3, 4, 60, 61, 0x7B, 0x80, 0xBC], [0, 2**-16, 3 / 65536, 2**-14, 1, 1.25, 57344, -0.0, -1]),
    ],
)
def test_8_bit_floats(dtype, codes, values):
    kind = np.uint8 if dtype == "fp8_e4m3" else np.int8
    np.testing.assert_array_equal(as_float(np.array(codes, np.uint8).view(kind)), np.float32(values))
    every = np.arange(256, dtype=np.uint8).view(kind)
    finite = np.isfinite(as_float(every))
    assert (~finite).sum() == (2 if dtype == "fp8_e4m3" else 8)
    np.testing.assert_array_equal(as_stored(as_float(every[finite]), dtype), every[finite])
    largest = values[6]
    asked = np.float32([largest * 2, -largest * 4, values[4] * 1.0001, (values[4] + values[5]) / 2])
    np.testing.assert_array_equal(as_float(as_stored(asked, dtype)), np.float32([largest, -largest, 1, 1]))


def test_a_dump_of_8_bit_floats(tmp_path, capsys):
    rng, shape = np.random.default_rng(3), (LAYERS, HEADS, TOKENS, DIM)
    k, v = (as_stored(rng.standard_normal(shape).astype(np.float32) * 8, "fp8_e4m3") for _ in range(2))
    folder, files = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    files.mkdir()
    write_safetensors(folder / "a.safetensors", {"k": ("F8_E4M3", k), "v": ("F8_E4M3", v)})
    np.save(files / "k.npy", k)
    np.save(files / "v.npy", v)
    one, other = read_dump(folder), read_dump(files)
    assert one.dtype == other.dtype == "fp8_e4m3" and one.fingerprint() == other.fingerprint()
    (folder / "model.json").write_text(json.dumps({"scales": {"k": {"1": 0.25}}}))
    scaled = read_dump(folder)
    assert scaled.scales.k == {1: 0.25} and scaled.fingerprint() != one.fingerprint()
    np.testing.assert_array_equal(scaled.values_of(1)[0], one.values_of(1)[0] * np.float32(0.25))
    run(folder, tmp_path / "out", "--recipes", "exact,kivi:4")
    about = json.loads((tmp_path / "out" / "evaluate.json").read_text())["about"]
    assert about["dtype"] == "fp8_e4m3" and "KV is fp8_e4m3" in about["notes"][0]
    assert "multiplied by the scales of model.json" in about["notes"][0]
    assert "KV is fp8_e4m3" in capsys.readouterr().out
    (folder / "model.json").write_text(json.dumps({"scales": {"k": {"1": 0}}}))
    with pytest.raises(InvalidArgumentError, match="a scale is not above 0"):
        read_dump(folder)


def test_says_what_is_wrong_with_a_dump(tmp_path):
    with pytest.raises(InvalidArgumentError, match="is no folder"):
        read_dump(tmp_path / "nothing")
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


@pytest.mark.parametrize("window", [0, 1, 4])
def test_attention_output_is_that_of_plain_loops(window):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((4, 3, 8), np.float32)
    k, v = rng.standard_normal((2, 2, 8, 8), np.float32)
    found = attention_output(q, 6, k, v, window)
    for head in range(4):
        for index in range(3):
            last = min(6 + index + 1, 8)  # the last query is of a token past K: it sees what 7 sees
            seen = slice(max(0, last - window) if window else 0, last)
            weight = np.exp(k[head // 2, seen] @ q[head, index] / 8**0.5)
            expected = weight @ v[head // 2, seen] / weight.sum()
            np.testing.assert_allclose(found[head, index], expected, rtol=1e-4, atol=1e-6)


# A model of a kind: what it predicts depends on all of K and V.
JUDGE = """
import numpy as np
from cairn.evaluate.dump import as_float
CALLS = {calls}

def make(folder):
    def judge(kv):
        with open(CALLS, "a") as file:
            file.write("called\\n")
            if file.tell() > {calls_max} * len("called\\n"):
                raise KeyboardInterrupt
        hidden = sum(as_float(p[i]).mean(0)[-9:] for p in (kv.k, kv.v) for i in sorted(p))
        logits = hidden @ np.random.default_rng(1).standard_normal((hidden.shape[1], 50))
        return logits, np.arange(9)
    return judge
"""


def write_judge(folder, calls_max=99):
    path = folder / "judge.py"
    path.write_text(JUDGE.format(calls=repr(str(folder / "calls")), calls_max=calls_max))
    return f"{path}:make"


def run(dump, out, *more):
    return evaluate.main([str(dump), "--out", str(out), *more])


def rows_of(out):
    kept = json.loads((out / "evaluate.json").read_text())
    return {evaluate.Evaluation(**row).name: row for row in kept["evaluations"]}


def test_from_files_to_the_page(dump_folder, tmp_path, capsys):
    out = tmp_path / "report"
    assert run(dump_folder, out, "--loss", "0.2", "--recipes", "raw,kivi:4,kivi:2") == 0
    printed = capsys.readouterr()
    assert "with attention_error at most 0.2 in every layer: kivi:4" in printed.out
    assert "KL" not in printed.out.partition("\n")[0] and re.search(r"kivi:2 +3 of 3", printed.err)
    rows = rows_of(out)
    assert rows["raw"]["k_error"] == rows["raw"]["v_error"] == rows["raw"]["attention_error"] == 0
    assert 16 < rows["raw"]["bits"] < 16.3 and 4.3 < rows["kivi:4"]["bits"] < 4.7
    assert 0 < rows["kivi:4"]["attention_error"] < rows["kivi:2"]["attention_error"]
    for row in rows.values():
        assert row["kl"] is None and row["encode_rate"] > 0 and row["decode_rate"] > 0
        assert len(row["k_error_by_layer"]) == LAYERS
    assert [x is None for x in rows["raw"]["attention_error_by_layer"]] == [True, False, True]
    chosen = json.loads((out / "evaluate.json").read_text())["loss"]
    assert chosen == {"figure": "attention_error", "most": 0.2, "recipe": "kivi:4"}
    page = (out / "evaluate.html").read_text()
    assert "<b>kivi:4</b>" in page and not re.search(r'src="|href="[^#]', page)
    assert "they need a judge" in page and "Without any error: raw." in page


def test_every_recipe_is_tried_and_lossless_ones_lose_nothing(dump_folder):
    with pytest.warns(UserWarning, match="/basis is not measured: a basis of 64 channels"):
        found = evaluate.evaluate(dump_folder)
    names = [one.name for one in found]
    banked = [f"{recipe}/bank" for recipe in BANKED]
    assert names == [*image.recipes(), *(f"{recipe}/plain" for recipe in PROFILED), *banked]
    lossless = [one for one in found if one.kv_error == 0]
    assert {"raw", "exact"} <= {one.recipe for one in lossless}
    assert recommend(found, Loss("kv_error", 0.0)).recipe in {one.recipe for one in lossless}
    assert recommend(found, Loss("kl", 1.0)) is None  # no judge, no KL


def test_without_names_the_usual_recipes_are_tried(dump_folder, tmp_path):
    assert run(dump_folder, tmp_path) == 0
    assert {row["recipe"] for row in rows_of(tmp_path).values()} == set(USUAL) and len(USUAL) == 8
    with pytest.raises(SystemExit):
        run(dump_folder, tmp_path, "--all", "--recipes", "raw")


def test_a_judge_says_what_the_model_makes_of_it(dump_folder, tmp_path, capsys):
    arguments = ["--recipes", "raw,kivi:8,kivi:2", "--judge", write_judge(tmp_path)]
    assert run(dump_folder, tmp_path / "out", *arguments) == 0
    rows = rows_of(tmp_path / "out")
    raw = rows["raw"]
    assert raw["kl"] == 0 and raw["perplexity_ratio"] == raw["same_top"] == 1
    assert 0 < rows["kivi:8"]["kl"] < rows["kivi:2"]["kl"]
    assert rows["kivi:2"]["kl_error"] > 0 and rows["kivi:2"]["perplexity_ratio"] != 1
    assert "with kl at most 0.01" in capsys.readouterr().out
    assert "KL of the next token" in (tmp_path / "out" / "evaluate.html").read_text()


def test_a_judge_may_return_logits_alone(dump_folder):
    def judge(kv):
        return as_float(kv.k[0])[0, -4:]

    (one,) = evaluate.evaluate(dump_folder, ["kivi:2"], judge)
    assert one.kl > 0 and one.perplexity_ratio is None


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (np.zeros(3), "expected .2 positions or more, words."),
        (np.zeros((1, 5)), "expected .2 positions or more, words."),
        ((np.zeros((3, 5)), np.zeros(2, int)), "next tokens for 3 positions"),
    ],
)
def test_what_a_judge_may_not_return(dump_folder, answer, text):
    with pytest.raises(InvalidArgumentError, match=text):
        evaluate.evaluate(dump_folder, ["raw"], lambda kv: answer)


@pytest.mark.parametrize("named", ["judge", "no_module:make", "nothing.py:make", "json:nothing"])
def test_a_judge_that_is_not_there_is_one_line(dump_folder, tmp_path, capsys, named):
    assert run(dump_folder, tmp_path, "--judge", named) == 1
    assert re.fullmatch(r"evaluate: .*judge.*\n", capsys.readouterr().err)


def test_a_run_that_was_stopped_goes_on(dump_folder, tmp_path, capsys):
    out, recipes = tmp_path / "out", ["--recipes", "kivi:8,kivi:4,kivi:2"]
    assert run(dump_folder, out, *recipes, "--judge", write_judge(tmp_path, calls_max=2)) == 130
    assert "goes on from here" in capsys.readouterr().err
    assert list(rows_of(out)) == ["kivi:8"]  # two calls: the exact KV, its own
    kept = (out / "evaluate.json").read_text()
    (out / "evaluate.json").write_text(kept.replace('"bits": 8', '"bits": 7'))
    (tmp_path / "calls").unlink()
    assert run(dump_folder, out, *recipes, "--judge", f"{tmp_path / 'judge.py'}:make") == 130
    assert list(rows_of(out)) == ["kivi:8", "kivi:4"]
    assert rows_of(out)["kivi:8"]["bits"] < 8  # not again
    assert run(dump_folder, out, *recipes, "--judge", write_judge(tmp_path)) == 0
    assert rows_of(out)["kivi:8"]["bits"] > 8  # another judge: all of it anew
    (out / "evaluate.json").write_text(kept[: len(kept) // 2])
    assert run(dump_folder, out, "--recipes", "raw") == 0


def test_a_changed_dump_is_measured_anew(dump_folder, tmp_path):
    assert run(dump_folder, tmp_path, "--recipes", "kivi:2") == 0
    before = rows_of(tmp_path)["kivi:2"]["k_error"]
    path = dump_folder / "a.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0x40  # same name, same length
    path.write_bytes(data)
    assert run(dump_folder, tmp_path, "--recipes", "raw") == 0
    assert list(rows_of(tmp_path)) == ["raw"] and before > 0


def test_losses_have_names(dump_folder):
    assert parse_loss(None, True, True) == Loss("kl", 0.01)
    assert parse_loss(None, False, True).figure == "attention_error"
    assert parse_loss("0.3", False, False) == Loss("kv_error", 0.3)
    assert parse_loss("k_error=0.3", True, True) == Loss("k_error", 0.3)
    for given, text in [
        ("kl=1", "needs a judge"),
        ("attention_error=1", "needs queries"),
        ("mse=1", "expected one of kl, "),
        ("k_error=much", "is no number"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            parse_loss(given, False, False)


def test_a_page_of_a_deep_model_is_whole():
    about = {"name": "<deep>", "tokens": 128, "layers": 81, "dtype": "bf16", "copy_rate": 1e9}
    about |= {"notes": ["<a note>"], "warnings": ["<a warning>"], "not_measured": {"fp8": "<why>"}}
    k, v = make_kv(5, (81, 1, 128, 16))
    dump = Dump("bf16", dict(enumerate(k)), dict(enumerate(v)), {}, {})
    found = evaluate.evaluate(dump, ["raw", "kivi:8", "kivi:2"])
    page = make_page(found, found[0], Loss("kv_error", 0.1), about)
    for text in ("deep", "a note", "a warning", "why"):
        assert f"&lt;{text}&gt;" in page
    assert page.count("<tr><th>80</th>") == 2  # K and V
    for tag in ("svg", "table"):
        drawings = re.findall(rf"<{tag}.*?</{tag}>", page, re.DOTALL)
        assert drawings
        for drawing in drawings:
            ElementTree.fromstring(drawing)


def test_layers_that_no_image_holds_together_get_more_images():
    plane = np.zeros((8, 128, 4096), np.uint16)  # 8 MiB; four layers of K and V are 64 MiB
    dump = Dump("bf16", dict.fromkeys(range(7), plane), dict.fromkeys(range(7), plane), {}, {})
    parts = parts_of(dump, [Group(layers) for layers in dump.groups()])
    assert [part.layers for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [part.first for part in parts] == [0, 3, 6]


def test_failures_are_one_line(dump_folder, tmp_path, capsys):
    assert run(dump_folder, tmp_path, "--recipes", "nonsense") == 1
    assert "evaluate: spec.recipe is 'nonsense', expected one of raw" in capsys.readouterr().err
    assert not (tmp_path / "evaluate.json").exists()


def cairnctl(bin_dir, *words):
    command = [bin_dir / "cairnctl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_cairnctl_runs_it(bin_dir, dump_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "client" / "python"))
    arguments = [dump_folder, "--out", tmp_path, "--recipes=raw", f"--python={sys.executable}"]
    done = cairnctl(bin_dir, "evaluate", *arguments)
    assert done.returncode == 0 and "with attention_error at most" in done.stdout, done.stderr
    assert (tmp_path / "evaluate.html").exists()
    monkeypatch.setenv("CAIRN_PYTHON", sys.executable)
    done = cairnctl(bin_dir, "evaluate", "--help")
    assert done.returncode == 0 and "--python PATH" in done.stdout and "--judge" in done.stdout
    assert cairnctl(bin_dir, "evaluate", tmp_path / "nothing").returncode == 1


def test_cairnctl_says_what_is_missing(bin_dir, tmp_path):
    bare = tmp_path / "python"  # -I -S: without PYTHONPATH and what is installed
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = cairnctl(bin_dir, "evaluate", "dump", "--python", bare)
    assert done.returncode == 1 and "kvcairn-*.whl numpy matplotlib jinja2" in done.stderr
    done = cairnctl(bin_dir, "replay", "no trace", "--html", tmp_path / "page", "--python", bare)
    assert done.returncode == 1 and "lacks the package cairn" in done.stderr, "before anything is replayed"
    for python in (bare, tmp_path / "none"):
        done = cairnctl(bin_dir, "evaluate", "--help", "--python", python)
        assert done.returncode == 0 and not done.stderr, done.stderr
        for words in ("DUMP", "--judge", "--profile-out", "docs/guides/evaluate.md", "not ready to run: "):
            assert words in done.stdout
    done = cairnctl(bin_dir, "evaluate", "dump", "--python", tmp_path / "none")
    assert done.returncode == 1 and "cannot run" in done.stderr
    assert cairnctl(bin_dir, "evaluate", "--python").returncode == 2
    assert "  evaluate " in cairnctl(bin_dir, "help").stdout
