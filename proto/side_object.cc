// SPDX-License-Identifier: Apache-2.0
#include "proto/side_object.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace cairn::proto {

const char* Name(SideObjectKind kind) {
  switch (kind) {
    case SideObjectKind::kProfile:
      return "profile";
  }
  return "unknown";
}

codecs::Digest SideObjectId(std::span<const std::byte> bytes) {
  codecs::Digest id{};
  unsigned int id_bytes = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), id.data(), &id_bytes, EVP_sha256(), nullptr);
  CAIRN_CHECK(done == 1 && id_bytes == id.size());  // fails only without memory
  return id;
}

}  // namespace cairn::proto
