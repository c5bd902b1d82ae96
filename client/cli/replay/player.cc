// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/player.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace cairn::replay {
namespace {

constexpr absl::Duration kWatchInterval = absl::Seconds(1);
// Longer than any pause. The next turn of the session ends it.
constexpr absl::Duration kRetained = absl::Hours(24);
constexpr size_t kWindowRequests = 10;  // minimum average number per window

// Runs `call` and adds its time to the tally.
template <typename Function>
auto Timed(Call call, size_t window, absl::Duration deadline, Tally& tally, Function function) {
  const absl::Time before = MonotonicNow();
  auto result = function();
  tally.AddCall(call, window, MonotonicNow() - before, deadline);
  if (!result.ok()) {
    tally.AddError(call, result.status());
  }
  return result;
}

}  // namespace

Player::Player(const Trace& trace, const Ceiling& ceiling, const Content& content,
               std::vector<PlayTarget> targets, std::vector<uint32_t> routes,
               const PlayOptions& options)
    : trace_(trace),
      ceiling_(ceiling),
      content_(content),
      targets_(std::move(targets)),
      routes_(std::move(routes)),
      options_(options),
      turn_ends_(options.sends_hints ? TurnEndsOf(trace) : std::vector<TurnEnd>()),
      window_count_(std::clamp<size_t>(trace.requests.size() / kWindowRequests, 1, kWindowsMax)) {}

std::vector<Tally> Player::Play(absl::FunctionRef<bool(const PlayProgress& progress)> watch) {
  started_ = MonotonicNow();
  const std::vector<Tally> tallies(targets_.size(), Tally(window_count_));
  std::vector<Hand> hands(options_.parallel, Hand{tallies, 0, {}, {}, {}});
  {
    const MutexLock lock(mutex_);
    running_ = options_.parallel;
  }
  std::vector<std::thread> threads;
  threads.reserve(hands.size());
  for (Hand& hand : hands) {
    threads.emplace_back([this, &hand] { Run(hand); });
  }
  for (bool is_over = false; !is_over;) {  // ends when the trace does: each call has a deadline
    {
      const MutexLock lock(mutex_);
      const absl::Time until = MonotonicNow() + kWatchInterval;
      while (running_ > 0 && changed_.WaitUntil(mutex_, until)) {
      }
      is_over = running_ == 0;
    }
    if (!watch({requests_.load(std::memory_order_relaxed), blocks_.load(std::memory_order_relaxed),
                hit_blocks_.load(std::memory_order_relaxed),
                wrong_bytes_.load(std::memory_order_relaxed)})) {
      const MutexLock lock(mutex_);
      is_stopped_ = true;
      changed_.NotifyAll();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 1; i < hands.size(); ++i) {
    for (size_t target = 0; target < targets_.size(); ++target) {
      hands[0].tallies[target] += hands[i].tallies[target];
    }
  }
  return std::move(hands[0].tallies);
}

void Player::Run(Hand& hand) {
  hand.got.resize(content_.block_bytes());
  hand.expected.resize(content_.block_bytes());
  for (;;) {  // ends: each turn takes a request
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= trace_.requests.size()) {
      break;
    }
    hand.target = routes_[index];
    if (!WaitFor(trace_.requests[index], hand)) {
      break;
    }
    PlayRequest(index, hand);
    requests_.fetch_add(1, std::memory_order_relaxed);
  }
  const MutexLock lock(mutex_);
  --running_;
  changed_.NotifyAll();
}

bool Player::WaitFor(const TraceRequest& request, Hand& hand) {
  absl::Time due = started_;
  if (options_.rate > 0) {
    const uint64_t offset_ms = request.time_ms - trace_.requests.front().time_ms;
    due += absl::Milliseconds(static_cast<double>(offset_ms) / options_.rate);
    hand.tally().behind_max = std::max(hand.tally().behind_max, MonotonicNow() - due);
  }
  const MutexLock lock(mutex_);
  while (!is_stopped_ && changed_.WaitUntil(mutex_, due)) {
  }
  return !is_stopped_;
}

size_t Player::WindowOf(size_t index) const {
  const uint64_t first = trace_.requests.front().time_ms;
  const uint64_t span = trace_.requests.back().time_ms - first;
  const double share =
      span == 0
          ? static_cast<double>(index) / static_cast<double>(trace_.requests.size())
          : static_cast<double>(trace_.requests[index].time_ms - first) / static_cast<double>(span);
  return std::min(window_count_ - 1,
                  static_cast<size_t>(share * static_cast<double>(window_count_)));
}

void Player::PlayRequest(size_t index, Hand& hand) {
  const TraceRequest& request = trace_.requests[index];
  const size_t window = WindowOf(index);
  hand.keys.clear();
  BlockKey parent{};
  for (const BlockNumber block : trace_.ChainOf(request)) {
    parent = Content::KeyOf(SpaceOf(hand).fingerprint(), parent, trace_.blocks[block].hash_id);
    hand.keys.push_back(parent);
  }
  const uint32_t ceiling = ceiling_.request_hits[index];
  TallyWindow& counts = hand.tally().windows[window];
  ++hand.tally().requests;
  counts.asked += {request.block_count, request.tokens};
  counts.ceiling += {ceiling, trace_.TokensOf(request, ceiling)};
  blocks_.fetch_add(request.block_count, std::memory_order_relaxed);
  if (!hand.keys.empty()) {
    PutFrom(Fetch(request, window, hand), window, hand);
    SendHint(index, hand);
  }
}

uint32_t Player::Fetch(const TraceRequest& request, size_t window, Hand& hand) {
  const auto match = Timed(Call::kMatch, window, options_.deadline, hand.tally(), [&] {
    return SpaceOf(hand).Match({.keys = hand.keys, .timeout = options_.deadline});
  });
  if (!match.ok()) {
    return 0;
  }
  uint32_t count = 0;
  while (count < match->block_count && GetBlock(request, count, *match, window, hand)) {
    ++count;
  }
  if (match->block_count > 0) {
    // If the release fails, the lease expires by itself.
    targets_[hand.target].client->Release({&match->lease, 1}, options_.deadline).IgnoreError();
  }
  return count;
}

bool Player::GetBlock(const TraceRequest& request, uint32_t at, const MatchResult& match,
                      size_t window, Hand& hand) {
  Tally& tally = hand.tally();
  const auto got = Timed(Call::kGet, window, options_.deadline, tally, [&] {
    return SpaceOf(hand).Get(
        {.key = hand.keys[at], .lease = match.lease, .target = SourceTarget{hand.got}},
        options_.deadline);
  });
  if (!got.ok()) {
    ++tally.lost_blocks;
    return false;
  }
  tally.verified_bytes += hand.got.size();
  const uint64_t wrong =
      content_.WrongBytes(hand.keys[at], options_.is_lossless, hand.got, hand.expected);
  if (wrong != 0) {
    ++tally.wrong_blocks;
    tally.wrong_bytes += wrong;
    wrong_bytes_.fetch_add(wrong, std::memory_order_relaxed);
    return true;  // the block exists, so a put of it would be a duplicate
  }
  // A block of another member is in the host tier once the get has fetched it.
  const bool is_remote = match.blocks[at].tier == Tier::kPeer;
  const Tier tier = is_remote ? Tier::kPeer : got->tier;
  tally.windows[window].hits[static_cast<size_t>(tier)] +=
      {1, trace_.TokensOf(request, at + 1) - trace_.TokensOf(request, at)};
  hit_blocks_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Player::SendHint(size_t index, Hand& hand) {
  if (turn_ends_.empty()) {
    return;
  }
  const TurnEnd& end = turn_ends_[index];
  const auto own = std::span(hand.keys).subspan(std::min<size_t>(end.used_later, hand.keys.size()));
  absl::Status status;
  if (end.goes_on) {
    status = SpaceOf(hand).Retain(hand.keys, kRetained, /*priority=*/1, options_.deadline).status();
  } else if (!own.empty()) {
    status = SpaceOf(hand).Demote(own, absl::ZeroDuration(), options_.deadline).status();
  }
  ++(status.ok() ? hand.tally().hints : hand.tally().refused_hints);
}

void Player::PutFrom(uint32_t first, size_t window, Hand& hand) {
  for (uint32_t at = first; at < hand.keys.size(); ++at) {
    content_.Fill(hand.keys[at], hand.expected);
    const auto put = Timed(Call::kPut, window, options_.deadline, hand.tally(), [&] {
      return SpaceOf(hand).Put({.key = hand.keys[at],
                                .parent = at == 0 ? BlockKey{} : hand.keys[at - 1],
                                .first_position = uint64_t{at} * kContentTokens,
                                .source = SourceBytes{hand.expected}},
                               options_.deadline);
    });
    if (!put.ok()) {
      // If a block is missing, later blocks of the chain would not be found.
      hand.tally().skipped_puts += hand.keys.size() - at - 1;
      return;
    }
    ++hand.tally().puts;
    hand.tally().duplicate_puts += put->is_duplicate ? 1 : 0;
    hand.tally().stored_bytes += put->is_duplicate ? 0 : put->image_bytes;
  }
}

}  // namespace cairn::replay
