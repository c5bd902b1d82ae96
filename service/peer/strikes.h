// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members that this daemon does not read from, because of what they have delivered.
//
// - A member that delivers kDamagedMax damaged images within kDamagedTime is not read from until it
//   restarts. Its memory, its network or its program is broken.
// - A member that leases blocks and then has none of them, in kBrokenMax reads in a row, is not
//   read from for kAsideMin, and after each further such read for twice as long, up to kAsideMax.
//   Otherwise it could always claim to have the most blocks, and no other member would be asked.
//   An image that it delivers ends this.
//
// Deletions still go to these members.
//
// Thread-safety: Thread-safe. It calls nobody.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "service/members/view.h"

namespace cairn {

class Strikes {
 public:
  static constexpr size_t kDamagedMax = 3;
  static constexpr absl::Duration kDamagedTime = absl::Hours(1);
  static constexpr int kBrokenMax = 3;
  static constexpr absl::Duration kAsideMin = absl::Seconds(1), kAsideMax = absl::Seconds(30);

  // Images that were read at once.
  struct Delivered {
    uint64_t whole = 0, damaged = 0;
    uint64_t missing = 0;  // the member said that it does not have them
  };
  // Notes what a read of leased blocks brought. `incarnation` is of the member's process. Returns
  // true if the member is not read from any more, from now on, until it restarts.
  [[nodiscard]] bool Note(std::string_view member, uint64_t incarnation, const Delivered& delivered,
                          absl::Time now);
  // Errors: Unavailable, with the reason: the member is not read from now.
  absl::Status MayRead(std::string_view member, uint64_t incarnation, absl::Time now) const;
  // Forgets members that are not in the view.
  void Keep(const View& view);
  // The members that are not read from until they restart.
  size_t distrusted_count() const;

 private:
  struct Record {
    uint64_t incarnation = 0;
    std::deque<absl::Time> damaged = {};  // when, the last kDamagedMax
    bool is_distrusted = false;
    int broken = 0;  // reads in a row
    absl::Time aside_until = absl::InfinitePast();
    absl::Duration aside = kAsideMin;  // the next time
  };

  mutable Mutex mutex_;
  std::map<std::string, Record, std::less<>> records_ ABSL_GUARDED_BY(mutex_);  // by member
};

}  // namespace cairn
