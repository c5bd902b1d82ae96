// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pool of operations: gets or puts, each from its arrival to its answer. The pool reuses memory
// and never frees it. It allocates only if more operations run at once than ever before.
//
// Thread-safety: Thread-safe. The pool must outlive its Ops.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace cairn {

// Op must have a member `OpPool<Op>* pool`, which the pool sets.
template <typename Op>
class OpPool {
 public:
  // A deleter that gives the memory of an Op back to the pool.
  struct Return {
    void operator()(Op* op) const {
      OpPool& pool = *op->pool;
      std::destroy_at(op);
      pool.Keep(std::unique_ptr<Op>(std::construct_at(op)));
    }
  };
  using Owner = std::unique_ptr<Op, Return>;

  // Allocates memory for the first `ops_at_start` operations.
  explicit OpPool(size_t ops_at_start = 0) {
    for (size_t i = 0; i < ops_at_start; ++i) Keep(std::make_unique<Op>());
  }

  Owner Make() {
    std::unique_ptr<Op> op = TakeFree();
    if (op == nullptr) op = std::make_unique<Op>();
    op->pool = this;
    return Owner(op.release());
  }

 private:
  std::unique_ptr<Op> TakeFree() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return nullptr;
    std::unique_ptr<Op> op = std::move(free_.back());
    free_.pop_back();
    return op;
  }
  void Keep(std::unique_ptr<Op> op) {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(op));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<Op>> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn
