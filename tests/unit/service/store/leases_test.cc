// SPDX-License-Identifier: Apache-2.0
// How much of the leases one hold of the index's lock looks at.
#include "service/index/leases.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace cairn {
namespace {

constexpr absl::Duration kRun = absl::Milliseconds(limits::kLeaseMs);
constexpr size_t kLeaseSessions = limits::kLeasesMax / limits::kLeasesPerSessionMax;

proto::LeaseToken Token(uint64_t number) {
  proto::LeaseToken token{};
  std::memcpy(token.data(), &number, sizeof(number));
  return token;
}

// As many leases as there may be, taken a millisecond apart.
class LeasesTest : public testing::Test {
 protected:
  LeasesTest() {
    for (size_t i = 0; i < limits::kLeasesMax; ++i) {
      tokens_.push_back(Token(i));
      leases_.Take(tokens_.back(), "acme", 1 + i % kLeaseSessions, {},
                   start_ + absl::Milliseconds(i));
    }
  }
  // Runs `step` until it returns true, as in separate holds of a lock. Returns the visits of each.
  template <typename Step>
  std::vector<size_t> InHolds(Step step) {
    std::vector<size_t> counts;
    for (bool is_over = false; !is_over;) {
      Visits visits;
      is_over = step(visits);
      counts.push_back(visits.count());
      EXPECT_LE(visits.count(), limits::kVisitsPerHoldMax);
    }
    return counts;
  }
  std::vector<size_t> Expire(absl::Time now) {
    return InHolds([&](Visits& visits) { return leases_.Expire(now, visits, &dropped_); });
  }

  const absl::Time start_ = absl::FromUnixSeconds(1'000'000);
  Leases leases_{uint64_t{1} << 40};
  std::vector<proto::LeaseToken> tokens_;
  Leases::Dropped dropped_;
};

TEST_F(LeasesTest, ARoundWithoutExpiryLooksAtNone) {
  EXPECT_EQ(leases_.next_expiry(), start_ + kRun);
  EXPECT_EQ(Expire(start_ + kRun - absl::Milliseconds(1)), std::vector<size_t>{0});
  EXPECT_EQ(Expire(start_ + kRun), std::vector<size_t>{1});
  EXPECT_EQ(dropped_.size(), 1u);
  EXPECT_EQ(leases_.next_expiry(), start_ + kRun + absl::Milliseconds(1));
}

TEST_F(LeasesTest, WhatIsRenewedIsLookedAtOnceForEachRun) {
  const absl::Time renewed = start_ + absl::Seconds(59);
  for (size_t session = 1; session <= kLeaseSessions; ++session) {
    leases_.Renew(session, renewed);
  }
  size_t looked_at = 0;
  for (absl::Time now = renewed; now < renewed + kRun; now += absl::Milliseconds(100)) {
    for (const size_t count : Expire(now)) {
      looked_at += count;
    }
  }
  EXPECT_TRUE(dropped_.empty());
  EXPECT_EQ(looked_at, limits::kLeasesMax);
  Expire(renewed + kRun);
  EXPECT_EQ(dropped_.size(), limits::kLeasesMax) << "all were renewed at the same time";
  EXPECT_EQ(leases_.count(), 0u);
  EXPECT_EQ(leases_.next_expiry(), absl::InfiniteFuture());
}

TEST_F(LeasesTest, AllOfThemRunOutInHolds) {
  EXPECT_EQ(Expire(start_ + absl::Hours(1)).size(), limits::kLeasesMax / limits::kVisitsPerHoldMax);
  EXPECT_EQ(dropped_.size(), limits::kLeasesMax);
  EXPECT_EQ(leases_.count(), 0u);
}

TEST_F(LeasesTest, AllOfThemAreReleasedInHolds) {
  absl::Span<const proto::LeaseToken> tokens = tokens_;
  InHolds([&](Visits& visits) { return leases_.Release("other", &tokens, visits, &dropped_); });
  EXPECT_TRUE(dropped_.empty()) << "another tenant's";
  tokens = tokens_;
  EXPECT_EQ(InHolds([&](Visits& visits) {
              return leases_.Release("acme", &tokens, visits, &dropped_);
            }).size(),
            limits::kLeasesMax / limits::kVisitsPerHoldMax);
  EXPECT_EQ(dropped_.size(), limits::kLeasesMax);
  EXPECT_EQ(leases_.next_expiry(), absl::InfiniteFuture());
}

TEST_F(LeasesTest, TheEndOfASessionLooksAtItsOwn) {
  const auto counts =
      InHolds([&](Visits& visits) { return leases_.EndSession(1, visits, &dropped_); });
  EXPECT_EQ(counts, std::vector<size_t>{limits::kLeasesPerSessionMax});
  EXPECT_EQ(dropped_.size(), limits::kLeasesPerSessionMax);
  EXPECT_EQ(leases_.count(), limits::kLeasesMax - limits::kLeasesPerSessionMax);
}

}  // namespace
}  // namespace cairn
