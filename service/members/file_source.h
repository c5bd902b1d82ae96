// SPDX-License-Identifier: Apache-2.0
#pragma once
// Members from a file. Each line is
//
//   NAME=HOST:PORT [ZONE]
//
// '#' starts a comment. The file is read once a second. If one line is invalid, the whole
// file is ignored, and the previous set stays.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/members/member_source.h"

namespace cairn {

// Parses the text of a file, which is not trusted. Errors: InvalidArgument, with the line's number.
absl::StatusOr<std::vector<ListedMember>> ParseMemberFile(std::string_view text);

std::unique_ptr<MemberSource> MakeFileSource(std::string path,
                                             absl::Duration period = absl::Seconds(1));

}  // namespace cairn
