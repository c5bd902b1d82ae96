// SPDX-License-Identifier: Apache-2.0
#pragma once
// An SSD tier with a minimal store. The store is a map from numbers to places. The number of an
// image determines its contents. Restart() ends the process normally. Crash() does not: it opens
// the tier on a copy of the folders in their current state.
//
// Thread-safety: Thread-safe, except Restart() and Crash().

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "codecs/backend/backends.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "service/tier/ssd/ssd_tier.h"
#include "tests/support/awaited_transfer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {

class SsdShelf final : public Evictor, public RecoverySink {
 public:
  static constexpr uint64_t kSpaceId = 77;
  // A budget with so few segments that reclaim runs nearly all the time.
  static constexpr uint64_t kSmallBudgetBytes = 24_MiB;

  struct Options {
    uint64_t budget_bytes = 48_MiB;
    uint64_t segment_bytes = 2_MiB;
    uint64_t extents_max = 0;
    size_t devices = 1;
    size_t deletions_max = limits::kDeletionsMax;
    uint64_t chain_blocks = 1;  // so many consecutive numbers form a chain
    std::string folder = "";    // empty: a temporary folder
    IoChoice io = IoChoice::kThreads;
    std::string fstab = "";  // empty: no such file
    SsdPlacement placement = SsdPlacement::kChain;
    absl::Duration probe_after = absl::Seconds(30);
    absl::Duration room_wait = absl::Seconds(30);  // the longest wait of a put for room
    std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_engine = nullptr;
    // Called before the copy with this number is evicted or lost.
    std::function<void(uint64_t number, bool is_lost)> on_gone = nullptr;
  };
  SsdShelf() : SsdShelf(Options()) {}
  explicit SsdShelf(const Options& options) : options_(options) {
    if (options_.folder.empty()) {
      folders_ = std::make_unique<TempDir>(std::filesystem::current_path());  // for O_DIRECT
      options_.folder = folders_->path().string();
    }
    Open();
  }
  ~SsdShelf() override { Close(); }

  static proto::BlockKey KeyOf(uint64_t number) {
    proto::BlockKey key{};
    std::memcpy(key.data(), &number, sizeof(number));
    key[31] = std::byte{1};
    return key;
  }
  static uint64_t NumberOf(const proto::BlockKey& key) {
    uint64_t number = 0;
    std::memcpy(&number, key.data(), sizeof(number));
    return number;
  }
  static SpaceRecord Space() {
    SpaceRecord space;
    space.identity.tenant = "acme";
    space.identity.model = "m";
    space.identity.weights_revision = "r";
    space.identity.groups.resize(1);
    space.identity.groups[0].layers = {0, 1, 2, 3, 4, 5, 6, 7};
    space.identity.groups[0].kv_heads = 1;
    space.identity.groups[0].k_dim = space.identity.groups[0].v_dim = 64;
    space.fingerprint = proto::FingerprintOf(space.identity);
    space.recipe = "raw";
    return space;
  }
  // Returns an image of one to eight layers with 32 KiB each.
  static std::vector<std::byte> Image(uint64_t number) {
    codecs::ImageSpec spec;
    const proto::BlockKey key = KeyOf(number);
    std::memcpy(spec.key.data(), key.data(), spec.key.size());
    spec.tile.k_dim = spec.tile.v_dim = 64;
    spec.slice = SliceOf(number);
    spec.tokens = 128;
    spec.first_position = 128 * number;
    uint64_t source_bytes = 0, bytes_max = 0;
    CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) ==
                    codecs::Error::kOk &&
                codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
    std::vector<std::byte> source(source_bytes), image(bytes_max);
    std::minstd_rand random(static_cast<uint32_t>(number + 1));
    for (std::byte& byte : source) {
      byte = static_cast<std::byte>(random() >> 8);
    }
    size_t bytes = 0;
    const codecs::Backend* backend = nullptr;
    CAIRN_CHECK(codecs::ActiveBackend(&backend) == codecs::Error::kOk &&
                codecs::Encode(*backend, spec, source, image, &bytes) == codecs::Error::kOk);
    image.resize(bytes);
    return image;
  }
  static codecs::Slice SliceOf(uint64_t number) {
    return {0, static_cast<uint16_t>(1 + number % 8), 0, 1};
  }
  static ImageFacts FactsOf(uint64_t number) {
    return {.space_id = kSpaceId,
            .key = KeyOf(number),
            .first_position = 128 * number,
            .tokens = 128,
            .group = 0,
            .slice = SliceOf(number),
            .source_bytes = 32_KiB * SliceOf(number).layer_count};
  }

  // Writes the image with this number. Waits for room, as upkeep does.
  absl::Status Put(uint64_t number, bool is_durable = false) {
    const std::vector<std::byte> image = Image(number);
    absl::StatusOr<TierExtent> place;
    const bool has_room = WaitFor(
        [&] {
          place = tier_->Reserve(image.size(), Placement{.hash = number / options_.chain_blocks});
          return !absl::IsResourceExhausted(place.status());
        },
        options_.room_wait);
    if (!has_room || !place.ok()) {
      return place.status();
    }
    const SpaceRecord space = Space();
    TierWrite write;
    write.place = &*place;
    write.image = FactsOf(number);
    write.copy = {.tier = TierId::kSsd,
                  .recipe = {},
                  .image_bytes = image.size(),
                  .directory_crc = codecs::PeekDirectoryCrc(image)};
    write.source = image;
    write.parent = KeyOf(number + 1'000'000);
    write.space = &space;
    const uint64_t lost = lost_;
    CAIRN_RETURN_IF_ERROR(Await([&](TierDone done) {
      tier_->Write(write, [this, number, &place,
                           done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok()) {  // set it before the segment can be lost
          const MutexLock lock(mutex_);
          Leave(number);
          places_.emplace(number, *std::move(place));
        }
        std::move(done)(status);
      });
    }));
    if (is_durable) {
      CAIRN_RETURN_IF_ERROR(Await([&](TierDone done) { tier_->Sync(kAllParts, std::move(done)); }));
    }
    return !is_durable || lost == lost_ ? absl::OkStatus()
                                        : absl::UnavailableError("it may be lost");
  }
  // Returns OK if the image is stored and intact, and DataLoss if it is stored but wrong.
  absl::Status Get(uint64_t number) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::byte> read, Read(number));
    return read == Image(number) ? absl::OkStatus() : absl::DataLossError("other bytes");
  }
  // Returns the stored bytes without checking them.
  absl::StatusOr<std::vector<std::byte>> Read(uint64_t number, bool is_background = false) {
    const TierExtent* place = nullptr;
    {
      const MutexLock lock(mutex_);
      const auto found = places_.find(number);
      if (found == places_.end()) {
        return absl::NotFoundError("");
      }
      place = &found->second;
      ++reading_[number];
    }
    std::vector<std::byte> read(place->size_bytes());
    const absl::Status status = Await([&](TierDone done) {
      tier_->Read({.place = place, .target = read, .is_background = is_background},
                  std::move(done));
    });
    const MutexLock lock(mutex_);
    if (--reading_[number] == 0) {
      leaving_.erase(number);
    }
    CAIRN_RETURN_IF_ERROR(status);
    return read;
  }
  void Delete(uint64_t number) {
    const proto::BlockKey key = KeyOf(number);
    tier_->Deleted(Space().fingerprint, {&key, 1});
    Drop(number);
  }
  // Deletes the image while a reader still has it. Call Drop() when the reader is done.
  void DeleteWhileRead(uint64_t number) {
    const proto::BlockKey key = KeyOf(number);
    tier_->Deleted(Space().fingerprint, {&key, 1});
    const MutexLock lock(mutex_);
    places_.at(number).Unlist();
  }
  // Removes the image like an eviction. An image that is being read keeps its place until the
  // reader is done.
  void Drop(uint64_t number) {
    const MutexLock lock(mutex_);
    Leave(number);
  }
  void Hold(uint64_t number) {
    const MutexLock lock(mutex_);
    held_.insert(number);
  }
  std::set<uint64_t> Numbers() {
    std::set<uint64_t> numbers;
    const MutexLock lock(mutex_);
    for (const auto& [number, place] : places_) {
      numbers.insert(number);
    }
    return numbers;
  }
  uint64_t OffsetOf(uint64_t number) {
    const MutexLock lock(mutex_);
    return places_.at(number).offset();
  }

  void Restart() {
    Close();
    Open();
  }
  // REQUIRES: the shelf has made the folders itself.
  void Crash() {
    CrashThen([] {});
  }
  // Like Crash(). Calls `after` when the process has ended, before waiting for its threads.
  void CrashThen(absl::FunctionRef<void()> after) {
    std::unique_ptr<TempDir> copies = folders_->Copy();
    after();
    Close();
    folders_ = std::move(copies);
    options_.folder = folders_->path().string();
    Open();
  }
  // The test may change the folders between Close() and Open().
  void Close() {
    if (tier_ != nullptr) {
      tier_->Stop();
      const MutexLock lock(mutex_);
      places_.clear();
      leaving_.clear();
    }
    tier_.reset();
  }
  void Open() {
    absl::Status status = TryOpen();
    CAIRN_CHECK_OK(status);
  }
  absl::Status TryOpen() {
    SsdTier::Options options = {.devices = {},
                                .io = options_.io,
                                .placement = options_.placement,
                                .segment_bytes = options_.segment_bytes,
                                .extents_max = options_.extents_max,
                                .keep_free_bytes = 0,
                                .lock_wait = absl::Milliseconds(200),
                                .fstab = options_.fstab,
                                .probe_after = options_.probe_after,
                                .deletions_max = options_.deletions_max,
                                .make_engine = options_.make_engine};
    for (size_t i = 0; i < options_.devices; ++i) {
      options.devices.push_back({folder(i), options_.budget_bytes});
    }
    CAIRN_ASSIGN_OR_RETURN(tier_, SsdTier::Make(options));
    tier_->SetEvictor(this);
    return tier_->Recover(*this);
  }
  std::string folder(size_t device = 0) const { return absl::StrCat(options_.folder, "/", device); }
  SsdTier& tier() { return *tier_; }
  Options& options() { return options_; }
  // The recipe of the space, as it was last found.
  const std::string& recipe() const { return recipe_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t evicted_for_index() const { return evicted_for_index_; }
  uint64_t moved() const { return moved_; }
  uint64_t lost() const { return lost_; }

  // Implements Evictor.
  uint64_t EvictOldest(TierId, EvictionReason, const BlockName*) override { return 0; }
  bool EvictWindow(uint64_t, const BlockName*, uint64_t*) override { return false; }
  bool EvictCopy(TierId, const ImageFacts& image, uint64_t offset, EvictionReason reason) override {
    const MutexLock lock(mutex_);
    const auto found = Find(image, offset);
    if (found == places_.end()) {
      return true;
    }
    const uint64_t number = found->first;
    if (held_.contains(number) || reading_[number] > 0) {
      return false;
    }
    ++evicted_;
    evicted_for_index_ += reason == EvictionReason::kIndex ? 1 : 0;
    Gone(number, false);
    Leave(number);
    return true;
  }
  Moved MoveCopy(TierId, const ImageFacts& image, uint64_t offset, TierExtent& to) override {
    const MutexLock lock(mutex_);
    const auto found = Find(image, offset);
    if (found == places_.end()) {
      return Moved::kGone;
    }
    if (reading_[found->first] > 0) {
      return Moved::kBusy;
    }
    ++moved_;
    found->second = std::move(to);
    return Moved::kMoved;
  }
  void LoseCopy(TierId, const ImageFacts& image, uint64_t offset) override {
    const MutexLock lock(mutex_);
    if (const auto found = Find(image, offset); found != places_.end()) {
      Lose(found->first);
    }
  }
  void LoseCopies(TierId, uint64_t begin, uint64_t end) override {
    const MutexLock lock(mutex_);
    std::vector<uint64_t> numbers;
    for (const auto& [number, place] : places_) {
      if (place.offset() >= begin && place.offset() < end) {
        numbers.push_back(number);
      }
    }
    for (const uint64_t number : numbers) {
      Lose(number);
    }
  }

  // Implements RecoverySink.
  uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource&) override {
    CAIRN_CHECK(space.fingerprint == Space().fingerprint);
    recipe_ = space.recipe;
    return kSpaceId;
  }
  void Deleted(const proto::Fingerprint&, std::span<const proto::BlockKey> keys) override {
    const MutexLock lock(mutex_);
    std::erase_if(places_, [&](const auto& image) {
      return keys.empty() || std::ranges::count(keys, KeyOf(image.first)) > 0;
    });
  }
  void Finish(absl::Duration) override {}
  void FoundImages(std::vector<FoundImage> images, SideObjectSource&) override {
    for (FoundImage& found : images) {
      const uint64_t number = NumberOf(found.image.key);
      const ImageFacts facts = FactsOf(number);
      CAIRN_CHECK(found.image.space_id == kSpaceId && found.image.key == facts.key &&
                  found.image.first_position == facts.first_position &&
                  found.image.tokens == facts.tokens && found.image.slice == facts.slice &&
                  found.image.source_bytes == facts.source_bytes &&
                  found.parent == KeyOf(number + 1'000'000));
      const MutexLock lock(mutex_);
      places_.try_emplace(number, std::move(found.place));  // reclaim may have carried it twice
    }
  }

 private:
  std::map<uint64_t, TierExtent>::iterator Find(const ImageFacts& image, uint64_t offset) {
    const auto found = places_.find(NumberOf(image.key));
    return found == places_.end() || found->second.offset() != offset ? places_.end() : found;
  }
  void Leave(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = places_.find(number);
    if (found != places_.end() && reading_[number] > 0) {
      found->second.Unlist();
      leaving_.insert(places_.extract(found));
    } else if (found != places_.end()) {
      places_.erase(found);
    }
  }
  void Lose(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++lost_;
    Gone(number, true);
    Leave(number);
  }
  void Gone(uint64_t number, bool is_lost) const {
    if (options_.on_gone) {
      options_.on_gone(number, is_lost);
    }
  }
  template <typename Submit>
  static absl::Status Await(Submit submit) {
    AwaitedTransfer transfer;
    submit(transfer.Done());
    return transfer.Await();
  }

  Options options_;
  std::unique_ptr<TempDir> folders_;  // null: the test owns the folders
  std::unique_ptr<SsdTier> tier_;
  std::string recipe_;
  Mutex mutex_;
  std::map<uint64_t, TierExtent> places_ ABSL_GUARDED_BY(mutex_);
  std::multimap<uint64_t, TierExtent> leaving_ ABSL_GUARDED_BY(mutex_);  // still being read
  std::map<uint64_t, int> reading_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> evicted_{0}, evicted_for_index_{0}, moved_{0}, lost_{0};
};

}  // namespace cairn
