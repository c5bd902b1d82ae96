// SPDX-License-Identifier: Apache-2.0
#pragma once
// The answer to the question who has blocks.
//
// All functions are pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "cairn/v1/peer.pb.h"
#include "proto/location.h"
#include "service/members/view.h"
#include "service/peer/location_table.h"

namespace cairn {

inline constexpr size_t kNamesPerLocateMax = 65'536;
inline constexpr size_t kHoldersMax = 4;  // known for one block

// The members that have a block, as indices into a list of members. The preferred one is first.
using HolderList = absl::InlinedVector<uint16_t, kHoldersMax>;

struct Located {
  struct OneMember {
    std::string name;
    uint64_t incarnation = 0;
    friend bool operator==(const OneMember&, const OneMember&) = default;
  };
  std::vector<OneMember> members;
  std::vector<HolderList> holders;  // of each key that was asked for
};

// What `table` says of these names. Leaves out members that are not in the view, do not count, or
// have another incarnation by now.
Located FindIn(const LocationTable& table, const View& view,
               std::span<const proto::LocationName> names);

// 16 bytes each.
std::string PackNames(std::span<const proto::LocationName> names);
// Errors: InvalidArgument (the size of `packed` is no multiple of 16, or there are more than
// `count_max` names).
absl::StatusOr<std::vector<proto::LocationName>> ParseNames(std::string_view packed,
                                                            size_t count_max);

v1::LocateReply ReplyOf(const Located& located);
// Parses the answer to a question for `count` names, which is not trusted. Errors:
// InvalidArgument.
absl::StatusOr<Located> ParseLocated(const v1::LocateReply& reply, size_t count);

}  // namespace cairn
