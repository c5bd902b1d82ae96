// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace cairn {
namespace {

constexpr size_t kEditsMax = 2;
constexpr size_t kWordBytesMax = 64;  // of what comes from a user; longer is no slip of the hand

size_t Edits(std::string_view a, std::string_view b) {
  // Rows of the table of edits that make the first i letters of `a` the first j of `b`.
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
