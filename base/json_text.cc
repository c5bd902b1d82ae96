// SPDX-License-Identifier: Apache-2.0
#include "base/json_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace cairn {
namespace {

// Bytes of the character that `text` begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < count) return 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Longer than needed, a half of a pair of UTF-16, or past the last character.
  const bool is_odd = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
                      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return is_odd ? 0 : count;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* json) {
  json->push_back('"');
  while (!text.empty()) {  // ends: each turn takes a byte at least
    const size_t bytes = CharacterBytes(text);
    const char c = text.front();
    if (bytes == 0) {
      json->append("\\ufffd");
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(json, "\\u%04x", static_cast<uint8_t>(c));
    } else {
      if (c == '"' || c == '\\') json->push_back('\\');
      json->append(text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  json->push_back('"');
}

}  // namespace cairn
