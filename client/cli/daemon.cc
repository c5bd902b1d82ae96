// SPDX-License-Identifier: Apache-2.0
#include "client/cli/daemon.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "proto/convert.h"

namespace cairn::cli {
namespace {

constexpr size_t kFingerprintDigitsMin = 4;
constexpr size_t kDigitsShown = 12;

std::string NameOf(const v1::SpaceInfo& space) {
  return absl::StrCat(space.spec().tenant(), "/", space.spec().model());
}

std::string Known(const v1::ListSpacesReply& spaces) {
  std::string text = spaces.spaces().empty() ? "the daemon has none yet" : "there are:";
  for (const v1::SpaceInfo& space : spaces.spaces()) {
    absl::StrAppend(&text, "\n  ", ShortHexOf(space.fingerprint()), "  ", NameOf(space));
  }
  return text;
}

// Returns whether `wanted` is the space's number, its name, or the beginning of its fingerprint.
bool IsNamed(const v1::SpaceInfo& space, const std::string& wanted) {
  uint64_t id = 0;
  if (absl::SimpleAtoi(wanted, &id) && space.space_id() == id) return true;
  if (wanted == NameOf(space) || wanted == space.spec().model()) return true;
  return wanted.size() >= kFingerprintDigitsMin && HexOf(space.fingerprint()).starts_with(wanted);
}

}  // namespace

absl::StatusOr<absl::Time> DeadlineOf(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  return MonotonicNow() + timeout;
}

bool IsNobodyThere(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), "failed to connect");
}

absl::StatusOr<ConnectOptions> ConnectOptionsOf(const Arguments& arguments,
                                                const std::string& tenant) {
  ConnectOptions options;
  options.control = arguments.control();
  options.data = arguments.Get("--data");
  options.tenant = tenant.empty() ? "default" : tenant;
  options.name = "cairnctl";
  options.connections = 1;
  options.breaker.is_enforced = false;
  options.tls = arguments.tls();
  const char* const transports = std::getenv("CAIRN_TRANSPORTS");
  options.transports = arguments.Get("--transports", transports != nullptr ? transports : "");
  CAIRN_ASSIGN_OR_RETURN(options.timeout, arguments.timeout());
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const Arguments& arguments,
                                                const std::string& tenant) {
  CAIRN_ASSIGN_OR_RETURN(const ConnectOptions options, ConnectOptionsOf(arguments, tenant));
  return Client::Connect(options);
}

absl::StatusOr<std::unique_ptr<AdminClient>> OpenAdmin(const Arguments& arguments) {
  return AdminClient::Open(arguments.control(), arguments.Get("--admin"), arguments.tls());
}

absl::StatusOr<v1::SpaceInfo> ChooseSpace(const Arguments& arguments, AdminClient& admin) {
  return ChooseSpace(arguments, admin, "");
}

absl::StatusOr<v1::SpaceInfo> ChooseSpace(const Arguments& arguments, AdminClient& admin,
                                          const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListSpacesReply spaces, admin.ListSpaces(deadline));
  const std::string wanted = name.empty() ? arguments.Get("--space") : name;
  if (wanted.empty() && !arguments.Has("--space")) {
    if (spaces.spaces_size() == 1) {
      return spaces.spaces(0);
    }
    return absl::InvalidArgumentError(absl::StrCat("choose a space with --space; ", Known(spaces)));
  }
  v1::ListSpacesReply named;
  for (const v1::SpaceInfo& space : spaces.spaces()) {
    if (IsNamed(space, wanted)) *named.add_spaces() = space;
  }
  if (named.spaces_size() == 1) return named.spaces(0);
  if (named.spaces_size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(name.empty() ? "--space " : "space ", wanted,
                                                   " names several spaces; ", Known(named)));
  }
  return absl::NotFoundError(absl::StrCat("no space ", wanted, "; ", Known(spaces)));
}

absl::StatusOr<v1::SpaceInfo> SpaceOf(const Arguments& arguments, AdminClient& admin,
                                      std::string_view fingerprint) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListSpacesReply spaces, admin.ListSpaces(deadline));
  for (const v1::SpaceInfo& space : spaces.spaces()) {
    if (space.fingerprint() == fingerprint) {
      return space;
    }
  }
  return absl::NotFoundError(absl::StrCat("the daemon has no space with the fingerprint ",
                                          HexOf(fingerprint), "; ", Known(spaces)));
}

absl::StatusOr<OpenedSpace> Open(const Arguments& arguments, const v1::SpaceInfo& info) {
  CAIRN_ASSIGN_OR_RETURN(const proto::SpaceIdentity identity, proto::FromSpec(info.spec()));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  OpenedSpace opened{.info = info, .client = nullptr, .space = nullptr};
  CAIRN_ASSIGN_OR_RETURN(opened.client, Connect(arguments, identity.tenant));
  CAIRN_ASSIGN_OR_RETURN(opened.space, opened.client->OpenSpace(identity, "", timeout));
  return opened;
}

absl::StatusOr<OpenedSpace> OpenChosen(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo info, ChooseSpace(arguments, *admin));
  return Open(arguments, info);
}

absl::StatusOr<BlockKey> ParseKey(std::string_view text) {
  const bool is_hex = text.size() == 2 * sizeof(BlockKey) &&
                      text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
  if (!is_hex) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(text), "' is not a key: a key has 64 hexadecimal digits"));
  }
  return proto::FromKeyBytes(absl::HexStringToBytes(ToAbsl(text)), "key");
}

absl::StatusOr<std::vector<BlockKey>> ParseKeys(std::span<const std::string> texts) {
  std::vector<BlockKey> keys;
  for (const std::string& text : texts) {
    CAIRN_ASSIGN_OR_RETURN(keys.emplace_back(), ParseKey(text));
  }
  return keys;
}

absl::StatusOr<v1::BlockInfo> FindBlock(const Arguments& arguments, AdminClient& admin,
                                        uint64_t space_id, const BlockKey& key) {
  // The listing is in key order. Starts after the largest key that is smaller than this one.
  BlockKey before = key;
  for (size_t i = before.size(); i-- > 0;) {
    const bool borrows = before[i] == std::byte{0};
    before[i] = static_cast<std::byte>(std::to_integer<uint8_t>(before[i]) - 1);
    if (!borrows) {
      break;
    }
  }
  v1::ListBlocksRequest request;
  request.set_space_id(space_id);
  request.set_limit(1);
  request.set_after_key(proto::ToBytes(before));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListBlocksReply reply, admin.ListBlocks(request, deadline));
  if (reply.blocks().empty() || reply.blocks(0).key() != proto::ToBytes(key)) {
    return absl::NotFoundError(absl::StrCat("no block ", proto::Hex(key), " in space ", space_id));
  }
  return reply.blocks(0);
}

std::string HexOf(std::string_view bytes) {
  return proto::Hex(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

std::string ShortHexOf(std::string_view bytes) { return HexOf(bytes).substr(0, kDigitsShown); }

std::string_view TierName(v1::Tier tier) {
  switch (tier) {
    case v1::TIER_GPU:
      return "gpu";
    case v1::TIER_HOST:
      return "host";
    case v1::TIER_SSD:
      return "ssd";
    case v1::TIER_PEER:
      return "peer";
    default:
      return "-";
  }
}

std::string_view DeviceStateName(v1::DeviceState state) {
  switch (state) {
    case v1::DEVICE_STATE_RECOVERING:
      return "recovering";
    case v1::DEVICE_STATE_OK:
      return "ok";
    case v1::DEVICE_STATE_CAPPED:
      return "capped";
    case v1::DEVICE_STATE_READ_ONLY:
      return "read-only";
    case v1::DEVICE_STATE_OUT:
      return "out";
    default:
      return "unknown";
  }
}

void PrintDevicesInTrouble(const v1::ListTiersReply& tiers) {
  for (const v1::TierInfo& tier : tiers.tiers()) {
    for (const v1::DeviceInfo& device : tier.devices()) {
      if (device.state() != v1::DEVICE_STATE_OK) {
        absl::PrintF("\n%s %s is %s: %s\n", ToAbsl(TierName(tier.tier())), device.path(),
                     ToAbsl(DeviceStateName(device.state())), device.reason());
      }
    }
  }
}

std::string_view DTypeName(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16:
      return "bf16";
    case v1::DTYPE_FP16:
      return "fp16";
    case v1::DTYPE_FP32:
      return "fp32";
    case v1::DTYPE_FP8_E4M3:
      return "fp8_e4m3";
    case v1::DTYPE_FP8_E5M2:
      return "fp8_e5m2";
    default:
      return "-";
  }
}

}  // namespace cairn::cli
