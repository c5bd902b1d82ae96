// SPDX-License-Identifier: Apache-2.0
#include "service/daemon_options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "base/text.h"
#include "service/config_members.h"
#include "service/limits.h"
#include "service/members/dns_source.h"
#include "service/members/etcd_source.h"
#include "service/members/file_source.h"
#include "service/members/kubernetes_source.h"

namespace cairn {
namespace {

// The name of this host, without what a member's name cannot have.
std::string HostName() {
  std::array<char, kMemberNameBytesMax + 1> name{};
  CAIRN_CHECK(::gethostname(name.data(), name.size() - 1) == 0, "the host has no name");
  std::string text(name.data());
  std::erase_if(text, [](char c) { return !IsPlainName({&c, 1}, 1); });
  return text.empty() ? "localhost" : text;
}

// The API server's HOST:PORT, as Kubernetes tells it to each container; elsewhere empty.
std::string KubernetesServer() {
  const char* const host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* const port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || port == nullptr) return "";
  const bool is_v6 = std::string_view(host).find(':') != std::string_view::npos;
  return absl::StrCat(is_v6 ? "[" : "", host, is_v6 ? "]:" : ":", port);
}

EtcdAccess EtcdAccessOf(const Config& config) {
  const auto given = [](const std::string& text) { return text == "off" ? "" : text; };
  return {.ca = given(config.etcd_ca),
          .certificate = given(config.etcd_cert),
          .key = given(config.etcd_key),
          .user = given(config.etcd_user),
          .password_file = given(config.etcd_password_file)};
}

std::unique_ptr<MemberSource> SourceOf(const Config& config, const MembersValue& value,
                                       const Members::Options& members) {
  switch (value.kind) {
    case MembersValue::Kind::kOff:
      return nullptr;
    case MembersValue::Kind::kFile:
      return MakeFileSource(value.path);
    case MembersValue::Kind::kDns:
      return MakeDnsSource({.name = value.dns.host, .port = value.dns.port});
    case MembersValue::Kind::kKubernetes:
      return MakeKubernetesSource({.server = KubernetesServer(),
                                   .name_space = value.name_space,
                                   .service = value.service,
                                   .port = value.port});
    case MembersValue::Kind::kEtcd: {
      EtcdOptions options;
      for (const HostPort& endpoint : value.etcd) options.endpoints.push_back(endpoint.ToString());
      options.prefix = absl::StrCat("/cairn/", members.cluster, "/members");
      options.access = EtcdAccessOf(config);
      options.self = members.self;
      return MakeEtcdSource(std::move(options));
    }
  }
  return nullptr;
}

}  // namespace

ControlAddress ControlOf(const Config& config) {
  absl::StatusOr<ControlAddress> address = ParseControlAddress(config.control);
  CAIRN_CHECK_OK(address);  // a row of the table has checked it
  return *std::move(address);
}

std::optional<ControlAddress> AdminOf(const Config& config) {
  if (config.admin == "off") return std::nullopt;
  absl::StatusOr<ControlAddress> address = ParseControlAddress(config.admin);
  CAIRN_CHECK_OK(address);  // a row of the table has checked it
  return *std::move(address);
}

codecs::Recipe RecipeOf(const Config& config) {
  codecs::Recipe recipe;
  CAIRN_CHECK(codecs::ParsePolicyRecipe(config.recipe, &recipe) ==
              codecs::Error::kOk);  // a row of the table has checked it
  return recipe;
}

std::vector<std::string> DoorsOf(const Config& config) {
  absl::StatusOr<std::vector<std::string>> folders = ParseDoors(config.door);
  CAIRN_CHECK(folders.ok());
  return *std::move(folders);
}

std::vector<SsdFolder> SsdFoldersOf(const Config& config) {
  absl::StatusOr<std::vector<SsdFolder>> folders = ParseSsd(config.ssd);
  CAIRN_CHECK_OK(folders);  // a row of the table has checked it
  return *std::move(folders);
}

std::optional<GpuShare> GpuOf(const Config& config) {
  absl::StatusOr<std::optional<GpuShare>> gpu = ParseGpu(config.gpu);
  CAIRN_CHECK_OK(gpu);  // a row of the table has checked it
  return *gpu;
}

uint64_t GpuTierBytesOf(const Config& config) {
  const uint64_t bytes = GpuOf(config).value_or(GpuShare()).bytes;
  // A GPU copy is never the only one, so the GPU tier needs an SSD tier for the others.
  return bytes == 0 || config.ssd == "off" ? 0 : bytes - limits::GpuCodecBytes(bytes);
}

uint64_t AwakeBytesMaxOf(const Config& config) {
  const uint64_t memory_bytes = config.host_bytes + GpuTierBytesOf(config);
  const std::optional<uint64_t> index_bytes = IndexBytesOf(config);
  if (!index_bytes.has_value()) {
    return limits::AwakeBytesMax(memory_bytes, limits::kIndexBytesMax);
  }
  // A configured budget allows for smaller blocks than `auto` assumes. The part of it that the
  // drives cannot use is for blocks in memory.
  uint64_t at_rest_bytes = 0;
  for (const SsdFolder& folder : SsdFoldersOf(config)) {
    at_rest_bytes += folder.budget_bytes / limits::kSsdBytesPerImageMin * limits::kIndexBytesAtRest;
  }
  const uint64_t spare_bytes = *index_bytes - std::min(*index_bytes, at_rest_bytes);
  return std::clamp(spare_bytes, limits::AwakeBytesMax(memory_bytes, *index_bytes),
                    *index_bytes / 2);
}

uint64_t BlocksMaxOf(const Config& config) {
  const uint64_t blocks = limits::BlocksMax(config.host_bytes);
  return IndexBytesOf(config).has_value()
             ? std::max(blocks, AwakeBytesMaxOf(config) / limits::kIndexBytesAwake)
             : blocks;
}

IoChoice IoOf(const Config& config) {
  return config.ssd_io == "uring"     ? IoChoice::kUring
         : config.ssd_io == "threads" ? IoChoice::kThreads
                                      : IoChoice::kAuto;
}

std::optional<uint64_t> ScrubRateOf(const Config& config) {
  absl::StatusOr<std::optional<uint64_t>> rate = ParseScrubRate(config.ssd_scrub_rate);
  CAIRN_CHECK_OK(rate);  // a row of the table has checked it
  return *rate;
}

uint64_t WriteBudgetOf(const Config& config, const Tiers& tiers) {
  const absl::StatusOr<WriteBudgetValue> value = ParseWriteBudget(config.ssd_write_budget);
  CAIRN_CHECK_OK(value);  // a row of the table has checked it
  const CopyTier* ssd = tiers.Find(TierId::kSsd);
  return value->percent > 0 && ssd != nullptr ? ssd->capacity_bytes() / 100 * value->percent
                                              : value->bytes;
}

std::optional<uint64_t> IndexBytesOf(const Config& config) {
  absl::StatusOr<std::optional<uint64_t>> bytes = ParseIndexBytes(config.index_bytes);
  CAIRN_CHECK_OK(bytes);  // a row of the table has checked it
  return *bytes;
}

absl::Duration SlowOf(const Config& config) {
  return config.slow_ms == 0 ? absl::InfiniteDuration() : absl::Milliseconds(config.slow_ms);
}

std::optional<transport::TlsPaths> TlsOf(const Config& config) {
  if (config.tls_cert == "off") return std::nullopt;
  transport::TlsPaths paths;
  paths.certificate = config.tls_cert;
  paths.key = config.tls_key;
  for (const absl::string_view one : absl::StrSplit(config.tls_ca, ',')) {
    absl::StatusOr<transport::TlsBundle> bundle = transport::ParseTlsBundle(ToStd(one));
    CAIRN_CHECK_OK(bundle);  // a row of the table has checked it
    paths.ca.push_back(*std::move(bundle));
  }
  if (config.tls_crl != "off") paths.crl = config.tls_crl;
  paths.is_stale_crl_refused = config.tls_crl_stale == "refuse";
  paths.is_client_too = config.members != "off";
  return paths;
}

std::optional<PeerReader::Options> PeerReaderOf(const Config& config, const std::string& self) {
  PeerReader::Options options;
  options.self = self;
  std::vector<std::string> transports;
  if (const std::optional<transport::TlsPaths> paths = TlsOf(config); paths.has_value()) {
    // The SDK takes one bundle of CAs, for all domains.
    const auto ca = std::ranges::find_if(
        paths->ca, [](const transport::TlsBundle& bundle) { return bundle.domain.empty(); });
    if (ca == paths->ca.end()) return std::nullopt;
    options.tls = {.ca = ca->path, .cert = paths->certificate, .key = paths->key};
    transports.push_back("stream");
  }
  if (config.data.enabled()) transports.push_back("ucx");
  if (transports.empty()) return std::nullopt;
  options.transports = absl::StrJoin(transports, ",");
  return options;
}

bool MapsArena(const Config& config) { return config.map != "off" && config.socket != "off"; }

absl::Status CheckEtcd(const Config& config) {
  const EtcdAccess access = EtcdAccessOf(config);
  if (!access.ca.empty()) {
    transport::TlsPaths paths;
    paths.certificate = access.certificate;
    paths.key = access.key;
    paths.ca.push_back({"", access.ca});
    const auto files = transport::TlsFiles::Open(paths, transport::TlsRole::kClient);
    CAIRN_RETURN_IF_ERROR(Annotate(files.status(), "etcd"));
  }
  return Annotate(CheckEtcdFiles(access), "etcd");
}

std::unique_ptr<Members> MembersOf(const Config& config, const Clock& clock) {
  const absl::StatusOr<MembersValue> value = ParseMembers(config.members);
  CAIRN_CHECK_OK(value);  // a row checks it
  if (!value->enabled()) return nullptr;
  Members::Options options;
  options.cluster = config.cluster;
  options.self = {config.member_name == "auto" ? HostName() : config.member_name,
                  config.peer.ToString(), ""};
  options.grace = absl::Seconds(config.member_grace_s);
  FillRandom(std::as_writable_bytes(std::span<uint64_t>(&options.incarnation, 1)));
  std::unique_ptr<MemberSource> source = SourceOf(config, *value, options);
  return std::make_unique<Members>(std::move(options), std::move(source), clock);
}

uint64_t PeersMax(const Config& config) {
  return config.connections * ((config.socket != "off" ? 1 : 0) + (config.data.enabled() ? 1 : 0) +
                               (config.stream.enabled() ? 1 : 0));
}

}  // namespace cairn
