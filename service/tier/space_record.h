// SPDX-License-Identifier: Apache-2.0
#pragma once
// The record of a space in a persistent tier. The structs are values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "proto/side_object.h"

namespace cairn {

// Borrows the bytes.
struct NamedSideObject {
  codecs::Digest id{};
  proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
  std::span<const std::byte> bytes;
};

struct SpaceRecord {
  // A group's current side object: new images are encoded with it.
  struct Current {
    uint32_t group = 0;
    proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
    codecs::Digest id{};
    bool is_mined = false;  // true: made by the daemon; false: installed by a client
    friend bool operator==(const Current&, const Current&) = default;
  };

  proto::Fingerprint fingerprint{};  // fingerprint of the identity
  proto::SpaceIdentity identity;
  // Increases with each change. Two records of one space with the same version are equal. Not
  // stored, because it is valid in this process only.
  uint64_t version = 0;
  // The policy, with recipes by name.
  std::string recipe;
  std::string cold_recipe;  // empty: none
  uint32_t ttl_s = 0;       // 0: none
  std::vector<Current> current;
};

}  // namespace cairn
