// SPDX-License-Identifier: Apache-2.0
// ParseConfigFile(). yaml-cpp throws; its exceptions do not leave this file.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "base/units.h"
#include "service/config.h"
#include "service/policy/yaml_text.h"

namespace cairn {
namespace {

constexpr size_t kTextBytesMax = 64 * kKiB;
constexpr size_t kKnobsMax = 1024;

absl::Status Bad(const YAML::Mark& mark, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", mark.line + 1, ": ", why));
}

absl::StatusOr<std::map<std::string, std::string>> ReadMapping(const YAML::Node& root) {
  std::map<std::string, std::string> values;
  if (!root.IsDefined() || root.IsNull()) return values;
  if (!root.IsMap()) return Bad(root.Mark(), "expected NAME: VALUE lines");
  if (root.size() > kKnobsMax) return Bad(root.Mark(), "more than 1024 names");
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) return Bad(pair.first.Mark(), "a name must be plain text");
    const std::string name = pair.first.Scalar();
    const std::string shown = absl::CHexEscape(name.substr(0, 64));
    if (!pair.second.IsScalar()) {
      return Bad(pair.first.Mark(), absl::StrCat("'", shown, "' must have one plain value"));
    }
    if (!values.emplace(name, pair.second.Scalar()).second) {
      return Bad(pair.first.Mark(), absl::StrCat("'", shown, "' is given twice"));
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseConfigFile(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError("the file is larger than 64 KiB");
  }
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("the file has a zero byte");
  }
  try {
    const YamlText yaml = LoadYaml(std::string(text));
    if (yaml.second.has_value()) {
      return Bad(*yaml.second, "a second YAML document starts: the file has one");
    }
    return ReadMapping(yaml.first);
  } catch (const YAML::Exception& e) {
    return Bad(e.mark, absl::CHexEscape(e.msg.substr(0, 200)));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("not YAML: ", absl::CHexEscape(e.what())));
  }
}

}  // namespace cairn
