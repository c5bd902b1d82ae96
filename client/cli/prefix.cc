// SPDX-License-Identifier: Apache-2.0
#include "client/cli/prefix.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "client/cli/daemon.h"

namespace cairn::cli {
namespace {

absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    return absl::NotFoundError(absl::StrCat("--tokens: ", path, " cannot be read"));
  }
  std::vector<uint32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--tokens: '", word, "' in ", path,
                                                     " is not a token id (0 to ", UINT32_MAX, ")"));
    }
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::vector<BlockKey>> PrefixOf(const Arguments& arguments, const Space& space) {
  if (arguments.Has("--tokens") == !arguments.positional().empty()) {
    return absl::InvalidArgumentError(
        "name the prefix with --tokens or with the keys of its blocks");
  }
  if (!arguments.Has("--tokens")) {
    return ParseKeys(arguments.positional());
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ReadTokens(arguments.Get("--tokens")));
  std::vector<BlockKey> keys = space.DeriveChain(tokens);
  if (keys.empty() || keys.size() > kPrefixKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens: ", tokens.size(), " tokens make ", keys.size(), " blocks of ",
                     space.identity().tokens_per_block, " tokens, expected 1 to ", kPrefixKeysMax));
  }
  return keys;
}

}  // namespace cairn::cli
