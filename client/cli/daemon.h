// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls to the daemon that several commands make.

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

// Returns options for a session of `tenant`; empty means "default".
absl::StatusOr<ConnectOptions> ConnectOptionsOf(const Arguments& arguments,
                                                const std::string& tenant);
absl::StatusOr<std::unique_ptr<Client>> Connect(const Arguments& arguments,
                                                const std::string& tenant = "");
absl::StatusOr<std::unique_ptr<AdminClient>> OpenAdmin(const Arguments& arguments);
absl::StatusOr<absl::Time> DeadlineOf(const Arguments& arguments);
// Returns whether the error means that no daemon was reached. A daemon that is starting or draining
// also answers Unavailable, but with its own message.
bool IsNobodyThere(const absl::Status& status);

inline constexpr Flag kSpaceFlag = {
    "--space", "SPACE", "tenant/model, or 4 digits or more of the fingerprint [the only one]"};
// Returns the space that --space names by its id, its name or the start of its fingerprint. Without
// --space, returns the only space. Errors: NotFound, or InvalidArgument if several spaces match.
// Both messages list the spaces.
absl::StatusOr<v1::SpaceInfo> ChooseSpace(const Arguments& arguments, AdminClient& admin);
// Like ChooseSpace() above, but uses the space name from a file. An empty name means that the file
// names no space.
absl::StatusOr<v1::SpaceInfo> ChooseSpace(const Arguments& arguments, AdminClient& admin,
                                          const std::string& name);
// Returns the space with that fingerprint.
absl::StatusOr<v1::SpaceInfo> SpaceOf(const Arguments& arguments, AdminClient& admin,
                                      std::string_view fingerprint);

// A client of the space's tenant, and the open space. Keep both: the space needs the client.
struct OpenedSpace {
  v1::SpaceInfo info;
  std::unique_ptr<Client> client;
  std::unique_ptr<Space> space;
};
absl::StatusOr<OpenedSpace> Open(const Arguments& arguments, const v1::SpaceInfo& info);
// Opens the space that ChooseSpace() returns.
absl::StatusOr<OpenedSpace> OpenChosen(const Arguments& arguments);

// Parses 64 hexadecimal digits.
absl::StatusOr<BlockKey> ParseKey(std::string_view text);
absl::StatusOr<std::vector<BlockKey>> ParseKeys(std::span<const std::string> texts);
// Returns the block of that key in a space. Errors: NotFound.
absl::StatusOr<v1::BlockInfo> FindBlock(const Arguments& arguments, AdminClient& admin,
                                        uint64_t space_id, const BlockKey& key);
std::string HexOf(std::string_view bytes);
// Returns the first 12 hexadecimal digits, for tables.
std::string ShortHexOf(std::string_view bytes);
std::string_view TierName(v1::Tier tier);                 // "gpu", "host", "ssd", "peer", "-"
std::string_view DeviceStateName(v1::DeviceState state);  // "ok", "read-only", "unknown"
// Prints one line for each device that has a problem.
void PrintDevicesInTrouble(const v1::ListTiersReply& tiers);
std::string_view DTypeName(v1::DType dtype);  // "bf16", "fp8_e4m3", …

}  // namespace cairn::cli
