// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every tier keeps to. A tier joins the suite with a file of ten lines:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, TierSuite, ::testing::Values(TierUnderTest{
//       .name = "memory", .make = [](uint64_t capacity_bytes) { … }}));

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "service/tier/tier.h"

namespace cairn {

struct TierUnderTest {
  std::string name;
  // A tier of about that many bytes, empty. It may round, and may take any time to answer.
  std::function<std::unique_ptr<CopyTier>(uint64_t capacity_bytes)> make;
  std::string unavailable = {};  // why this machine has none; empty: it has
  friend std::ostream& operator<<(std::ostream& out, const TierUnderTest& tier) {
    return out << tier.name;
  }
};

class TierSuite : public ::testing::TestWithParam<TierUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().unavailable.empty()) {
      GTEST_SKIP() << GetParam().unavailable;
    }
  }
};

}  // namespace cairn
