// SPDX-License-Identifier: Apache-2.0
// Policy::Parse(). yaml-cpp throws; its exceptions do not leave this file.
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "service/policy/policy.h"
#include "service/policy/yaml_text.h"

namespace cairn {
namespace {

constexpr uint64_t kSessionsMax = 1'000'000;
// Limits of later versions. They are refused, because a limit that is not enforced must not be
// accepted.
constexpr std::string_view kNotEnforced[] = {"weight", "host", "ssd", "bandwidth", "keys"};

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

bool IsPlain(std::string_view text) {
  return !text.empty() && text.size() <= kPolicyNameBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

// Returns the name as a part of a field's name, such as deny.uri, in an error message.
std::string PartOf(const std::string& name) {
  return IsPlain(name) && name.size() <= kQuotedNameBytesMax ? name : QuotedName(name);
}

// Returns true if each `*` is a whole part.
bool HasWholeStars(std::string_view text, char separator) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '*') continue;
    if (i > 0 && text[i - 1] != separator) return false;
    if (i + 1 < text.size() && text[i + 1] != separator) return false;
  }
  return true;
}

class Reader {
 public:
  explicit Reader(std::string name) { parts_.name = std::move(name); }

  absl::StatusOr<Policy> Read(const YAML::Node& root) {
    bool has_version = false;
    CAIRN_RETURN_IF_ERROR(ForEach(
        root, "the file", [&](const std::string& key, const YAML::Node& value) -> absl::Status {
          if (key == "version") {
            has_version = true;
            if (value.IsScalar() && value.Scalar() == "1") return absl::OkStatus();
            return Bad(value, "version: this daemon knows version 1");
          }
          if (key == "identities") return ReadRules(value, key, &parts_.identities);
          if (key == "deny") return ReadRules(value, key, &parts_.deny);
          if (key == "tenants") return ReadTenants(value);
          return Bad(value, absl::StrCat(QuotedName(key),
                                         " is unknown; takes version, identities, deny, tenants"));
        }));
    if (!has_version) return Bad(root, "version: missing; this daemon knows version 1");
    return Policy(std::move(parts_));
  }

  absl::Status Bad(const YAML::Mark& mark, absl::string_view why) const {
    const int line = mark.is_null() ? 1 : mark.line + 1;
    return absl::InvalidArgumentError(absl::StrCat(parts_.name, ":", line, ": ", why));
  }
  absl::Status Bad(const YAML::Node& node, absl::string_view why) const {
    return Bad(node.Mark(), why);
  }

 private:
  using Take = std::function<absl::Status(const std::string& key, const YAML::Node& value)>;

  // Calls `take` for each entry of a mapping.
  absl::Status ForEach(const YAML::Node& node, const std::string& what, const Take& take) const {
    if (!node.IsMap()) return Bad(node, absl::StrCat(what, ": expected NAME: VALUE"));
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Bad(entry.first, absl::StrCat(what, ": a name is text"));
      const std::string& key = entry.first.Scalar();
      if (!seen.insert(key).second) {
        return Bad(entry.first, absl::StrCat(what, ": ", QuotedName(key), " is given twice"));
      }
      CAIRN_RETURN_IF_ERROR(take(key, entry.second));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text(const YAML::Node& node, const std::string& field) const {
    if (node.IsScalar() && IsPlain(node.Scalar())) return node.Scalar();
    return Bad(node, absl::StrCat(field, ": expected 1 to ", kPolicyNameBytesMax,
                                  " printable ASCII characters without spaces"));
  }

  absl::StatusOr<bool> Flag(const YAML::Node& node, const std::string& field) const {
    if (node.IsScalar() && node.Scalar() == "true") return true;
    if (node.IsScalar() && node.Scalar() == "false") return false;
    return Bad(node, absl::StrCat(field, ": expected true or false"));
  }

  absl::Status ReadRules(const YAML::Node& node, const std::string& list,
                         std::vector<Policy::Rule>* rules) {
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsSequence()) return Bad(node, absl::StrCat(list, ": expected a list of rules"));
    if (node.size() > kPolicyRulesMax) {
      return Bad(node, absl::StrCat(list, ": ", node.size(), " rules, at most ", kPolicyRulesMax));
    }
    for (const YAML::Node& one : node) {
      CAIRN_ASSIGN_OR_RETURN(Policy::Rule rule, ReadRule(one, list));
      rules->push_back(std::move(rule));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Policy::Rule> ReadRule(const YAML::Node& node, const std::string& list) {
    const bool is_deny = list == "deny";
    Policy::Rule rule;
    rule.line = node.Mark().line + 1;
    int patterns = 0;
    bool has_tenants = false;
    CAIRN_RETURN_IF_ERROR(
        ForEach(node, list, [&](const std::string& key, const YAML::Node& value) -> absl::Status {
          const std::string field = absl::StrCat(list, ".", key);
          if (!is_deny && key == "tenants") {
            has_tenants = true;
            return ReadTenantNames(value, field, &rule.tenants);
          }
          if (!is_deny && key == "operator") {
            CAIRN_ASSIGN_OR_RETURN(rule.is_operator, Flag(value, field));
            return absl::OkStatus();
          }
          if (!is_deny && key == "peer") {
            CAIRN_ASSIGN_OR_RETURN(rule.is_member, Flag(value, field));
            return absl::OkStatus();
          }
          if (key == "serial" && !is_deny) {
            return Bad(value, absl::StrCat(field, ": only deny takes a serial"));
          }
          ++patterns;
          return ReadPattern(key, value, field, is_deny, &rule.peers);
        }));
    if (patterns != 1) {
      return Bad(node, absl::StrCat(list, ": a rule has exactly one of uri, dns, uid, door",
                                    is_deny ? ", serial" : ""));
    }
    if (rule.is_operator && !rule.peers.door.empty()) {
      return Bad(node, absl::StrCat(list, ": operators do not come by a door; see --admin"));
    }
    if (rule.is_member && !rule.peers.door.empty()) {
      return Bad(node, absl::StrCat(list, ": members do not come by a door; see --peer"));
    }
    if (!is_deny && !has_tenants && !rule.is_operator && !rule.is_member) {
      return Bad(
          node,
          absl::StrCat(list, ": a rule has one or more of tenants, operator: true, peer: true"));
    }
    return rule;
  }

  absl::Status ReadPattern(const std::string& key, const YAML::Node& value,
                           const std::string& field, bool is_deny, PeerPattern* pattern) const {
    constexpr std::string_view kPatterns[] = {"uri", "dns", "uid", "door", "serial"};
    if (std::ranges::find(kPatterns, key) == std::end(kPatterns)) {
      const std::string list = field.substr(0, field.size() - key.size());
      return Bad(value, absl::StrCat(list, PartOf(key), " is unknown"));
    }
    CAIRN_ASSIGN_OR_RETURN(std::string text, Text(value, field));
    if (key == "uri") {
      if (!absl::StrContains(text, "://") || !HasWholeStars(text, '/')) {
        return Bad(value, absl::StrCat(field,
                                       ": expected SCHEME://NAME/…, with `*` only as a "
                                       "whole segment"));
      }
      pattern->uri = std::move(text);
      return absl::OkStatus();
    }
    if (key == "dns") {
      absl::AsciiStrToLower(&text);
      if (!HasWholeStars(text, '.')) {
        return Bad(value, absl::StrCat(field, ": `*` only stands for a whole label"));
      }
      pattern->dns = std::move(text);
      return absl::OkStatus();
    }
    if (key == "uid") {
      uint32_t uid = 0;
      if (!absl::SimpleAtoi(text, &uid)) {
        return Bad(value, absl::StrCat(field, ": expected the number of a user"));
      }
      if (uid == kUnmappedUid && !is_deny) {
        return Bad(value, absl::StrCat(field, ": 65534 is every user of another user namespace"));
      }
      pattern->uid = uid;
      pattern->is_uid_of_doors = is_deny;
      return absl::OkStatus();
    }
    if (key == "door") {
      while (text.size() > 1 && text.back() == '/') text.pop_back();
      if (text.size() < 2 || text[0] != '/') {
        return Bad(value,
                   absl::StrCat(field, ": expected the absolute path of a folder of --door"));
      }
      pattern->door = std::move(text);
      return absl::OkStatus();
    }
    absl::AsciiStrToLower(&text);
    absl::string_view digits = text;
    absl::ConsumePrefix(&digits, "0x");
    while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
    const bool is_hex =
        !digits.empty() && digits.size() <= 40 && std::ranges::all_of(digits, [](char c) {
          return absl::ascii_isxdigit(static_cast<unsigned char>(c));
        });
    if (!is_hex) {
      return Bad(value, absl::StrCat(field, ": expected 1 to 40 hexadecimal digits"));
    }
    pattern->serial = std::string(digits);
    return absl::OkStatus();
  }

  absl::Status ReadTenantNames(const YAML::Node& node, const std::string& field,
                               std::vector<std::string>* names) const {
    if (!node.IsSequence() || node.size() == 0) {
      return Bad(node, absl::StrCat(field, ": expected a list of names, such as [team-a]"));
    }
    if (node.size() > kPolicyTenantsMax) {
      return Bad(node,
                 absl::StrCat(field, ": ", node.size(), " names, at most ", kPolicyTenantsMax));
    }
    for (const YAML::Node& one : node) {
      CAIRN_RETURN_IF_ERROR(CheckTenantName(one, one.IsScalar() ? one.Scalar() : "", field));
      names->push_back(one.Scalar());
    }
    return absl::OkStatus();
  }

  absl::Status CheckTenantName(const YAML::Node& place, const std::string& name,
                               const std::string& field) const {
    if (name == "*" || IsTenantName(name)) return absl::OkStatus();
    return Bad(place, absl::StrCat(field, ": ", QuotedName(name),
                                   ": a tenant has 1 to 64 characters of [A-Za-z0-9._-], or is "
                                   "\"*\""));
  }

  absl::Status ReadTenants(const YAML::Node& node) {
    if (node.IsNull()) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(ForEach(
        node, "tenants", [&](const std::string& name, const YAML::Node& limits) -> absl::Status {
          CAIRN_RETURN_IF_ERROR(CheckTenantName(limits, name, "tenants"));
          CAIRN_ASSIGN_OR_RETURN(parts_.tenants[name], ReadTenant(name, limits));
          return absl::OkStatus();
        }));
    const size_t count = parts_.tenants.size();
    if (count <= kPolicyTenantsMax) return absl::OkStatus();
    return Bad(node, absl::StrCat("tenants: ", count, " names, at most ", kPolicyTenantsMax));
  }

  absl::StatusOr<Policy::Tenant> ReadTenant(const std::string& name, const YAML::Node& node) const {
    Policy::Tenant tenant;
    if (node.IsNull()) return tenant;
    const std::string what = absl::StrCat("tenants.", PartOf(name));
    CAIRN_RETURN_IF_ERROR(
        ForEach(node, what, [&](const std::string& key, const YAML::Node& value) -> absl::Status {
          const std::string field = absl::StrCat(what, ".", key);
          if (key == "ucx") {
            CAIRN_ASSIGN_OR_RETURN(tenant.ucx, Flag(value, field));
            return absl::OkStatus();
          }
          if (key == "sessions") {
            uint64_t sessions = 0;
            if (!value.IsScalar() || !absl::SimpleAtoi(value.Scalar(), &sessions) ||
                sessions > kSessionsMax) {
              return Bad(value,
                         absl::StrCat(field, ": expected a number from 0 to ", kSessionsMax));
            }
            tenant.sessions_max = sessions;
            return absl::OkStatus();
          }
          if (std::ranges::find(kNotEnforced, key) != std::end(kNotEnforced)) {
            return Bad(value, absl::StrCat(field,
                                           ": this daemon does not enforce it; takes "
                                           "sessions, ucx"));
          }
          return Bad(value,
                     absl::StrCat(what, ": ", QuotedName(key), " is unknown; takes sessions, ucx"));
        }));
    return tenant;
  }

  Policy::Parts parts_;
};

}  // namespace

absl::StatusOr<Policy> Policy::Parse(std::string_view text, std::string name) {
  Reader reader(std::move(name));
  const YAML::Mark start;
  if (text.size() > kPolicyBytesMax) return reader.Bad(start, "the file is larger than 1 MiB");
  if (text.find('\0') != std::string_view::npos) {
    return reader.Bad(start, "the file has a zero byte");
  }
  try {
    const YamlText yaml = LoadYaml(std::string(text));
    if (yaml.second.has_value() || !yaml.first.IsDefined() || yaml.first.IsNull()) {
      return reader.Bad(start, "expected one YAML document");
    }
    return reader.Read(yaml.first);
  } catch (const YAML::Exception& e) {
    return reader.Bad(e.mark, absl::CHexEscape(e.msg.substr(0, 200)));
  } catch (const std::exception& e) {
    return reader.Bad(start, absl::StrCat("not YAML: ", absl::CHexEscape(e.what())));
  }
}

}  // namespace cairn
