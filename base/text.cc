// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cairn {

// --- Quotes --------------------------------------------------------------------------------------

std::string Quoted(std::string_view text) {
  constexpr size_t kBytesMax = 64;
  return absl::StrCat("'", absl::CHexEscape(ToAbsl(text.substr(0, kBytesMax))),
                      text.size() > kBytesMax ? "…'" : "'");
}

std::string QuotedName(std::string_view name) {
  if (name.size() > kQuotedNameBytesMax) return absl::StrCat("a name of ", name.size(), " bytes");
  return Quoted(name);
}

// --- JSON ----------------------------------------------------------------------------------------

namespace {

// Returns the length of the UTF-8 character at the start of `text`; 0 if it is invalid.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t count = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < count) return 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // An overlong encoding, a UTF-16 surrogate, or a code point above U+10FFFF.
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

// --- Names ---------------------------------------------------------------------------------------

namespace {

constexpr size_t kEditsMax = 2;
constexpr size_t kWordBytesMax = 64;  // longer words get no suggestion

size_t Edits(std::string_view a, std::string_view b) {
  // The last two rows of the table of edit distances between prefixes of `a` and `b`.
  std::vector<size_t> before_last(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view Nearest(std::string_view word, std::span<const std::string_view> names) {
  if (word.size() > kWordBytesMax) return {};
  std::string_view nearest;
  size_t fewest = std::min(kEditsMax, word.size() / 2) + 1;
  for (const std::string_view name : names) {
    const size_t edits = Edits(word, name);
    if (edits < fewest) {
      fewest = edits;
      nearest = name;
    }
  }
  return nearest;
}

std::string DidYouMean(std::string_view word, std::span<const std::string_view> names) {
  const std::string_view nearest = Nearest(word, names);
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", ToAbsl(nearest), "?)");
}

}  // namespace cairn
