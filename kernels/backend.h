// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the program knows of device kernels. This folder is the only home of CUDA headers; without
// them absent.cc stands in, so that every caller compiles and links the same either way.
#include <string_view>

namespace cairn::kernels {

// Whether encode and decode can run on a device, and why not.
// Thread-safety: Immutable.
struct Availability {
  std::string_view name;  // of the backend: "none"; static storage
  bool is_available;
  std::string_view reason;  // one line for a log or `cairnctl version`; static storage
};

// Same answer for the life of the process; never fails, never throws, needs no driver.
// Thread-safety: Thread-safe.
Availability Probe();

}  // namespace cairn::kernels
