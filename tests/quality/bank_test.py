# SPDX-License-Identifier: Apache-2.0
"""Mining banks: the cases where k-means goes wrong, and that it is the same every time."""

import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing.name} is missing (make deps)")
    sys.exit(77)

from cairn import bank
from cairn.evaluate import calibrate
from cairn.profile import GroupSamples


def points_of(seed, count, dim):
    return np.random.default_rng(seed).normal(size=(count, dim))


class ClusterTest(unittest.TestCase):
    def test_clusters_far_apart_are_found(self):
        true = np.array([[0.0, 0], [100, 0], [0, 100], [100, 100]])
        points = np.repeat(true, 50, axis=0) + points_of(1, 200, 2)
        found = bank.cluster(points, 4)
        self.assertLess(np.abs(np.sort(found, axis=0) - np.sort(true, axis=0)).max(), 1)

    def test_fewer_tokens_than_patterns(self):
        points = points_of(2, 5, 3)
        np.testing.assert_allclose(bank.cluster(points, 32), points, rtol=2**-23, atol=2**-23)
        self.assertRaises(ValueError, bank.cluster, points[:0], 4)

    def test_duplicates_leave_patterns_empty_and_those_are_filled_from_the_farthest(self):
        points = np.zeros((100, 2))
        points[:3] = [[5, 0], [0, 7], [9, 9]]
        found = bank.cluster(points, 4)
        for point in np.unique(points, axis=0):
            self.assertLess(np.abs(found - point).sum(axis=1).min(), 1e-9)
        same = bank.cluster(np.ones((10, 3)), 4)
        np.testing.assert_array_equal(same, np.ones((4, 3)))

    def test_sums_have_no_order(self):
        points = points_of(3, 500, 21)
        whole = bank.cluster(points, 1)
        np.testing.assert_array_equal(whole, bank.cluster(points[::-1], 1))
        np.testing.assert_allclose(whole, points.mean(axis=0)[None], atol=1e-6)

    def test_the_same_every_time(self):
        points = points_of(3, 500, 8)
        np.testing.assert_array_equal(bank.cluster(points, 16), bank.cluster(points.copy(), 16))


class MineTest(unittest.TestCase):
    def test_a_bank_is_what_its_page_says(self):
        k = points_of(4, 2 * 3 * 40, 5).reshape(2, 3, 40, 5)
        v = points_of(5, 2 * 3 * 40, 4).reshape(2, 3, 40, 4)
        data = bank.mine(k, v, patterns=8)
        self.assertEqual(struct.unpack_from("<4sHHQBxHHHII", data), (b"CKVB", 1, 64, len(data), 2, 8, 2, 3, 5, 4))
        first = np.frombuffer(data, np.float16, 8 * 5, 64).reshape(8, 5)
        np.testing.assert_array_equal(first, bank.cluster(k[0, 0].astype(np.float32), 8).astype(np.float16))
        self.assertEqual(len(data), 64 + 6 * 8 * 5 * 2 + 6 * 8 * 4 * 2)
        self.assertEqual(data, bank.mine(k, v, patterns=8))

    def test_first_tokens_of_texts_make_no_pattern(self):
        texts = [tuple(points_of(seed, 2 * 50, 5).reshape(1, 2, 50, 5) for seed in pair) for pair in ((8, 9), (10, 11))]
        (first,) = calibrate.make_banks([GroupSamples(texts)])
        self.assertEqual(first, bank.mine(*(np.concatenate([x[:, :, 4:] for x in plane], 2) for plane in zip(*texts))))
        for plane in texts[1]:
            plane[:, :, :4] *= 100
        self.assertEqual(calibrate.make_banks([GroupSamples(texts)]), [first])

    def test_few_tokens_and_tokens_that_cannot_be_coded(self):
        k = points_of(6, 6, 5).reshape(1, 1, 6, 5)
        k[0, 0, 2, 1] = np.inf
        data = bank.mine(k, patterns=32)
        self.assertEqual(struct.unpack_from("<H", data, 18)[0], 6)
        values = np.frombuffer(data, np.float16, 30, 64).reshape(6, 5)
        self.assertTrue(np.isfinite(values).all())
        np.testing.assert_array_equal(values[4], values[5])

    def test_what_is_wrong_is_named(self):
        k = points_of(7, 12, 5).reshape(1, 1, 12, 5)
        for patterns in (0, 257):
            self.assertRaisesRegex(ValueError, "patterns is", bank.mine, k, patterns=patterns)
        self.assertRaisesRegex(ValueError, "axes", bank.mine, k[0])
        self.assertRaisesRegex(ValueError, "of", bank.mine, k, k[:, :, :6])


if __name__ == "__main__":
    unittest.main()
