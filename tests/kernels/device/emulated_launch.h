// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the device `emulated` launches kernels with. They are compiled a family a file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "codecs/types/bytes.h"
#include "kernels/body/tasks.h"
#include "tests/kernels/device/device.h"
#include "tests/kernels/executor/executor.h"

namespace cairn::kernels::device {

// What is wrong with the device, for tests of those who are to notice: it forgets a task of each
// list of what it decodes, encodes, attends to or mines; or does so "in one block" alone.
bool Forgets(std::string_view what);

// What a block may have: as one of compute capability 9.0, or what CAIRN_EMULATED_SHARED_BYTES
// says.
uint32_t SharedBytesMax();

bool HasOneBlock();  // each launch

// What went wrong first, until Finish(). Nothing is launched from then on.
std::string& FirstFault();

// Plans begin with their lists.
template <typename Counts>
void Forget(std::string_view what, const Counts& counts, uint32_t lists, const std::byte* plan) {
  auto* list = reinterpret_cast<TaskList*>(const_cast<std::byte*>(plan));
  for (uint32_t i = 0; Forgets(what) && i < lists; ++i) {
    if (counts[i] != 0 && list[i].count != 0) --list[i].count;
  }
}

// Whether a block may have the shared memory of each kernel that has tasks.
class SharedMemoryCheck {
 public:
  explicit SharedMemoryCheck(const uint32_t* counts) : counts_(counts) {}
  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    suffices_ = suffices_ && (counts_[shape.list] == 0 || shape.shared_bytes <= SharedBytesMax());
  }
  [[nodiscard]] bool suffices() const { return suffices_; }

 private:
  const uint32_t* counts_;
  bool suffices_ = true;
};

template <typename Arguments>
class Launch {
 public:
  Launch(const uint32_t* counts, const Arguments& args, uint64_t seed)
      : counts_(counts), args_(args), options_{.seed = seed} {}

  // In one block more than there are tasks, or in so few that a warp has several where each has a
  // task of its own; or in one.
  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    std::string& fault = FirstFault();
    const uint32_t tasks = counts_[shape.list];
    if (tasks == 0 || !fault.empty()) return;
    if (shape.shared_bytes > SharedBytesMax()) {
      fault = "a kernel needs more shared memory than a block has";
      return;
    }
    args_.list = shape.list;
    const uint32_t many = options_.seed % 2 == 0 ? tasks + 1 : (tasks + 11) / 12;
    const uint32_t blocks = HasOneBlock() ? 1 : many;
    fault =
        emulated::Launch<kKernel>(blocks, shape.threads, shape.shared_bytes, args_, options_).fault;
  }

 private:
  const uint32_t* counts_;
  Arguments args_;
  emulated::Options options_;
};

}  // namespace cairn::kernels::device
