// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program that links this counts what it takes from the heap with operator new.

namespace cairn {

// So far, by all threads. Thread-safe.
int AllocationCount();

}  // namespace cairn
