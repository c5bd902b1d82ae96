// SPDX-License-Identifier: Apache-2.0
#pragma once
// The YAML of files that Cairn reads, which are untrusted: one document each.

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>

namespace cairn {

struct YamlText {
  YAML::Node first;                  // the first document; undefined if there is none
  std::optional<YAML::Mark> second;  // where a second document starts
};

// YAML::LoadAll() does not end, and takes memory without end, if a token stands where no document
// can begin, such as a `,`: it reads one empty document after the other. This function looks for
// two documents only. Throws what yaml-cpp throws.
YamlText LoadYaml(const std::string& text);

}  // namespace cairn
