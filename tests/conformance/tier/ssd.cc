// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "base/check.h"
#include "base/status.h"
#include "base/units.h"
#include "service/tier/ssd/ssd_tier.h"
#include "tests/conformance/tier/suite.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class NoSink final : public RecoverySink {
 public:
  uint64_t FoundSpace(const SpaceRecord&, SideObjectSource&) override { return 0; }
  void FoundImages(std::vector<FoundImage>, SideObjectSource&) override {}
  void Deleted(const proto::Fingerprint&, std::span<const proto::BlockKey>) override {}
  void Finish(absl::Duration) override {}
};

// A folder, and the tier in it.
class OwnFolderTier final : public CopyTier {
 public:
  OwnFolderTier(IoChoice io, uint64_t capacity_bytes) {
    auto tier = SsdTier::Make({.devices = {{folder_.path().string(), capacity_bytes + 32_MiB}},
                               .io = io,
                               .segment_bytes = 4_MiB,
                               .keep_free_bytes = 0});
    CAIRN_CHECK_OK(tier);
    tier_ = *std::move(tier);
  }
  ~OwnFolderTier() override { tier_->Stop(); }

  const TierTraits& traits() const override { return tier_->traits(); }
  void SetEvictor(Evictor* evictor) override {
    tier_->SetEvictor(evictor);
    CAIRN_CHECK_OK(tier_->Recover(sink_));
  }
  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override {
    return tier_->Reserve(bytes, placement);
  }
  TransferId Read(const TierRead& read, TierDone done) override {
    return tier_->Read(read, std::move(done));
  }
  TransferId Write(const TierWrite& write, TierDone done) override {
    return tier_->Write(write, std::move(done));
  }
  void Cancel(TransferId id) override { tier_->Cancel(id); }
  uint64_t capacity_bytes() const override { return tier_->capacity_bytes(); }
  uint64_t used_bytes() const override { return tier_->used_bytes(); }
  void Report(MetricSink& sink) const override { tier_->Report(sink); }

 private:
  void Free(uint64_t, uint64_t) override { CAIRN_CHECK(false, "its places are the tier's"); }

  const TempDir folder_{std::filesystem::current_path()};  // O_DIRECT wants a disk
  NoSink sink_;
  std::unique_ptr<SsdTier> tier_;
};

TierUnderTest With(std::string name, IoChoice io) {
  return {.name = std::move(name), .make = [io](uint64_t capacity_bytes) {
            return std::make_unique<OwnFolderTier>(io, capacity_bytes);
          }};
}

INSTANTIATE_TEST_SUITE_P(Ssd, TierSuite,
                         ::testing::Values(With("threads", IoChoice::kThreads),
                                           With("auto", IoChoice::kAuto)));

}  // namespace
}  // namespace cairn
