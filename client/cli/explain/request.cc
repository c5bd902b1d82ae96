// SPDX-License-Identifier: Apache-2.0
#include "client/cli/explain/request.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace cairn::explain {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

absl::Status Wrong(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), " ", ToAbsl(what)));
}

absl::StatusOr<std::vector<uint32_t>> ParseTokens(std::string_view text) {
  std::vector<uint32_t> tokens;
  for (const absl::string_view word :
       absl::StrSplit(ToAbsl(text), absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", word.substr(0, 32), "' is not a token id (0 to ", UINT32_MAX, ")"));
    }
  }
  return tokens;
}

absl::StatusOr<uint32_t> NumberOf(const Value& value, std::string_view field) {
  const double number = value.number_value();
  if (!value.has_number_value() || number < 0 || number != std::floor(number) ||
      number > UINT32_MAX) {
    return Wrong(field, absl::StrCat("is not a whole number from 0 to ", UINT32_MAX));
  }
  return static_cast<uint32_t>(number);
}

absl::StatusOr<std::string> TextOf(const Value& value, std::string_view field) {
  if (!value.has_string_value()) return Wrong(field, "is not a text");
  return value.string_value();
}

absl::StatusOr<std::vector<uint32_t>> TokensOf(const Value& value) {
  if (!value.has_list_value()) return Wrong("tokens", "is not a list of token ids");
  std::vector<uint32_t> tokens;
  tokens.reserve(static_cast<size_t>(value.list_value().values_size()));
  for (const Value& token : value.list_value().values()) {
    CAIRN_ASSIGN_OR_RETURN(tokens.emplace_back(), NumberOf(token, "a token"));
  }
  return tokens;
}

absl::StatusOr<std::vector<proto::BlockKey>> KeysOf(const Value& value) {
  if (!value.has_list_value()) return Wrong("keys", "is not a list of keys");
  std::vector<proto::BlockKey> keys;
  for (const Value& entry : value.list_value().values()) {
    const std::string& hex = entry.string_value();
    proto::BlockKey& key = keys.emplace_back();
    if (hex.size() != 2 * key.size() ||
        !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
      return Wrong("keys", "has an entry that is not 64 hexadecimal digits");
    }
    const std::string bytes = absl::HexStringToBytes(hex);
    std::memcpy(key.data(), bytes.data(), key.size());
  }
  return keys;
}

// {"kind": "media", "name": "…", "offset": 12}: `media` has no kind, and its value is its name.
absl::StatusOr<proto::KeyExtra> ExtraOf(const Value& value, std::string_view list,
                                        std::string kind) {
  if (!value.has_struct_value()) return Wrong(list, "has an entry that is not an object");
  proto::KeyExtra extra{.kind = std::move(kind), .offset = 0, .value = {}};
  for (const auto& [name, field] : value.struct_value().fields()) {
    if (name == "offset") {
      CAIRN_ASSIGN_OR_RETURN(extra.offset, NumberOf(field, absl::StrCat(ToAbsl(list), ".offset")));
    } else if (name == "kind" && list == "extras") {
      CAIRN_ASSIGN_OR_RETURN(extra.kind, TextOf(field, "extras.kind"));
    } else if (name == "value" || name == "name") {
      CAIRN_ASSIGN_OR_RETURN(extra.value, TextOf(field, absl::StrCat(ToAbsl(list), ".", name)));
    } else if (name == "value_hex") {
      CAIRN_ASSIGN_OR_RETURN(const std::string hex, TextOf(field, "extras.value_hex"));
      if (hex.size() % 2 != 0 || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
        return Wrong("extras.value_hex", "is not pairs of hexadecimal digits");
      }
      extra.value = absl::HexStringToBytes(hex);
    } else {
      return Wrong(absl::StrCat(ToAbsl(list), ".", name), "is not a known field");
    }
  }
  if (extra.kind.empty()) return Wrong(list, "has an entry without a kind");
  return extra;
}

absl::Status AddExtras(const Value& value, std::string_view list, Request* request) {
  if (!value.has_list_value()) return Wrong(list, "is not a list");
  for (const Value& entry : value.list_value().values()) {
    CAIRN_ASSIGN_OR_RETURN(request->extras.emplace_back(),
                           ExtraOf(entry, list, list == "media" ? "media" : ""));
  }
  return absl::OkStatus();
}

size_t SkipSpaces(std::string_view text, size_t at) {
  return std::min(text.size(), text.find_first_not_of(" \t\r\n", at));
}

// Reads the list of token ids that begins with '[' at `begin`. Returns where it ends, at its ']'.
// nullopt: it is not one, or JSON writes it in another way.
std::optional<size_t> ReadTokenList(std::string_view json, size_t begin,
                                    std::vector<uint32_t>* tokens) {
  size_t at = SkipSpaces(json, begin + 1);
  if (json.substr(at, 1) == "]") return at;
  while (at < json.size()) {  // ends: each turn reads a digit, or returns
    const size_t end = std::min(json.size(), json.find_first_not_of("0123456789", at));
    const std::string_view digits = json.substr(at, end - at);
    const bool is_padded = digits.size() > 1 && digits[0] == '0';
    if (is_padded || !absl::SimpleAtoi(ToAbsl(digits), &tokens->emplace_back())) {
      return std::nullopt;
    }
    at = SkipSpaces(json, end);
    if (json.substr(at, 1) == "]") return at;
    if (json.substr(at, 1) != ",") return std::nullopt;
    at = SkipSpaces(json, at + 1);
  }
  return std::nullopt;
}

// Returns the end of the string that begins with '"' at `begin`: behind its second '"'.
size_t EndOfString(std::string_view json, size_t begin) {
  for (size_t at = begin + 1; at < json.size(); ++at) {
    if (json[at] == '\\') {
      ++at;
    } else if (json[at] == '"') {
      return at + 1;
    }
  }
  return json.size();
}

// Takes the token ids out of an object's field "tokens", and leaves an empty list there: a message
// with a value for each of millions of tokens takes seconds. Returns none, and changes nothing, if
// there is no such field, or what is in it is for the parser of JSON to refuse.
std::vector<uint32_t> TakeTokens(std::string* json) {
  int depth = 0;
  for (size_t at = 0; at < json->size(); ++at) {
    const char c = (*json)[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != '"') continue;
    const size_t end = EndOfString(*json, at);
    const size_t colon = SkipSpaces(*json, end), list = SkipSpaces(*json, colon + 1);
    const bool is_list = json->compare(colon, 1, ":") == 0 && json->compare(list, 1, "[") == 0;
    if (depth == 1 && is_list && json->compare(at, end - at, "\"tokens\"") == 0) {
      std::vector<uint32_t> tokens;
      const auto past = ReadTokenList(*json, list, &tokens);
      if (!past.has_value()) return {};
      json->erase(list + 1, *past - list - 1);
      return tokens;
    }
    at = end - 1;
  }
  return {};
}

absl::StatusOr<Request> ParseObject(std::string json) {
  Struct object;
  std::vector<uint32_t> taken = TakeTokens(&json);
  if (!google::protobuf::util::JsonStringToMessage(json, &object).ok()) {
    return absl::InvalidArgumentError("it begins with '{' and is not a JSON object");
  }
  Request request;
  std::string adapter, revision;
  bool has_adapter = false, has_tokens = false;
  for (const auto& [name, value] : object.fields()) {
    if (name == "tokens") {
      has_tokens = true;
      CAIRN_ASSIGN_OR_RETURN(request.tokens, TokensOf(value));
      if (request.tokens.empty()) request.tokens = std::move(taken);
    } else if (name == "keys") {
      CAIRN_ASSIGN_OR_RETURN(request.keys, KeysOf(value));
    } else if (name == "text") {
      CAIRN_ASSIGN_OR_RETURN(request.text, TextOf(value, name));
    } else if (name == "space") {
      CAIRN_ASSIGN_OR_RETURN(request.space, TextOf(value, name));
    } else if (name == "salt") {
      CAIRN_ASSIGN_OR_RETURN(std::string salt, TextOf(value, name));
      request.extras.push_back({.kind = "salt", .offset = 0, .value = std::move(salt)});
    } else if (name == "adapter") {
      has_adapter = true;
      CAIRN_ASSIGN_OR_RETURN(adapter, TextOf(value, name));
    } else if (name == "adapter_revision") {
      CAIRN_ASSIGN_OR_RETURN(revision, TextOf(value, name));
    } else if (name == "media" || name == "extras") {
      CAIRN_RETURN_IF_ERROR(AddExtras(value, name, &request));
    } else {
      return Wrong(name, "is not a known field");
    }
  }
  const int named =
      (has_tokens ? 1 : 0) + (request.text.has_value() ? 1 : 0) + (request.keys.empty() ? 0 : 1);
  if (named != 1) {
    return absl::InvalidArgumentError("it needs one of tokens, text and keys");
  }
  if (has_adapter) {  // as the connectors name it
    if (!revision.empty()) adapter += '\0' + revision;
    request.extras.push_back({.kind = "lora", .offset = 0, .value = adapter});
  } else if (!revision.empty()) {
    return Wrong("adapter_revision", "needs an adapter");
  }
  return request;
}

std::string Shown(const std::string& value) {
  constexpr size_t kShown = 48;
  return absl::StrCat("'", absl::CHexEscape(value.substr(0, kShown)),
                      value.size() > kShown ? "…'" : "'");
}

// The extras in [begin, end), without duplicates.
using Extras = std::set<std::tuple<std::string, uint32_t, std::string>>;
Extras ExtrasIn(const Request& request, uint64_t begin, uint64_t end) {
  Extras extras;
  for (const proto::KeyExtra& extra : request.extras) {
    if (extra.offset >= begin && extra.offset < end) {
      extras.emplace(extra.kind, extra.offset, extra.value);
    }
  }
  return extras;
}

std::string NameOf(const std::string& kind) { return kind == "lora" ? "adapter" : kind; }

void CompareExtras(const Extras& a, const Extras& b, std::vector<std::string>* differing) {
  const auto value_in = [](const Extras& extras, const std::string& kind, uint32_t offset) {
    const auto found = extras.lower_bound({kind, offset, ""});
    const bool is_there =
        found != extras.end() && std::get<0>(*found) == kind && std::get<1>(*found) == offset;
    return is_there ? Shown(std::get<2>(*found)) : std::string("none");
  };
  std::set<std::pair<std::string, uint32_t>> places;
  for (const Extras* extras : {&a, &b}) {
    const Extras& others = extras == &a ? b : a;
    for (const auto& extra : *extras) {
      if (!others.contains(extra)) places.emplace(std::get<0>(extra), std::get<1>(extra));
    }
  }
  for (const auto& [kind, offset] : places) {
    differing->push_back(absl::StrCat("the ", NameOf(kind), " at token ", offset, " is ",
                                      value_in(a, kind, offset), " in A and ",
                                      value_in(b, kind, offset), " in B"));
  }
}

}  // namespace

absl::StatusOr<Request> ParseRequest(std::string_view content) {
  const size_t first = content.find_first_not_of(" \t\r\n");
  if (first != content.npos && content[first] == '{') {
    return ParseObject(std::string(content));
  }
  Request request;
  CAIRN_ASSIGN_OR_RETURN(request.tokens, ParseTokens(content));
  return request;
}

std::optional<Parting> FindParting(const Request& a, const Request& b, uint32_t tokens_per_block) {
  const uint64_t step = tokens_per_block;
  const uint64_t a_count = a.tokens.size() / step, b_count = b.tokens.size() / step;
  const uint64_t common = std::min(a_count, b_count);
  const auto tokens_end = static_cast<std::ptrdiff_t>(common * step);
  const auto [in_a, in_b] =
      std::mismatch(a.tokens.begin(), a.tokens.begin() + tokens_end, b.tokens.begin());
  const auto token = static_cast<uint64_t>(in_a - a.tokens.begin());
  // Block of the first differing token; `common` if no token differs.
  uint64_t block = token / step;
  const Extras a_extras = ExtrasIn(a, 0, common * step), b_extras = ExtrasIn(b, 0, common * step);
  for (const Extras* extras : {&a_extras, &b_extras}) {
    for (const auto& extra : *extras) {
      if (!(extras == &a_extras ? b_extras : a_extras).contains(extra)) {
        block = std::min(block, std::get<1>(extra) / step);
      }
    }
  }
  if (block == common && a_count == b_count) {
    return std::nullopt;
  }
  Parting parting{.block = block, .differing = {}};
  if (block < common) {
    const uint64_t begin = block * step, end = begin + step;
    CompareExtras(ExtrasIn(a, begin, end), ExtrasIn(b, begin, end), &parting.differing);
    if (token < end) {
      parting.differing.push_back(
          absl::StrCat("token ", token, " is ", *in_a, " in A and ", *in_b, " in B"));
    }
  }
  return parting;
}

std::vector<std::string> DifferencesOf(const v1::SpaceSpec& a, const v1::SpaceSpec& b) {
  std::vector<std::string> differing;
  const auto compare = [&differing](std::string_view field, const std::string& in_a,
                                    const std::string& in_b) {
    if (in_a != in_b) {
      differing.push_back(absl::StrCat(ToAbsl(field), " is ", in_a, " in A and ", in_b, " in B"));
    }
  };
  compare("the tenant", a.tenant(), b.tenant());
  compare("the model", a.model(), b.model());
  compare("the weights revision", a.weights_revision(), b.weights_revision());
  compare("the dtype", v1::DType_Name(a.dtype()), v1::DType_Name(b.dtype()));
  compare("tokens_per_block", absl::StrCat(a.tokens_per_block()),
          absl::StrCat(b.tokens_per_block()));
  compare("the number of groups", absl::StrCat(a.groups_size()), absl::StrCat(b.groups_size()));
  for (int i = 0; i < std::min(a.groups_size(), b.groups_size()); ++i) {
    compare(absl::StrCat("group ", i), absl::StrCat("{", a.groups(i).ShortDebugString(), "}"),
            absl::StrCat("{", b.groups(i).ShortDebugString(), "}"));
  }
  return differing;
}

}  // namespace cairn::explain
