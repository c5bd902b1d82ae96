// SPDX-License-Identifier: Apache-2.0
#pragma once
// The requests that `cairnctl explain` compares: what the keys of their blocks are made of, and
// where two of them part. Pure; all functions are Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cairn/v1/store.pb.h"
#include "proto/block_key.h"

namespace cairn::explain {

inline constexpr uint64_t kRequestBytesMax = uint64_t{256} << 20;  // of a file

struct Request {
  std::string space;  // as --space names it; empty: not stated
  std::vector<uint32_t> tokens;
  std::optional<std::string> text;    // in place of tokens
  std::vector<proto::BlockKey> keys;  // likewise: of engines with hashes of their own
  std::vector<proto::KeyExtra> extras;
};

// Parses the content of a file: token ids, separated by spaces or commas or as a JSON array, or a
// JSON object with the fields that `cairnctl explain --help` lists. Errors: InvalidArgument, naming
// the word or the field.
absl::StatusOr<Request> ParseRequest(std::string_view content);

// Where the chains of two requests part.
struct Parting {
  uint64_t block = 0;                  // the first that is not common
  std::vector<std::string> differing;  // what differs in it, one sentence each; empty: one chain
                                       // ends before this block
};
// nullopt: the chains are equal. Partial blocks at the ends have no keys and are ignored.
std::optional<Parting> FindParting(const Request& a, const Request& b, uint32_t tokens_per_block);

// The fields of the identities in which two spaces differ, one sentence each.
std::vector<std::string> DifferencesOf(const v1::SpaceSpec& a, const v1::SpaceSpec& b);

}  // namespace cairn::explain
