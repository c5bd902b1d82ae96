// SPDX-License-Identifier: Apache-2.0
// cairn_ssd_writer FOLDER FIRST DURABLE_EACH SEED IS_STILL: opens the tier of the folder and puts
// images from the number FIRST on, each DURABLE_EACHth durably (0: none), until it is killed. Now
// and then it reads one, and deletes one; with an IS_STILL of 1 it does nothing after that. Says on
// standard output what happens, a line each:
//
//   open      it is open
//   + N       put
//   ! N       put durably
//   - N       about to go: evicted or deleted
//   = N       deleted, for good
//   bad N     lost, or other bytes than were written

#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    return 2;
  }
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const uint64_t durable_each = std::strtoull(argv[3], nullptr, 10);
  std::mt19937_64 random(std::strtoull(argv[4], nullptr, 10));
  const bool is_still_after_deletion = argv[5][0] == '1';
  cairn::SsdShelf shelf({.folder = argv[1], .on_gone = [](uint64_t number, bool is_lost) {
                           Say(is_lost ? "bad" : "-", number);
                         }});
  Say("open", 0);
  for (uint64_t number = first;; ++number) {  // ends: by a kill
    const bool is_durable = durable_each > 0 && number % durable_each == 0;
    if (const absl::Status status = shelf.Put(number, is_durable); !status.ok()) {
      Say(absl::StrCat("refused: ", status.ToString()), number);
      return 1;
    }
    Say(is_durable ? "!" : "+", number);
    const std::set<uint64_t> numbers = shelf.Numbers();
    if (const uint64_t any = AnyOf(numbers, random); number % 3 == 0) {
      if (absl::IsDataLoss(shelf.Get(any))) {
        Say("bad", any);
      }
    } else if (number % 17 == 0) {
      Say("-", any);
      shelf.Delete(any);
      if (shelf.tier().AwaitFreed(cairn::MonotonicNow() + absl::Seconds(10))) {
        Say("=", any);
      }
      if (is_still_after_deletion) {
        ::pause();  // ends: by a kill
      }
    }
  }
}
