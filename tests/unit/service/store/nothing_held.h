// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a store holds for calls that are over: nothing.

#include <gtest/gtest.h>

#include "tests/support/store_fixture.h"

namespace cairn {

inline void ExpectNothingHeld(const StoreFixture& store) {
  EXPECT_EQ(store.host->staging_bytes(), 0u);
  EXPECT_EQ(store.sessions.in_flight_bytes(), 0u);
  EXPECT_EQ(store.index->pinned_bytes(), 0u);
}

}  // namespace cairn
