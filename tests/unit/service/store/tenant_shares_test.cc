// SPDX-License-Identifier: Apache-2.0
#include "service/index/tenant_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/units.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

// Takes all that the tenant may hold, one at a time.
uint64_t TakeAll(TenantShares& shares, const std::string& tenant) {
  uint64_t taken = 0;
  for (; shares.CheckRoom(tenant, 1).ok(); ++taken) {
    shares.Add(tenant, 1);
  }
  return taken;
}

TEST(TenantSharesTest, ATenantHasHalfAndTheNextAnEighth) {
  TenantShares shares("spaces", 1024);
  EXPECT_EQ(TakeAll(shares, "first"), 512u);
  EXPECT_EQ(TakeAll(shares, "second"), 128u);
  EXPECT_EQ(shares.FreeFor("third"), 72u);
  shares.Remove("first", 512);
  EXPECT_EQ(shares.FreeFor("third"), 392u) << "what was given back counts";
}

TEST(TenantSharesTest, InventedNamesDoNotExhaustIt) {
  TenantShares shares("spaces", 1024);
  for (int i = 0; i < 50; ++i) {
    TakeAll(shares, "invented" + std::to_string(i));
  }
  EXPECT_LT(shares.total(), 1024u - 16);
  EXPECT_GE(TakeAll(shares, "victim"), 1u);
  for (int i = 0; i < 1024; ++i) {
    TakeAll(shares, "more" + std::to_string(i));
  }
  EXPECT_EQ(shares.total(), 1024u) << "the total holds, and is used up to the last";
  EXPECT_FALSE(shares.CheckRoom("late", 1).ok());
}

TEST(TenantSharesTest, NamesThatHoldLittleTakeLittle) {
  TenantShares shares("leases", 16384);
  for (int i = 0; i < 100; ++i) {
    shares.Add("invented" + std::to_string(i), 1);
  }
  EXPECT_GE(shares.FreeFor("victim"), 8000u);
}

TEST(TenantSharesTest, RefusalsNameTheLimitAndAreCounted) {
  TenantShares shares("leased_images", 100);
  shares.Add("other", 50);
  shares.Add("acme", 10);
  const absl::Status status = shares.CheckRoom("acme", 4);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "leased_images: the tenant holds 10 and asks for 4 more: over its share of 100");
  EXPECT_TRUE(shares.CheckRoom("acme", 3).ok());
  MetricCapture metrics;
  shares.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_limit_refusals_total{limit=\"leased_images\"}"), 1);
}

TEST(TenantSharesTest, ATenantThatHoldsNothingIsForgotten) {
  TenantShares shares("sessions", 1024);
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "invented" + std::to_string(i);
    shares.Add(name, 1);
    shares.Remove(name, 1);
  }
  EXPECT_EQ(shares.tenant_count(), 0u);
  EXPECT_EQ(shares.total(), 0u);
}

TEST(TenantSharesTest, LargeTotalsDoNotOverflow) {
  TenantShares shares("leased_bytes", 4 * kTiB);
  EXPECT_EQ(shares.FreeFor("acme"), 2 * kTiB);
  shares.Add("other", 4 * kTiB + 1);  // what is held may grow without a check
  EXPECT_EQ(shares.FreeFor("acme"), 0u);
  EXPECT_EQ(TenantShares("nothing", 0).FreeFor("acme"), 0u);
}

}  // namespace
}  // namespace cairn
