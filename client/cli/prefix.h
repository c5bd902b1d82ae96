// SPDX-License-Identifier: Apache-2.0
#pragma once
// A prefix that the user names, either by the keys of its blocks or by a file with its tokens.

#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cpp/space.h"

namespace cairn::cli {

inline constexpr size_t kPrefixKeysMax = 65536;
inline constexpr Flag kTokensFlag = {
    "--tokens", "FILE", "token ids of the prefix, separated by spaces or commas, or a JSON array"};

// Returns the operands as keys, or the keys of the full blocks of the file --tokens. Errors:
// InvalidArgument, unless exactly one of the two is given and results in 1 to kPrefixKeysMax keys.
absl::StatusOr<std::vector<BlockKey>> PrefixOf(const Arguments& arguments, const Space& space);

}  // namespace cairn::cli
