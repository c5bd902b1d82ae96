// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include <gtest/gtest.h>

namespace cairn::kernels {
namespace {

TEST(Backend, SaysWhetherThereIsOneAndWhyNot) {
  const Availability availability = Probe();
  EXPECT_TRUE(availability.name == "none" || availability.name == "cuda");
  EXPECT_EQ(availability.is_available, !availability.reason.starts_with("unavailable: "));
  EXPECT_EQ(Probe().reason, availability.reason);
  if (availability.name == "none") {
    EXPECT_EQ(availability.reason, "unavailable: built without device kernels");
  }
}

TEST(Backend, LaunchesNothingWhereThereIsNone) {
  if (Probe().is_available) GTEST_SKIP() << "there is a device";
  int stream = 0;
  EXPECT_EQ(LoadKernels(), LaunchResult::kUnavailable);
  EXPECT_EQ(LaunchDecode({}, nullptr, nullptr, &stream), LaunchResult::kUnavailable);
  EXPECT_EQ(LaunchMine({}, nullptr, nullptr, nullptr, &stream), LaunchResult::kUnavailable);
  EXPECT_EQ(LastDeviceError(), "");
}

}  // namespace
}  // namespace cairn::kernels
