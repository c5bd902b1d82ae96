// SPDX-License-Identifier: Apache-2.0
// The config file's parser, and every knob with what it yields: as flags and as environment.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "service/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto values = cairn::ParseConfigFile(text);
  if (!values.ok()) return 0;
  std::vector<std::string> flags;
  cairn::Environment environment;
  for (const auto& [name, value] : *values) {
    if (name == "config") continue;  // would open files
    flags.push_back("--" + name + "=" + value);
    if (name != "CAIRN_CONFIG") environment.emplace(name, value);
  }
  const auto line = cairn::ParseCommandLine(flags, environment);
  if (!line.ok() || line->sources.empty()) return 0;
  // What was accepted prints as a file that is accepted and prints the same.
  const auto again = cairn::ParseConfigFile(cairn::PrintConfig(*line));
  CAIRN_CHECK(again.ok());
  CAIRN_CHECK(again->size() == line->sources.size());
  return 0;
}
