// SPDX-License-Identifier: Apache-2.0
// In the steady state no put, no get and no miss takes memory from the heap: all of it was taken at
// start.
#include "gtest/gtest.h"
#include "tests/support/allocations.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

template <typename Action>
int CountAllocations(Action action) {
  const int before = AllocationCount();
  action();
  return AllocationCount() - before;
}

TEST(StoreAllocationTest, GetsDoNotAllocate) {
  StoreFixture store;
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto whole = StoreFixture::Whole(space);
  const auto keys = store.PutChain(space, 8);
  for (const auto form : {proto::Form::kImage, proto::Form::kSource}) {
    for (const codecs::Slice& slice : {whole, codecs::Slice{1, 1, 0, 2}}) {
      EXPECT_EQ(CountAllocations([&] {
                  for (const auto& key : keys) {
                    CAIRN_CHECK(store.RunGet(space, key, slice, form).ok());
                  }
                }),
                0);
    }
  }
  EXPECT_EQ(CountAllocations(
                [&] { CAIRN_CHECK(!store.RunGet(space, StoreFixture::Key(99), whole).ok()); }),
            0)
      << "a miss";
}

TEST(StoreAllocationTest, PutsThatReplaceTheOldestDoNotAllocate) {
  StoreFixture store(16_MiB, /*blocks_max=*/64);
  const SpaceEntry& space = store.OpenSpace("kivi:4");
  const auto whole = StoreFixture::Whole(space);
  uint64_t next = 1;
  const auto put = [&](const proto::Frame& frame, std::span<const std::byte> source) {
    CAIRN_CHECK_OK(store.RunPut(frame, source, store.session));
  };
  for (; next <= 256; ++next) {
    const auto source = StoreFixture::Source(space, StoreFixture::Key(next), 0, whole);
    put(StoreFixture::PutFrame(space, StoreFixture::Key(next), whole, source), source);
  }
  for (; next <= 300; ++next) {
    const auto source = StoreFixture::Source(space, StoreFixture::Key(next), 0, whole);
    const auto frame = StoreFixture::PutFrame(space, StoreFixture::Key(next), whole, source);
    EXPECT_EQ(CountAllocations([&] { put(frame, source); }), 0);
    EXPECT_EQ(CountAllocations([&] { put(frame, source); }), 0) << "a duplicate";
  }
}

}  // namespace
}  // namespace cairn
