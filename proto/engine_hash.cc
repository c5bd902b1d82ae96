// SPDX-License-Identifier: Apache-2.0
#include "proto/engine_hash.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cairn::proto {

absl::StatusOr<EngineHash> EngineHash::From(std::span<const std::byte> bytes,
                                            std::string_view field) {
  if (!bytes.empty() && (bytes.size() < kBytesMin || bytes.size() > kBytesMax)) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), " has ", bytes.size(),
                                                   " bytes, expected ", kBytesMin, " to ",
                                                   kBytesMax, ", or none"));
  }
  EngineHash hash;
  hash.count_ = static_cast<uint8_t>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), hash.bytes_.begin());
  return hash;
}

}  // namespace cairn::proto
