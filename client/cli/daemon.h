// SPDX-License-Identifier: Apache-2.0
#pragma once
// What several commands ask of the daemon.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/admin.pb.h"
#include "client/cli/command.h"
#include "client/cpp/admin.h"
#include "client/cpp/client.h"
#include "client/cpp/space.h"
#include "proto/block_key.h"

namespace cairn::cli {

// A session as `tenant`, or as "default" where it is empty.
absl::StatusOr<ConnectOptions> ConnectOptionsOf(const Arguments& arguments,
                                                const std::string& tenant);
absl::StatusOr<std::unique_ptr<Client>> Connect(const Arguments& arguments,
                                                const std::string& tenant = "");
absl::StatusOr<std::unique_ptr<AdminClient>> OpenAdmin(const Arguments& arguments);
absl::StatusOr<absl::Time> DeadlineOf(const Arguments& arguments);
// Whether no daemon was reached. One that starts or drains is Unavailable too, and says so itself.
bool IsNobodyThere(const absl::Status& status);

inline constexpr Flag kSpaceFlag = {
    "--space", "SPACE", "tenant/model, or 4 digits or more of the fingerprint [the only one]"};
// The space that --space names by its number, its name or the start of its fingerprint; without
// --space, the only one there is. NotFound, and InvalidArgument where several have the name, list
// them.
absl::StatusOr<v1::SpaceInfo> ChooseSpace(const Arguments& arguments, AdminClient& admin);
// The space of that fingerprint.
absl::StatusOr<v1::SpaceInfo> SpaceOf(const Arguments& arguments, AdminClient& admin,
                                      std::string_view fingerprint);

// A client of the space's tenant with the space open. The client owns nothing of the space: keep
// both.
struct OpenedSpace {
  v1::SpaceInfo info;
  std::unique_ptr<Client> client;
  std::unique_ptr<Space> space;
};
absl::StatusOr<OpenedSpace> Open(const Arguments& arguments, const v1::SpaceInfo& info);
// The space that ChooseSpace() finds.
absl::StatusOr<OpenedSpace> OpenChosen(const Arguments& arguments);

// 64 hexadecimal digits.
absl::StatusOr<BlockKey> ParseKey(std::string_view text);
absl::StatusOr<std::vector<BlockKey>> ParseKeys(std::span<const std::string> texts);
// The block of that key in a space, as the daemon lists it. NotFound.
absl::StatusOr<v1::BlockInfo> FindBlock(const Arguments& arguments, AdminClient& admin,
                                        uint64_t space_id, const BlockKey& key);
std::string HexOf(std::string_view bytes);
// Its first 12 digits, as tables show it.
std::string ShortHexOf(std::string_view bytes);
std::string_view TierName(v1::Tier tier);                 // "gpu", "host", "ssd", "-"
std::string_view DeviceStateName(v1::DeviceState state);  // "ok", "read-only", "unknown"
// A line for each device that is not as it should be.
void PrintDevicesInTrouble(const v1::ListTiersReply& tiers);
std::string_view DTypeName(v1::DType dtype);  // "bf16", "fp16", "fp32"

}  // namespace cairn::cli
