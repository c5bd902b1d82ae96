// SPDX-License-Identifier: Apache-2.0
#pragma once
// The backends of this program, and the choice of the one that runs.
//
// Thread-safety: Thread-safe. Tables are immutable and live as long as the program.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "codecs/backend/backend.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Returns the plain loops, which define the format. It has all operations and runs everywhere.
[[nodiscard]] const Backend& ReferenceBackend();

// Returns the backends that this CPU runs, best first; the reference is the last. Use
// `*CpuBackends().front()` for speed.
[[nodiscard]] std::span<const Backend* const> CpuBackends();

// All that were compiled in, best first, whether or not this CPU runs them.
[[nodiscard]] std::span<const Backend* const> CompiledBackends();

// Their names, best first: "avx512, avx2, reference". For messages. Static storage.
[[nodiscard]] std::string_view KnownBackends();

// By name. kUnknownBackend, or kNoSuchCpu where it is compiled in and this CPU cannot run it.
Error FindBackend(std::string_view name, const Backend** backend);

// The best one that passes its self-test, or the one that the environment variable
// CAIRN_CODEC_BACKEND names; found at the first call. A name that FindBackend() refuses is its
// error, every time, and kBackendFault is that of a named one which fails the test: a forced choice
// is never quietly another one.
Error ActiveBackend(const Backend** backend);

// A backend that was passed over, and the operation whose bytes were not the reference's.
struct BackendFault {
  const Backend* backend = nullptr;
  const char* operation = nullptr;
};

// Returns the backends that ActiveBackend() passed over, best first; none on a sound machine. The
// main program reports them when it starts.
[[nodiscard]] std::span<const BackendFault> BackendFaults();

// Returns the first of `candidates` that passes its self-test. The last is returned untested. Those
// that fail are added to faults[0], faults[1], ….
//   faults  as many as candidates
// REQUIRES: there is a candidate, and this CPU runs them all.
[[nodiscard]] const Backend* ChooseBackend(std::span<const Backend* const> candidates,
                                           BackendFault* faults, size_t* fault_count);

// Describes a wrong value of CAIRN_CODEC_BACKEND or CAIRN_CRC_BACKEND: the variable, its value and
// the values that this CPU runs. Empty if both are right. A program asks when it starts, and exits
// if the result is not empty.
std::string RefusedChoice();

}  // namespace cairn::codecs
