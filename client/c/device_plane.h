// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts a plane of a cache on a device for kernels. Private to client/c.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c/cairn.h"
#include "kernels/target.h"

namespace cairn::c {

// Fills `layers`, which must outlive the plane, with the address of each layer. Errors:
// InvalidArgument, naming the field of `name`.
absl::StatusOr<kernels::PagedPlane> OnDevice(std::string_view name, const cairn_paged_plane& plane,
                                             uint64_t element_bytes,
                                             std::vector<std::byte*>& layers);

}  // namespace cairn::c
