// SPDX-License-Identifier: Apache-2.0
#include "service/op_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn {
namespace {

// Notes its end.
struct Noted {
  Noted() = default;
  ~Noted() {
    if (ends != nullptr) ends->push_back(name);
  }
  std::vector<std::string>* ends = nullptr;
  std::string name;
};

struct Op {
  OpPool<Op>* pool = nullptr;
  Noted first, second;
  std::unique_ptr<int> owned;
};

TEST(OpPoolTest, UsesMemoryAgainAndEndsMembersInReverse) {
  OpPool<Op> pool;
  std::vector<std::string> ends;
  OpPool<Op>::Owner op = pool.Make();
  op->first.ends = op->second.ends = &ends;
  op->first.name = "first";
  op->second.name = "second";
  op->owned = std::make_unique<int>(1);
  const Op* const memory = op.get();
  const OpPool<Op>::Owner other = pool.Make();
  EXPECT_NE(other.get(), memory);
  op.reset();
  EXPECT_EQ(ends, (std::vector<std::string>{"second", "first"}));
  const OpPool<Op>::Owner again = pool.Make();
  EXPECT_EQ(again.get(), memory);
  EXPECT_EQ(again->pool, &pool);
  EXPECT_EQ(again->owned, nullptr) << "as new";
  EXPECT_EQ(again->first.ends, nullptr);
}

}  // namespace
}  // namespace cairn
