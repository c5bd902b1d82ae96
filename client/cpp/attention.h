// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes attention to encoded blocks on a device, without decoding the blocks first.
//
//   const auto images = DeviceImages::Make(space, *device, {.group = 0});
//   const auto count = (*images)->Append({.keys = keys, .lease = lease, .stream = stream});
//   kernels::AttendJob job = {.images = (*images)->images(), .tile = (*images)->slice().tile, …};
//   const auto attention = DeviceAttention::Make(*device, {&job, 1}, stream);   // one a layer
//   (*attention)->Launch(stream);                                               // each step
//   … // when the stream has completed (*attention)->Check();

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

// A request to append blocks to a list of images. They are consecutive blocks of a chain, and
// follow the blocks that are already in the list.
struct DeviceImagesRequest {
  std::span<const BlockKey> keys{};
  LeaseToken lease{};  // all zero: none
  // Not null. The copies run on this stream. The rules of DeviceRequest say when you may close it.
  kernels::Stream stream = nullptr;
  absl::Duration timeout = absl::ZeroDuration();  // zero: the default for a batch
};

// A list of images in device memory. It has one slice of each block of a sequence. The memory grows
// with the number of blocks. Thread-safety: Owned by one thread at a time. Space and device must
// outlive it.
class DeviceImages {
 public:
  // Makes an empty list. Allocates nothing. Errors: InvalidArgument (no such slice).
  static absl::StatusOr<std::unique_ptr<DeviceImages>> Make(Space& space, kernels::Runtime& device,
                                                            const GroupSlice& slice);
  // Waits until the device has finished the work of calls that timed out, however long that takes.
  // REQUIRES: no attention to the images is running.
  ~DeviceImages();
  DeviceImages(const DeviceImages&) = delete;
  DeviceImages& operator=(const DeviceImages&) = delete;

  // Gets blocks, verifies them, and returns once they are on the device. Stops at the first miss,
  // and returns the number of blocks before it. After an error, the list keeps the blocks before
  // the failed one. Errors: Unimplemented (an image must be decoded first; the message gives the
  // reason), InvalidArgument (the stream is null), DeadlineExceeded (the daemon or the device was
  // late), Unavailable (the daemon is gone, or the device has failed; a failed device stays
  // unavailable), ResourceExhausted (host or device has no room).
  absl::StatusOr<size_t> Append(const DeviceImagesRequest& request);

  const PlacedSlice& slice() const;
  // The images for an AttendJob, in the order of their blocks. Valid until the next Append().
  std::span<const kernels::AttendImage> images() const;

 private:
  class Impl;
  explicit DeviceImages(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// A plan of attention for some sequences at one layer. It is made once and launched in each decode
// step. When a sequence gets another block, make a new plan. Thread-safety: Owned by one thread at
// a time. The device, and all memory that the jobs refer to, must outlive it.
class DeviceAttention {
 public:
  // Makes a plan, allocates everything that launches need, and uploads the plan on `stream`. If the
  // first launch is on another stream, that stream must wait for the upload. Do not close any of
  // these streams before Check() has returned OK or this object is destroyed. Errors:
  // InvalidArgument (the stream is null, or a job is invalid: kernels/attend_plan.h), Unimplemented
  // (an image must be decoded first; the message gives the reason), ResourceExhausted (host or
  // device has no room, or there are more jobs, images or tokens than a plan can have), Unavailable
  // (the device has failed).
  static absl::StatusOr<std::unique_ptr<DeviceAttention>> Make(
      kernels::Runtime& device, std::span<const kernels::AttendJob> jobs, kernels::Stream stream);
  // Waits for the launches. REQUIRES: no captured graph of them is running.
  ~DeviceAttention();
  DeviceAttention(const DeviceAttention&) = delete;
  DeviceAttention& operator=(const DeviceAttention&) = delete;

  // Launches the kernels on the stream, after the work that is already on it. It does not allocate
  // or wait, so a CUDA graph can capture the launch. REQUIRES: launches of this plan do not
  // overlap. Use the same stream as before, or wait for the previous launch. Errors:
  // InvalidArgument (the stream is null), Unavailable (the device has failed).
  absl::Status Launch(kernels::Stream stream);
  // Returns the outcome of all launches. Errors: DataLoss or InvalidArgument (the message names the
  // sequence, the image and the reason; the outputs of that sequence are unspecified),
  // FailedPrecondition (the stream of the last launch has not completed), Unavailable (the device
  // has failed). Launches by a captured graph are not tracked. REQUIRES: no captured graph of a
  // launch is running.
  absl::Status Check() const;

 private:
  class Impl;
  explicit DeviceAttention(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
