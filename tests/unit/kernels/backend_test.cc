// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include <gtest/gtest.h>

namespace cairn::kernels {
namespace {

TEST(Backend, SaysWhyThereIsNone) {
  const Availability availability = Probe();
  EXPECT_EQ(availability.name, "none");
  EXPECT_FALSE(availability.is_available);
  EXPECT_EQ(availability.reason, "unavailable: built without device kernels");
  EXPECT_EQ(Probe().reason, availability.reason);
}

}  // namespace
}  // namespace cairn::kernels
