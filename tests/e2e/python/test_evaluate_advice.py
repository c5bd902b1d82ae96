# SPDX-License-Identifier: Apache-2.0
"""cairn.evaluate's advice: what hides a loss does not hide it from the recommendation. K has large
biases, as models with biases of K have, and the judge is made up."""

import dataclasses
import json

import numpy as np
import pytest
from cairn import evaluate
from cairn.evaluate.dump import Dump, as_float, as_stored, read_dump
from cairn.evaluate.measure import RelativeError
from cairn._model import parse_rope
from cairn._profile import Rotation
from cairn.evaluate import Evaluation, Loss, recipes, recommend
from cairn.profile import turn
from test_evaluate import rows_of, run, write_safetensors

LAYERS, HEADS, DIM, QUERIES, BASE = 3, 2, 64, 20, 10000.0
ROTATION = Rotation.of("half", BASE ** (-np.arange(0, DIM, 2) / DIM))
BIAS = 60.0 * (np.arange(DIM) % 32 >= 29)  # of channels that turn slowly


def make_dump(seed, count=512, bias=BIAS, first=0):
    """K [layers, heads, count, dim] of spread 1 about `bias` before RoPE, and V."""
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, LAYERS, HEADS, count, DIM), np.float32)
    k = turn(k + bias.astype(np.float32), ROTATION, first, 1)
    q = rng.standard_normal((LAYERS, 2 * HEADS, QUERIES, DIM), np.float32)
    k, v = (dict(enumerate(as_stored(x, "bf16"))) for x in (k, v))
    return Dump("bf16", k, v, dict(enumerate(q)), {}).with_rope(parse_rope(f"half:{BASE:g}"))


def write_dump(folder, dump, has_rope=True):
    folder.mkdir()
    planes = {"k": dump.k, "v": dump.v, "q": dump.q}
    tensors = {
        f"{name}.{layer}": ("F32" if name == "q" else "BF16", array)
        for name, plane in planes.items()
        for layer, array in plane.items()
    }
    write_safetensors(folder / "a.safetensors", tensors)
    if has_rope:
        rope = {"kind": "half", "rotary_dims": DIM, "base": BASE}
        about = {"groups": [{"layers": LAYERS, "rope": rope}]}
        (folder / "model.json").write_text(json.dumps(about))
    return folder


# What it predicts depends on all of K and V, and a hundred times as much on K of layer 1.
JUDGE = """
import numpy as np
from cairn.evaluate.dump import as_float

def make(folder):
    if (folder / "refused").exists():
        raise ValueError("no tokens follow it")
    def judge(kv):
        with open({calls!r}, "a") as file:
            file.write(folder.name + "\\n")
            if file.tell() > {calls_max} * 5:
                raise KeyboardInterrupt
        rng, logits = np.random.default_rng(1), 0.0
        for name, plane in (("k", kv.k), ("v", kv.v)):
            for layer in sorted(plane):
                heed = 3.0 if (name, layer) == ("k", 1) else 0.03
                values = as_float(plane[layer]).mean(0)[-200:]
                words = rng.standard_normal((values.shape[1], 50)) / values.shape[1] ** 0.5
                logits = logits + heed * values @ words
        return logits, np.arange(200) % 50
    return judge
"""


def write_judge(tmp_path, calls_max=10000):
    path = tmp_path / "judge.py"
    path.write_text(JUDGE.format(calls=str(tmp_path / "calls"), calls_max=calls_max))
    return f"{path}:make"


def calls_of(tmp_path):
    return (tmp_path / "calls").read_text().split()


def test_a_bias_of_k_does_not_hide_errors():
    found = {one.recipe: one for one in evaluate.evaluate(make_dump(1), ["fp8", "kivi:4"])}
    assert found["fp8"].k_error > 0.3 and found["fp8"].v_error < 0.03
    assert found["kivi:4"].bound("kv_error") < found["fp8"].bound("kv_error")
    errors = []
    for bias in (0 * BIAS, BIAS, 4 * BIAS):  # which cairn-hot codes apart
        made, other = (make_dump(seed, bias=bias) for seed in (1, 2))
        (one,) = evaluate.evaluate(made, ["cairn-hot:2.4/plain"], calibration=[other])
        errors.append(one.k_error)
    assert max(errors) < 1.1 * min(errors)


def test_errors_of_k_are_about_means_of_channels():
    rng = np.random.default_rng(1)
    content, noise = rng.standard_normal((2, HEADS, 300, DIM), np.float32)
    bias = BIAS.astype(np.float32)
    error = RelativeError()
    error.add_k(content + bias, content + bias + 0.1 * noise, Rotation(), 0)
    error.add_k(content + bias, content + bias + 7, Rotation(), 0)  # all logits of a query alike
    turned = turn(content + bias, ROTATION, 128, 1)
    error.add_k(turned, turned + 0.1 * noise, ROTATION, 128)
    lost = content.copy()
    lost[0, 3, 5] = np.inf
    error.add_k(content, lost, Rotation(), 0)
    error.add_k(lost, lost, Rotation(), 0)
    parts = error.parts
    assert parts[0] == pytest.approx(0.1, rel=0.02) and parts[1] < 1e-5
    assert parts[2] == pytest.approx(0.1, rel=0.02)
    assert parts[3] == np.inf and parts[4] == 0


def test_one_bad_layer_does_not_hide_behind_others(monkeypatch):
    """Layer 1 has the biases, so eight bits of float spoil its K; the V of others is large."""
    plain, biased = make_dump(1, bias=0 * BIAS), make_dump(2, bias=4 * BIAS)
    k = {**plain.k, 1: biased.k[1]}
    loud = {i: as_stored(30 * as_float(x), "bf16") for i, x in plain.v.items()}
    dump = dataclasses.replace(plain, k=k, v={**loud, 1: plain.v[1]})
    (bad,) = evaluate.evaluate(dump, ["fp8"])
    monkeypatch.delitem(recipes.UNSAFE, "fp8")
    assert bad.attention_error < 0.1 < bad.bound("attention_error")
    assert bad.worst("attention_error")[1] == bad.worst("k_error")[1] == 1
    assert recommend([bad], Loss("attention_error", 0.1)) is None
    assert recommend([bad], Loss("kv_error", bad.worst("kv_error")[0])) is bad
    assert str(Loss("k_error", 0.1)) == "k_error at most 0.1 in every layer"


def test_limits_of_a_judge_are_kept_by_two_standard_errors():
    one = Evaluation("kivi:4", 4.4, 3.6, 0.1, 0.1, [0], [0.1], [0.1], [None], 1e9, 1e9)
    sure = dataclasses.replace(one, kl=0.0079, kl_error=0.001)
    unsure = dataclasses.replace(one, bits=4.3, kl=0.0081, kl_error=0.001)
    assert recommend([sure, unsure], Loss("kl", 0.01)) is sure
    assert recommend([unsure], Loss("kl", 0.01)) is None
    more = dataclasses.replace(one, perplexity_ratio=1.005, perplexity_error=0.003)
    assert recommend([more], Loss("perplexity_ratio", 1.01)) is None
    assert recommend([more], Loss("perplexity_ratio", 1.012)) is more
    assert str(Loss("kl", 0.01)) == "kl at most 0.01 with two standard errors"


def test_a_recipe_that_is_unsafe_is_shown_and_not_recommended(tmp_path, monkeypatch, capsys):
    folder = write_dump(tmp_path / "dump", make_dump(1))
    arguments = ["--recipes", "kivi:8,kivi:4", "--loss", "k_error=9"]
    assert run(folder, tmp_path, *arguments) == 0
    assert "kivi:4, 4." in capsys.readouterr().out
    monkeypatch.setitem(recipes.UNSAFE, "kivi:4", "for this test")
    assert run(folder, tmp_path, *arguments) == 0
    printed = capsys.readouterr().out
    assert "kivi:8, 8." in printed and "kivi:4 is never recommended: for this test." in printed
    assert "kivi:4" in rows_of(tmp_path)
    (fp8,) = evaluate.evaluate(make_dump(1, bias=0 * BIAS), ["fp8"])
    assert fp8.bound("k_error") < 0.03 and recommend([fp8], Loss("k_error", 0.1)) is None


def test_a_judge_says_which_layers_want_fine_steps(tmp_path, capsys):
    one, other = make_dump(1), make_dump(2)
    folder = write_dump(tmp_path / "dump", one)
    behind = write_dump(tmp_path / "rest", other)
    errors, arguments = {}, ["--calibration", str(behind), "--recipes", "cairn:3.0/plain"]
    for judge in ([], ["--judge", write_judge(tmp_path)]):
        out = tmp_path / f"out{len(judge)}"
        assert run(folder, out, *arguments, *judge) == 0
        row = rows_of(out)["cairn:3.0/plain"]
        errors[len(judge)] = np.array(row["k_error_by_layer"])
        assert row["bits"] == pytest.approx(3.0, abs=0.1)
        printed = " ".join(capsys.readouterr().out.split())
        assert (f"cost in each layer was measured behind {behind}." in printed) == bool(judge)
        assert ("is not known: that takes a judge (--judge)." in printed) != bool(judge)
    assert errors[2][1] < errors[0][1] / 2 and errors[2][0] > errors[0][0]
    # Exact, K and V of each layer; and then exact and coded KV of the text that is scored.
    assert calls_of(tmp_path) == ["rest"] * (1 + 2 * LAYERS) + ["dump"] * 2
    # From Python, and behind the judged text where there is no other judge.
    judges = [evaluate.find_judge(write_judge(tmp_path))(x) for x in (folder, behind)]
    (found,) = evaluate.evaluate(one, ["cairn:3.0/plain"], judges[0], calibration=[other])
    assert found.k_error_by_layer[1] < errors[0][1] / 2
    arguments = [one, ["cairn:3.0/plain"], judges[0]]
    (same,) = evaluate.evaluate(*arguments, calibration=[other], calibration_judge=judges[1])
    np.testing.assert_allclose(same.k_error_by_layer, errors[2])


def test_losses_of_layers_are_not_measured_twice(tmp_path, capsys):
    folder = write_dump(tmp_path / "dump", make_dump(1))
    arguments = ["--recipes", "cairn:3.0/plain", "--judge", write_judge(tmp_path, calls_max=4)]
    assert run(folder, tmp_path, *arguments) == 130
    assert len(calls_of(tmp_path)) == 5  # exact, layer 0, K of layer 1, and the one too many
    kept = json.loads((tmp_path / "evaluate.json").read_text())["losses"]
    assert list(kept["k"]) == ["0"] and kept["is_judged"]
    (tmp_path / "calls").unlink()
    assert run(folder, tmp_path, *arguments) == 130
    (tmp_path / "calls").unlink()
    assert run(folder, tmp_path, *arguments) == 0
    assert len(calls_of(tmp_path)) == 4  # exact, layer 2, coded
    profiles = tmp_path / "profiles"
    assert run(folder, tmp_path, *arguments, "--profile-out", str(profiles)) == 0
    assert len(calls_of(tmp_path)) == 4 and (profiles / "group-0.profile").exists()


def test_the_terminal_says_what_spoils_figures(tmp_path, capsys):
    folder = write_dump(tmp_path / "dump", make_dump(1), has_rope=False)
    judge = ["--judge", write_judge(tmp_path), "--recipes", "kivi:4,cairn:3.0/plain"]
    assert run(folder, tmp_path, *judge, "--loss", "k_error=9") == 0
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "evaluate.html").read_text()
    for text in (
        "Note: The judge reads behind the tokens that profiles are made of, too",
        "Note: K is coded after RoPE, which costs bits or loss: nothing says how it turns.",
        "measured behind the judged text itself.",
    ):
        assert text in printed and text.removeprefix("Note: ") in page
    assert "; its KL is " in printed
    # Another text, how K turns, and a judge that does not take it.
    (folder / "a.safetensors").rename(tmp_path / "a")
    (tmp_path / "a").rename(write_dump(tmp_path / "turns", make_dump(1)) / "a.safetensors")
    behind = write_dump(tmp_path / "rest", make_dump(2))
    (behind / "refused").touch()
    arguments = [*judge, "--calibration", str(behind)]
    assert run(tmp_path / "turns", tmp_path, *arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Note: " not in printed
    assert f"the judged text itself, as the judge does not take {behind} (no tokens" in printed
    # A text that begins as the scored one does.
    same = write_dump(tmp_path / "same", make_dump(1, count=256))
    arguments[-1] = str(same)
    assert run(tmp_path / "turns", tmp_path, *arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "begin with the same" not in printed  # another shape, so other random values
    longer = read_dump(tmp_path / "turns").first_tokens(256)
    again = dataclasses.replace(make_dump(1), k=longer.k, v=longer.v, q={})
    arguments[-1] = str(write_dump(tmp_path / "again", again))
    assert run(tmp_path / "turns", tmp_path, *arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Note: {arguments[-1]} and the dump begin with the same 256 tokens" in printed


def test_bits_over_the_name_are_said(tmp_path, capsys):
    folder = write_dump(tmp_path / "dump", make_dump(1))
    wide = make_dump(2)
    narrow = {i: as_stored(as_float(v) / 4, "bf16") for i, v in wide.v.items()}
    behind = write_dump(tmp_path / "rest", dataclasses.replace(wide, v=narrow))
    arguments = ["--calibration", str(behind), "--recipes", "cairn:2.3/plain"]
    assert run(folder, tmp_path, *arguments, "--loss", "k_error=9") == 0
    bits = rows_of(tmp_path)["cairn:2.3/plain"]["bits"]
    printed = " ".join(capsys.readouterr().out.split())
    assert bits > 2.5 and f"cairn:2.3/plain takes {bits:.2f} bits, {bits - 2.3:.2f} more" in printed
    assert f"{bits:.2f} bits ({bits - 2.3:.2f} more than its name says)" in printed
    assert recipes.bits_over("cairn:2.3", 2.36) == recipes.bits_over("kivi:4", 4.4) == 0
