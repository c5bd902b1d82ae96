// SPDX-License-Identifier: Apache-2.0
// The GPU tier, on an emulated device, and on a CUDA device where there is one.
#include "base/status.h"
#include "kernels/backend.h"
#include "service/tier/gpu/gpu_tier.h"
#include "tests/conformance/tier/suite.h"
#include "tests/support/emulated_memory.h"

namespace cairn {
namespace {

std::unique_ptr<CopyTier> On(std::unique_ptr<kernels::Runtime> device, uint64_t capacity_bytes) {
  auto tier = GpuTier::Make(std::make_shared<GpuDevice>(std::move(device), "gpu:0"),
                            {.capacity_bytes = capacity_bytes});
  CAIRN_CHECK_OK(tier);
  return *std::move(tier);
}

TierUnderTest Emulated() {
  return {.name = "emulated", .make = [](uint64_t capacity_bytes) {
            return On(std::make_unique<EmulatedMemory>(), capacity_bytes);
          }};
}

TierUnderTest Cuda() {
  const kernels::Availability found = kernels::Probe();
  return {
      .name = "cuda",
      .make =
          [](uint64_t capacity_bytes) { return On(kernels::OpenCudaRuntime(0), capacity_bytes); },
      .unavailable = found.is_available ? "" : std::string(found.reason)};
}

INSTANTIATE_TEST_SUITE_P(Gpu, TierSuite, ::testing::Values(Emulated(), Cuda()));

}  // namespace
}  // namespace cairn
