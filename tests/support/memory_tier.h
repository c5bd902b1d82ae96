// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tier of the test suite: bytes on the heap that are reached through Read() and Write() only, and
// completions that come when the test says, in the order it says, with the status it says.
//
// Thread-safety: Thread-safe; completions run on the thread that calls Complete().

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "service/tier/tier.h"

namespace cairn {

class MemoryTier final : public CopyTier {
 public:
  MemoryTier(const TierTraits& traits, uint64_t capacity_bytes)
      : traits_(traits), capacity_bytes_(capacity_bytes) {}
  ~MemoryTier() override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(extents_.empty() && waiting_.empty());
  }

  const TierTraits& traits() const override { return traits_; }
  uint64_t capacity_bytes() const override { return capacity_bytes_; }
  uint64_t used_bytes() const override {
    const MutexLock lock(mutex_);
    return used_bytes_;
  }
  void SetEvictor(Evictor* evictor) override { evictor_ = evictor; }
  void Report(MetricSink&) const override {}

  using CopyTier::Reserve;
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes, const Placement&) override {
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
        },
        std::move(done));
  }
  void Cancel(TransferId id) override { Complete(id, absl::CancelledError("")); }

  // From now on completions wait for Complete(), or do not.
  void HoldCompletions(bool is_holding) {
    const MutexLock lock(mutex_);
    is_holding_ = is_holding;
  }
  // Those that wait, in the order submitted.
  std::vector<TransferId> waiting() const {
    const MutexLock lock(mutex_);
    std::vector<TransferId> ids;
    for (const auto& [id, transfer] : waiting_) {
      ids.push_back(id);
    }
    return ids;
  }
  // Ends a transfer; it is done if `status` is OK. Nothing if it is over.
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
  // The device is out: its transfers, and those to come, fail; or it is back, empty.
  void SetOut(bool is_out) {
    {
      const MutexLock lock(mutex_);
      is_out_ = is_out;
    }
    for (const TransferId id : waiting()) {
      Complete(id, absl::UnavailableError("the device is out"));
    }
  }
  // Flips a bit of what lies at `offset` of the tier.
  void Damage(uint64_t offset) {
    const MutexLock lock(mutex_);
    extents_.at(offset).back() ^= std::byte{1};
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr int kEvictionsMax = 100'000;

  struct Transfer {
    absl::AnyInvocable<void() &&> act;
    TierDone done;
  };
  struct Written {
    ImageFacts image;
    uint64_t offset = 0;
  };

  // `act` runs under the lock.
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
  // By the index's order, or by the order written; what is held is carried along.
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
  void Free(uint64_t offset, uint64_t rounded_bytes) override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(extents_.erase(offset) == 1);
    used_bytes_ -= rounded_bytes;
  }

  const TierTraits traits_;
  const uint64_t capacity_bytes_;
  Evictor* evictor_ = nullptr;
  mutable Mutex mutex_;
  bool is_out_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_holding_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_offset_ ABSL_GUARDED_BY(mutex_) = 0;
  TransferId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::vector<std::byte>> extents_;  // by offset
  std::deque<Written> written_;
  std::map<TransferId, Transfer> waiting_;
};

}  // namespace cairn
