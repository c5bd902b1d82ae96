// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a space is, as a tier that outlives the process keeps it. Values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codecs/image/image.h"
#include "proto/block_key.h"
#include "proto/side_object.h"

namespace cairn {

// Borrowed.
struct NamedSideObject {
  codecs::Digest id{};
  proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
  std::span<const std::byte> bytes;
};

struct SpaceRecord {
  // What the next images of a group are coded with.
  struct Current {
    uint32_t group = 0;
    proto::SideObjectKind kind = proto::SideObjectKind::kProfile;
    codecs::Digest id{};
    bool is_mined = false;  // by the daemon; else a client installed it
    friend bool operator==(const Current&, const Current&) = default;
  };

  proto::Fingerprint fingerprint{};  // of the identity
  proto::SpaceIdentity identity;
  // Grows with each change: records of a space that have the same are equal. Of this process only,
  // so it is not stored.
  uint64_t version = 0;
  // The policy, recipes by name.
  std::string recipe;
  std::string cold_recipe;  // empty: none
  uint32_t ttl_s = 0;       // 0: none
  std::vector<Current> current;
};

}  // namespace cairn
