# SPDX-License-Identifier: Apache-2.0
"""gpu_check prints its table on a device that is right, fails on one that is not, and says where there is none.

usage: gpu_check_test.py GPU_CHECK_EMULATED GPU_CHECK
"""

import os
import subprocess
import sys
import unittest

EMULATED, REAL = sys.argv[1:3]
# Some of each suite: all of it has tests of its own.
SOME = "--gtest_filter=*OpaqueBytes:*VerifiesCrcs:*EncodeTest.BatchesOfImages:*CodesThatAreNone"
NONE = "--gtest_filter=NoSuchTest"
DECODED = ["raw", "kivi:8", "kivi:4", "kivi:2", "kivi:2+", "ott:2", "logquant:2", "arkv", "arkv:paper", "fp8", "mixkvq", "patternkv:2",
           "exact", "exact:fast", "cairn:2.3", "cairn:2.3/basis", "cairn-hot:2.4", "cairn-hot:2.4/basis"]


def run(program, *arguments, **environment):
    return subprocess.run([program, *arguments], text=True, capture_output=True, env=os.environ | environment)


def table(text):
    """{(kernels, recipe): [cell, …]} of the rows below the line under the head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {(row[0], row[1]): row[2:] for row in rows}


class GpuCheckTest(unittest.TestCase):
    def test_prints_one_table(self):
        done = run(EMULATED, "--small", SOME)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("\n| --- |"), 1)
        for said in ("Device: emulated, driver none; `gpu_check --small`, 20", "Conformance before it: 4 tests passed", "nvCOMP is left out"):
            self.assertIn(said, done.stdout)
        rows = table(done.stdout)
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "decode"], DECODED)
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "encode"], DECODED)
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "attend"], ["raw", "kivi:8", "kivi:4", "kivi:2", "fp8"])
        self.assertRegex(done.stdout, r"\nAttention, over that to bf16: kivi:8 \S+ x in batches of 1, \S+ x in batches of 2; kivi:4 .*; kivi:2 .*; fp8 .*\.\n")
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "CRC"], ["raw", "kivi:2", "exact"])
        for key, cells in rows.items():
            self.assertEqual(len(cells), 4, key)
            for cell in cells if key[0] != "copy" else [cells[0], cells[2]]:
                self.assertGreater(float(cell), 0, key)

    def test_sanitize_times_nothing(self):
        done = run(EMULATED, "--sanitize", SOME)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"emulated: 4 tests passed, .*\nThe benchmark ran once\. \n$")
        self.assertNotIn("|", done.stdout)

    def test_conformance_fails(self):
        for what, filter in (("decode", "*OpaqueBytes"), ("encode", "*EncodeTest.BatchesOfImages"), ("mine", "*TokensOfSmallNorms")):
            done = run(EMULATED, "--small", f"--gtest_filter={filter}", CAIRN_EMULATED_FORGETS=what)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("conformance failed: nothing is timed", done.stdout)
            self.assertNotIn("| --- |", done.stdout)

    def test_conformance_runs_with_one_block_a_launch(self):
        done = run(EMULATED, "--small", "--gtest_filter=*OpaqueBytes", CAIRN_EMULATED_FORGETS="decode in one block")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("a test failed with one block a launch", done.stdout)
        self.assertIn("conformance failed: nothing is timed", done.stdout)

    def test_passes_by_what_the_device_refuses(self):
        # What a block has on 8.6, 8.9 and 12.x.
        done = run(EMULATED, "--small", "--gtest_filter=AttentionHostileTest.BytesOfE4m3ThatAreNone:*NothingToAttendTo", CAIRN_EMULATED_SHARED_BYTES="101376")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        why = "since a kernel needs more shared memory than a block of the device has"
        self.assertIn(f"some plans were refused, {why}: AttentionHostileTest.BytesOfE4m3ThatAreNone.\n", done.stdout)
        self.assertIn(f"\nRefused, {why}: attend raw, attend kivi:8, attend fp8.\n", done.stdout)
        rows = table(done.stdout)
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "decode"], DECODED)
        self.assertEqual([recipe for kernels, recipe in rows if kernels == "attend"], ["kivi:4", "kivi:2"])

    def test_fails_where_other_kernels_than_those_of_attention_are_refused(self):
        done = run(EMULATED, "--small", NONE, CAIRN_EMULATED_SHARED_BYTES="65536")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, "failed: .*: a kernel needs more shared memory than a block has")

    def test_benchmark_looks_at_what_it_times(self):
        for what in ("decode", "encode"):
            done = run(EMULATED, "--small", NONE, CAIRN_EMULATED_FORGETS=what)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, f"failed: {what} of .*, batches of 1: image 0 is not {what}d as on the CPU")
            self.assertNotIn("| --- |", done.stdout)
        done = run(EMULATED, "--small", NONE, CAIRN_EMULATED_FORGETS="attend")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, "failed: attend of raw, batches of 1: an output is .*, not")

    def test_says_that_there_is_no_device(self):
        done = run(REAL, CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^unavailable: .+\n$")

    def test_ends_when_time_is_up(self):
        done = run(EMULATED, "--small", "--seconds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.endswith("failed: time is up\n"), done.stdout)

    def test_refuses_options_that_are_none(self):
        for words in (["--fast"], ["--seconds"], ["--seconds", "0"], ["--seconds", "1s"]):
            self.assertEqual(run(EMULATED, *words).returncode, 2, words)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
