// SPDX-License-Identifier: Apache-2.0
#include "tests/support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int> allocation_count{0};
}  // namespace

// The other forms of new and delete call these.
void* operator new(std::size_t bytes) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* block = std::malloc(bytes)) return block;
  std::abort();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace cairn {

int AllocationCount() { return allocation_count.load(); }

}  // namespace cairn
