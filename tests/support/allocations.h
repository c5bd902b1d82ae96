// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the heap allocations by operator new, in a program that links this file.

namespace cairn {

// Returns the number so far, for all threads. Thread-safe.
int AllocationCount();

}  // namespace cairn
