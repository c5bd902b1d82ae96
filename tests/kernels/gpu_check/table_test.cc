// SPDX-License-Identifier: Apache-2.0
// What the table says where something is out of the ordinary.
#include "tests/kernels/gpu_check/table.h"

#include <gtest/gtest.h>

namespace cairn::kernels {
namespace {

const Scale kScale{.layers = 1,
                   .heads = 1,
                   .tokens = 16,
                   .dim = 32,
                   .images = 2,
                   .batches = {1, 64},
                   .copy_bytes = 1024,
                   .rounds = 1};

TEST(GpuTableTest, HasACellForEachBatch) {
  const Measured measured{"",
                          {{"copy", "", {{0, 0, 4.3e12, 1}}},
                           {"CRC", "raw", {{1, 1, 2.5e12, 0.5814}, {64, 32, 3e12, 0.7}}}},
                          {}};
  const std::string text = TableOf({"H", "5", "", 0}, "gpu_check", {30, {}}, kScale, measured);
  EXPECT_NE(text.find("Device: H, driver 5; `gpu_check`, "), std::string::npos);
  EXPECT_NE(text.find("| copy | | 4.3 | | 1 | |\n"
                      "| CRC | raw | 2.5 | 3 (of 32) | 0.581 | 0.7 (of 32) |\n"),
            std::string::npos)
      << text;
}

TEST(GpuTableTest, SaysHowMuchFasterThanBf16) {
  const Measured measured{"",
                          {{"attend", "raw", {{1, 1, 2e12, 0.5}, {64, 4, 4e12, 0.9}}},
                           {"encode", "kivi:2", {{1, 1, 9e12, 1}, {64, 4, 9e12, 1}}},
                           {"attend", "kivi:2", {{1, 1, 7e12, 0.4}, {64, 4, 20e12, 0.7}}}},
                          {}};
  const std::string text = TableOf({"H", "5", "", 0}, "gpu_check", {30, {}}, kScale, measured);
  EXPECT_NE(text.find("\nAttention, over that to bf16: kivi:2 3.5 x in batches of 1, "
                      "5 x in batches of 4.\n"),
            std::string::npos)
      << text;
}

TEST(GpuTableTest, NamesWhatIsRefused) {
  const Measured measured{"", {}, {}, {"attend raw", "attend fp8"}};
  const std::string text =
      TableOf({"L", "5", "", 0}, "gpu_check", {30, {"A.B", "A.C"}}, kScale, measured);
  const std::string why = "since a kernel needs more shared memory than a block of the device has";
  EXPECT_NE(text.find("\nRefused, " + why + ": attend raw, attend fp8.\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find(" 30 tests passed, in as many blocks as the device likes and in one. Of "
                      "these, some plans were refused, " +
                      why + ": A.B, A.C.\n"),
            std::string::npos)
      << text;
}

TEST(GpuTableTest, SaysWhatIsLeftOut) {
  const Measured measured = RunBench(kScale, std::chrono::steady_clock::now());
  EXPECT_EQ(measured.fault, "");
  EXPECT_TRUE(measured.rows.empty());
  ASSERT_FALSE(measured.left_out.empty());
  const std::string text = TableOf({"H", "5", "", 0}, "gpu_check", {30, {}}, kScale, measured);
  EXPECT_NE(text.find("\nLeft out, since time was up: raw, kivi:8, "), std::string::npos) << text;
}

}  // namespace
}  // namespace cairn::kernels
