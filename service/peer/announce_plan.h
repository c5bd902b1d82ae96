// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides what is announced to which home, and when. docs/internals/locations.md describes it.
//
// A home of the view is in one of these states:
//
//   nothing    it was told nothing in this epoch, and has not taken the reset that begins the epoch
//   waits      it has taken the reset, and waits for the next walk
//   is walked  a walk over the blocks of this daemon is under way, and the home gets its part
//   has all    it was told of all blocks
//
// In all states but the first, it also gets the changes of the blocks whose home it is. One walk
// serves all homes that wait. When other members count than before, the homes of runs change. Then
// all homes that were told something wait for a walk again, without a new epoch.
//
// News after a quiet time is announced after `batch_time`. A daemon that always has news announces
// it about 20 times a second in all, and to each home at least once a second: a batch that is not
// full waits until some time after the last one to that home. In a cluster in which a match asks
// all members, nobody asks homes, so each home hears once a second.
//
// A home begins with a new epoch if its process is another one, if it refuses a batch, if changes
// were lost, or if it fails for so long that its queue is full.
//
// Thread-safety: Thread-compatible. No I/O, no clock: `now` is given.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "proto/location.h"
#include "service/members/view.h"
#include "service/peer/block_feed.h"
#include "service/peer/homes.h"

namespace cairn {

struct AnnounceBatch {
  uint32_t home = 0;  // its number
  uint64_t id = 0;    // of this attempt
  uint64_t epoch = 0;
  uint64_t first_sequence = 0;
  bool is_reset = false;                             // begins the epoch; then the batch is empty
  std::vector<proto::LocationName> stored, removed;  // no name is in both

  size_t count() const { return stored.size() + removed.size(); }
};

class AnnouncePlan {
 public:
  struct Options {
    size_t batch_max = 1024;                             // entries
    absl::Duration batch_time = absl::Milliseconds(10);  // a smaller batch waits as long
    absl::Duration gap_per_home = absl::Milliseconds(50), gap_max = absl::Seconds(1);
    size_t queue_max = 4096;     // entries that a home lacks
    double walk_rate = 100'000;  // blocks per second
    absl::Duration retry_min = absl::Milliseconds(100), retry_max = absl::Seconds(5);
    absl::Duration tick = absl::Milliseconds(10);
    absl::Duration gap_tick = absl::Milliseconds(200);  // at most, while only full batches may go
    absl::Duration idle_tick = absl::Seconds(10), idle_after = absl::Seconds(1);
  };
  explicit AnnouncePlan(Options options) : options_(options) {}

  // Members that do not count, or whose number is too large, are no homes. A daemon alone has none.
  void SetView(const View& view, absl::Time now);

  // --- Changes

  // False: a home that answers has a full queue. Add no changes and no page now.
  bool has_room() const;
  void Add(std::span<const BlockChange> changes, absl::Time now);
  // Changes were lost: every home begins with a new epoch.
  void Lose(absl::Time now);

  // --- The walk

  // Returns where the next page begins (0: at the first block), if a page is wanted now.
  std::optional<uint64_t> WalkFrom(absl::Time now);
  // REQUIRES: WalkFrom() returned a place, and was not called since.
  void AddPage(std::span<const BlockChange> blocks, uint64_t next, bool is_last, absl::Time now);

  // --- Batches

  // Returns the batches to be sent now. Done() follows for each. They are valid until the next call
  // of another function. One batch is under way to each home.
  std::vector<const AnnounceBatch*> Due(absl::Time now);
  enum class Outcome : uint8_t {
    kTaken,
    kRefused,  // the home asks for a new epoch
    kFailed,   // no answer, or an error that may pass; the batch is sent again
  };
  // Ignores attempts that are no longer awaited.
  void Done(uint32_t home, uint64_t id, Outcome outcome, absl::Time now);

  // No home lacks anything, and nothing has changed for a while: the next change is to be waited
  // for. False for a daemon alone, to which changes do not matter.
  bool IsIdle(absl::Time now) const;
  // How long to wait at most before the next look at the changes.
  absl::Duration Tick(absl::Time now) const;

  // --- For operators

  enum class State : uint8_t { kNothing, kWaits, kWalked, kHasAll };
  // nullopt: it is no home.
  std::optional<State> StateOf(uint32_t home) const;
  size_t home_count() const { return lines_.size(); }
  // The longest time for which a home lacks something that this daemon has to tell it.
  absl::Duration Lag(absl::Time now) const;
  uint64_t resets() const { return resets_; }  // epochs that were begun

 private:
  struct Queued {
    proto::LocationName name;
    bool is_stored = false;
    absl::Time since;
  };
  struct Line {  // to a home
    uint64_t incarnation = 0;
    State state = State::kNothing;
    bool is_walked_again = false;  // after the walk that is under way
    uint64_t epoch = 0;
    uint64_t next_sequence = 0;
    std::deque<Queued> queue;
    std::optional<AnnounceBatch> batch;           // not taken yet
    bool is_sent = false;                         // its answer is awaited
    absl::Time batch_since;                       // of its oldest entry
    absl::Time lacks_since;                       // the home does not have all
    absl::Time gap_until = absl::InfinitePast();  // smaller batches wait
    int failures = 0;                             // since the last batch that was taken
    absl::Duration retry;
    absl::Time retry_at = absl::InfinitePast();
  };
  using Lines = std::map<uint32_t, Line>;  // by number

  void Begin(Line& line, absl::Time now);
  void Push(uint32_t home, const BlockChange& change, bool is_page, absl::Time now);
  // Between batches that are not full.
  absl::Duration Gap() const;
  // Returns whether the line has a batch now.
  bool FillBatch(Line& line, absl::Time now) const;
  void NoteFailure(Line& line, absl::Time now) const;
  bool MayBeginWalk() const;
  size_t CountOf(State state) const;

  const Options options_;
  Homes homes_{View()};
  uint64_t view_hash_ = 0;
  Lines lines_;
  bool is_walking_ = false;
  uint64_t walk_next_ = 0;
  absl::Time page_at_ = absl::InfinitePast();     // the next page is wanted then
  absl::Time changed_at_ = absl::InfinitePast();  // the last change of a block
  uint64_t last_epoch_ = 0, last_id_ = 0, resets_ = 0;
};

}  // namespace cairn
