// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/options.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kControlDefault = "127.0.0.1:50151";
constexpr uint64_t kTimeoutSeconds = 10;

constexpr Flag kCommonFlags[] = {
    {"--control", "TARGET",
     "HOST:PORT or unix:PATH of cairnd [$CAIRN_CONTROL, else 127.0.0.1:50151]"},
    {"--admin", "TARGET", "unix:PATH or HOST:PORT of administrative calls [as the daemon reports]"},
    {"--data", "TARGET",
     "unix:PATH, tls:HOST:PORT or HOST:PORT (UCX) of the data plane [as the daemon reports]"},
    {"--transports", "NAMES",
     "of the data plane: some of local, stream, ucx [$CAIRN_TRANSPORTS, else local; with TLS "
     "local,stream]"},
    {"--tls-ca", "FILE", "CAs of the daemon's certificate: TLS to a HOST:PORT [$CAIRN_TLS_CA]"},
    {"--tls-cert", "FILE", "certificate of this client [$CAIRN_TLS_CERT]"},
    {"--tls-key", "FILE", "its key [$CAIRN_TLS_KEY]"},
    {"--tls-server", "NAME",
     "DNS name or URI in the daemon's certificate [$CAIRN_TLS_SERVER, else the host]"},
    {"--timeout", "SECONDS", "limit for the whole command, 1 to 60 [10]"},
    {"--json", "", "print JSON"},
    {"--progress", "", "show progress even if stderr is not a terminal"},
    {"--help", "", "show this text"},
};

const Flag* Find(std::string_view name, std::span<const Flag> flags) {
  for (const std::span<const Flag> list : {flags, std::span<const Flag>(kCommonFlags)}) {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [name](const Flag& flag) { return flag.name == name; });
    if (found != list.end()) {
      return &*found;
    }
  }
  return nullptr;
}

std::vector<std::string_view> FlagNames(std::span<const Flag> flags) {
  std::vector<std::string_view> names;
  for (const std::span<const Flag> list : {flags, std::span<const Flag>(kCommonFlags)}) {
    for (const Flag& flag : list) names.push_back(flag.name);
  }
  return names;
}

}  // namespace

std::span<const Flag> CommonFlags() { return kCommonFlags; }

absl::StatusOr<Arguments> Arguments::Parse(std::span<const std::string> words,
                                           std::span<const Flag> flags) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i] == "-h" ? "--help" : words[i];
    if (!word.starts_with("--")) {
      arguments.positional_.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Flag* flag = Find(name, flags);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", name, DidYouMean(name, FlagNames(flags))));
    }
    if (flag->value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      }
      arguments.flags_[name] = "";
    } else if (equals != std::string::npos) {
      arguments.flags_[name] = word.substr(equals + 1);
    } else if (i + 1 < words.size()) {
      arguments.flags_[name] = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs ", ToAbsl(flag->value)));
    }
  }
  return arguments;
}

std::string Arguments::Get(std::string_view flag, std::string_view fallback) const {
  const auto found = flags_.find(flag);
  return found != flags_.end() ? found->second : std::string(fallback);
}

absl::StatusOr<uint64_t> Arguments::GetNumber(std::string_view flag, uint64_t fallback,
                                              uint64_t most) const {
  if (!Has(flag)) {
    return fallback;
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(Get(flag), &number) || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(flag), " is '", Get(flag), "'; expected a number up to ", most));
  }
  return number;
}

absl::StatusOr<Arguments::Range> Arguments::GetRange(std::string_view flag) const {
  if (!Has(flag)) {
    return Range{};
  }
  const std::string text = Get(flag);
  const size_t colon = text.find(':');
  uint32_t first = 0;
  uint32_t past = 0;
  const bool is_number = absl::SimpleAtoi(text.substr(0, colon), &first);
  if (colon == std::string::npos) {
    past = first + 1;
  }
  if (!is_number ||
      (colon != std::string::npos && !absl::SimpleAtoi(text.substr(colon + 1), &past)) ||
      past <= first) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(flag), " is '", text, "'; expected FIRST or FIRST:PAST, as in 0:8"));
  }
  return Range{first, past - first};
}

TlsOptions Arguments::tls() const {
  const auto get = [this](std::string_view flag, const char* variable) {
    const char* environment = std::getenv(variable);
    return Get(flag, environment != nullptr ? environment : "");
  };
  return {.ca = get("--tls-ca", "CAIRN_TLS_CA"),
          .cert = get("--tls-cert", "CAIRN_TLS_CERT"),
          .key = get("--tls-key", "CAIRN_TLS_KEY"),
          .server = get("--tls-server", "CAIRN_TLS_SERVER")};
}

std::string Arguments::control() const {
  const char* environment = std::getenv("CAIRN_CONTROL");
  return Get("--control", environment != nullptr ? environment : kControlDefault);
}

absl::StatusOr<absl::Duration> Arguments::timeout() const {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t seconds, GetNumber("--timeout", kTimeoutSeconds, 60));
  if (seconds == 0) {
    return absl::InvalidArgumentError("--timeout is 0; expected 1 to 60");
  }
  return absl::Seconds(static_cast<int64_t>(seconds));
}

bool Arguments::shows_progress() const { return Has("--progress") || isatty(STDERR_FILENO) != 0; }

}  // namespace cairn::cli
