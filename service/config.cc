// SPDX-License-Identifier: Apache-2.0
#include "service/config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "service/config_knobs.h"
#include "service/config_members.h"

namespace cairn {
namespace {

constexpr size_t kFileBytesMax = 64 * kKiB;

struct Given {
  std::string text;
  Source source = Source::kDefault;
};
using Givens = std::map<std::string, Given>;

constexpr std::pair<std::string_view, Action> kActions[] = {{"help", Action::kHelp},
                                                            {"version", Action::kVersion},
                                                            {"check-config", Action::kCheckConfig},
                                                            {"print-config", Action::kPrintConfig}};

// Collects all errors, so that the user can correct them together.
class Errors {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    texts_.push_back(absl::StrCat(parts...));
  }
  bool empty() const { return texts_.empty(); }
  // Returns OK, or InvalidArgument with one error per line.
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
      errors->Add("argument ", Quoted(argument), " is not a flag; see --help");
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
    const bool is_known = name == "config" || FindKnob(name) != nullptr;
    if (!is_known) {
      errors->Add("flag ", Quoted("--" + name), " is unknown", NearestKnob(name), "; see --help");
    }
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
      const bool is_list = name == "ssd" || name == "tls-ca" || name == "door";
      is_new = given.source != Source::kFlag || is_list;
      if (is_list && given.source == Source::kFlag) {
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
    if (FindKnob(name) == nullptr) {
      errors->Add("config file ", path, ": ", QuotedName(name), " is unknown", NearestKnob(name),
                  "; see --help");
    } else {
      (*givens)[name] = Given{value, Source::kFile};
    }
  }
}

// Checks that the settings allow TCP addresses without TLS.
void CheckPlaintext(const Config& config, Errors* errors) {
  const auto check = [&](std::string_view name, const std::string& text, bool has_tls) {
    const absl::StatusOr<ControlAddress> address = ParseControlAddress(text);
    if (!address.ok() || address->is_unix() || has_tls || config.plaintext == "anywhere") return;
    if (config.plaintext == "loopback" && IsLoopback(address->tcp.host)) return;
    errors->Add(ToAbsl(name), " is ", text, ", without TLS, and plaintext is ", config.plaintext,
                ": set tls-cert, tls-key and tls-ca, or a unix socket, or plaintext anywhere");
  };
  const bool has_tls = config.tls_cert != "off";
  check("control", config.control, has_tls);
  if (config.admin != "off" && config.admin != config.control) {
    check("admin", config.admin, has_tls);
  }
  if (config.peer.enabled()) check("peer", config.peer.ToString(), has_tls);
  if (config.data.enabled() && config.plaintext == "refuse") {
    errors->Add("data is ", config.data.ToString(),
                ", which is plain text (UCX), and plaintext is refuse");
  }
}

void CheckTls(const Config& config, Errors* errors) {
  const bool has_cert = config.tls_cert != "off";
  if (has_cert != (config.tls_key != "off") || has_cert != (config.tls_ca != "off")) {
    errors->Add("tls-cert, tls-key and tls-ca: set all three, or none");
  }
  if (!has_cert && config.stream.enabled()) {
    errors->Add("stream is ", config.stream.ToString(),
                ", which speaks TLS: set tls-cert, tls-key and tls-ca");
  }
  if (!has_cert && config.tls_crl != "off") errors->Add("tls-crl is set, and tls-cert is not");
  const absl::StatusOr<ControlAddress> admin = ParseControlAddress(config.admin);
  if (has_cert && config.policy == "off" && admin.ok() && !admin->is_unix()) {
    errors->Add("admin is ", config.admin,
                ", with TLS: set policy, which says who is an operator, or a unix socket");
  }
}

void CheckEtcd(const Config& config, Errors* errors) {
  const std::pair<std::string_view, const std::string&> settings[] = {
      {"etcd-ca", config.etcd_ca},
      {"etcd-cert", config.etcd_cert},
      {"etcd-key", config.etcd_key},
      {"etcd-user", config.etcd_user},
      {"etcd-password-file", config.etcd_password_file}};
  if (!config.members.starts_with("etcd:")) {
    for (const auto& [name, value] : settings) {
      if (value != "off") errors->Add(ToAbsl(name), " is set, and members names no etcd");
    }
  }
  if ((config.etcd_cert != "off") != (config.etcd_key != "off")) {
    errors->Add("etcd-cert and etcd-key: set both, or none");
  }
  if (config.etcd_cert != "off" && config.etcd_ca == "off") {
    errors->Add("etcd-cert is set, and etcd-ca is not");
  }
  if ((config.etcd_user != "off") != (config.etcd_password_file != "off")) {
    errors->Add("etcd-user and etcd-password-file: set both, or none");
  }
}

void CheckMembership(const Config& config, Errors* errors) {
  const bool has_members = config.members != "off";
  if (has_members != config.peer.enabled()) {
    errors->Add("members and peer: set both, or none");
  }
  const absl::StatusOr<MembersValue> members = ParseMembers(config.members);
  for (const HostPort& endpoint : members.ok() ? members->etcd : std::vector<HostPort>()) {
    if (config.etcd_ca != "off" || config.plaintext == "anywhere") continue;
    if (config.plaintext == "loopback" && IsLoopback(endpoint.host)) continue;
    errors->Add("members names etcd at ", endpoint.ToString(),
                ", which is spoken to without TLS, and plaintext is ", config.plaintext,
                ": set etcd-ca");
  }
  const bool is_any = config.peer.host == "0.0.0.0" || config.peer.host == "::";
  if (members.ok() && !members->etcd.empty() && (is_any || config.peer.port == 0)) {
    errors->Add("peer is ", config.peer.ToString(),
                ": with etcd, it is the address that other members are told");
  }
  if (config.peer.enabled() && config.tls_cert != "off" && config.policy == "off") {
    errors->Add("peer is ", config.peer.ToString(),
                ", with TLS: set policy, which says who is a member (peer: true)");
  }
  if (config.peer.enabled() && config.tls_cert == "off" && config.policy != "off") {
    errors->Add("peer is ", config.peer.ToString(),
                ", without TLS, and policy is set: a member can then not prove that it is one");
  }
  // A member's certificate is checked as a server's, which has no domain of its own.
  if (config.peer.enabled() && config.tls_ca.find(',') != std::string::npos) {
    errors->Add("peer is ", config.peer.ToString(), ", and tls-ca names several bundles: name one");
  }
}

void CheckDoors(const Config& config, Errors* errors) {
  if (config.policy == "off") {
    errors->Add("door is set and policy is off: every client of every folder would be any tenant");
  }
  if (config.socket == "off") errors->Add("door is set and socket is off: the folders need it");
  const absl::StatusOr<std::vector<std::string>> folders = ParseDoors(config.door);
  const absl::StatusOr<ControlAddress> control = ParseControlAddress(config.control);
  for (const std::string& folder : folders.ok() ? *folders : std::vector<std::string>()) {
    if (DoorDataPath(folder) == config.socket ||
        (control.ok() && DoorControlPath(folder) == control->path)) {
      errors->Add("door ", folder, " is the folder of socket or control: name another");
    }
  }
}

// What no single row can say.
void CheckTogether(const Config& config, Errors* errors) {
  CheckTls(config, errors);
  CheckPlaintext(config, errors);
  CheckEtcd(config, errors);
  CheckMembership(config, errors);
  if (config.region_bytes > config.regions_bytes) {
    errors->Add("region-bytes must be at most regions-bytes");
  }
  if (config.door != "off") CheckDoors(config, errors);
  if (config.map == "on" && config.socket == "off") {
    errors->Add("map is on and socket is off: there would be nobody to map anything");
  }
  if (config.socket == "off" && !config.data.enabled()) {
    errors->Add("socket and data are both off: there would be no data plane");
  }
}

void Resolve(const Environment& environment, Givens& givens, CommandLine* result, Errors* errors) {
  for (const Knob& knob : Knobs()) {
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
    const auto knob =
        std::ranges::find(Knobs(), variable, [](const Knob& k) { return VariableOf(k.name); });
    if (knob != Knobs().end()) {
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
      "cairnd: stores the KV cache of LLM inference engines and serves it.\n\n"
      "usage: cairnd [--config FILE] [--NAME VALUE]...\n\n"
      "Examples:\n"
      "  cairnd --host-bytes 64GiB --ssd /mnt/nvme0/cairn=1TiB\n"
      "  cairnd --config /etc/cairn/cairnd.yaml --check-config\n\n"
      "  --help           print this text\n"
      "  --version        print the version\n"
      "  --check-config   check the configuration, warn if memory is short, do not start\n"
      "  --print-config   print the configuration as a YAML file, do not start\n"
      "  --config FILE    YAML file with the names below (CAIRN_CONFIG)\n\n"
      "Flags override environment variables, which override the file, which overrides the\n"
      "default.\n";
  for (const Knob& knob : Knobs()) {
    std::string_view fallback = knob.fallback;
    if (knob.name == "socket")
      fallback = "$XDG_RUNTIME_DIR/cairn/cairnd.sock, else /tmp/cairn-UID/cairnd.sock";
    if (knob.name == "admin")
      fallback = "a unix socket beside control's or socket's, for example cairnd.admin.sock";
    if (knob.name == "staging-bytes") fallback = "an eighth of host-bytes, 192MiB to 1GiB";
    absl::StrAppend(&text, "\n  --", ToAbsl(knob.name), " (", VariableOf(knob.name), ")\n      ",
                    ToAbsl(knob.help), "\n      takes ", Expects(knob), "; default ",
                    ToAbsl(fallback), "\n");
  }
  return text;
}

std::string PrintConfig(const CommandLine& command_line) {
  std::string text;
  for (const Knob& knob : Knobs()) {
    const Source source = command_line.sources.at(std::string(knob.name));
    const std::string value =
        absl::StrReplaceAll(Print(knob, command_line.config), {{"\\", "\\\\"}, {"\"", "\\\""}});
    absl::StrAppendFormat(&text, "%s: \"%s\"  # %s\n", ToAbsl(knob.name), value,
                          ToAbsl(SourceName(source)));
  }
  return text;
}

}  // namespace cairn
