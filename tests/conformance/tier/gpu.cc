// SPDX-License-Identifier: Apache-2.0
// The GPU tier, on an emulated device.
#include "base/status.h"
#include "service/tier/gpu/gpu_tier.h"
#include "tests/conformance/tier/suite.h"
#include "tests/support/emulated_memory.h"

namespace cairn {

INSTANTIATE_TEST_SUITE_P(Gpu, TierSuite,
                         ::testing::Values(TierUnderTest{
                             .name = "gpu",
                             .make = [](uint64_t capacity_bytes) -> std::unique_ptr<CopyTier> {
                               auto tier = GpuTier::Make(
                                   std::make_unique<EmulatedMemory>(),
                                   {.path = "gpu:0", .capacity_bytes = capacity_bytes});
                               CAIRN_CHECK_OK(tier);
                               return *std::move(tier);
                             }}));

}  // namespace cairn
