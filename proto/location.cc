// SPDX-License-Identifier: Apache-2.0
#include "proto/location.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cairn::proto {

static_assert(std::endian::native == std::endian::little, "integers are copied, not swapped");

LocationName NameLocation(const Fingerprint& space, const BlockKey& key) {
  std::array<std::byte, sizeof(Fingerprint) + sizeof(BlockKey)> both;
  std::ranges::copy(space, both.begin());
  std::ranges::copy(key, both.begin() + sizeof(Fingerprint));
  std::array<std::byte, 32> digest;
  unsigned int digest_bytes = 0;
  const int ok =
      EVP_Digest(both.data(), both.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &digest_bytes, EVP_sha256(), nullptr);
  CAIRN_CHECK(ok == 1 && digest_bytes == digest.size());  // fails only if memory is exhausted
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
