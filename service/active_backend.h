// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "codecs/backend/backends.h"

namespace cairn {

// The codec backend in force. REQUIRES: codecs::RefusedChoice() is empty; main() asks.
inline const codecs::Backend& ActiveBackend() {
  const codecs::Backend* backend = nullptr;
  const codecs::Error error = codecs::ActiveBackend(&backend);
  CAIRN_CHECK(error == codecs::Error::kOk, codecs::Name(error));
  return *backend;
}

}  // namespace cairn
