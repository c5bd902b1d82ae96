// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tests a backend on a few small tiles before it is used for blocks. If a compiler, a CPU or a
// hypervisor gets an instruction wrong, the backend is not used. Coding is then slower, but no data
// is lost.
//
// Thread-safety: Thread-safe. Allocates. Takes milliseconds, or a tenth of a second if a byte
// differs.

#include <cstdint>

#include "codecs/backend/backend.h"

namespace cairn::codecs {

// Returns the name of the first operation of `backend` whose bytes differ from the reference's;
// null if none differ. REQUIRES: this CPU supports the backend.
[[nodiscard]] const char* FailedOperation(const Backend& backend);

// Returns the name of the first operation of `backend` whose bytes do not have the CRC32C that is
// expected, and sets *crc to the CRC32C of its bytes; null if there is none. Does not run the
// reference. REQUIRES: this CPU supports the backend.
[[nodiscard]] const char* UnexpectedOperation(const Backend& backend, uint32_t* crc);

}  // namespace cairn::codecs
