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
#include "codecs/types/bytes.h"
#include "kernels/body/attend_kernels.h"
#include "kernels/body/decode_kernels.h"
#include "kernels/body/encode_kernels.h"
#include "kernels/body/mine_bank.h"
#include "kernels/body/mine_codes.h"
#include "tests/kernels/device/device.h"
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
};

State& TheState() {
  static State state;
  return state;
}

// What is wrong with the device, for tests of those who are to notice: it forgets a task of each
// list of what it decodes, encodes, attends to or mines.
bool Forgets(std::string_view what) {
  const char* told = std::getenv("CAIRN_EMULATED_FORGETS");
  return told != nullptr && what == told;
}

// Plans begin with their lists.
template <typename Counts>
void Forget(std::string_view what, const Counts& counts, uint32_t lists, const std::byte* plan) {
  auto* list = reinterpret_cast<TaskList*>(const_cast<std::byte*>(plan));
  for (uint32_t i = 0; Forgets(what) && i < lists; ++i) {
    if (counts[i] != 0 && list[i].count != 0) --list[i].count;
  }
}

template <typename Arguments>
class Launch {
 public:
  Launch(const uint32_t* counts, const Arguments& args, uint64_t seed)
      : counts_(counts), args_(args), options_{.seed = seed} {}

  // In blocks that do several tasks, or in one more than there are tasks.
  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    std::string& fault = TheState().fault;
    const uint32_t tasks = counts_[shape.list];
    if (tasks == 0 || !fault.empty()) return;
    args_.list = shape.list;
    const uint32_t blocks = options_.seed % 2 == 0 ? tasks + 1 : (tasks + 1) / 2;
    fault =
        emulated::Launch<kKernel>(blocks, shape.threads, shape.shared_bytes, args_, options_).fault;
  }

 private:
  const uint32_t* counts_;
  Arguments args_;
  emulated::Options options_;
};

}  // namespace

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

void Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status, uint64_t seed) {
  Forget("decode", plan.counts, kDecodeLists, bytes);
  ForEachDecodeKernel(Launch(plan.counts.data(), DecodeArgs{codecs::U8(bytes), status, 0}, seed));
}

void Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results, uint32_t* status,
            uint64_t seed) {
  Forget("encode", plan.counts, kEncodeItemLists, bytes);
  ForEachEncodeKernel(
      Launch(plan.counts.data(), EncodeArgs{codecs::U8(bytes), results, status, 0}, seed));
}

void Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
            uint64_t seed) {
  Forget("attend", plan.counts, kAttendPartLists, bytes);
  ForEachAttendKernel(
      Launch(plan.counts.data(),
             AttendArgs{codecs::U8(bytes), reinterpret_cast<float*>(scratch), status, 0}, seed));
}

void Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
          uint64_t seed) {
  Forget("mine", plan.counts, kMineLists, bytes);
  ForEachMineKernel(Launch(plan.counts.data(),
                           MineArgs{codecs::U8(bytes), codecs::U8(scratch), status, 0}, seed));
}

void MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums, uint32_t* status,
              uint64_t seed) {
  Forget("mine", plan.counts, kPassLists, bytes);
  ForEachPassKernel(Launch(plan.counts.data(),
                           MinePassArgs{codecs::U8(bytes), codecs::U8(sums), status, 0}, seed));
}

std::string Finish() { return std::exchange(TheState().fault, {}); }

double Seconds(Timed, const std::function<void()>& enqueue) {
  const auto start = std::chrono::steady_clock::now();
  enqueue();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace cairn::kernels::device
