// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"
#include "service/limits.h"
#include "service/tier/host_tier.h"
#include "tests/conformance/tier/suite.h"

namespace cairn {

INSTANTIATE_TEST_SUITE_P(
    Host, TierSuite,
    ::testing::Values(TierUnderTest{
        .name = "host", .make = [](uint64_t capacity_bytes) -> std::unique_ptr<CopyTier> {
          auto tier = HostTier::Make(
              {.capacity_bytes = capacity_bytes, .staging_bytes = 1 << 20, .fault_in = false});
          CAIRN_CHECK_OK(tier);
          return *std::move(tier);
        }}));

}  // namespace cairn
