// SPDX-License-Identifier: Apache-2.0
#pragma once
// A connection that damages what it delivers: wraps a real one and flips one bit of a reply's
// payload. Thread-safety: as Connection.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace cairn {

// What to damage; shared with the test.
struct Fault {
  int replies_to_spoil = 0;
  uint64_t bit = 0;  // counted from the payload's start, modulo its size
};

class FaultyConnection final : public transport::Connection {
 public:
  FaultyConnection(std::unique_ptr<transport::Connection> real, Fault* fault)
      : real_(std::move(real)), fault_(fault) {}

  absl::StatusOr<std::unique_ptr<transport::Buffer>> Allocate(size_t bytes) override {
    return real_->Allocate(bytes);
  }
  absl::Status Start(transport::Call* call) override {
    call->takes_loan = false;  // what is damaged is what was moved
    const absl::Status status = real_->Start(call);
    if (status.ok()) moving_.push_back(call);
    return status;
  }
  void Poll(absl::Time until) override {
    real_->Poll(until);
    for (const transport::Call* call : moving_) {
      if (call->over() && call->reply_payload_bytes > 0 && fault_->replies_to_spoil > 0) {
        --fault_->replies_to_spoil;
        const uint64_t bit = fault_->bit % (call->reply_payload_bytes * 8);
        call->target[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      }
    }
    std::erase_if(moving_, [](const transport::Call* call) { return call->over(); });
  }
  bool broken() const override { return real_->broken(); }
  int window() const override { return real_->window(); }

 private:
  const std::unique_ptr<transport::Connection> real_;
  Fault* const fault_;
  std::vector<transport::Call*> moving_;
};

}  // namespace cairn
