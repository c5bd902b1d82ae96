// SPDX-License-Identifier: Apache-2.0
// The backend of a build without device kernels.
#include "kernels/backend.h"

namespace cairn::kernels {

Availability Probe() {
  return {
      .name = "none", .is_available = false, .reason = "unavailable: built without device kernels"};
}

}  // namespace cairn::kernels
