// SPDX-License-Identifier: Apache-2.0
#include "service/config_knobs.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "codecs/recipe/recipe.h"
#include "service/config_members.h"
#include "service/config_value.h"
#include "service/limits.h"

namespace cairn {
namespace {

using Number = Knob::Number;
using Bytes = Knob::Bytes;
using Address = Knob::Address;
using Choice = Knob::Choice;
using Text = Knob::Text;

constexpr uint64_t kMinuteMs = 60'000;
constexpr size_t kValueBytesMax = 4096;

constexpr std::string_view kHugePages[] = {"auto", "required"};
constexpr std::string_view kMapChoices[] = {"auto", "on", "off"};
constexpr std::string_view kStaleChoices[] = {"accept", "refuse"};
constexpr std::string_view kPlaintextChoices[] = {"refuse", "loopback", "anywhere"};
constexpr std::string_view kEventTokens[] = {"on", "off"};
constexpr std::string_view kIoChoices[] = {"auto", "uring", "threads"};
constexpr std::string_view kPlacements[] = {"chain", "stripe"};
constexpr std::string_view kLogFormats[] = {"text", "json"};
constexpr std::string_view kLogLevels[] = {"error", "warn", "info", "debug"};

// The rows have the order of --help and docs/reference/cairnd.md. The row of staging-bytes must
// come after host-bytes, because its default depends on it.
constexpr Knob kTable[] = {
    {"control", "127.0.0.1:50151",
     Text{
         &Config::control, [](std::string_view text) { return ParseControlAddress(text).status(); },
         [] { return std::string_view("HOST:PORT, [IPV6]:PORT or unix:PATH, the path absolute"); }},
     "gRPC control plane: sessions, spaces, match"},
    {"http", "127.0.0.1:9464", Address{&Config::http},
     "HTTP server of /metrics, /healthz and /readyz"},
    {"socket", "",
     Text{&Config::socket, CheckSocketPath,
          [] { return std::string_view("an absolute path of at most 100 bytes, or off"); }},
     "unix socket of the local data plane"},
    {"door", "off",
     Text{
         &Config::door, [](std::string_view text) { return ParseDoors(text).status(); },
         [] {
           return std::string_view(
               "absolute paths of folders, at most 80 bytes each; up to 64, separated by commas or "
               "one per flag; or off");
         }},
     "folders with a control.sock and a cairnd.sock each, for a tenant's pods; needs policy"},
    {"admin", "",
     Text{&Config::admin,
          [](std::string_view text) {
            return text == "off" ? absl::OkStatus() : ParseControlAddress(text).status();
          },
          [] { return std::string_view("HOST:PORT, [IPV6]:PORT, unix:PATH or off"); }},
     "administrative calls (gRPC): restrict access, or use TLS and a policy; may equal control"},
    {"policy", "off", Text{&Config::policy, CheckPath, PathForm},
     "YAML file: which peers may use which tenants, operators, denied peers; read again if "
     "changed"},
    {"audit", "off", Text{&Config::audit, CheckPath, PathForm},
     "audit file (JSON lines): operators' changes, refusals, policies; while it cannot be written, "
     "operators' changes are refused"},
    {"tls-cert", "off", Text{&Config::tls_cert, CheckPath, PathForm},
     "certificate (PEM, the leaf first): TCP addresses of control and admin then speak TLS 1.3 "
     "only"},
    {"tls-key", "off", Text{&Config::tls_key, CheckPath, PathForm}, "its private key (PEM)"},
    {"tls-ca", "off", Text{&Config::tls_ca, CheckTlsCa, TlsCaForm},
     "CAs of clients' certificates (PEM); DOMAIN=PATH: CAs for URIs of that trust domain only"},
    {"tls-crl", "off", Text{&Config::tls_crl, CheckPath, PathForm},
     "revocation lists (PEM); connections of revoked certificates end"},
    {"tls-crl-stale", "accept", Choice{&Config::tls_crl_stale, kStaleChoices},
     "certificates whose issuer's list is past its next update: accept or refuse them"},
    {"plaintext", "loopback", Choice{&Config::plaintext, kPlaintextChoices},
     "which TCP addresses may be used without TLS; does not apply to http, which never has TLS"},
    {"stream", "off", Address{&Config::stream},
     "data plane over TLS; needs tls-cert, tls-key and tls-ca"},
    {"data", "off", Address{&Config::data},
     "UCX data plane; anyone who can connect can crash the daemon: trusted networks only"},
    {"data-port-range", "any",
     Text{&Config::data_port_range, CheckPortRange,
          [] { return std::string_view("FIRST-LAST, ports 1024 to 65535, or any"); }},
     "port range of the UCX connections, for firewalls"},
    {"host-bytes", "4GiB", Bytes{&Config::host_bytes, limits::kHostBytesMin, limits::kHostBytesMax},
     "size of the host tier; allocated in full at start"},
    {"staging-bytes", "",
     Bytes{&Config::staging_bytes, limits::kStagingBytesMin, limits::kHostBytesMax},
     "memory for incoming payloads and for answers, in addition to host-bytes"},
    {"huge-pages", "auto", Choice{&Config::huge_pages, kHugePages},
     "huge pages for the host tier and staging: used if available, or required to start"},
    {"map", "auto", Choice{&Config::map, kMapChoices},
     "whether clients of the socket may map the host tier, and so read all of it; auto: if "
     "possible; on: required to start"},
    {"ssd", "off",
     Text{&Config::ssd, [](std::string_view text) { return ParseSsd(text).status(); },
          [] {
            return std::string_view(
                "PATH=BYTES, the path absolute, 256MiB to 256TiB; up to 16, separated by commas "
                "or one per flag; or off");
          }},
     "SSD tier: folders on drives and the bytes that each may use; survives restarts"},
    {"ssd-io", "auto", Choice{&Config::ssd_io, kIoChoices},
     "I/O engine of the SSD tier; auto: io_uring where the system permits it"},
    {"ssd-placement", "chain", Choice{&Config::ssd_placement, kPlacements},
     "with several folders: keep each chain in one folder, or stripe its blocks over all"},
    {"ssd-write-budget", "off", Text{&Config::ssd_write_budget, CheckWriteBudget, WriteBudgetForm},
     "daily limit for writes to the SSD tier; when little of it is left, only reused blocks are "
     "written"},
    {"ssd-scrub-rate", "auto", Text{&Config::ssd_scrub_rate, CheckScrubRate, ScrubRateForm},
     "rate of background checksum verification of the SSD tier; auto: all of it in ten days"},
    {"gpu", "off",
     Text{&Config::gpu, [](std::string_view text) { return ParseGpu(text).status(); },
          [] {
            return std::string_view(
                "DEVICE=BYTES, a CUDA device number from 0 to 63, 64MiB to 1TiB; or off");
          }},
     "GPU for encoding and decoding and, with ssd, for frequently read blocks; must exist"},
    {"index-bytes", "auto",
     Text{&Config::index_bytes,
          [](std::string_view text) { return ParseIndexBytes(text).status(); },
          [] { return std::string_view("auto, or bytes from 16MiB to 1TiB"); }},
     "memory limit of the index; when full, the SSD tier evicts; auto: from the tiers' sizes"},
    {"quarantine-bytes", "256MiB", Bytes{&Config::quarantine_bytes, 64 * kMiB, 1 * kTiB},
     "per UCX lane: limit for memory that interrupted transfers may still use; above it, the lane "
     "refuses puts"},
    {"region-bytes", "1GiB", Bytes{&Config::region_bytes, 64 * kKiB, 1 * kTiB},
     "limit for client memory mapped per local connection"},
    {"regions-bytes", "16GiB", Bytes{&Config::regions_bytes, 64 * kKiB, 16 * kTiB},
     "limit for client memory mapped by all local connections; a single tenant may use half"},
    {"lanes", "2", Number{&Config::lanes, 1, 64}, "threads per transport that move bytes"},
    {"path-threads", "2", Number{&Config::path_threads, 1, limits::kPathThreadsMax},
     "threads that encode and decode, for puts and gets"},
    {"recipe", "exact", Text{&Config::recipe, CheckRecipe, codecs::PolicyRecipes},
     "recipe of spaces whose first client names none"},
    {"event-tokens", "off", Choice{&Config::event_tokens, kEventTokens},
     "on: keep token ids, which are prompts in clear, and show them in events to their own tenant"},
    {"connections", "512", Number{&Config::connections, 1, 4096},
     "limit for data-plane connections per transport; a single tenant may use half"},
    {"window", "32", Number{&Config::window, 1, 256},
     "limit for requests in flight per connection"},
    {"members", "off",
     Text{&Config::members, [](std::string_view text) { return ParseMembers(text).status(); },
          MembersForm},
     "source of the list of the cluster's daemons, its members"},
    {"etcd-ca", "off", Text{&Config::etcd_ca, CheckPath, PathForm},
     "CAs of etcd's certificate (PEM): members in etcd are then read over TLS"},
    {"etcd-cert", "off", Text{&Config::etcd_cert, CheckPath, PathForm},
     "certificate that etcd is shown (PEM, the leaf first); needs etcd-ca and etcd-key"},
    {"etcd-key", "off", Text{&Config::etcd_key, CheckPath, PathForm}, "its private key (PEM)"},
    {"etcd-user", "off",
     Text{&Config::etcd_user, CheckName,
          [] { return std::string_view("1 to 253 characters of [A-Za-z0-9._-], or off"); }},
     "user at etcd; needs etcd-password-file"},
    {"etcd-password-file", "off", Text{&Config::etcd_password_file, CheckPath, PathForm},
     "file with that user's password and at most a line break after it"},
    {"cluster", "cairn",
     Text{&Config::cluster, CheckCluster,
          [] { return std::string_view("1 to 64 characters of [A-Za-z0-9._-]"); }},
     "name of the cluster; daemons of other clusters are refused as members"},
    {"member-name", "auto",
     Text{&Config::member_name, CheckName,
          [] { return std::string_view("1 to 253 characters of [A-Za-z0-9._-], or auto"); }},
     "name of this daemon in the cluster, the same after a restart; auto: the host's name"},
    {"peer", "off", Address{&Config::peer},
     "address for the other members of the cluster (gRPC); needs members"},
    {"member-grace", "120", Number{&Config::member_grace_s, 0, 86'400},
     "seconds that a member stays after the source no longer lists it"},
    {"peer-match-ms", "20", Number{&Config::peer_match_ms, 1, 10'000},
     "milliseconds that a match waits for other members; it ignores answers that come later"},
    {"location-bytes", "64MiB", Bytes{&Config::location_bytes, kMiB, 16 * kGiB},
     "with members: memory for which member has which blocks, 32 bytes for each block"},
    {"drain-ms", "10000", Number{&Config::drain_ms, 0, 10 * kMinuteMs},
     "after SIGTERM: time for running requests to finish and for blocks to reach the SSD tier"},
    {"slow-ms", "1000", Number{&Config::slow_ms, 0, 10 * kMinuteMs},
     "log gets, puts and control calls that take longer, with the time of each step; 0: none"},
    {"log-level", "info", Choice{&Config::log_level, kLogLevels},
     "least severe level that is logged"},
    {"log-format", "text", Choice{&Config::log_format, kLogFormats},
     "text: one readable line per record; json: one JSON object per line"},
};

}  // namespace

std::span<const Knob> Knobs() { return kTable; }

const Knob* FindKnob(std::string_view name) {
  const auto* knob = std::ranges::find(kTable, name, &Knob::name);
  return knob == std::end(kTable) ? nullptr : knob;
}

std::string NearestKnob(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Knob& knob : kTable) names.push_back(knob.name);
  return DidYouMean(name, names);
}

std::string Expects(const Knob& knob) {
  if (const auto* number = std::get_if<Number>(&knob.kind)) {
    return absl::StrCat("a whole number from ", number->min, " to ", number->max);
  }
  if (const auto* bytes = std::get_if<Bytes>(&knob.kind)) {
    return absl::StrCat("bytes from ", PrintBytes(bytes->min), " to ", PrintBytes(bytes->max));
  }
  if (const auto* choice = std::get_if<Choice>(&knob.kind)) {
    const auto add = [](std::string* text, std::string_view word) { text->append(word); };
    return absl::StrCat(absl::StrJoin(choice->words.first(choice->words.size() - 1), ", ", add),
                        " or ", ToAbsl(choice->words.back()));
  }
  if (std::holds_alternative<Address>(knob.kind)) return "HOST:PORT, [IPV6]:PORT or off";
  return std::string(std::get<Text>(knob.kind).expects());
}

namespace {

std::string DefaultSocket(const Environment& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && runtime->second.starts_with('/') &&
      runtime->second.size() <= 80) {
    return absl::StrCat(runtime->second, "/cairn/cairnd.sock");
  }
  return absl::StrCat("/tmp/cairn-", ::geteuid(), "/cairnd.sock");
}

// The default is in the folder of an existing socket, so that several daemons do not conflict.
std::string DefaultAdmin(const Environment& environment, const Config& so_far) {
  constexpr absl::string_view kUnix = "unix:";
  absl::string_view beside = so_far.control;
  const std::string socket = so_far.socket == "off" ? DefaultSocket(environment) : so_far.socket;
  if (!absl::ConsumePrefix(&beside, kUnix)) beside = socket;
  absl::ConsumeSuffix(&beside, ".sock");
  return absl::StrCat(kUnix, beside, ".admin.sock");
}

template <typename Field>
absl::Status SetNumber(const Field& kind, absl::StatusOr<uint64_t> value, Config* config) {
  CAIRN_RETURN_IF_ERROR(value.status());
  if (*value < kind.min || *value > kind.max) return absl::InvalidArgumentError("out of range");
  config->*kind.field = *value;
  return absl::OkStatus();
}

}  // namespace

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
  if (const auto* choice = std::get_if<Choice>(&knob.kind)) {
    if (std::ranges::find(choice->words, text) == choice->words.end()) {
      return absl::InvalidArgumentError("not one of them");
    }
    config->*choice->field = text;
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
  if (const auto* choice = std::get_if<Choice>(&knob.kind)) return config.*choice->field;
  return config.*std::get<Text>(knob.kind).field;
}

std::string DefaultOf(const Knob& knob, const Environment& environment, const Config& so_far) {
  if (knob.name == "staging-bytes") return PrintBytes(limits::StagingBytes(so_far.host_bytes));
  if (knob.name == "socket") return DefaultSocket(environment);
  if (knob.name == "admin") return DefaultAdmin(environment, so_far);
  return std::string(knob.fallback);
}

}  // namespace cairn
