// SPDX-License-Identifier: Apache-2.0
// Pipeline (declared in data.h): requests over one connection, up to its window at once.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/cpp/data.h"
#include "client/cpp/dial.h"
#include "client/cpp/trace.h"
#include "proto/frame_check.h"

namespace cairn {
namespace {

// Time after the deadline for the transport to return memory. After that the connection is closed,
// which returns it at once.
constexpr absl::Duration kGrace = absl::Milliseconds(100);

// Time for polling a connection before the caller's other work runs.
constexpr absl::Duration kTurn = absl::Microseconds(100);

}  // namespace

Pipeline::Pipeline(std::unique_ptr<transport::Connection>& connection, std::span<Scratch> scratch,
                   size_t window, uint64_t reply_bytes_max, const proto::Ticket& ticket,
                   uint64_t* seq, absl::Time deadline)
    : connection_(connection),
      scratch_(scratch),
      window_(window),
      reply_bytes_max_(reply_bytes_max),
      ticket_(ticket),
      seq_(seq),
      deadline_(deadline),
      places_(scratch.size()) {}

bool Pipeline::HasRoomFor(const Exchange& exchange) const {
  const uint64_t bytes = exchange.reply_bytes_max();
  return moving_ < window_ || (bytes > 0 && reply_bytes_ + bytes <= reply_bytes_max_);
}

void Pipeline::Begin(Place& place, Scratch& scratch, Exchange& exchange) {
  if (MonotonicNow() >= deadline_) {
    return exchange.Fail(absl::DeadlineExceededError("no time left to start"));
  }
  if (connection_ == nullptr || connection_->broken()) {
    return exchange.Fail(absl::UnavailableError("the data connection broke"));
  }
  place.call = transport::Call();
  proto::Frame request;
  if (const absl::Status status = exchange.Prepare(scratch, request, place.call); !status.ok()) {
    return exchange.Fail(status);
  }
  request.seq = place.seq = (*seq_)++;
  request.ticket = ticket_;
  request.payload_bytes = place.call.payload.size();
  request.deadline_ms = MillisecondsLeft(deadline_);
  request.trace = CurrentTrace().trace();
  // Some numbers are the caller's: a wrong one is an error, not an abort.
  if (const absl::Status status = proto::CheckFrame(request); !status.ok()) {
    return exchange.Fail(status);
  }
  place.call.request = proto::Serialize(request);
  place.call.deadline = deadline_;
  place.call.may_wait = place.call.payload.empty();
  place.exchange = &exchange;
  Start(place);
}

void Pipeline::Start(Place& place) {
  const absl::Status status = connection_->Start(&place.call);
  place.is_waiting = absl::IsResourceExhausted(status) && moving_ > 0;
  if (status.ok()) {
    ++moving_;
    reply_bytes_ += place.exchange->reply_bytes_max();
  } else if (!place.is_waiting) {
    std::exchange(place.exchange, nullptr)->Fail(status);
  }
}

void Pipeline::End(Place& place) {
  --moving_;
  Exchange& exchange = *std::exchange(place.exchange, nullptr);
  reply_bytes_ -= exchange.reply_bytes_max();
  if (!place.call.status.ok()) {
    return exchange.Fail(place.call.status);
  }
  const absl::StatusOr<proto::Frame> reply = proto::ParseFrame(place.call.reply.bytes());
  if (!reply.ok()) {
    return exchange.Fail(absl::DataLossError(absl::StrCat("reply: ", reply.status().message())));
  }
  if (const absl::Status status = proto::StatusOf(*reply); !status.ok()) {
    return exchange.Fail(status);
  }
  if (reply->payload_bytes != place.call.reply_payload_bytes ||
      reply->payload_bytes > place.call.target.size() ||
      (place.call.loan != nullptr && reply->payload_bytes != place.call.loan->payload_bytes())) {
    return exchange.Fail(
        absl::DataLossError(absl::StrCat("reply: ", reply->payload_bytes, " bytes announced, ",
                                         place.call.reply_payload_bytes, " came")));
  }
  exchange.loan = place.call.loan.get();
  exchange.may_be_unverified = place.call.takes_loan;
  exchange.Finish(*reply, exchange.loan != nullptr ? exchange.loan->bytes()
                                                   : place.call.target.first(reply->payload_bytes));
  exchange.loan = nullptr;
  exchange.KeepLoan(std::exchange(place.call.loan, nullptr));
}

// Frees the regions of idle places.
void Pipeline::MakeRoom() {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].exchange == nullptr) {
      scratch_[i].region_ = nullptr;
    }
  }
}

// Starts as many exchanges as possible. Returns false when all have ended.
bool Pipeline::Fill(std::span<Exchange* const> exchanges, size_t* next) {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.exchange != nullptr && place.is_waiting) {
      MakeRoom();
      Start(place);
    }
    while (place.exchange == nullptr && *next < exchanges.size() && HasRoomFor(*exchanges[*next])) {
      Begin(place, scratch_[i], *exchanges[(*next)++]);
    }
    if (place.is_waiting) {
      break;  // later exchanges would only compete for the same room
    }
  }
  return moving_ > 0;
}

void Pipeline::Run(std::span<Exchange* const> exchanges, Meanwhile meanwhile) {
  size_t next = 0;
  bool has_more = true;
  // Terminates: each iteration starts or ends a call, or the deadline passes and the connection is
  // closed.
  while (Fill(exchanges, &next)) {
    has_more = has_more && meanwhile();
    connection_->Poll(has_more ? std::min(deadline_, MonotonicNow() + kTurn) : deadline_);
    if (MonotonicNow() > deadline_ + kGrace) {
      connection_ = nullptr;  // this ends every call
    }
    for (Place& place : places_) {
      if (place.exchange != nullptr && !place.is_waiting) {
        if (place.call.over()) {
          End(place);
        } else {
          CAIRN_CHECK(connection_ != nullptr, "a closed connection left a call open");
        }
      }
    }
    if (connection_ == nullptr || connection_->broken()) {
      for (Place& place : places_) {
        if (place.exchange != nullptr && place.is_waiting) {
          place.is_waiting = false;
          std::exchange(place.exchange, nullptr)
              ->Fail(absl::UnavailableError("the data connection broke"));
        }
      }
    }
  }
}

}  // namespace cairn
