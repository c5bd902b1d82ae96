// SPDX-License-Identifier: Apache-2.0
#include "proto/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace cairn::proto {

std::array<std::byte, 32> Sha256(std::span<const std::byte> bytes) {
  std::array<std::byte, 32> digest;
  unsigned int digest_bytes = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &digest_bytes, EVP_sha256(), nullptr);
  CAIRN_CHECK(ok == 1 && digest_bytes == digest.size());  // fails only if memory is exhausted
  return digest;
}

}  // namespace cairn::proto
