// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "codecs/backend/backends.h"

namespace cairn {

// The codec backend in force. Dies on a CAIRN_CODEC_BACKEND that is none: a forced choice is never
// quietly another one.
inline const codecs::Backend& ActiveBackend() {
  const codecs::Backend* backend = nullptr;
  const codecs::Error error = codecs::ActiveBackend(&backend);
  CAIRN_CHECK(error == codecs::Error::kOk, codecs::Name(error));
  return *backend;
}

}  // namespace cairn
