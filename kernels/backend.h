// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface between the program and the device kernels. Only this folder includes CUDA headers.
// A build without CUDA headers compiles absent.cc instead; every caller still compiles and links.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/attend_plan.h"
#include "kernels/encode_plan.h"
#include "kernels/mine_pass.h"
#include "kernels/mine_plan.h"
#include "kernels/plan.h"
#include "kernels/records.h"

namespace cairn::kernels {

// Whether encoding and decoding can run on a device, and the reason if not.
// Thread-safety: Immutable.
struct Availability {
  std::string_view name;  // name of the backend: "none" or "cuda"; static storage
  bool is_available;
  std::string_view reason;  // one line for a log or `cairnctl version`; static storage
};

// Returns the same answer for the life of the process. Never fails, never throws, needs no driver.
// Thread-safety: Thread-safe.
Availability Probe();

// The result of a launch.
enum class [[nodiscard]] LaunchResult : uint8_t{
    kOk,           // kernels are on the stream
    kUnavailable,  // nothing is on the stream. Probe() has the reason; if it says "available",
                   // LastDeviceError() says which: the device is too old, or has too little shared
                   // memory for a kernel of the plan
    kNoStream,     // the stream is null: the legacy default stream would wait for all others
    kDeviceError,  // CUDA refused; LastDeviceError() has the reason. The device may be lost
};

// A CUDA stream, as cudaStream_t. Launches use the current device.
using Stream = void*;

// Loads all kernels to the current device; does nothing if they are loaded. Without this call, the
// first launch on a device loads them. That is not allowed during the capture of a graph, so call
// it before a capture. A Runtime calls it when it allocates device memory. Thread-safety:
// Thread-safe.
LaunchResult LoadKernels();

// Puts the kernels of a plan on `stream`. If the kernels are already loaded, this function does not
// allocate, synchronize or copy. The caller owns all memory. The device must be able to access the
// memory, and the memory must stay valid until the work on the stream has completed. Kernels read
// counts from the plan when they run. A captured graph can therefore run a later plan, if that plan
// needs only kernels that the captured plan needed.
//   plan    from MakeDecodePlan()
//   bytes   the buffer of the plan, on the device
//   status  plan.image_count words, which the caller sets to 0. The kernels set the word of an
//   image
//           that cannot be decoded to its codecs::Error. The targets of this image are then
//           unspecified; the targets of other images are not affected
// Thread-safety: Thread-safe.
LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream);

// Does the same as LaunchDecode() for images to encode. Results are complete when the work on the
// stream has completed.
//   plan     from MakeEncodePlan()
//   bytes    the buffer of the plan, on the device
//   results  plan.tile_count results, on the device
//   status   plan.image_count words, which the caller sets to 0. 0 remains if results and image are
//            complete. Errors: kTargetTooSmall (the page table of the image has an invalid page or
//            a hole). If the source is a stored image, also kBadTile or kNotDemotable
LaunchResult LaunchEncode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                          uint32_t* status, Stream stream);

// Does the same as LaunchDecode() for attention. Outputs and log sums are complete when the work on
// the stream has completed.
//   plan     from MakeAttendPlan()
//   bytes    the buffer of the plan, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, with any content
//   status   plan.status_count words, which the caller sets to 0. The kernels set the word of an
//            image or tail with an error to its codecs::Error. The outputs and log sums of its
//            sequence are then unspecified; other sequences are not affected
LaunchResult LaunchAttend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, Stream stream);

// Does the same as LaunchDecode() for mining a bank. The patterns of the bank are complete when the
// work on the stream has completed.
//   plan     from MakeMinePlan()
//   bytes    the buffer of the plan, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, with any content
//   status   a word, which the caller sets to 0. Errors: kTargetTooSmall (the page table has an
//            invalid page), kIncomplete (a head has no token). After an error the bank is
//            unspecified
LaunchResult LaunchMine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                        uint32_t* status, Stream stream);

// Does the same as LaunchDecode() for a pass over the sample of a profile. The sums are complete
// when the work on the stream has completed.
//   plan     from MakeMinePassPlan()
//   bytes    the buffer of the plan, on the device
//   sums     plan.sums_bytes on the device, at a multiple of 16, which the caller sets to 0
//   status   a word, which the caller sets to 0. Errors: kTargetTooSmall (the page table has an
//            invalid page). After an error the sums are unspecified
LaunchResult LaunchMinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                            uint32_t* status, Stream stream);

// Returns why the last failed call of this thread failed: CUDA's name of the error, such as
// "cudaErrorLaunchFailure", or a sentence. Empty if no call has failed. Static storage.
[[nodiscard]] std::string_view LastDeviceError();

}  // namespace cairn::kernels
