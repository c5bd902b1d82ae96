// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device named `emulated`. It has memory, streams, and copies between its memory and the host's.
// A test can inject faults. It has no kernels; the device of the SDK's tests adds them.
//
// Thread-safety: Thread-safe. Only one thread at a time may use a stream.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/mutex.h"
#include "kernels/runtime.h"

namespace cairn {

class EmulatedMemory : public kernels::Runtime {
 public:
  using LaunchResult = kernels::LaunchResult;
  using Stream = kernels::Stream;

  // The faults of a device that another object owns. A test keeps them to inject faults.
  struct Faults {
    std::atomic<int> calls_left{-1};   // after so many calls, all calls fail; negative: none
    std::atomic<int> damaged_copy{0};  // number of the copy to the device to damage, counted from 1
    std::atomic<bool> hangs{false};    // no work on a stream completes
    std::atomic<bool> is_full{false};  // allocations fail
    std::atomic<bool> refuses_host{false};
    std::atomic<bool> refuses_reading{false};  // registration of memory that can only be read
    std::atomic<bool> is_dead{false};
    std::atomic<uint64_t> copies_in{0}, copies_out{0};
    std::atomic<uint64_t> lent_copies{0};  // copies from memory that is registered for reading
    std::atomic<uint64_t> slow_copies{0};  // copies from or to host memory that is not registered
    std::atomic<bool> slow_copies_wait{false};  // as on a real device, while it hangs
  };

  explicit EmulatedMemory(std::shared_ptr<Faults> faults = std::make_shared<Faults>())
      : faults_(std::move(faults)) {}
  ~EmulatedMemory() override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(streams_.empty() && registered_.empty() && lent_.empty(),
                "the device is not cleaned up");
  }

  std::string_view name() const override { return "emulated"; }
  bool is_lost() const override { return faults_->is_dead; }
  std::byte* AllocateDevice(size_t bytes) override {
    return faults_->is_full || faults_->is_dead
               ? nullptr
               : static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256}));
  }
  void FreeDevice(std::byte* bytes) override { ::operator delete (bytes, std::align_val_t{256}); }
  std::byte* AllocateHost(size_t bytes) override {
    if (faults_->is_dead) {
      return nullptr;
    }
    const MutexLock lock(mutex_);
    auto* const data = new std::byte[bytes];
    host_.emplace(data, bytes);
    return data;
  }
  void FreeHost(std::byte* bytes) override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(host_.erase(bytes) == 1);
    delete[] bytes;
  }
  bool RegisterHost(std::byte* bytes, size_t count) override {
    const MutexLock lock(mutex_);
    return !faults_->refuses_host && !faults_->is_dead && registered_.emplace(bytes, count).second;
  }
  bool RegisterHostForReading(const std::byte* bytes, size_t count) override {
    const MutexLock lock(mutex_);
    return !faults_->refuses_reading && !faults_->is_dead && lent_.emplace(bytes, count).second;
  }
  void UnregisterHost(const std::byte* bytes) override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(registered_.erase(bytes) + lent_.erase(bytes) == 1);
  }
  // The number of ranges that are registered for reading.
  size_t lent_ranges() {
    const MutexLock lock(mutex_);
    return lent_.size();
  }
  Stream OpenStream() override {
    const MutexLock lock(mutex_);
    auto work = std::make_unique<Work>();
    Stream const stream = work.get();
    streams_.emplace(stream, std::move(work));
    return stream;
  }
  void CloseStream(Stream stream) override {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(streams_.erase(stream) == 1);
  }

  LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    ++faults_->copies_in;
    if (IsLent(from, bytes)) {
      ++faults_->lent_copies;
    } else {
      NoteHost(from, bytes);
    }
    const bool is_damaged = IsDamaged(bytes);
    return Put(stream, [=] {
      Move(to, from, bytes);
      if (is_damaged) {
        const std::byte last = from[bytes - 1] ^ std::byte{1};
        Move(to + bytes - 1, &last, 1);
      }
    });
  }
  LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    ++faults_->copies_out;
    NoteHost(to, bytes);
    return Put(stream, [=] { Move(to, from, bytes); });
  }
  LaunchResult Clear(std::byte* at, size_t bytes, Stream stream) override {
    return Put(stream, [=] {
      const std::vector<std::byte> zeros(bytes);
      Move(at, zeros.data(), bytes);
    });
  }
  LaunchResult Decode(const kernels::DecodePlan&, const std::byte*, uint32_t*, Stream) override {
    return LaunchResult::kUnavailable;
  }
  LaunchResult Encode(const kernels::EncodePlan&, const std::byte*, kernels::TileResult*, uint32_t*,
                      Stream) override {
    return LaunchResult::kUnavailable;
  }
  LaunchResult Attend(const kernels::AttendPlan&, const std::byte*, std::byte*, uint32_t*,
                      Stream) override {
    return LaunchResult::kUnavailable;
  }
  LaunchResult Mine(const kernels::MinePlan&, const std::byte*, std::byte*, uint32_t*,
                    Stream) override {
    return LaunchResult::kUnavailable;
  }
  LaunchResult MinePass(const kernels::MinePassPlan&, const std::byte*, std::byte*, uint32_t*,
                        Stream) override {
    return LaunchResult::kUnavailable;
  }
  // Does the work of the stream.
  LaunchResult Poll(Stream stream, bool* is_over) override {
    *is_over = !faults_->hangs;
    if (faults_->is_dead) {
      return LaunchResult::kDeviceError;
    }
    for (const std::function<void()>& act : *is_over ? Take(stream) : Work()) {
      act();
    }
    return LaunchResult::kOk;
  }

  Faults& faults() { return *faults_; }
  // Makes all calls fail, beginning with the one of this number, counted from now.
  void DieAfter(int calls) { faults_->calls_left = calls; }
  // Damages the copy of this number to the device. Counts copies of images, from now.
  void Damage(int copy) { faults_->damaged_copy = copy; }
  void SetHung(bool hangs) { faults_->hangs = hangs; }
  void SetFull() { faults_->is_full = true; }

 protected:
  // Puts work on a stream. Work on a stream of another device is done at once.
  LaunchResult Put(Stream stream, std::function<void()> act) {
    if (faults_->calls_left >= 0 && faults_->calls_left-- == 0) {
      faults_->is_dead = true;
    }
    if (faults_->is_dead) {
      return LaunchResult::kDeviceError;
    }
    const MutexLock lock(mutex_);
    if (const auto found = streams_.find(stream); found != streams_.end()) {
      found->second->push_back(std::move(act));
    } else {
      act();
    }
    return LaunchResult::kOk;
  }

 private:
  static void Move(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes != 0) {
      std::memcpy(to, from, bytes);
    }
  }
  using Work = std::vector<std::function<void()>>;
  // Pages and side objects are smaller. Plans are larger.
  static constexpr size_t kDamagedBytesMin = 2000;

  void NoteHost(const std::byte* at, size_t bytes) {
    if (IsKnown(at, bytes)) {
      return;
    }
    ++faults_->slow_copies;
    while (faults_->slow_copies_wait && faults_->hangs) {  // until the test changes the faults
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  using Ranges = std::map<const std::byte*, size_t>;
  // Whether one of the ranges has all the bytes, as a copy requires.
  static bool Has(const Ranges& ranges, const std::byte* at, size_t bytes) {
    const auto next = ranges.upper_bound(at);
    return next != ranges.begin() && at + bytes <= std::prev(next)->first + std::prev(next)->second;
  }
  bool IsKnown(const std::byte* at, size_t bytes) {
    const MutexLock lock(mutex_);
    return Has(host_, at, bytes) || Has(registered_, at, bytes);
  }
  bool IsLent(const std::byte* at, size_t bytes) {
    const MutexLock lock(mutex_);
    return Has(lent_, at, bytes);
  }
  bool IsDamaged(size_t bytes) {
    return faults_->damaged_copy > 0 && bytes > kDamagedBytesMin && --faults_->damaged_copy == 0;
  }
  Work Take(Stream stream) {
    const MutexLock lock(mutex_);
    const auto found = streams_.find(stream);
    return found == streams_.end() ? Work() : std::exchange(*found->second, {});
  }

  const std::shared_ptr<Faults> faults_;
  Mutex mutex_;
  std::map<Stream, std::unique_ptr<Work>> streams_ ABSL_GUARDED_BY(mutex_);
  Ranges host_ ABSL_GUARDED_BY(mutex_);
  Ranges registered_ ABSL_GUARDED_BY(mutex_);
  Ranges lent_ ABSL_GUARDED_BY(mutex_);  // registered for reading
};

}  // namespace cairn
