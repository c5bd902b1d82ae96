// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an operator can set. Each knob is one row of the table in config_knobs.cc: name, default,
// limits, help. From that row come the flag (--name VALUE), the environment variable (CAIRN_NAME,
// dashes as underscores), the key of the YAML file, --help and --print-config. A flag wins over the
// environment, that over the file, that over the default.
//
// Everything is validated here, once, before anything starts. Errors are InvalidArgument with a
// line for each thing that is wrong: the knob, where the value came from and the limit. All
// functions are pure but for ProcessEnvironment() and for reading the file that `config` names.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "service/config_value.h"

namespace cairn {

// Meaning and limits of each field: the row of the same name in config_knobs.cc.
struct Config {
  std::string control;  // ParseControlAddress() takes it
  std::string admin;    // as `control`, or "off"
  HostPort data, http;
  std::string socket, data_port_range;
  uint64_t host_bytes = 0, staging_bytes = 0, quarantine_bytes = 0;
  uint64_t region_bytes = 0, regions_bytes = 0;
  uint64_t lanes = 0, path_threads = 0, connections = 0, window = 0;
  std::string ssd;  // ParseSsd() takes it
  std::string gpu;  // ParseGpu() takes it
  std::string ssd_io, ssd_placement, ssd_scrub_rate, ssd_write_budget, index_bytes, recipe;
  uint64_t drain_ms = 0, slow_ms = 0;
  std::string huge_pages, map, log_level, log_format;
};

enum class Action { kRun, kHelp, kVersion, kCheckConfig, kPrintConfig };

// Where a value came from, weakest first.
enum class Source { kDefault, kFile, kEnvironment, kFlag };
std::string_view SourceName(Source source);

struct CommandLine {
  Action action = Action::kRun;
  Config config;                               // not filled in for kHelp and kVersion
  std::map<std::string, Source> sources;       // by knob
  std::vector<std::string> unknown_variables;  // CAIRN_… that are no knobs: warned of, since
                                               // Kubernetes makes some of its own
};

using Environment = std::map<std::string, std::string>;

// The variables that start with CAIRN_, and XDG_RUNTIME_DIR, from which `socket` gets its default.
Environment ProcessEnvironment();

// `arguments` without the program's name.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments,
                                             const Environment& environment);

// A flat YAML mapping of names to scalars, at most 64 KiB. Assumes malice. The names are not looked
// at.
absl::StatusOr<std::map<std::string, std::string>> ParseConfigFile(std::string_view text);

std::string HelpText();
// A YAML file that says the same; each line ends with a comment that tells the source.
std::string PrintConfig(const CommandLine& command_line);

}  // namespace cairn
