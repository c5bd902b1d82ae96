// SPDX-License-Identifier: Apache-2.0
// cairn_ssd_writer FOLDER FIRST DURABLE_EACH SEED IS_STILL FAIL_EACH: opens the tier of the folder,
// which is small, and puts images from the number FIRST on, each DURABLE_EACHth durably (0: none),
// until it is killed. Another thread reads all the time, so that reclaim waits for it and carries
// along what was read. Now and then it deletes one; with an IS_STILL of 1 it does nothing after
// that. With a FAIL_EACH one of so many flushes of a segment fails. Says on standard output what
// happens, a line each:
//
//   open      it is open
//   + N       put
//   ! N       put durably
//   - N       about to go: evicted or deleted, or lost where flushes fail
//   = N       deleted, for good
//   ~ N       likewise, while a segment was under reclaim
//   bad N     lost, or other bytes than were written

#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/fault/ssd/cut_log.h"
#include "tests/support/ssd_shelf.h"

namespace {

// One call a line: threads do not mix, and what was said is out.
void Say(absl::string_view what, uint64_t number) {
  const std::string line = absl::StrCat(what, " ", number, "\n");
  if (::write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::_Exit(1);
  }
}

uint64_t AnyOf(const std::set<uint64_t>& numbers, std::mt19937_64& random) {
  return *std::next(numbers.begin(), static_cast<ptrdiff_t>(random() % numbers.size()));
}

bool IsReclaiming(cairn::SsdShelf& shelf) {
  for (const auto& [state, count] : shelf.tier().Devices().at(0).segments) {
    if (state == "reclaiming") {
      return count > 0;
    }
  }
  return false;
}

[[noreturn]] void ReadForEver(cairn::SsdShelf& shelf, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (;;) {  // ends: by a kill
    const std::set<uint64_t> numbers = shelf.Numbers();
    if (numbers.empty()) {
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    if (const uint64_t any = AnyOf(numbers, random); absl::IsDataLoss(shelf.Get(any))) {
      Say("bad", any);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    return 2;
  }
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t durable_each = std::strtoull(argv[3], nullptr, 10);
  const uint64_t seed = std::strtoull(argv[4], nullptr, 10);
  std::mt19937_64 random(seed);
  const bool is_still_after_deletion = argv[5][0] == '1';
  const uint64_t fail_each = std::strtoull(argv[6], nullptr, 10);
  cairn::SsdShelf shelf({.budget_bytes = cairn::SsdShelf::kSmallBudgetBytes,
                         .folder = argv[1],
                         .probe_after = absl::Milliseconds(100),
                         .on_gone = [fail_each](uint64_t number, bool is_lost) {
                           Say(is_lost && fail_each == 0 ? "bad" : "-", number);
                         }});
  Say("open", 0);
  if (fail_each > 0) {
    cairn::FailSyncs("/segments/", fail_each, seed);
  }
  std::thread([&] { ReadForEver(shelf, seed + 1); }).detach();
  for (uint64_t number = first;; ++number) {  // ends: by a kill
    const bool is_durable = durable_each > 0 && number % durable_each == 0;
    const absl::Status status = shelf.Put(number, is_durable);
    if (absl::IsUnavailable(status) && fail_each > 0) {
      absl::SleepFor(absl::Milliseconds(1));  // the device is tried again
    } else if (!status.ok()) {
      Say(absl::StrCat("refused: ", status.ToString()), number);
      return 1;
    } else {
      Say(is_durable ? "!" : "+", number);
    }
    const std::set<uint64_t> numbers = shelf.Numbers();
    if (number % 5 == 0 && !numbers.empty()) {
      // Several of what a segment holds that is reclaimed.
      const bool is_reclaiming = IsReclaiming(shelf);
      std::set<uint64_t> doomed;
      for (int i = 0; i < (is_reclaiming ? 8 : 1); ++i) {
        doomed.insert(AnyOf(numbers, random));
      }
      for (const uint64_t one : doomed) {
        Say("-", one);
        shelf.Delete(one);
      }
      if (shelf.tier().AwaitFreed(cairn::MonotonicNow() + absl::Seconds(10))) {
        for (const uint64_t one : doomed) {
          Say(is_reclaiming ? "~" : "=", one);
        }
      }
      if (is_still_after_deletion) {
        ::pause();  // ends: by a kill
      }
    }
  }
}
