// SPDX-License-Identifier: Apache-2.0
// The tier of the test suite, as it is and as a device: on a thread of its own, late, in any order.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/conformance/tier/suite.h"
#include "tests/support/memory_tier.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

constexpr TierTraits kTraits = {.id = TierId::kSsd, .may_hold_last = true};

class DeviceTier final : public CopyTier {
 public:
  explicit DeviceTier(uint64_t capacity_bytes) : memory_(kTraits, capacity_bytes) {
    memory_.HoldCompletions(true);
    device_ = std::thread([this] { Run(); });
  }
  ~DeviceTier() override {
    is_stopping_ = true;
    device_.join();
  }

  const TierTraits& traits() const override { return kTraits; }
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override {
    return memory_.Reserve(bytes, placement);
  }
  uint64_t capacity_bytes() const override { return memory_.capacity_bytes(); }
  uint64_t used_bytes() const override { return memory_.used_bytes(); }
  TransferId Read(const TierRead& read, TierDone done) override {
    return memory_.Read(read, std::move(done));
  }
  TransferId Write(const TierWrite& write, TierDone done) override {
    return memory_.Write(write, std::move(done));
  }
  void Cancel(TransferId id) override { memory_.Cancel(id); }
  void SetEvictor(Evictor* evictor) override { memory_.SetEvictor(evictor); }
  void Report(MetricSink&) const override {}

 private:
  void Run() {
    std::mt19937_64 random = SeededRandom();
    while (!is_stopping_) {
      const std::vector<TransferId> waiting = memory_.waiting();
      if (!waiting.empty()) {
        memory_.Complete(waiting[random() % waiting.size()], absl::OkStatus());
      }
      std::this_thread::yield();
    }
  }
  void Free(uint64_t, uint64_t) override {}  // its places are those of memory_

  MemoryTier memory_;
  std::atomic<bool> is_stopping_{false};
  std::thread device_;
};

}  // namespace

INSTANTIATE_TEST_SUITE_P(
    Memory, TierSuite,
    ::testing::Values(
        TierUnderTest{.name = "memory",
                      .make = [](uint64_t capacity_bytes) -> std::unique_ptr<CopyTier> {
                        return std::make_unique<MemoryTier>(kTraits, capacity_bytes);
                      }},
        TierUnderTest{.name = "device",
                      .make = [](uint64_t capacity_bytes) -> std::unique_ptr<CopyTier> {
                        return std::make_unique<DeviceTier>(capacity_bytes);
                      }}));

}  // namespace cairn
