// SPDX-License-Identifier: Apache-2.0
#pragma once
// The requests that `cairnctl explain` compares. A request has the inputs of its blocks' keys. This
// file also finds the first block in which two requests differ. Pure functions; all are
// Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cairn/v1/store.pb.h"
#include "proto/block_key.h"

namespace cairn::explain {

inline constexpr uint64_t kRequestBytesMax = uint64_t{256} << 20;  // limit for a file

struct Request {
  std::string space;  // as --space names it; empty: not stated
  std::vector<uint32_t> tokens;
  std::optional<std::string> text;    // given instead of tokens
  std::vector<proto::BlockKey> keys;  // given instead, for engines with their own hashes
  std::vector<proto::KeyExtra> extras;
};

// Parses the content of a file: token ids, separated by spaces or commas or as a JSON array, or a
// JSON object with the fields that `cairnctl explain --help` lists. Errors: InvalidArgument, naming
// the word or the field.
absl::StatusOr<Request> ParseRequest(std::string_view content);

// Where the chains of two requests begin to differ.
struct Parting {
  uint64_t block = 0;  // the first block that they do not share
  // The differences in that block, one sentence each. Empty if one of the chains ends before this
  // block.
  std::vector<std::string> differing;
};
// Returns nullopt if the chains are equal. Ignores the partial block at the end of a request,
// because it has no key.
std::optional<Parting> FindParting(const Request& a, const Request& b, uint32_t tokens_per_block);

// Returns the differing fields of two spaces' identities, one sentence each.
std::vector<std::string> DifferencesOf(const v1::SpaceSpec& a, const v1::SpaceSpec& b);

}  // namespace cairn::explain
