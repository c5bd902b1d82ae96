// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store over an SSD tier whose drive fails, hangs and answers late where a test says so. It is
// killed by leaving it: the next one is opened on a copy of the folder as it is.
//
// Thread-safety: as StoreFixture; upkeep runs when it is told to.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/units.h"
#include "service/recovery.h"
#include "service/tier/ssd/ssd_tier.h"
#include "tests/support/faulty_io_engine.h"
#include "tests/support/store_fixture.h"
#include "tests/support/temp_dir.h"

namespace cairn {

constexpr uint64_t kSegmentBytes = 2_MiB;

struct LifeOptions {
  uint64_t host_bytes = 16_MiB;
  uint64_t ssd_bytes = 48_MiB;
};

// A tier that calls the test before each write, and before each completion of one. The rest is the
// tier's own.
class WatchedTier final : public CopyTier {
 public:
  explicit WatchedTier(std::unique_ptr<CopyTier> tier) : tier_(std::move(tier)) {}

  // Of the next write, once each. REQUIRES: none is under way.
  void WatchNextWrite(std::function<void(const ImageFacts& image)> before,
                      std::function<void()> before_completion) {
    before_ = std::move(before);
    before_completion_ = std::move(before_completion);
  }

  const TierTraits& traits() const override { return tier_->traits(); }
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement& placement) override {
    return tier_->Reserve(bytes, placement);
  }
  uint64_t capacity_bytes() const override { return tier_->capacity_bytes(); }
  uint64_t image_bytes_max() const override { return tier_->image_bytes_max(); }
  uint64_t used_bytes() const override { return tier_->used_bytes(); }
  TransferId Read(const TierRead& read, TierDone done) override {
    return tier_->Read(read, std::move(done));
  }
  TransferId Write(const TierWrite& write, TierDone done) override {
    const auto before = std::exchange(before_, nullptr);
    if (!before) {
      return tier_->Write(write, std::move(done));
    }
    before(write.image);
    return tier_->Write(write, [then = std::exchange(before_completion_, nullptr),
                                done = std::move(done)](absl::Status status) mutable {
      then();
      std::move(done)(std::move(status));
    });
  }
  void Cancel(TransferId id) override { tier_->Cancel(id); }
  void SetEvictor(Evictor* evictor) override { tier_->SetEvictor(evictor); }
  absl::Status Recover(RecoverySink& sink) override { return tier_->Recover(sink); }
  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override {
    tier_->Deleted(space, keys);
  }
  void PolicyChanged(const SpaceRecord& space) override { tier_->PolicyChanged(space); }
  bool AwaitFreed(absl::Time deadline) override { return tier_->AwaitFreed(deadline); }
  void Sync(uint64_t parts, TierDone done) override { tier_->Sync(parts, std::move(done)); }
  void Stop() override { tier_->Stop(); }
  void Report(MetricSink& sink) const override { tier_->Report(sink); }
  std::vector<DeviceReport> Devices() const override { return tier_->Devices(); }

 private:
  // Of blocks at rest, for which the index makes places itself.
  void Unlist(uint64_t offset) override {
    TierExtent place(*tier_, offset, 0, 0);
    place.Unlist();
    place.Forget();
  }
  void Free(uint64_t offset, uint64_t rounded_bytes) override {
    const TierExtent place(*tier_, offset, 0, rounded_bytes);
  }

  const std::unique_ptr<CopyTier> tier_;
  std::function<void(const ImageFacts& image)> before_;
  std::function<void()> before_completion_;
};

// The tier with the engine under it.
struct FaultyDrive {
  std::unique_ptr<CopyTier> tier;
  FaultyIoEngine* engine = nullptr;  // the tier's

  static FaultyDrive Make(const std::string& folder, uint64_t bytes) {
    FaultyDrive drive;
    SsdTier::Options options = {.devices = {},
                                .io = IoChoice::kThreads,
                                .segment_bytes = kSegmentBytes,
                                .keep_free_bytes = 0,
                                .probe_after = absl::Milliseconds(5)};
    options.devices.push_back({folder, bytes});
    options.make_engine = [&drive]() -> absl::StatusOr<std::unique_ptr<IoEngine>> {
      auto engine = std::make_unique<FaultyIoEngine>();
      drive.engine = engine.get();
      return engine;
    };
    auto tier = SsdTier::Make(options);
    CAIRN_CHECK_OK(tier);
    drive.tier = std::make_unique<WatchedTier>(*std::move(tier));
    return drive;
  }
};

class LifeStore : public StoreFixture {
 public:
  LifeStore(std::unique_ptr<TempDir> folder, const LifeOptions& options)
      : LifeStore(FaultyDrive::Make(folder->path().string(), options.ssd_bytes), options) {
    folder_ = std::move(folder);
  }
  ~LifeStore() {
    drive->Clear();
    index->SetWake([] {});
    upkeep->Stop();
    gets->Stop();
    pool->Stop();
    tiers->Stop();
  }

  // 64 KiB a block.
  static proto::SpaceIdentity IdentityOf(std::string_view revision) {
    proto::SpaceIdentity identity = Identity();
    identity.weights_revision = std::string(revision);
    identity.tokens_per_block = 64;
    return identity;
  }

  // The folder as a kill would leave it now. The drive stands still from here on.
  std::unique_ptr<TempDir> CopyOfFolder() const {
    drive->Inject({.act = FaultyIoEngine::kHold});
    return folder_->Copy();
  }

  // The same at this moment, and the drive goes on.
  std::unique_ptr<TempDir> CopyNow() const { return folder_->Copy(); }
  // For the next one, once this is over.
  std::unique_ptr<TempDir> TakeFolder() { return std::move(folder_); }

  // A copy of the block on the drive could not be read, and is not lost yet.
  bool IsUnreadable(const BlockName& name) {
    for (const ImagePin& image : index->PinImages(name)) {
      const CopyPin copy = index->PinCopy(image, TierId::kSsd);
      if (!copy.is_empty() &&
          drive->HasFailedToRead(absl::StrFormat("%06u", copy.extent().offset() / kSegmentBytes),
                                 copy.extent().offset() % kSegmentBytes)) {
        return true;
      }
    }
    return false;
  }

  FaultyIoEngine* drive = nullptr;
  WatchedTier& ssd;
  Restorer restorer;

 private:
  LifeStore(FaultyDrive made, const LifeOptions& options)
      : StoreFixture(options.host_bytes, 8192, 32_MiB, Others(std::move(made.tier))),
        drive(made.engine),
        ssd(static_cast<WatchedTier&>(*tiers->Find(TierId::kSsd))),
        restorer(spaces, *index, clock) {
    clock.Set(MonotonicNow() + absl::Hours(1));  // the drive knows the real time alone
    CAIRN_CHECK_OK(ssd.Recover(restorer));
    restorer.Finish(absl::ZeroDuration());
  }
  static std::vector<std::unique_ptr<CopyTier>> Others(std::unique_ptr<CopyTier> tier) {
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::move(tier));
    return others;
  }

  std::unique_ptr<TempDir> folder_;
};

}  // namespace cairn
