// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <iterator>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"

namespace cairn {
namespace {

struct Unit {
  std::string_view prefix;
  std::uint64_t bytes;
};
constexpr Unit kUnits[] = {{"Ti", kTiB}, {"Gi", kGiB}, {"Mi", kMiB}, {"Ki", kKiB}};
constexpr std::uint64_t kBytesMax = std::numeric_limits<std::int64_t>::max();

absl::Status Bad(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape(ToAbsl(text.substr(0, 64))),
                                                 "' is not a byte amount: ", ToAbsl(why),
                                                 "; write for example 512MiB or 4GiB"));
}

}  // namespace

absl::StatusOr<std::uint64_t> ParseBytes(std::string_view text) {
  std::uint64_t count = 0;
  std::size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    const auto digit = static_cast<std::uint64_t>(text[digits] - '0');
    if (count > (kBytesMax - digit) / 10) {
      return Bad(text, "too large");
    }
    count = count * 10 + digit;
  }
  if (digits == 0) {
    return Bad(text, "no digits");
  }
  std::string_view suffix = text.substr(digits);
  if (suffix.empty() || suffix == "B") {
    return count;
  }
  for (const Unit& unit : kUnits) {
    if (suffix.substr(0, 2) == unit.prefix && (suffix.size() == 2 || suffix.substr(2) == "B")) {
      if (count > kBytesMax / unit.bytes) {
        return Bad(text, "too large");
      }
      return count * unit.bytes;
    }
  }
  return Bad(text, "the unit is none of B, KiB, MiB, GiB, TiB");
}

std::string FormatBytes(std::uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes >= unit.bytes) {
      if (bytes % unit.bytes == 0) {
        return absl::StrCat(bytes / unit.bytes, ToAbsl(unit.prefix), "B");
      }
      return absl::StrFormat("%.1f%sB",
                             static_cast<double>(bytes) / static_cast<double>(unit.bytes),
                             ToAbsl(unit.prefix));
    }
  }
  return absl::StrCat(bytes, "B");
}

}  // namespace cairn
