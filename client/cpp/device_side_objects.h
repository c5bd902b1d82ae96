// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps side objects on a device, for kernels that encode or decode images with them. Private to
// client/cpp.

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/side_objects.h"
#include "client/cpp/space.h"
#include "codecs/image/image.h"

namespace cairn {

// The side objects of one owner on a device.
//
// The caller must keep `space` and `calls` as long as it uses this object. It must keep this object
// until all work on the stream of `calls` has completed, because that work reads its memory.
//
// Thread-safety: Thread-compatible.
class DeviceSideObjects {
 public:
  struct OnDevice {
    SideObjectHandle held;
    DeviceMemory memory;
    DeviceMemory staged;  // host memory that the copy to the device reads; empty after DropStaged()
    uint64_t used = 0;    // value of uses_ at the last use
  };

  DeviceSideObjects(Space& space, DeviceCalls& calls) : space_(space), calls_(calls) {}

  // Returns the side object that an image names, or null if the image needs none. Fetches it if the
  // client does not have it. The copy to the device may still be running on the stream. Errors:
  // NotFound (the image was not coded with that side object), ResourceExhausted (no room),
  // DeadlineExceeded (no time is left), or those of Space::GetSideObject() and DeviceCalls::Took().
  absl::StatusOr<const OnDevice*> Of(const codecs::ImageSpec& image, absl::Time deadline);
  // Like Of(), for a side object that the caller already has.
  absl::StatusOr<const OnDevice*> Upload(const SideObjectHandle& held);

  // Frees the host memory of completed copies. REQUIRES: all work on the stream has completed.
  void DropStaged();
  // Drops the least recently used side objects until at most `count_max` are left. REQUIRES: all
  // work on the stream has completed.
  void DropOldest(size_t count_max);

 private:
  Space& space_;
  DeviceCalls& calls_;
  std::map<Digest, OnDevice> known_;
  uint64_t uses_ = 0;
};

}  // namespace cairn
