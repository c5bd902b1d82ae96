// SPDX-License-Identifier: Apache-2.0
#include "service/config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "service/config_check.h"
#include "service/limits.h"

namespace cairn {
namespace {

constexpr uint64_t kMinuteMs = 60'000;
constexpr size_t kValueBytesMax = 4096;
constexpr size_t kFileBytesMax = 64 * kKiB;

struct Number {
  uint64_t Config::*field;
  uint64_t min, max;
};
struct Bytes {
  uint64_t Config::*field;
  uint64_t min, max;
};
struct Address {
  HostPort Config::*field;
};
struct Text {
  std::string Config::*field;
  absl::Status (*check)(std::string_view);
  std::string_view (*expects)();
};

struct Knob {
  std::string_view name, fallback;
  std::variant<Number, Bytes, Address, Text> kind;
  std::string_view help;
};

// The order is that of --help and docs/operations.md; staging-bytes follows host-bytes.
constexpr Knob kKnobs[] = {
    {"control", "127.0.0.1:50151",
     Text{
         &Config::control, [](std::string_view text) { return ParseControlAddress(text).status(); },
         [] { return std::string_view("HOST:PORT, [IPV6]:PORT or unix:PATH, the path absolute"); }},
     "gRPC: sessions, spaces, match, admin"},
    {"http", "127.0.0.1:50152", Address{&Config::http}, "/metrics, /healthz, /readyz"},
    {"socket", "",
     Text{&Config::socket, CheckSocketPath,
          [] { return std::string_view("an absolute path of at most 100 bytes, or off"); }},
     "unix socket of the local data plane"},
    {"data", "off", Address{&Config::data},
     "UCX data plane; whoever reaches this port can crash the daemon: trusted networks only"},
    {"data-port-range", "any",
     Text{&Config::data_port_range, CheckPortRange,
          [] { return std::string_view("FIRST-LAST, ports 1024 to 65535, or any"); }},
     "ports of the UCX connections behind that one, for firewalls"},
    {"host-bytes", "4GiB", Bytes{&Config::host_bytes, limits::kHostBytesMin, limits::kHostBytesMax},
     "host tier: its arena is taken and faulted in at start"},
    {"staging-bytes", "",
     Bytes{&Config::staging_bytes, limits::kStagingBytesMin, limits::kHostBytesMax},
     "beside the host tier: payloads on their way in, answers being made"},
    {"ssd", "off",
     Text{&Config::ssd, [](std::string_view text) { return ParseSsd(text).status(); },
          [] {
            return std::string_view(
                "PATH=BYTES, the path absolute, 256MiB to 256TiB; up to 16, with commas between "
                "or in a flag each; or off");
          }},
     "SSD tier: folders on disks, with what each may take; what is there outlives the process"},
    {"ssd-io", "auto",
     Text{&Config::ssd_io, CheckSsdIo, [] { return std::string_view("auto, uring or threads"); }},
     "what moves the bytes of the SSD tier; auto is io_uring where the system allows it"},
    {"ssd-placement", "chain",
     Text{&Config::ssd_placement, CheckSsdPlacement,
          [] { return std::string_view("chain or stripe"); }},
     "several folders: each chain in one of them, or its blocks in all, one after another"},
    {"ssd-write-budget", "off", Text{&Config::ssd_write_budget, CheckWriteBudget, WriteBudgetForm},
     "what may be written to the SSD tier; when short, blocks are at their second sighting"},
    {"ssd-scrub-rate", "auto", Text{&Config::ssd_scrub_rate, CheckScrubRate, ScrubRateForm},
     "how fast the SSD tier is read in the background to find what rots; auto: in ten days"},
    {"index-bytes", "auto",
     Text{&Config::index_bytes,
          [](std::string_view text) { return ParseIndexBytes(text).status(); },
          [] { return std::string_view("auto, or bytes from 16MiB to 1TiB"); }},
     "memory of the index; past it the SSD tier drops its oldest; auto follows from both tiers"},
    {"quarantine-bytes", "256MiB", Bytes{&Config::quarantine_bytes, 64 * kMiB, 1 * kTiB},
     "per lane: memory of broken transfers that are not over yet; above it receives are refused"},
    {"region-bytes", "1GiB", Bytes{&Config::region_bytes, 64 * kKiB, 1 * kTiB},
     "client memory mapped per local connection"},
    {"regions-bytes", "8GiB", Bytes{&Config::regions_bytes, 64 * kKiB, 16 * kTiB},
     "client memory mapped by all local connections"},
    {"lanes", "2", Number{&Config::lanes, 1, 64}, "threads per transport that move bytes"},
    {"path-threads", "2", Number{&Config::path_threads, 1, limits::kPathThreadsMax},
     "threads that run the steps of put and get"},
    {"recipe", "exact", Text{&Config::recipe, CheckRecipe, codecs::PolicyRecipes},
     "recipe of spaces whose first client names none"},
    {"connections", "512", Number{&Config::connections, 1, 4096},
     "data-plane connections per transport; of all of them a tenant alone may hold half"},
    {"window", "32", Number{&Config::window, 1, 256}, "requests in flight per connection"},
    {"drain-ms", "10000", Number{&Config::drain_ms, 0, 10 * kMinuteMs},
     "after SIGTERM: time for requests in flight to finish, and for blocks to reach the SSD tier"},
    {"log-level", "info",
     Text{&Config::log_level, CheckLogLevel,
          [] { return std::string_view("error, warn, info or debug"); }},
     "least severe level logged"},
};

// How an error tells a value from outside: quoted, printable, cut.
std::string Quoted(std::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(ToAbsl(text.substr(0, 64))),
                      text.size() > 64 ? "…'" : "'");
}

std::string Expects(const Knob& knob) {
  if (const auto* number = std::get_if<Number>(&knob.kind)) {
    return absl::StrCat("a whole number from ", number->min, " to ", number->max);
  }
  if (const auto* bytes = std::get_if<Bytes>(&knob.kind)) {
    return absl::StrCat("bytes from ", PrintBytes(bytes->min), " to ", PrintBytes(bytes->max));
  }
  if (std::holds_alternative<Address>(knob.kind)) return "HOST:PORT, [IPV6]:PORT or off";
  return std::string(std::get<Text>(knob.kind).expects());
}

template <typename Field>
absl::Status SetNumber(const Field& kind, absl::StatusOr<uint64_t> value, Config* config) {
  CAIRN_RETURN_IF_ERROR(value.status());
  if (*value < kind.min || *value > kind.max) return absl::InvalidArgumentError("out of range");
  config->*kind.field = *value;
  return absl::OkStatus();
}

absl::Status SetValue(const Knob& knob, std::string_view text, Config* config) {
  if (text.size() > kValueBytesMax) return absl::InvalidArgumentError("too long");
  if (const auto* number = std::get_if<Number>(&knob.kind)) {
    return SetNumber(*number, ParseInteger(text), config);
  }
  if (const auto* bytes = std::get_if<Bytes>(&knob.kind)) {
    return SetNumber(*bytes, ParseBytes(text), config);
  }
  if (const auto* address = std::get_if<Address>(&knob.kind)) {
    CAIRN_ASSIGN_OR_RETURN(HostPort value, ParseHostPort(text));
    config->*address->field = std::move(value);
    return absl::OkStatus();
  }
  const Text& kind = std::get<Text>(knob.kind);
  CAIRN_RETURN_IF_ERROR(kind.check(text));
  config->*kind.field = text;
  return absl::OkStatus();
}

std::string Print(const Knob& knob, const Config& config) {
  if (const auto* number = std::get_if<Number>(&knob.kind))
    return absl::StrCat(config.*number->field);
  if (const auto* bytes = std::get_if<Bytes>(&knob.kind)) return PrintBytes(config.*bytes->field);
  if (const auto* address = std::get_if<Address>(&knob.kind)) {
    return (config.*address->field).ToString();
  }
  return config.*std::get<Text>(knob.kind).field;
}

const Knob* Find(std::string_view name) {
  const auto* knob = std::ranges::find(kKnobs, name, &Knob::name);
  return knob == std::end(kKnobs) ? nullptr : knob;
}

std::string DefaultOf(const Knob& knob, const Environment& environment, const Config& so_far) {
  if (knob.name == "staging-bytes") return PrintBytes(limits::StagingBytes(so_far.host_bytes));
  if (knob.name != "socket") return std::string(knob.fallback);
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && runtime->second.starts_with('/') &&
      runtime->second.size() <= 80) {
    return absl::StrCat(runtime->second, "/cairn/cairnd.sock");
  }
  return absl::StrCat("/tmp/cairn-", ::geteuid(), "/cairnd.sock");
}

struct Given {
  std::string text;
  Source source = Source::kDefault;
};
using Givens = std::map<std::string, Given>;

constexpr std::pair<std::string_view, Action> kActions[] = {{"help", Action::kHelp},
                                                            {"version", Action::kVersion},
                                                            {"check-config", Action::kCheckConfig},
                                                            {"print-config", Action::kPrintConfig}};

// All that is wrong, so that nobody has to mend one error to see the next.
class Errors {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    texts_.push_back(absl::StrCat(parts...));
  }
  bool empty() const { return texts_.empty(); }
  // OK, or InvalidArgument with an error a line.
  absl::Status ToStatus() const {
    return empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(texts_, "\n"));
  }

 private:
  std::vector<std::string> texts_;
};

void ReadFlags(std::span<const std::string> arguments, Action* action, std::string* file,
               Givens* givens, Errors* errors) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string_view argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() < 3) {
      errors->Add("argument ", Quoted(argument), " is no flag; see --help");
      continue;
    }
    argument.remove_prefix(2);
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string_view::npos;
    const std::string name(argument.substr(0, equals));
    const auto* found = std::ranges::find(kActions, std::string_view(name),
                                          &std::pair<std::string_view, Action>::first);
    if (found != std::end(kActions) && !has_value) {
      *action = found->second;
      if (*action == Action::kHelp || *action == Action::kVersion) return;
      continue;
    }
    const bool is_known = name == "config" || Find(name) != nullptr;
    if (!is_known) errors->Add("flag ", Quoted("--" + name), " is unknown; see --help");
    std::string value;
    if (has_value) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && (is_known || !arguments[i + 1].starts_with("--"))) {
      value = arguments[++i];
    } else if (is_known) {
      errors->Add("flag --", name, " needs a value; see --help");
      continue;
    }
    if (!is_known) continue;
    bool is_new = true;
    if (name == "config") {
      is_new = file->empty();
      *file = value;
    } else {
      Given& given = (*givens)[name];
      is_new = given.source != Source::kFlag || name == "ssd";
      if (name == "ssd" && given.source == Source::kFlag) {
        value = absl::StrCat(given.text, ",", value);
      }
      given = {value, Source::kFlag};
    }
    if (!is_new) errors->Add("flag --", name, " is given twice");
  }
}

void ReadFileOf(const std::string& path, Givens* givens, Errors* errors) {
  const absl::StatusOr<std::string> text = ReadFile(path, kFileBytesMax);
  if (!text.ok()) return errors->Add(text.status().message());
  const auto values = ParseConfigFile(*text);
  if (!values.ok()) return errors->Add("config file ", path, ": ", values.status().message());
  for (const auto& [name, value] : *values) {
    if (Find(name) == nullptr) {
      errors->Add("config file ", path, ": ", Quoted(name), " is unknown; see --help");
    } else {
      (*givens)[name] = Given{value, Source::kFile};
    }
  }
}

// What no single row can say.
void CheckTogether(const Config& config, Errors* errors) {
  if (config.region_bytes > config.regions_bytes) {
    errors->Add("region-bytes must be at most regions-bytes");
  }
  if (config.socket == "off" && !config.data.enabled()) {
    errors->Add("socket and data are both off: there would be no data plane");
  }
}

void Resolve(const Environment& environment, Givens& givens, CommandLine* result, Errors* errors) {
  for (const Knob& knob : kKnobs) {
    const std::string name(knob.name);
    auto given = givens.find(name);
    if (given == givens.end()) {
      given =
          givens
              .emplace(name, Given{DefaultOf(knob, environment, result->config), Source::kDefault})
              .first;
    }
    const absl::Status status = SetValue(knob, given->second.text, &result->config);
    if (!status.ok()) {
      errors->Add(name, " (from ", ToAbsl(SourceName(given->second.source)),
                  "): ", Quoted(given->second.text), ": ", status.message(), "; takes ",
                  Expects(knob));
    }
    result->sources[name] = given->second.source;
  }
  if (errors->empty()) CheckTogether(result->config, errors);
}

}  // namespace

std::string_view SourceName(Source source) {
  constexpr std::array<std::string_view, 4> kNames = {"default", "file", "environment", "flag"};
  return kNames[static_cast<size_t>(source)];
}

Environment ProcessEnvironment() {
  Environment environment;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (name.starts_with("CAIRN_") || name == "XDG_RUNTIME_DIR") {
      environment.emplace(name, text.substr(equals + 1));
    }
  }
  return environment;
}

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments,
                                             const Environment& environment) {
  CommandLine result;
  Givens flags;
  std::string file;
  Errors errors;
  ReadFlags(arguments, &result.action, &file, &flags, &errors);
  if (result.action == Action::kHelp || result.action == Action::kVersion) return result;
  if (const auto named = environment.find("CAIRN_CONFIG");
      file.empty() && named != environment.end()) {
    file = named->second;
  }
  Givens givens;
  if (!file.empty()) ReadFileOf(file, &givens, &errors);
  for (const auto& [variable, value] : environment) {
    const auto* knob =
        std::ranges::find(kKnobs, variable, [](const Knob& k) { return VariableOf(k.name); });
    if (knob != std::end(kKnobs)) {
      givens[std::string(knob->name)] = Given{value, Source::kEnvironment};
    } else if (variable != "CAIRN_CONFIG" && variable != "CAIRN_CODEC_BACKEND" &&
               variable != "CAIRN_CRC_BACKEND" && variable != "XDG_RUNTIME_DIR") {
      result.unknown_variables.push_back(variable);
    }
  }
  for (auto& [name, given] : flags) givens[name] = given;
  Resolve(environment, givens, &result, &errors);
  CAIRN_RETURN_IF_ERROR(errors.ToStatus());
  return result;
}

std::string HelpText() {
  std::string text =
      "cairnd: keeps KV-cache blocks and serves them.\n\n"
      "usage: cairnd [--config FILE] [--NAME VALUE]...\n\n"
      "  --help           this text\n"
      "  --version        the version\n"
      "  --check-config   check the configuration, start nothing\n"
      "  --print-config   print the configuration as a YAML file, start nothing\n"
      "  --config FILE    YAML file with the names below (CAIRN_CONFIG)\n\n"
      "A flag wins over the environment, that over the file, that over the default.\n";
  for (const Knob& knob : kKnobs) {
    std::string_view fallback = knob.fallback;
    if (knob.name == "socket")
      fallback = "$XDG_RUNTIME_DIR/cairn/cairnd.sock, else /tmp/cairn-UID/cairnd.sock";
    if (knob.name == "staging-bytes")
      fallback = "an eighth of host-bytes, at least 192MiB, at most 1GiB";
    absl::StrAppend(&text, "\n  --", ToAbsl(knob.name), " (", VariableOf(knob.name), ")\n      ",
                    ToAbsl(knob.help), "\n      takes ", Expects(knob), "; default ",
                    ToAbsl(fallback), "\n");
  }
  return text;
}

std::string PrintConfig(const CommandLine& command_line) {
  std::string text;
  for (const Knob& knob : kKnobs) {
    const Source source = command_line.sources.at(std::string(knob.name));
    const std::string value =
        absl::StrReplaceAll(Print(knob, command_line.config), {{"\\", "\\\\"}, {"\"", "\\\""}});
    absl::StrAppendFormat(&text, "%s: \"%s\"  # %s\n", ToAbsl(knob.name), value,
                          ToAbsl(SourceName(source)));
  }
  return text;
}

}  // namespace cairn
