// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store over an SSD tier whose drive fails, hangs and answers late where a test says so. It is
// killed by leaving it: the next one is opened on a copy of the folder as it is.
//
// Thread-safety: as StoreFixture; upkeep runs when it is told to.

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
    drive.tier = *std::move(tier);
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
    get->Stop();
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

  // A copy of the block on the drive could not be read, and is not lost yet.
  bool IsUnreadable(const BlockName& name) {
    for (const Pin& image : index->PinImages(name)) {
      const ResidentPin copy = index->Reside(image, TierId::kSsd);
      if (!copy.is_empty() &&
          drive->HasFailedToRead(absl::StrFormat("%06u", copy.extent().offset() / kSegmentBytes),
                                 copy.extent().offset() % kSegmentBytes)) {
        return true;
      }
    }
    return false;
  }

  FaultyIoEngine* drive = nullptr;
  CopyTier& ssd;
  Restorer restorer;

 private:
  LifeStore(FaultyDrive made, const LifeOptions& options)
      : StoreFixture(options.host_bytes, 8192, 32_MiB, Others(std::move(made.tier))),
        drive(made.engine),
        ssd(*tiers->Find(TierId::kSsd)),
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
