// SPDX-License-Identifier: Apache-2.0
#include "service/peer/announce_plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "service/peer/locator.h"

namespace cairn {

// --- Homes ---------------------------------------------------------------------------------------

void AnnouncePlan::Begin(Line& line, absl::Time now) {
  if (line.state == State::kHasAll) line.lacks_since = now;
  line.state = State::kNothing;
  line.is_walked_again = false;
  line.epoch = ++last_epoch_;
  line.next_sequence = 0;
  line.queue.clear();
  line.batch.reset();
  line.is_sent = false;
  ++resets_;
}

void AnnouncePlan::SetView(const View& view, absl::Time now) {
  homes_ = Homes(view);
  const bool is_alone = homes_.count() < 2;
  std::erase_if(lines_, [&](const auto& line) {
    const Member* member = view.Find(line.first);
    return is_alone || member == nullptr || !member->counts();
  });
  const bool has_other_homes = std::exchange(view_hash_, view.hash) != view.hash;
  for (auto& [number, line] : lines_) {
    if (!has_other_homes) break;
    if (line.state == State::kHasAll) {
      line.state = State::kWaits;
      line.lacks_since = now;
    }
    line.is_walked_again = line.state == State::kWalked;
  }
  for (const Member& member : view.members) {
    if (is_alone || !member.counts() || member.number > kHomeNumberMax) continue;
    const auto [found, is_new] = lines_.try_emplace(member.number);
    Line& line = found->second;
    if (!is_new && line.incarnation == member.incarnation) continue;
    if (is_new) line.lacks_since = now;
    line.incarnation = member.incarnation;
    line.failures = 0;
    line.retry = options_.retry_min;
    line.retry_at = absl::InfinitePast();
    Begin(line, now);
  }
}

// --- Changes -------------------------------------------------------------------------------------

bool AnnouncePlan::has_room() const {
  return std::ranges::all_of(lines_, [this](const auto& line) {
    return line.second.failures > 0 || line.second.queue.size() < options_.queue_max;
  });
}

void AnnouncePlan::Push(uint32_t home, const BlockChange& change, bool is_page, absl::Time now) {
  const auto found = lines_.find(home);
  if (found == lines_.end()) return;
  Line& line = found->second;
  if (line.state == State::kNothing || (is_page && line.state != State::kWalked)) return;
  if (line.failures > 0 && line.queue.size() >= options_.queue_max) return Begin(line, now);
  line.queue.push_back({change.name, change.is_stored, now});
}

void AnnouncePlan::Add(std::span<const BlockChange> changes, absl::Time now) {
  if (lines_.empty()) return;
  if (!changes.empty()) changed_at_ = now;
  for (const BlockChange& change : changes) {
    const Homes::Two homes = homes_.Of(change.run);
    Push(homes.first, change, /*is_page=*/false, now);
    Push(homes.second, change, /*is_page=*/false, now);
  }
}

void AnnouncePlan::Lose(absl::Time now) {
  for (auto& [number, line] : lines_) {
    if (line.state != State::kNothing) Begin(line, now);
  }
}

// --- The walk ------------------------------------------------------------------------------------

size_t AnnouncePlan::CountOf(State state) const {
  return static_cast<size_t>(std::ranges::count_if(
      lines_, [state](const auto& line) { return line.second.state == state; }));
}

// A home whose reset is on its way will wait soon.
bool AnnouncePlan::MayBeginWalk() const {
  return CountOf(State::kWaits) > 0 && std::ranges::none_of(lines_, [](const auto& line) {
           return line.second.state == State::kNothing && line.second.failures == 0;
         });
}

std::optional<uint64_t> AnnouncePlan::WalkFrom(absl::Time now) {
  is_walking_ = is_walking_ && CountOf(State::kWalked) > 0;
  if (!is_walking_) {
    if (!MayBeginWalk()) return std::nullopt;
    is_walking_ = true;
    walk_next_ = 0;
    for (auto& [number, line] : lines_) {
      if (line.state == State::kWaits) line.state = State::kWalked;
    }
  }
  if (now < page_at_ || !has_room()) return std::nullopt;
  return walk_next_;
}

void AnnouncePlan::AddPage(std::span<const BlockChange> blocks, uint64_t next, bool is_last,
                           absl::Time now) {
  CAIRN_CHECK(is_walking_);
  for (const BlockChange& block : blocks) {
    const Homes::Two homes = homes_.Of(block.run);
    Push(homes.first, block, /*is_page=*/true, now);
    Push(homes.second, block, /*is_page=*/true, now);
  }
  walk_next_ = next;
  page_at_ = std::max(page_at_, now) +
             absl::Seconds(static_cast<double>(blocks.size()) / options_.walk_rate);
  if (!is_last) return;
  is_walking_ = false;
  for (auto& [number, line] : lines_) {
    if (line.state != State::kWalked) continue;
    line.state = std::exchange(line.is_walked_again, false) ? State::kWaits : State::kHasAll;
  }
}

// --- Batches -------------------------------------------------------------------------------------

absl::Duration AnnouncePlan::Gap() const {
  if (lines_.size() <= kAllAskedMax + 1) return options_.gap_max;
  return std::min(options_.gap_per_home * static_cast<double>(lines_.size()), options_.gap_max);
}

bool AnnouncePlan::FillBatch(Line& line, absl::Time now) const {
  if (line.batch.has_value()) return true;
  if (line.state == State::kNothing) {
    line.batch.emplace();
    line.batch->is_reset = true;
    line.batch_since = now;
  } else {
    if (line.queue.empty() ||
        (line.queue.size() < options_.batch_max &&
         (now < line.gap_until || now - line.queue.front().since < options_.batch_time))) {
      return false;
    }
    line.batch.emplace();
    line.batch_since = line.queue.front().since;
    line.gap_until = now + Gap();
    absl::flat_hash_map<proto::LocationName, bool> last;  // of several changes of a block
    const size_t count = std::min(line.queue.size(), options_.batch_max);
    for (size_t i = 0; i < count; ++i) last[line.queue[i].name] = line.queue[i].is_stored;
    line.queue.erase(line.queue.begin(), line.queue.begin() + static_cast<ptrdiff_t>(count));
    for (const auto& [name, is_stored] : last) {
      (is_stored ? line.batch->stored : line.batch->removed).push_back(name);
    }
  }
  line.batch->epoch = line.epoch;
  line.batch->first_sequence = line.next_sequence;
  return true;
}

std::vector<const AnnounceBatch*> AnnouncePlan::Due(absl::Time now) {
  std::vector<const AnnounceBatch*> due;
  for (auto& [number, line] : lines_) {
    if (line.is_sent || now < line.retry_at || !FillBatch(line, now)) continue;
    line.batch->home = number;
    line.batch->id = ++last_id_;
    line.is_sent = true;
    due.push_back(&*line.batch);
  }
  return due;
}

void AnnouncePlan::NoteFailure(Line& line, absl::Time now) const {
  ++line.failures;
  line.is_sent = false;
  line.retry_at = now + line.retry;
  line.retry = std::min(line.retry * 2, options_.retry_max);
}

void AnnouncePlan::Done(uint32_t home, uint64_t id, Outcome outcome, absl::Time now) {
  const auto found = lines_.find(home);
  if (found == lines_.end()) return;
  Line& line = found->second;
  if (!line.is_sent || line.batch->id != id) return;
  if (outcome == Outcome::kTaken) {
    if (line.batch->is_reset) line.state = State::kWaits;
    line.next_sequence += line.batch->count();
    line.batch.reset();
    line.is_sent = false;
    line.failures = 0;
    line.retry = options_.retry_min;
    return;
  }
  if (outcome == Outcome::kRefused) Begin(line, now);
  NoteFailure(line, now);
}

bool AnnouncePlan::IsIdle(absl::Time now) const {
  return !lines_.empty() && Lag(now) == absl::ZeroDuration() &&
         now - changed_at_ >= options_.idle_after;
}

absl::Duration AnnouncePlan::Tick(absl::Time now) const {
  if (lines_.empty() || IsIdle(now)) return options_.idle_tick;
  absl::Duration tick = options_.gap_tick;
  for (const auto& [number, line] : lines_) {
    const bool is_told = line.state == State::kHasAll && line.failures == 0 &&
                         line.queue.size() < options_.batch_max;
    if (!is_told) return options_.tick;
    if (!line.is_sent) tick = std::min(tick, line.gap_until - now);
  }
  return std::max(tick, options_.tick);
}

// --- For operators -------------------------------------------------------------------------------

std::optional<AnnouncePlan::State> AnnouncePlan::StateOf(uint32_t home) const {
  const auto found = lines_.find(home);
  if (found == lines_.end()) return std::nullopt;
  return found->second.state;
}

absl::Duration AnnouncePlan::Lag(absl::Time now) const {
  absl::Time oldest = now;
  for (const auto& [number, line] : lines_) {
    if (line.state != State::kHasAll) oldest = std::min(oldest, line.lacks_since);
    if (line.batch.has_value()) oldest = std::min(oldest, line.batch_since);
    if (!line.queue.empty()) oldest = std::min(oldest, line.queue.front().since);
  }
  return now - oldest;
}

}  // namespace cairn
