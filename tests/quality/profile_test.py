# SPDX-License-Identifier: Apache-2.0
"""Profiles that cairn.profile makes, read and coded with by the second implementation."""

import os
import pathlib
import sys
import unittest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "golden")]

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing.name} is missing (make deps)")
    sys.exit(77)

import cairn_recipe
import generate
from cairn import InvalidArgumentError
from cairn._profile import profile_id
from cairn.profile import GroupSamples, Rotation, build, turn

LAYERS, HEADS, DIM, TOKENS = 2, 1, 32, 640
FREQUENCIES = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)


def bf16(values):
    return generate.to_float(1, generate.from_float(1, values))


def texts(rotation, count=2, seed=1):
    """K after RoPE, with means and correlated channels before it, and V."""
    random = np.random.default_rng(seed)
    mixing = np.linalg.qr(random.normal(size=(DIM, DIM)))[0] * 2.0 ** -(np.arange(DIM) / 8)
    out = []
    for _ in range(count):
        k = random.normal(size=(LAYERS, HEADS, TOKENS, DIM)) @ mixing.T + np.arange(DIM) % 5
        v = random.normal(size=(LAYERS, HEADS, TOKENS, DIM)) * (1 + np.arange(DIM) % 3)
        out.append((bf16(turn(k.astype(np.float32), rotation, 0, 1)), bf16(v.astype(np.float32))))
    return out


def coded_bits(profile, bits, k, v, layer):
    """Of an element of the first strip of a layer, and the largest error of V in steps."""
    total, planes = 0, (k[layer, 0, :128], v[layer, 0, :128])
    multiplier = profile.rates[bits]
    for plane, values in enumerate(planes):
        tile = cairn_recipe.Tile(profile, layer, 0, plane, multiplier, 0, 1)
        raw = generate.from_float(1, values)
        strip, _ = cairn_recipe.encode_strip(tile, raw, values, planes[1], 0)
        back, _ = cairn_recipe.decode_strip(tile, strip, 128, 0, generate.from_float)
        error = np.abs(generate.to_float(1, back) - values) / tile.step
        total += 8 * len(strip)
    return total / (2 * values.size), error.max()


class ProfileTest(unittest.TestCase):
    def setUp(self):
        self.rotation = Rotation.of("half", FREQUENCIES)
        self.texts = texts(self.rotation)

    def made(self, has_basis=False, **more):
        groups = [GroupSamples(self.texts, self.rotation, **more)]
        return cairn_recipe.Profile(build(groups, (2.3, 4.3), has_basis)[0])

    def test_it_finds_means_before_rope(self):
        profile = self.made()
        means = profile.channels[0]["mean"][:, 0]
        np.testing.assert_allclose(
            means, np.broadcast_to(np.arange(DIM) % 5, means.shape), atol=0.2
        )
        spread = 2.0 ** (profile.channels[1]["spread"] / 256.0)
        np.testing.assert_allclose(spread[0, 0], 1 + np.arange(DIM) % 3, rtol=0.2)
        angle = np.array(profile.turns, np.float64) * 2.0**-64 * 2 * np.pi
        np.testing.assert_allclose(angle, FREQUENCIES, rtol=1e-12)

    def test_it_is_the_same_each_time(self):
        groups = [GroupSamples(self.texts, self.rotation)]
        first, second = build(groups, (3.0,)), build(groups, (3.0,))
        self.assertEqual(first, second)
        self.assertEqual(len(profile_id(first[0])), 32)

    def test_steps_follow_queries_and_losses(self):
        squares = np.ones((LAYERS, HEADS, DIM), np.float32)
        squares[:, :, 3] = 100
        losses = np.array([0.001, 0.1], np.float32)
        profile = self.made(q_squares=squares, k_loss=losses, v_loss=losses)
        k, v = (channels["step"].astype(int)[:, 0] for channels in profile.channels)
        self.assertEqual(k[0, 3], k[0, 3 + DIM // 2])  # a pair turns into each other
        self.assertLess(k[0, 3], k[0, 4] - 256)
        self.assertAlmostEqual((v[0, 0] - v[1, 0]) / 256, 0.35 * np.log2(100), delta=0.1)

    def test_v_is_coarser_where_queries_are_known_and_losses_are_not(self):
        squares = np.ones((LAYERS, HEADS, DIM), np.float32)
        flat = np.full(LAYERS, 0.01, np.float32)
        without, heard, measured = (
            [channels["step"].astype(int) for channels in self.made(**more).channels]
            for more in (
                {},
                {"q_squares": squares},
                {"q_squares": squares, "k_loss": flat, "v_loss": flat},
            )
        )
        half = 0.5 * 0.35 * 256 * np.log2(1 / 0.3)  # three tenths of K's loss
        np.testing.assert_allclose(heard[0], without[0] - half, atol=2)
        np.testing.assert_allclose(heard[1], without[1] + half, atol=2)
        np.testing.assert_allclose(measured, without, atol=2)

    def test_losses_of_some_groups_are_refused(self):
        flat = np.full(LAYERS, 0.01, np.float32)
        groups = [GroupSamples(self.texts, self.rotation) for _ in range(2)]
        groups[1].k_loss = groups[1].v_loss = flat
        with self.assertRaises(InvalidArgumentError):
            build(groups, (2.3,))
        with self.assertRaises(InvalidArgumentError):
            self.made(k_loss=flat)

    def test_rates_are_met_on_other_text(self):
        k, v = texts(self.rotation, 1, seed=1)[0]
        for has_basis in (False, True):
            profile = self.made(has_basis)
            self.assertEqual(profile.domain(), 2 if has_basis else 1)
            found = [coded_bits(profile, 43, k, v, layer) for layer in range(LAYERS)]
            self.assertAlmostEqual(np.mean([bits for bits, _ in found]), 4.3, delta=0.45)
            self.assertLess(max(error for _, error in found), 0.75)

    def test_a_basis_takes_fewer_bits_at_the_same_error(self):
        plain, basis = self.made(), self.made(has_basis=True)
        self.assertGreater(plain.rates[43], basis.rates[43] - 1000)
        product = basis.vectors[0, 0].T @ basis.vectors[0, 0]
        np.testing.assert_allclose(product, np.eye(DIM), atol=4e-3)
        self.assertLess(basis.rates[43], plain.rates[43])

    def test_one_text_and_no_rope_do(self):
        profile = cairn_recipe.Profile(build([GroupSamples(self.texts[:1])], (2.3,))[0])
        self.assertEqual(profile.domain(), 0)
        self.assertEqual(list(profile.rates), [23])


if __name__ == "__main__":
    unittest.main()
