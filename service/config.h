// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's configuration. Each setting is one row of the table in config_knobs.cc: name,
// default, limits, help. The row defines the flag (--name VALUE), the environment variable
// (CAIRN_NAME, dashes as underscores), the key of the YAML file, and the lines of --help and
// --print-config. Flags override the environment, which overrides the file, which overrides the
// default.
//
// All settings are validated once, before anything starts. Errors are InvalidArgument with one line
// for each wrong setting: its name, the source of the value, and the limit. All functions are pure,
// except ProcessEnvironment() and reading the file that `config` names.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "service/config_value.h"

namespace cairn {

// Each field has the meaning and limits of the row in config_knobs.cc with the same name.
struct Config {
  std::string control;  // parsed by ParseControlAddress()
  std::string admin;    // parsed likewise, or "off"
  HostPort data, http, stream;
  std::string socket, data_port_range;
  uint64_t host_bytes = 0, staging_bytes = 0, quarantine_bytes = 0;
  uint64_t region_bytes = 0, regions_bytes = 0;
  uint64_t lanes = 0, path_threads = 0, connections = 0, window = 0;
  std::string ssd;  // parsed by ParseSsd()
  std::string gpu;  // parsed by ParseGpu()
  std::string ssd_io, ssd_placement, ssd_scrub_rate, ssd_write_budget, index_bytes, recipe;
  uint64_t drain_ms = 0, slow_ms = 0;
  std::string huge_pages, map, event_tokens, log_level, log_format;
  std::string door;                        // parsed by ParseDoors()
  std::string policy, audit;               // paths of files, or "off"
  std::string tls_cert, tls_key, tls_crl;  // paths, or "off"
  std::string tls_ca;                      // parsed by transport::ParseTlsBundle(), or "off"
  std::string tls_crl_stale, plaintext;
  std::string members;  // parsed by ParseMembers()
  std::string cluster, member_name;
  std::string etcd_ca, etcd_cert, etcd_key;   // paths, or "off"
  std::string etcd_user, etcd_password_file;  // a name and a path, or "off"
  HostPort peer;
  uint64_t member_grace_s = 0, peer_match_ms = 0, location_bytes = 0;
};

enum class Action { kRun, kHelp, kVersion, kCheckConfig, kPrintConfig };

// The source of a value, in ascending order of precedence.
enum class Source { kDefault, kFile, kEnvironment, kFlag };
std::string_view SourceName(Source source);

struct CommandLine {
  Action action = Action::kRun;
  Config config;                          // not filled in for kHelp and kVersion
  std::map<std::string, Source> sources;  // keyed by setting
  // CAIRN_… variables that are not settings. They only cause a warning: Kubernetes sets some.
  std::vector<std::string> unknown_variables;
};

using Environment = std::map<std::string, std::string>;

// Returns the variables that start with CAIRN_, and XDG_RUNTIME_DIR, which determines the default
// of `socket`.
Environment ProcessEnvironment();

// Parses `arguments`, without the program's name.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments,
                                             const Environment& environment);

// Parses a flat YAML mapping of names to scalars, at most 64 KiB, from an untrusted file. Does not
// check the names.
absl::StatusOr<std::map<std::string, std::string>> ParseConfigFile(std::string_view text);

std::string HelpText();
// Returns an equivalent YAML file. Each line ends with a comment that names the source.
std::string PrintConfig(const CommandLine& command_line);

}  // namespace cairn
