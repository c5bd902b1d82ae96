// SPDX-License-Identifier: Apache-2.0
#include "proto/location.h"

#include <algorithm>
#include <cstring>

#include "proto/sha256.h"

namespace cairn::proto {

static_assert(std::endian::native == std::endian::little, "integers are copied, not swapped");

LocationName NameLocation(const Fingerprint& space, const BlockKey& key) {
  std::array<std::byte, sizeof(Fingerprint) + sizeof(BlockKey)> both;
  std::ranges::copy(space, both.begin());
  std::ranges::copy(key, both.begin() + sizeof(Fingerprint));
  const std::array<std::byte, 32> digest = Sha256(both);
  LocationName name;
  std::copy_n(digest.begin(), name.size(), name.begin());
  return name;
}

uint64_t RunOf(const BlockKey& first_key) {
  uint64_t run = 0;
  std::memcpy(&run, first_key.data(), sizeof(run));
  return run;
}

}  // namespace cairn::proto
