// SPDX-License-Identifier: Apache-2.0
// The device `emulated`: kernels run on the executor, in memory that is apart from the host's.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "tests/kernels/device/emulated_launch.h"
#include "tests/kernels/executor/executor.h"

namespace cairn::kernels::device {
namespace {

constexpr size_t kAlignment = 256;

// So many bytes, of which kernels may touch none before and none behind.
class Extent {
 public:
  Extent(size_t bytes, bool is_writable, size_t misalignment)
      : misalignment_(misalignment),
        room_(static_cast<std::byte*>(
            ::operator new (kAlignment + misalignment + bytes, std::align_val_t{kAlignment}))),
        region_(data(), bytes, is_writable) {}
  [[nodiscard]] std::byte* data() { return room_.get() + kAlignment + misalignment_; }

 private:
  struct Delete {
    void operator()(std::byte* room) const {
      ::operator delete (room, std::align_val_t{kAlignment});
    }
  };
  size_t misalignment_;
  std::unique_ptr<std::byte, Delete> room_;
  emulated::Region region_;
};

struct State {
  std::map<std::byte*, std::unique_ptr<Extent>> extents;
  std::string fault;
  Blocks blocks = Blocks::kMany;
};

State& TheState() {
  static State state;
  return state;
}

}  // namespace

bool Forgets(std::string_view what) {
  const char* told = std::getenv("CAIRN_EMULATED_FORGETS");
  if (told == nullptr) return false;
  return what == told || (HasOneBlock() && std::string(what) + " in one block" == told);
}

uint32_t SharedBytesMax() {
  constexpr uint32_t kOfMost = 227 * 1024;
  const char* told = std::getenv("CAIRN_EMULATED_SHARED_BYTES");
  return told == nullptr ? kOfMost : static_cast<uint32_t>(std::strtoul(told, nullptr, 10));
}

bool HasOneBlock() { return TheState().blocks == Blocks::kOne; }
void SetBlocks(Blocks blocks) { TheState().blocks = blocks; }

std::string& FirstFault() { return TheState().fault; }

const Description& Find() {
  static const Description found{"emulated", "none", "", uint64_t{1} << 30};
  return found;
}

std::byte* Allocate(size_t bytes, bool is_writable, size_t misalignment) {
  auto extent = std::make_unique<Extent>(bytes, is_writable, misalignment);
  std::byte* const data = extent->data();
  TheState().extents.emplace(data, std::move(extent));
  return data;
}

void Free(std::byte* bytes) { CAIRN_CHECK(TheState().extents.erase(bytes) == 1); }

void CopyIn(std::byte* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void CopyOut(void* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void Fill(std::byte* to, uint8_t byte, size_t bytes) { std::memset(to, byte, bytes); }
void Copy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

std::string Finish() { return std::exchange(TheState().fault, {}); }

double Seconds(Timed, const std::function<void()>& enqueue) {
  const auto start = std::chrono::steady_clock::now();
  enqueue();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace cairn::kernels::device
