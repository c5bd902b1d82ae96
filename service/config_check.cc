// SPDX-License-Identifier: Apache-2.0
#include "service/config_check.h"

#include <algorithm>

#include "codecs/recipe/recipe.h"
#include "service/config_value.h"

namespace cairn {
namespace {

bool IsGraphic(char c) { return c > ' ' && c < 0x7f; }

}  // namespace

absl::Status CheckSocketPath(std::string_view text) {
  if (text == "off") return absl::OkStatus();
  if (text.size() < 2 || text.size() > 100 || text[0] != '/' || text.back() == '/' ||
      !std::ranges::all_of(text, IsGraphic)) {
    return absl::InvalidArgumentError("not a valid path for a unix socket");
  }
  return absl::OkStatus();
}

absl::Status CheckPortRange(std::string_view text) {
  if (text == "any") return absl::OkStatus();
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return absl::InvalidArgumentError("not a range");
  const absl::StatusOr<uint64_t> first = ParseInteger(text.substr(0, dash));
  const absl::StatusOr<uint64_t> last = ParseInteger(text.substr(dash + 1));
  if (!first.ok() || !last.ok() || *first < 1024 || *last > 65535 || *first > *last) {
    return absl::InvalidArgumentError("not a range");
  }
  return absl::OkStatus();
}

absl::Status CheckRecipe(std::string_view text) {
  codecs::Recipe recipe;
  return codecs::ParsePolicyRecipe(text, &recipe) == codecs::Error::kOk
             ? absl::OkStatus()
             : absl::InvalidArgumentError("not a recipe");
}

absl::Status CheckWriteBudget(std::string_view text) { return ParseWriteBudget(text).status(); }

absl::Status CheckScrubRate(std::string_view text) { return ParseScrubRate(text).status(); }

std::string_view WriteBudgetForm() {
  return "bytes a day, 1GiB to 1024TiB, or 1% to 10000% of the SSD tier a day, or off";
}

std::string_view ScrubRateForm() { return "auto, or bytes a second, at most 1GiB; 0: off"; }

}  // namespace cairn
