// SPDX-License-Identifier: Apache-2.0
// Runs the C program abi.c against a cairnd of its own.
#include <gtest/gtest.h>

#include "tests/e2e/daemon/daemon_process.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class AbiTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Control, AbiTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Unix" : "Tcp"; });

TEST_P(AbiTest, ACProgramThatLinksNothingElseIsServed) {
  const TempDir folder;
  std::vector<std::string> flags;
  if (GetParam()) flags.push_back("--control=unix:" + folder.File("control.sock"));
  auto daemon = DaemonProcess::Start(flags);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  auto program = ChildProcess::Start(ABI_PROGRAM, {(*daemon)->endpoint("control")});
  ASSERT_TRUE(program.ok());
  const auto line = (*program)->ReadLine(absl::Seconds(50));
  EXPECT_EQ(line.ok() ? *line : line.status().ToString(), "the C ABI does what its header says");
  const auto code = (*program)->Wait(absl::Seconds(10));
  EXPECT_TRUE(code.ok() && *code == 0) << code.status();
}

}  // namespace
}  // namespace cairn
