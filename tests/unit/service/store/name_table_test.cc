// SPDX-License-Identifier: Apache-2.0
// Blocks by name, held against a set.
#include "service/index/name_table.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/support/random.h"

namespace cairn {
namespace {

BlockName NameOf(uint64_t number) {
  BlockName name = {.space_id = number % 3, .key = {}};
  name.key[0] = static_cast<std::byte>(number);
  name.key[1] = static_cast<std::byte>(number >> 8);
  return name;
}

TEST(NameTableTest, FindsWhatIsThereThroughEveryGrowth) {
  std::mt19937_64 random = SeededRandom();
  BlockSlab slab;
  NameTable table(slab);
  std::map<uint64_t, Block*> expected;
  // Grows, shrinks, grows further than before.
  for (const uint64_t count : {5000u, 100u, 20'000u, 0u}) {
    while (expected.size() != count) {
      const uint64_t number = random() % 30'000;
      const auto found = expected.find(number);
      ASSERT_EQ(table.Find(NameOf(number)), found == expected.end() ? nullptr : found->second);
      if (found == expected.end() && expected.size() < count) {
        Block* block = slab.Take();
        block->name = NameOf(number);
        table.Add(block);
        expected[number] = block;
      } else if (found != expected.end() && expected.size() > count) {
        table.Remove(found->second);
        slab.Return(found->second);
        expected.erase(found);
      }
      ASSERT_EQ(table.count(), expected.size());
    }
    for (uint64_t number = 0; number < 30'000; ++number) {
      const auto found = expected.find(number);
      ASSERT_EQ(table.Find(NameOf(number)), found == expected.end() ? nullptr : found->second);
    }
  }
  EXPECT_LE(table.bytes(), 20'000u * 4 + 16'384) << "4 bytes for each there ever was at once";
  EXPECT_LE(slab.bytes(), 20'256u * sizeof(Block));
}

}  // namespace
}  // namespace cairn
