// SPDX-License-Identifier: Apache-2.0
#pragma once
// A connection that counts what leaves from memory of its own and lands there, and that waits
// where the test says. Thread-safety: as Connection.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "transport/transport.h"

namespace cairn {

// What the test sees of all connections of a client; shared with it.
struct Watch {
  int allocations = 0;
  int payloads = 0, own_payloads = 0;  // sent, and of them those in memory of the connection's own
  int targets = 0, own_targets = 0;
  int calls_until_break = -1;  // below 0: none breaks
  // Before a connection is looked at. False: it is not, this time.
  std::function<bool()> may_poll{};
  std::function<void()> on_payload{};
};

class WatchedConnection final : public transport::Connection {
 public:
  WatchedConnection(std::unique_ptr<transport::Connection> real, Watch* watch)
      : real_(std::move(real)), watch_(watch) {}

  absl::StatusOr<std::unique_ptr<transport::Buffer>> Allocate(size_t bytes) override {
    auto buffer = real_->Allocate(bytes);
    if (buffer.ok()) {
      ++watch_->allocations;
      own_.push_back((*buffer)->bytes());
    }
    return buffer;
  }
  absl::Status Start(transport::Call* call) override {
    if (watch_->calls_until_break >= 0 && watch_->calls_until_break-- == 0) {
      is_broken_ = true;
    }
    if (is_broken_) {
      return absl::UnavailableError("the connection was cut");
    }
    const absl::Status status = real_->Start(call);
    if (status.ok() && !call->payload.empty()) {
      ++watch_->payloads;
      watch_->own_payloads += IsOwn(call->payload) ? 1 : 0;
      if (watch_->on_payload) watch_->on_payload();
    }
    if (status.ok() && !call->target.empty()) {
      ++watch_->targets;
      watch_->own_targets += IsOwn(call->target) ? 1 : 0;
    }
    return status;
  }
  void Poll(absl::Time until) override {
    if (watch_->may_poll && !watch_->may_poll()) {
      absl::SleepFor(
          std::min(absl::Milliseconds(1), std::max(until - MonotonicNow(), absl::ZeroDuration())));
      return;
    }
    real_->Poll(until);
  }
  bool broken() const override { return is_broken_ || real_->broken(); }
  int window() const override { return real_->window(); }

 private:
  // Memory that was given back since counts too: nothing else comes to lie there.
  bool IsOwn(std::span<const std::byte> bytes) const {
    return std::ranges::any_of(own_, [bytes](std::span<const std::byte> own) {
      return bytes.data() >= own.data() && bytes.data() + bytes.size() <= own.data() + own.size();
    });
  }

  const std::unique_ptr<transport::Connection> real_;
  Watch* const watch_;
  std::vector<std::span<const std::byte>> own_;
  bool is_broken_ = false;
};

}  // namespace cairn
