// SPDX-License-Identifier: Apache-2.0
// The data-plane calls of a Space: puts and gets, one or many.

#include <deque>
#include <vector>

#include "base/status.h"
#include "client/cpp/core.h"
#include "client/cpp/space.h"

namespace cairn {

template <typename ExchangeType, typename Result, typename Request>
std::vector<absl::StatusOr<Result>> Space::RunBatch(std::span<const Request> requests,
                                                    absl::Duration timeout, Meanwhile meanwhile) {
  std::vector<absl::StatusOr<Result>> results(requests.size(),
                                              absl::InternalError("the request never ran"));
  const absl::StatusOr<absl::Time> deadline = core_.Begin(timeout, kDataTimeoutDefault);
  const absl::StatusOr<Bound> bound = deadline.ok() ? Bind(*deadline) : deadline.status();
  if (!bound.ok()) {
    if (IsStoreFailure(bound.status())) {
      core_.breaker.OnFailed(Breaker::Call::kMatch);
    }
    std::fill(results.begin(), results.end(), bound.status());
    return results;
  }
  const auto fetch = [&](const Digest& id) { return FetchSideObject(*bound, id, *deadline); };
  const auto side_object = [&](const Digest& id) { return side_objects_.Get(id, fetch); };
  const auto current = [&](const SideObjectCache::Slot& slot) {
    return CurrentSideObject(*bound, slot, *deadline);
  };
  const TransferContext context{fingerprint_,
                                bound->opened.space_id,
                                bound->session.payload_bytes_max,
                                bound->session.takes_engine_hashes,
                                bound->session.takes_tokens,
                                bound->opened.recipe,
                                side_object,
                                current};
  std::deque<ExchangeType> exchanges;  // they do not move once made
  std::vector<Exchange*> to_run;
  std::vector<size_t> places;
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::StatusOr<PlacedSlice> slice = PlaceSlice(shapes_, requests[i].slice);
    if (!slice.ok()) {
      results[i] = slice.status();
      continue;
    }
    to_run.push_back(&exchanges.emplace_back(context, requests[i], *slice));
    places.push_back(i);
  }
  const absl::Time started = MonotonicNow();
  core_.data.Run(bound->session, to_run, *deadline, meanwhile);
  std::erase_if(to_run, [](const Exchange* exchange) { return !exchange->wants_copy(); });
  core_.data.Run(bound->session, to_run, *deadline);
  Account(exchanges, MonotonicNow() - started);
  for (size_t i = 0; i < exchanges.size(); ++i) {
    results[places[i]] = exchanges[i].result();
  }
  return results;
}

void Space::Account(const std::deque<PutExchange>& puts, absl::Duration /*elapsed*/) {
  // Puts do not delay a first token: they count as late, but the breaker ignores them.
  for (const PutExchange& put : puts) {
    core_.puts.Add();
    core_.late.Add(absl::IsDeadlineExceeded(put.result().status()) ? 1 : 0);
    if (put.stored().has_value()) {
      core_.duplicates.Add(put.stored()->is_duplicate ? 1 : 0);
      core_.put_bytes.Add(put.stored()->is_duplicate ? 0 : put.wire_bytes());
    }
  }
}

void Space::Account(const std::deque<GetExchange>& gets, absl::Duration elapsed) {
  Breaker::Bytes bytes;
  bool has_failed = false;
  for (const GetExchange& get : gets) {
    const absl::Status status = get.result().status();
    core_.gets.Add();
    core_.hits.Add(status.ok() ? 1 : 0);
    core_.misses.Add(absl::IsNotFound(status) ? 1 : 0);
    core_.corrupt.Add(get.is_corrupt() ? 1 : 0);
    core_.late.Add(absl::IsDeadlineExceeded(status) ? 1 : 0);
    has_failed = has_failed || IsStoreFailure(status);
    if (!status.ok()) continue;
    const GetResult& got = *get.result();
    (got.tier == Tier::kPeer ? bytes.peer : bytes.local) += got.wire_bytes;
  }
  core_.get_bytes.Add(bytes.local + bytes.peer);
  // For the breaker a batch is one fetch: its cost is the time of the whole batch.
  if (has_failed) {
    core_.breaker.OnFailed(Breaker::Call::kGet);
  } else if (!gets.empty()) {
    core_.breaker.OnFetched(bytes, elapsed);
  }
}

std::vector<absl::StatusOr<PutResult>> Space::PutBatch(std::span<const PutRequest> requests,
                                                       absl::Duration timeout) {
  return RunBatch<PutExchange, PutResult>(requests, timeout);
}

std::vector<absl::StatusOr<PutResult>> Space::PutBatch(std::span<const PutRequest> requests,
                                                       absl::Duration timeout,
                                                       Meanwhile meanwhile) {
  return RunBatch<PutExchange, PutResult>(requests, timeout, meanwhile);
}

std::vector<absl::StatusOr<GetResult>> Space::GetBatch(std::span<const GetRequest> requests,
                                                       absl::Duration timeout) {
  return RunBatch<GetExchange, GetResult>(requests, timeout);
}

absl::StatusOr<Buffer> Space::AllocateStaging(size_t bytes, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, core_.Begin(timeout, kDataTimeoutDefault));
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo session, core_.control->Session(deadline));
  return core_.data.AllocateStaging(session, bytes, deadline);
}

absl::StatusOr<PutResult> Space::Put(const PutRequest& request, absl::Duration timeout) {
  return PutBatch({&request, 1}, timeout).front();
}

absl::StatusOr<GetResult> Space::Get(const GetRequest& request, absl::Duration timeout) {
  return GetBatch({&request, 1}, timeout).front();
}

}  // namespace cairn
