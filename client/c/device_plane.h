// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plane of a cache on a device, as kernels have it. Private to client/c.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c/cairn.h"
#include "kernels/target.h"

namespace cairn::c {

// `layers` gets where each begins, as many as it has elements, and must outlive the plane.
// InvalidArgument names the field of `name`.
absl::StatusOr<kernels::PagedPlane> OnDevice(std::string_view name, const cairn_paged_plane& plane,
                                             uint64_t element_bytes,
                                             std::vector<std::byte*>& layers);

}  // namespace cairn::c
