// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "codecs/backend/backends.h"

namespace cairn {

// Returns the active codec backend. REQUIRES: codecs::RefusedChoice() is empty, which main()
// checks.
inline const codecs::Backend& ActiveBackend() {
  const codecs::Backend* backend = nullptr;
  const codecs::Error error = codecs::ActiveBackend(&backend);
  CAIRN_CHECK(error == codecs::Error::kOk, codecs::Name(error));
  return *backend;
}

}  // namespace cairn
