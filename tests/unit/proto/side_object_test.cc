// SPDX-License-Identifier: Apache-2.0
#include "proto/side_object.h"

#include <algorithm>
#include <array>

#include "gtest/gtest.h"

namespace cairn::proto {
namespace {

TEST(SideObjectTest, IsNamedByTheSha256OfItsBytes) {
  const std::array bytes = {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  const codecs::Digest id = SideObjectId(bytes);
  const std::array<uint8_t, 4> first = {0xBA, 0x78, 0x16, 0xBF};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), id.begin()));
  EXPECT_EQ(id[31], 0xAD);
  EXPECT_EQ(SideObjectId({})[0], 0xE3);
}

}  // namespace
}  // namespace cairn::proto
