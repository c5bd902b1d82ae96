// SPDX-License-Identifier: Apache-2.0
#pragma once
// Side objects that lie on a device, beside images that are coded with them. Private to client/cpp.

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

// Those of one owner. Space and calls must outlive its use, and the memory is in use until the
// stream of the calls is over.
//
// Thread-safety: Thread-compatible.
class DeviceSideObjects {
 public:
  struct OnDevice {
    SideObjectHandle held;
    DeviceMemory memory;
    DeviceMemory staged;  // the host's, until it is there
    uint64_t used = 0;    // a count of uses
  };

  DeviceSideObjects(Space& space, DeviceCalls& calls) : space_(space), calls_(calls) {}

  // What an image names, fetched where the client has it not; null where the image needs none. It
  // is on the stream at least. NotFound: the image is not one of it. ResourceExhausted: no room.
  // DeadlineExceeded: no time is left.
  absl::StatusOr<const OnDevice*> Of(const codecs::ImageSpec& image, absl::Time deadline);
  // The same of one that the caller has.
  absl::StatusOr<const OnDevice*> Upload(const SideObjectHandle& held);

  // What they were copied from. REQUIRES: the stream is over.
  void DropStaged();
  // Those used longest ago, past so many. REQUIRES: likewise.
  void DropOldest(size_t count_max);

 private:
  Space& space_;
  DeviceCalls& calls_;
  std::map<Digest, OnDevice> known_;
  uint64_t uses_ = 0;
};

}  // namespace cairn
