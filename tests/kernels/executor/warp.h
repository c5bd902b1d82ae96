// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads of a block as the executor has them, and what lanes of a warp do together.
//
// Thread-safety: as Fiber.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "tests/kernels/executor/fiber.h"

namespace cairn::kernels::emulated {

[[nodiscard]] bool IsSame(CodeLine a, CodeLine b);
// Without its folders.
[[nodiscard]] const char* FileOf(CodeLine line);

enum class State : uint8_t { kReady, kAtCollective, kAtBarrier, kOver };

// Where a thread waits, and what it brings.
struct Arrival {
  Collective collective = Collective::kSync;
  uint32_t mask = 0;
  uint64_t value = 0;
  uint32_t argument = 0;
  CodeLine line = {};
};

// What a lane brings to a product: see MmaBits() and MmaHalves().
struct MmaPart {
  const uint32_t* a;
  const uint32_t* b;
  void* d;
};

// Copies that a thread has under way, in groups.
class Copies {
 public:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  void Add(const Copy& copy) { groups_.back().push_back(copy); }
  // False where there are too many groups.
  bool Commit();
  // Makes all but the last `pending` committed groups happen.
  void Wait(uint32_t pending);
  [[nodiscard]] bool IsAny() const;
  void Clear() { groups_.assign(1, {}); }

 private:
  std::vector<std::vector<Copy>> groups_{1};  // those committed, then the open one
};

struct Thread {
  Fiber fiber;
  uint32_t index = 0;  // in its block
  State state = State::kOver;
  Arrival at;
  uint64_t result = 0;
  Copies copies;

  [[nodiscard]] uint32_t Lane() const { return index % kWarpLanes; }
};

struct Warp {
  std::array<Thread*, kWarpLanes> lanes{};  // null where the block has none
  std::vector<Thread*> ready;
  uint32_t waiting = 0, returned = 0;  // a bit a lane: waits at a collective; has returned
  uint32_t syncs = 0;                  // that were completed
  std::array<char, 2> sync_marks{};    // for the thread sanitizer: of syncs in turn

  // True where `last`, which just came, was the last of its mask: then all its lanes have their
  // results. *fault is set where they cannot.
  bool Complete(const Thread& last, std::string* fault);

 private:
  bool AreAllThere(const Thread& last, std::string* fault) const;
  bool GiveResults(const Arrival& at, std::string* fault);
};

}  // namespace cairn::kernels::emulated
