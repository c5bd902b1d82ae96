// SPDX-License-Identifier: Apache-2.0
#pragma once
// The backends of this program, and the choice of the active one.
//
// Thread-safety: Thread-safe. Tables are immutable and live as long as the program.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "codecs/backend/backend.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Returns the reference backend, whose plain loops define the format. It has all operations and
// runs on every CPU.
[[nodiscard]] const Backend& ReferenceBackend();

// Returns the backends that this CPU supports, best first; the reference is the last. Use
// `*CpuBackends().front()` for speed.
[[nodiscard]] std::span<const Backend* const> CpuBackends();

// Returns all compiled-in backends, best first, whether or not this CPU supports them.
[[nodiscard]] std::span<const Backend* const> CompiledBackends();

// Returns their names for messages, best first: "avx512, avx2, reference". Static storage.
[[nodiscard]] std::string_view KnownBackends();

// Finds a backend by name. Errors: kUnknownBackend; kNoSuchCpu if it is compiled in but this CPU
// does not support it.
Error FindBackend(std::string_view name, const Backend** backend);

// Returns the backend that the environment variable CAIRN_CODEC_BACKEND names. If it is not set,
// returns the best backend that passes its self-test. The choice is made at the first call. Errors:
// those of FindBackend() for the name; kBackendFault if the named backend fails its self-test.
// Every call then returns the error: a named backend is never replaced by another one.
Error ActiveBackend(const Backend** backend);

// A backend that failed its self-test, and the operation whose bytes differed from the reference's.
struct BackendFault {
  const Backend* backend = nullptr;
  const char* operation = nullptr;
};

// Returns the backends that failed their self-test in ActiveBackend(), best first. On a sound
// machine there are none. The main program reports them when it starts.
[[nodiscard]] std::span<const BackendFault> BackendFaults();

// Returns the first of `candidates` that passes its self-test. The last candidate is returned
// untested. Failed candidates are added to faults[0], faults[1], ….
//   faults  has as many entries as candidates
// REQUIRES: there is a candidate, and this CPU supports all of them.
[[nodiscard]] const Backend* ChooseBackend(std::span<const Backend* const> candidates,
                                           BackendFault* faults, size_t* fault_count);

// Describes a wrong value of CAIRN_CODEC_BACKEND or CAIRN_CRC_BACKEND: the variable, its value, and
// the values that this CPU supports. Empty if both are right. A program calls this when it starts,
// and exits if the result is not empty.
std::string RefusedChoice();

}  // namespace cairn::codecs
