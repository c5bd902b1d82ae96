// SPDX-License-Identifier: Apache-2.0
#include "service/config_members.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "service/config_value.h"

namespace cairn {

bool IsPlainName(std::string_view text, size_t bytes_max) {
  return !text.empty() && text.size() <= bytes_max && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

absl::StatusOr<MembersValue> ParseMembers(std::string_view text) {
  MembersValue value;
  if (text == "off") return value;
  constexpr std::string_view kFile = "file:";
  if (text.starts_with(kFile)) {
    value.kind = MembersValue::Kind::kFile;
    value.path = text.substr(kFile.size());
    CAIRN_RETURN_IF_ERROR(CheckPath(value.path));
    if (value.path == "off") return absl::InvalidArgumentError("not an absolute path");
    return value;
  }
  return absl::InvalidArgumentError("no such source");
}

std::string_view MembersForm() { return "file:PATH, the path absolute, or off"; }

absl::Status CheckCluster(std::string_view text) {
  if (IsPlainName(text, kClusterNameBytesMax)) return absl::OkStatus();
  return absl::InvalidArgumentError("not a name");
}

absl::Status CheckMemberName(std::string_view text) {
  if (IsPlainName(text, kMemberNameBytesMax)) return absl::OkStatus();
  return absl::InvalidArgumentError("not a name");
}

}  // namespace cairn
