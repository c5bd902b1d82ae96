// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands of cairnctl, and the arguments that they run with.
//
// Exit codes: 0 done · 1 failed · 2 wrong usage · 3 not found (a miss) · 4 no daemon answers ·
// 5 a checksum does not match · 6 out of time

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/options.h"

namespace cairn::cli {

// One flag of a command. A flag that takes a value is given as --name VALUE or --name=VALUE.
struct Flag {
  std::string_view name;   // including the dashes
  std::string_view value;  // the name of the value in the help; empty: it takes no value
  std::string_view help;
};

// The words that the user gave, parsed and checked against the command's flags.
class Arguments {
 public:
  // Errors: InvalidArgument, naming the unexpected word.
  static absl::StatusOr<Arguments> Parse(std::span<const std::string> words,
                                         std::span<const Flag> flags);

  bool Has(std::string_view flag) const { return flags_.contains(flag); }
  std::string Get(std::string_view flag, std::string_view fallback = "") const;
  absl::StatusOr<uint64_t> GetNumber(std::string_view flag, uint64_t fallback, uint64_t most) const;
  // A flag's range: "4" means {4, 1}, and "2:6" means {2, 4}. Without the flag, the range is {0,
  // 0}, which means all.
  struct Range {
    uint32_t first = 0, count = 0;
  };
  absl::StatusOr<Range> GetRange(std::string_view flag) const;
  const std::vector<std::string>& positional() const { return positional_; }

  // Flags that all commands have.
  std::string control() const;
  TlsOptions tls() const;
  absl::StatusOr<absl::Duration> timeout() const;
  bool is_json() const { return Has("--json"); }
  // Returns whether to show progress: on request, or if stderr is a terminal.
  bool shows_progress() const;

 private:
  std::map<std::string, std::string, std::less<>> flags_;
  std::vector<std::string> positional_;
};

struct Command {
  std::string_view name;
  std::string_view operands;       // for the usage line
  std::string_view summary;        // one line, no full stop
  std::string_view examples = {};  // for --help: one line each, with its newline
  std::string_view details;        // for --help
  std::span<const Flag> flags;
  size_t operands_min = 0, operands_max = 0;
  absl::Status (*run)(const Arguments& arguments);
  // If set, it is called instead of `run`. It gets the user's words unparsed, even --help, and may
  // not return.
  absl::Status (*run_words)(std::span<const std::string> words) = nullptr;
};

extern const Command kStatus, kSpaces, kLs, kInspect, kGet, kPut, kPrefetch, kPin, kRetain, kDemote,
    kExplain, kWhere, kDelete, kVerify, kPolicy, kProfile, kEvaluate, kReplay, kEvents, kTier,
    kMembers, kDrain, kDoctor, kTop, kCompletion, kVersion;

// All commands, in the order of the help.
std::span<const Command* const> Commands();
// The flags that every command accepts.
std::span<const Flag> CommonFlags();

}  // namespace cairn::cli
