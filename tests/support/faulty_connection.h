// SPDX-License-Identifier: Apache-2.0
#pragma once
// A connection with faults, which wraps the connection of any transport.
//
//   auto faults = std::make_shared<Faults>();
//   FaultyConnection connection(std::move(real), faults);
//   faults->flip_request_bits = 1;  // damages the payload of the next put
//
// Thread-safety: a FaultyConnection as its real one; Faults are Thread-safe.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "transport/transport.h"

namespace cairn {

// Each number is how many of the next calls have the fault. A call has all faults that apply to it.
struct Faults {
  std::atomic<int> flip_request_bits{0};  // calls with a payload: flips one bit of it
  std::atomic<int> flip_reply_bits{0};    // calls whose reply has a payload: flips one bit of it
  std::atomic<int> flip_frame_bits{0};    // flips a bit of the reply frame
  // Not sent. Fails at its deadline with DeadlineExceeded, and breaks the connection.
  std::atomic<int> drop{0};
  std::atomic<int> refuse{0};  // Start() fails with Unavailable and breaks the connection
  std::atomic<int> delay{0};   // the reply is delayed by delay_ms, but at most until the deadline
  std::atomic<int> delay_ms{0};
  std::atomic<int> struck{0};  // number of faults that happened

  // Uses one `fault`. Returns false if none is left.
  bool Take(std::atomic<int>& fault) {
    int left = fault.load();
    while (left > 0) {
      if (fault.compare_exchange_weak(left, left - 1)) {
        struck.fetch_add(1);
        return true;
      }
    }
    return false;
  }
};

class FaultyConnection final : public transport::Connection {
 public:
  FaultyConnection(std::unique_ptr<transport::Connection> real, std::shared_ptr<Faults> faults)
      : real_(std::move(real)), faults_(std::move(faults)) {}
  ~FaultyConnection() override { Break(absl::UnavailableError("the connection was closed")); }

  absl::StatusOr<std::unique_ptr<transport::Buffer>> Allocate(size_t bytes) override {
    if (real_ == nullptr) {
      return absl::UnavailableError("the connection is broken");
    }
    return real_->Allocate(bytes);
  }

  absl::Status Start(transport::Call* call) override {
    if (real_ != nullptr && faults_->Take(faults_->refuse)) {
      Break(absl::UnavailableError("the connection was cut"));
    }
    if (real_ == nullptr) {
      return absl::UnavailableError("the connection is broken");
    }
    auto flight = std::make_unique<Flight>();
    flight->outer = call;
    flight->inner.request = call->request;
    flight->inner.payload = call->payload;
    flight->inner.target = call->target;  // no loan: damage the moved bytes
    flight->inner.deadline = call->deadline;
    if (!call->payload.empty() && faults_->Take(faults_->flip_request_bits)) {
      flight->damaged.assign(call->payload.begin(), call->payload.end());
      flight->damaged[flight->damaged.size() / 2] ^= std::byte{0x10};
      flight->inner.payload = flight->damaged;
    }
    flight->is_dropped = faults_->Take(faults_->drop);
    if (faults_->Take(faults_->delay)) {
      flight->not_before = MonotonicNow() + absl::Milliseconds(faults_->delay_ms.load());
    }
    if (!flight->is_dropped) {
      if (absl::Status started = real_->Start(&flight->inner); !started.ok()) {
        return started;
      }
    }
    call->is_over = false;
    flights_.push_back(std::move(flight));
    return absl::OkStatus();
  }

  void Poll(absl::Time until) override {
    do {  // until `until`
      if (real_ == nullptr) {
        return;
      }
      real_->Poll(std::min(until, NextEvent()));
      if (Deliver() || ExpireDropped()) {
        return;
      }
      if (real_->broken()) {
        Break(absl::UnavailableError("the daemon is gone"));
        return;
      }
    } while (MonotonicNow() < until);
  }

  bool broken() const override { return real_ == nullptr || real_->broken(); }
  int window() const override { return real_ == nullptr ? 0 : real_->window(); }

 private:
  struct Flight {
    transport::Call* outer = nullptr;
    transport::Call inner;
    std::vector<std::byte> damaged;
    bool is_dropped = false;
    absl::Time not_before = absl::InfinitePast();
  };

  absl::Time NextEvent() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& flight : flights_) {
      if (flight->is_dropped) {
        next = std::min(next, flight->outer->deadline);
      } else if (flight->inner.over()) {
        next = std::min({next, flight->not_before, flight->outer->deadline});
      }
    }
    return next;
  }

  // Delivers completed calls that are not delayed. Returns true if a call ended.
  bool Deliver() {
    bool has_ended = false;
    const absl::Time now = MonotonicNow();
    for (auto it = flights_.begin(); it != flights_.end();) {
      Flight& flight = **it;
      const bool may_end = now >= std::min(flight.not_before, flight.outer->deadline);
      if (flight.is_dropped || !flight.inner.over() || !may_end) {
        ++it;
        continue;
      }
      Damage(flight.inner);
      Finish(flight);
      it = flights_.erase(it);
      has_ended = true;
    }
    return has_ended;
  }

  void Damage(transport::Call& call) {
    if (!call.status.ok()) {
      return;
    }
    if (call.reply_payload_bytes > 0 && faults_->Take(faults_->flip_reply_bits)) {
      call.target[call.reply_payload_bytes / 2] ^= std::byte{0x10};
    }
    if (faults_->Take(faults_->flip_frame_bits)) {
      call.reply.data[call.reply.size / 2] ^= std::byte{0x10};
    }
  }

  static void Finish(Flight& flight) {
    flight.outer->status = flight.inner.status;
    flight.outer->reply = flight.inner.reply;
    flight.outer->reply_payload_bytes = flight.inner.reply_payload_bytes;
    flight.outer->is_over = true;
  }

  bool ExpireDropped() {
    for (const auto& flight : flights_) {
      if (flight->is_dropped && flight->outer->deadline <= MonotonicNow()) {
        flight->inner.status = absl::DeadlineExceededError("the daemon did not answer in time");
        flight->inner.is_over = true;
        Break(absl::UnavailableError("another call was not answered in time"));
        return true;
      }
    }
    return false;
  }

  // Closes the real connection, which ends all calls.
  void Break(const absl::Status& status) {
    real_.reset();
    for (const auto& flight : flights_) {
      if (!flight->inner.over()) {
        flight->inner.status = status;
      }
      Finish(*flight);
    }
    flights_.clear();
  }

  std::unique_ptr<transport::Connection> real_;
  const std::shared_ptr<Faults> faults_;
  std::deque<std::unique_ptr<Flight>> flights_;
};

}  // namespace cairn
