// SPDX-License-Identifier: Apache-2.0
#include "base/random_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace cairn {
namespace {

TEST(RandomBytes, TicketsDiffer) {
  std::set<std::array<std::byte, 16>> tickets;
  for (int i = 0; i < 1000; ++i) {
    tickets.insert(RandomBytes<16>());
  }
  EXPECT_EQ(tickets.size(), 1000);
}

TEST(RandomBytes, FillsAllOfALargeSpan) {
  std::vector<std::byte> bytes(1 << 16);
  FillRandom(bytes);
  // 256 expected; all zero in the tail would mean that it was not reached.
  EXPECT_LT(std::count(bytes.end() - 4096, bytes.end(), std::byte{0}), 100);
  FillRandom({});
}

}  // namespace
}  // namespace cairn
