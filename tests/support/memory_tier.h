// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tier for tests. Its bytes are on the heap, and only Read() and Write() access them. The test
// chooses when transfers complete, in which order, and with which status. With a MemoryDisk the
// tier is persistent: the next tier of that disk finds what was written.
//
// Thread-safety: Thread-safe. Completions run on the thread that calls Complete().

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "service/tier/tier.h"

namespace cairn {

// The contents that outlive a MemoryTier. Thread-safety: guarded by the lock of the tier that uses
// it.
struct MemoryDisk {
  struct Kept {
    proto::Fingerprint space{};
    ImageFacts image;
    CopyFacts copy;
    proto::BlockKey parent{};
    codecs::Digest side_object{};
    std::vector<std::byte> bytes;
  };
  std::map<proto::Fingerprint, SpaceRecord> spaces;
  std::map<codecs::Digest, std::vector<std::byte>> side_objects;
  std::map<uint64_t, Kept> copies;  // keyed by offset

  // Returns a copy of the block, or null.
  const Kept* Find(const proto::BlockKey& key) const {
    const auto found = std::ranges::find_if(
        copies, [&](const auto& copy) { return copy.second.image.key == key; });
    return found == copies.end() ? nullptr : &found->second;
  }
};

class MemoryTier final : public CopyTier, private SideObjectSource {
 public:
  MemoryTier(const TierTraits& traits, uint64_t capacity_bytes,
             std::shared_ptr<MemoryDisk> disk = nullptr)
      : traits_(traits), capacity_bytes_(capacity_bytes), disk_(std::move(disk)) {}
  ~MemoryTier() override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(extents_.empty() && waiting_.empty());
  }

  const TierTraits& traits() const override { return traits_; }
  uint64_t capacity_bytes() const override { return capacity_bytes_; }
  uint64_t image_bytes_max() const override { return std::min(capacity_bytes_, kImageBytesMax); }
  uint64_t used_bytes() const override {
    const MutexLock lock(mutex_);
    return used_bytes_;
  }
  void SetEvictor(Evictor* evictor) override { evictor_ = evictor; }
  void Report(MetricSink&) const override {}

  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement&) override {
    if (before_reserve_) {
      before_reserve_();
    }
    const uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    for (int evictions = 0; evictions < kEvictionsMax; ++evictions) {
      {
        const MutexLock lock(mutex_);
        if (is_out_) {
          return absl::UnavailableError("the device is out");
        }
        if (used_bytes_ + rounded <= capacity_bytes_) {
          used_bytes_ += rounded;
          const uint64_t offset = next_offset_;
          next_offset_ += rounded;
          extents_[offset].resize(bytes);
          return TierExtent(*this, offset, bytes, rounded);
        }
      }
      if (!EvictOne()) {
        break;
      }
    }
    return absl::ResourceExhaustedError("what is left is held");
  }

  TransferId Read(const TierRead& read, TierDone done) override {
    {
      const MutexLock lock(mutex_);
      reads_.push_back({read.place->offset(), read.offset, read.target.size(), read.deadline});
    }
    return Submit(
        [this, read] {
          const std::vector<std::byte>& bytes = extents_.at(read.place->offset());
          CAIRN_CHECK(read.offset + read.target.size() <= bytes.size());
          std::memcpy(read.target.data(), bytes.data() + read.offset, read.target.size());
        },
        std::move(done));
  }
  TransferId Write(const TierWrite& write, TierDone done) override {
    return Submit(
        [this, write] {
          std::vector<std::byte>& bytes = extents_.at(write.place->offset());
          CAIRN_CHECK(write.source.size() == bytes.size() && write.copy.tier == id());
          std::copy(write.source.begin(), write.source.end(), bytes.begin());
          written_.push_back({write.image, write.place->offset()});
          if (disk_ != nullptr) {
            Keep(write);
          }
        },
        std::move(done));
  }
  void Cancel(TransferId id) override { Complete(id, absl::CancelledError("")); }

  absl::Status Recover(RecoverySink& sink) override {
    std::map<proto::Fingerprint, uint64_t> numbers;
    for (const auto& [fingerprint, record] : disk_->spaces) {
      numbers[fingerprint] = sink.FoundSpace(record, *this);
    }
    std::vector<FoundImage> images;
    for (const auto& [offset, kept] : disk_->copies) {
      const uint64_t rounded = (kept.bytes.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
      FoundImage found = {.image = kept.image,
                          .parent = kept.parent,
                          .recipe = kept.copy.recipe,
                          .directory_crc = kept.copy.directory_crc,
                          .side_object = kept.side_object,
                          .place = TierExtent(*this, offset, kept.bytes.size(), rounded)};
      found.image.space_id = numbers.at(kept.space);
      images.push_back(std::move(found));
      extents_[offset] = kept.bytes;
      written_.push_back({images.back().image, offset});
      used_bytes_ += rounded;
      next_offset_ = offset + rounded;
    }
    sink.FoundImages(std::move(images), *this);
    return absl::OkStatus();
  }
  void PolicyChanged(const SpaceRecord& space) override {
    const MutexLock lock(mutex_);
    if (disk_ != nullptr && disk_->spaces.contains(space.fingerprint)) {
      disk_->spaces[space.fingerprint] = space;
    }
  }
  // The result of AwaitFreed(): the freed images are gone, or not before the deadline, or no device
  // can record it.
  enum class Freed : uint8_t { kGone, kLate, kOut };
  void SetFreed(Freed freed) {
    const MutexLock lock(mutex_);
    freed_ = freed;
    freed_changed_.NotifyAll();
  }
  bool AwaitFreed(absl::Time deadline) override {
    const MutexLock lock(mutex_);
    while (freed_ == Freed::kLate && freed_changed_.WaitUntil(mutex_, deadline)) {
    }
    return freed_ == Freed::kGone;
  }
  void Sync(uint64_t parts, TierDone done) override {
    {
      const MutexLock lock(mutex_);
      synced_parts_ = parts;
    }
    Submit([] {}, std::move(done));
  }
  // Returns the parts of the last Sync().
  uint64_t synced_parts() const {
    const MutexLock lock(mutex_);
    return synced_parts_;
  }
  void Stop() override {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
  }

  // Sets a function to call at the beginning of each Reserve(). REQUIRES: no Reserve() is running.
  void BeforeReserve(std::function<void()> call) { before_reserve_ = std::move(call); }
  // If true, completions wait for Complete().
  void HoldCompletions(bool is_holding) {
    const MutexLock lock(mutex_);
    is_holding_ = is_holding;
  }
  // Returns the waiting transfers, in the order of submission.
  std::vector<TransferId> waiting() const {
    const MutexLock lock(mutex_);
    std::vector<TransferId> ids;
    for (const auto& [id, transfer] : waiting_) {
      ids.push_back(id);
    }
    return ids;
  }
  // Completes a transfer, which moves its bytes if `status` is OK. Does nothing if it has
  // completed.
  void Complete(TransferId id, const absl::Status& status) {
    TierDone done;
    {
      const MutexLock lock(mutex_);
      const auto found = waiting_.find(id);
      if (found == waiting_.end()) {
        return;
      }
      if (status.ok()) {
        std::move(found->second.act)();
      }
      done = std::move(found->second.done);
      waiting_.erase(found);
    }
    std::move(done)(status);
  }
  // Completes all transfers that wait now. Transfers that these cause, such as a sync after a
  // write, wait.
  void CompleteAll(const absl::Status& status = absl::OkStatus()) {
    for (const TransferId id : waiting()) {
      Complete(id, status);
    }
  }
  // Makes the device fail, with all its transfers, or makes it work again, without contents.
  void SetOut(bool is_out) {
    {
      const MutexLock lock(mutex_);
      is_out_ = is_out;
    }
    CompleteAll(absl::UnavailableError("the device is out"));
  }
  // Flips a bit of the copy at `offset` of the tier, in its last byte or in byte `at`.
  void Damage(uint64_t offset, std::optional<size_t> at = std::nullopt) {
    const MutexLock lock(mutex_);
    std::vector<std::byte>& bytes = extents_.at(offset);
    bytes[at.value_or(bytes.size() - 1)] ^= std::byte{1};
  }
  // A read that was requested since the last call.
  struct Asked {
    uint64_t place = 0;   // place in the tier
    uint64_t offset = 0;  // offset in the image
    uint64_t bytes = 0;
    absl::Time deadline;  // the test must complete late reads itself
  };
  std::vector<Asked> TakeReads() {
    const MutexLock lock(mutex_);
    return std::exchange(reads_, {});
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t kImageBytesMax = 1 << 20;
  static constexpr int kEvictionsMax = 100'000;

  struct Transfer {
    absl::AnyInvocable<void() &&> act;
    TierDone done;
  };
  struct Written {
    ImageFacts image;
    uint64_t offset = 0;
  };

  // Runs `act` under the lock.
  TransferId Submit(absl::AnyInvocable<void() &&> act, TierDone done) {
    absl::Status status;
    {
      const MutexLock lock(mutex_);
      if (is_out_) {
        status = absl::UnavailableError("the device is out");
      } else if (is_holding_) {
        waiting_.emplace(++last_id_, Transfer{std::move(act), std::move(done)});
        return last_id_;
      } else {
        std::move(act)();
      }
    }
    std::move(done)(status);
    return 0;
  }
  // Evicts one copy, by the index's order or in the order of writing. Keeps held copies.
  bool EvictOne() {
    if (traits_.is_leaf_first) {
      return evictor_->EvictOldest(id(), EvictionReason::kCapacity) > 0;
    }
    size_t candidates = 0;
    {
      const MutexLock lock(mutex_);
      candidates = written_.size();
    }
    for (; candidates > 0; --candidates) {
      Written oldest;
      {
        const MutexLock lock(mutex_);
        if (written_.empty()) {
          return false;
        }
        oldest = written_.front();
        written_.pop_front();
        if (extents_.count(oldest.offset) == 0) {
          continue;
        }
      }
      if (evictor_->EvictCopy(id(), oldest.image, oldest.offset, EvictionReason::kCapacity)) {
        return true;
      }
      const MutexLock lock(mutex_);
      written_.push_back(oldest);
    }
    return false;
  }
  void Keep(const TierWrite& write) {
    CAIRN_CHECK(write.space != nullptr);
    disk_->spaces[write.space->fingerprint] = *write.space;
    for (const NamedSideObject& object : write.side_objects) {
      disk_->side_objects[object.id].assign(object.bytes.begin(), object.bytes.end());
    }
    disk_->copies[write.place->offset()] = {write.space->fingerprint,
                                            write.image,
                                            write.copy,
                                            write.parent,
                                            write.side_object,
                                            {write.source.begin(), write.source.end()}};
  }
  absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) override {
    const auto found = disk_->side_objects.find(id);
    if (found == disk_->side_objects.end()) {
      return absl::NotFoundError("no such side object");
    }
    return found->second;
  }
  void Unlist(uint64_t offset) override {
    const MutexLock lock(mutex_);
    UnlistLocked(offset);
  }
  void UnlistLocked(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (disk_ != nullptr && !is_stopped_) {
      disk_->copies.erase(offset);
    }
  }
  void Free(uint64_t offset, uint64_t rounded_bytes) override {
    const MutexLock lock(mutex_);
    UnlistLocked(offset);
    CAIRN_CHECK(extents_.erase(offset) == 1);
    used_bytes_ -= rounded_bytes;
  }

  const TierTraits traits_;
  const uint64_t capacity_bytes_;
  const std::shared_ptr<MemoryDisk> disk_;
  Evictor* evictor_ = nullptr;
  std::function<void()> before_reserve_;
  mutable Mutex mutex_;
  bool is_out_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar freed_changed_;
  Freed freed_ ABSL_GUARDED_BY(mutex_) = Freed::kGone;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_holding_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_offset_ ABSL_GUARDED_BY(mutex_) = 0;
  TransferId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t synced_parts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::vector<std::byte>> extents_;  // keyed by offset
  std::deque<Written> written_;
  std::vector<Asked> reads_ ABSL_GUARDED_BY(mutex_);
  std::map<TransferId, Transfer> waiting_;
};

}  // namespace cairn
