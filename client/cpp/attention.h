// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention on a device to blocks that lie there encoded, as the store has them: none is decoded.
//
//   const auto images = DeviceImages::Make(space, *device, {.group = 0});
//   const auto count = (*images)->Append({.keys = keys, .lease = lease, .stream = stream});
//   kernels::AttendJob job = {.images = (*images)->images(), .tile = (*images)->slice().tile, …};
//   const auto attention = DeviceAttention::Make(*device, {&job, 1}, stream);   // a layer's
//   (*attention)->Launch(stream);                                               // each step
//   …                                                        // the stream is over
//   (*attention)->Check();

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/block_io.h"
#include "client/cpp/space.h"
#include "kernels/attend_plan.h"
#include "kernels/runtime.h"

namespace cairn {

// Consecutive blocks of one chain, behind those that are there.
struct DeviceImagesRequest {
  std::span<const BlockKey> keys{};
  LeaseToken lease{};  // all zero: none
  // Not null. The copies are put on it. It may be closed as that of a DeviceRequest.
  kernels::Stream stream = nullptr;
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default of a batch
};

// A slice of blocks of a sequence, in memory of the device that grows with them.
// Thread-safety: Owned by one thread at a time. Space and device must outlive it.
class DeviceImages {
 public:
  // InvalidArgument: no such slice. Allocates nothing.
  static absl::StatusOr<std::unique_ptr<DeviceImages>> Make(Space& space, kernels::Runtime& device,
                                                            const GroupSlice& slice);
  // Waits for what a late call has left on its stream, however long that takes. REQUIRES: nothing
  // that attends to the images runs any more.
  ~DeviceImages();
  DeviceImages(const DeviceImages&) = delete;
  DeviceImages& operator=(const DeviceImages&) = delete;

  // Gets blocks, verified when they arrive, and waits until they are on the device. How many: as
  // far as they are there without a gap; the next is a miss. Of an error those before are kept.
  // Unimplemented: an image has to be decoded first, and why. InvalidArgument: the stream is null.
  // DeadlineExceeded: also where the device was late. Unavailable: the daemon is gone, or the
  // device failed, and then for good. ResourceExhausted: host or device has no room.
  absl::StatusOr<size_t> Append(const DeviceImagesRequest& request);

  const PlacedSlice& slice() const;
  // Of an AttendJob, in the order of their blocks. Valid until the next Append().
  std::span<const kernels::AttendImage> images() const;

 private:
  class Impl;
  explicit DeviceImages(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// What queries of some sequences attend to at one layer, planned once and launched for each step
// until a sequence gets a block more.
// Thread-safety: Owned by one thread at a time. The device and what the jobs name must outlive it.
class DeviceAttention {
 public:
  // Plans, allocates what launches need, and puts the plan on the stream, where a first launch on
  // another has to wait for it. Streams of this and of launches are not closed before Check() has
  // been OK, or this is gone. InvalidArgument: the stream is null, or a job is not one
  // (kernels/attend_plan.h). Unimplemented: an image has to be decoded first, and why.
  // ResourceExhausted: host or device has no room, or there are more jobs, images or tokens than a
  // plan has. Unavailable: the device failed.
  static absl::StatusOr<std::unique_ptr<DeviceAttention>> Make(
      kernels::Runtime& device, std::span<const kernels::AttendJob> jobs, kernels::Stream stream);
  // Waits for what was launched. REQUIRES: no graph that was captured of it runs any more.
  ~DeviceAttention();
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Puts the kernels on the stream, behind what is on it. Allocates nothing and waits for nothing,
  // so a graph can be captured of it. One launch is under way at a time: the next comes behind it
  // on the same stream, or once that is over. Errors: the stream is null, the device failed.
  absl::Status Launch(kernels::Stream stream);
  // How the launches went so far: DataLoss or InvalidArgument name the sequence, the image and what
  // is wrong with it; outputs of that sequence are in any state. FailedPrecondition: the stream of
  // the last launch is not over. Unavailable: the device failed. REQUIRES: no graph that was
  // captured of a launch runs, which is not looked at.
  absl::Status Check() const;

 private:
  class Impl;
  explicit DeviceAttention(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
