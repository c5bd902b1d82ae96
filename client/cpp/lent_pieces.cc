// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/lent_pieces.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"

namespace cairn {

// The mapping knows it, and ends it before it unmaps the memory.
struct LentPieces::State final : transport::LentMemory::User {
  State(kernels::Runtime& runtime, std::span<const std::byte> mapped)
      : device(runtime), memory(mapped) {}

  void OnUnmap() override { End(); }
  // Afterwards the device is not used any more.
  void End() {
    const MutexLock lock(mutex);
    for (const size_t piece : registered) {
      device.UnregisterHost(memory.data() + piece * kPieceBytes);
    }
    registered.clear();
    is_ended = true;
  }
  bool Register(size_t piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (registered.contains(piece)) {
      return true;
    }
    if (is_ended || is_refused || registered.size() >= kRegisteredBytesMax / kPieceBytes) {
      return false;
    }
    const size_t at = piece * kPieceBytes;
    if (!device.RegisterHostForReading(memory.data() + at,
                                       std::min<size_t>(kPieceBytes, memory.size() - at))) {
      is_refused = true;
      LogInfo(
          "client",
          "the device does not read the daemon's memory: blocks go through memory of the client",
          {{"device", device.name()}});
      return false;
    }
    registered.insert(piece);
    return true;
  }

  kernels::Runtime& device;
  const std::span<const std::byte> memory;
  mutable Mutex mutex;
  std::set<size_t> registered ABSL_GUARDED_BY(mutex);
  bool is_ended ABSL_GUARDED_BY(mutex) = false;
  bool is_refused ABSL_GUARDED_BY(mutex) = false;
};

std::shared_ptr<LentPieces> LentPieces::Of(kernels::Runtime& device,
                                           std::span<const std::byte> lent) {
  using Key = std::pair<const kernels::Runtime*, const std::byte*>;
  static Mutex mutex;
  static std::map<Key, std::weak_ptr<LentPieces>>* const known =
      new std::map<Key, std::weak_ptr<LentPieces>>;
  const std::shared_ptr<const transport::LentMemory> memory = transport::LentMemory::Holding(lent);
  if (memory == nullptr) {
    return nullptr;
  }
  std::shared_ptr<LentPieces> pieces;  // declared first: destroyed when the mutex is free
  const MutexLock lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<LentPieces>& place = (*known)[{&device, memory->memory().data()}];
  pieces = place.lock();
  if (pieces == nullptr || pieces->is_ended()) {  // another mapping may have had the address
    const auto state = std::make_shared<State>(device, memory->memory());
    memory->AddUser(state);
    pieces = std::shared_ptr<LentPieces>(new LentPieces(state));
    place = pieces;
  }
  return pieces;
}

LentPieces::~LentPieces() { state_->End(); }

bool LentPieces::Has(std::span<const std::byte> lent) const {
  const auto base = reinterpret_cast<uintptr_t>(state_->memory.data());
  const auto first = reinterpret_cast<uintptr_t>(lent.data());
  return !is_ended() && first >= base && first - base <= state_->memory.size() &&
         lent.size() <= state_->memory.size() - (first - base);
}

bool LentPieces::Register(std::span<const std::byte> lent) {
  const auto first = static_cast<size_t>(lent.data() - state_->memory.data());
  const MutexLock lock(state_->mutex);
  for (size_t at = first / kPieceBytes; at * kPieceBytes < first + lent.size(); ++at) {
    if (!state_->Register(at)) {
      return false;
    }
  }
  return true;
}

bool LentPieces::is_refused() const {
  const MutexLock lock(state_->mutex);
  return state_->is_refused;
}

bool LentPieces::is_ended() const {
  const MutexLock lock(state_->mutex);
  return state_->is_ended;
}

std::vector<std::span<const std::byte>> LentPieces::Split(std::span<const std::byte> lent) const {
  std::vector<std::span<const std::byte>> ranges;
  while (!lent.empty()) {
    const auto at = static_cast<size_t>(lent.data() - state_->memory.data());
    const size_t count = std::min<size_t>(lent.size(), kPieceBytes - at % kPieceBytes);
    ranges.push_back(lent.first(count));
    lent = lent.subspan(count);
  }
  return ranges;
}

}  // namespace cairn
