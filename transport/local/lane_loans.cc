// SPDX-License-Identifier: Apache-2.0
// The loans of a lane. lent_memory.h explains loans.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "transport/local/lane.h"
#include "transport/local/lane_internal.h"
#include "transport/local/lent_memory.h"
#include "transport/local/packet.h"

namespace cairn::transport {
namespace {

// How often a lane checks its loans while no request arrives: a peer sends no message when it gives
// a loan back.
constexpr absl::Duration kLoansLookedAt = absl::Milliseconds(20);

}  // namespace

void LocalLane::FillWords() {
  if (share_.lender == nullptr) {
    return;
  }
  const auto first = static_cast<uint32_t>(index_) * Lender::kLoansPerLane;
  for (uint32_t i = Lender::kLoansPerLane; i-- > 0;) {
    free_words_.push_back(first + i);
  }
}

bool LocalLane::can_lend() const { return share_.lender != nullptr; }

bool LocalLane::CanLendNow(std::span<const std::byte> payload) const {
  return !free_words_.empty() && share_.lender->PlaceOf(payload).has_value();
}

void LocalLane::Lend(const ReplyTo& reply_to, const proto::FrameBytes& frame,
                     std::span<const std::byte> payload, absl::Time until, ReplyDone sent,
                     LoanDone back) {
  CAIRN_CHECK(reply_to.takes_loan && CanLendNow(payload), "what cannot be lent");
  const uint64_t place = *share_.lender->PlaceOf(payload);
  Peer* peer = Find(reply_to.peer);
  if (peer == nullptr || peer->is_breaking) {
    completed_.push_back(
        {.status = absl::UnavailableError("the peer is gone"), .reply_done = std::move(sent)});
    completed_.push_back({.loan_end = LoanEnd::kGone, .loan_done = std::move(back)});
    return;
  }
  peer->unanswered = std::max(0, peer->unanswered - 1);
  Lent lent{.word = free_words_.back(),
            .number = (++loans_made_ << kLaneBits) | static_cast<uint64_t>(index_),
            .back_place = reply_to.back_place,
            .bytes = payload.size(),
            .until = until,
            .done = std::move(back)};
  free_words_.pop_back();
  // The packet below makes the store visible to the peer.
  share_.lender->word(lent.word).store(lent.number, std::memory_order_release);
  const Envelope envelope{Direction::kLoan, place, payload.size(), lent.word, lent.number};
  const bool is_first = lent_count_++ == 0;
  share_.metrics.loans.Add(1);
  share_.metrics.loan_bytes.Add(static_cast<int64_t>(payload.size()));
  peer->lent.push_back(std::move(lent));
  // Counted before the peer has the loan and can look at the metrics.
  share_.metrics.lent.Add();
  share_.metrics.lent_bytes.Add(payload.size());
  absl::Status status = SendTo(*peer, envelope, frame, {});
  completed_.push_back({.status = std::move(status), .reply_done = std::move(sent)});
  if (is_first) {
    loans_due_ = MonotonicNow() + kLoansLookedAt;
  }
}

// Removes a loan. Afterwards its peer sees that it is no longer in force.
void LocalLane::EndLoan(Peer& peer, size_t index, LoanEnd end) {
  Lent& lent = peer.lent[index];
  share_.lender->word(lent.word).store(0, std::memory_order_seq_cst);
  // Writes to the payload, which its owner may make once `done` has run, come after this fence. It
  // pairs with the one in LocalLoan::IsInForce().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  free_words_.push_back(lent.word);
  --lent_count_;
  share_.metrics.loans.Add(-1);
  share_.metrics.loan_bytes.Add(-static_cast<int64_t>(lent.bytes));
  if (end == LoanEnd::kLate) {
    share_.metrics.loans_late.Add();
  }
  completed_.push_back({.loan_end = end, .loan_done = std::move(lent.done)});
  if (index + 1 != peer.lent.size()) {
    lent = std::move(peer.lent.back());
  }
  peer.lent.pop_back();
}

// Ends the loans that the peer has given back and those past their deadline.
int LocalLane::LookAfterLoans(Peer& peer, absl::Time now) {
  int ended = 0;
  for (size_t i = peer.lent.size();
       i-- > 0;) {  // backwards: EndLoan() moves the last one into the gap
    const Lent& lent = peer.lent[i];
    // The request's place was checked on arrival. A wrong number there harms only the peer.
    const auto* cell =
        reinterpret_cast<const LoanWord*>(peer.region.At(lent.back_place, sizeof(LoanWord)));
    // Acquire: pairs with LocalLoan's release, before which the payload was read.
    if (cell->load(std::memory_order_acquire) == lent.number) {
      EndLoan(peer, i, LoanEnd::kGivenBack);
      ++ended;
    } else if (lent.until <= now) {
      EndLoan(peer, i, LoanEnd::kLate);
      ++ended;
    }
  }
  return ended;
}

int LocalLane::LookAfterAllLoans(absl::Time now) {
  if (lent_count_ == 0 || now < loans_due_) {
    return 0;
  }
  loans_due_ = now + kLoansLookedAt;
  int ended = 0;
  for (const auto& [id, peer] : peers_) {
    ended += LookAfterLoans(*peer, now);
  }
  return ended;
}

}  // namespace cairn::transport
