// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface of the program to device kernels. Only this folder includes CUDA headers. If they
// are missing, absent.cc is built instead, and every caller compiles and links without changes.

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
                   // LastDeviceError() has it: the device is too old, or has too little shared
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

// Puts the kernels of a plan on `stream`. If kernels are loaded, nothing allocates, synchronizes or
// copies. The caller owns all memory. The device must be able to access it, and it must stay valid
// until the work on the stream has completed. Kernels read counts from the plan. A captured graph
// can therefore run a later plan, if that plan needs no kernel that the captured plan did not need.
//   plan    from MakeDecodePlan()
//   bytes   its buffer, on the device
//   status  plan.image_count words, zeroed before. Afterwards 0 if the image was decoded, else its
//           codecs::Error: the image's targets are then unspecified, and other targets are
//           unaffected
// Thread-safety: Thread-safe.
LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream);

// The same for images to encode. Results are complete when the work on the stream has completed.
//   plan     from MakeEncodePlan()
//   bytes    its buffer, on the device
//   results  plan.tile_count results, on the device
//   status   plan.image_count words, zeroed before. Afterwards 0 if results and image are complete.
//            kTargetTooSmall: its page table has an invalid page or a hole. For a stored image also
//            kBadTile or kNotDemotable
LaunchResult LaunchEncode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                          uint32_t* status, Stream stream);

// The same for attention. Outputs and log sums are complete when the work on the stream has
// completed.
//   plan     from MakeAttendPlan()
//   bytes    its buffer, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, with any content
//   status   plan.status_count words, zeroed before. Afterwards 0, or the codecs::Error of an image
//            or tail: outputs and log sums of its sequence are then unspecified, and other
//            sequences are unaffected
LaunchResult LaunchAttend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, Stream stream);

// The same for mining a bank. Its patterns are complete when the work on the stream has completed.
//   plan     from MakeMinePlan()
//   bytes    its buffer, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, with any content
//   status   a word, zeroed before. Afterwards 0; or kTargetTooSmall: the table has an invalid
//            page; or kIncomplete: a head has no token. On an error the bank is unspecified
LaunchResult LaunchMine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                        uint32_t* status, Stream stream);

// The same for a pass over the sample of a profile. Its sums are complete when the work on the
// stream has completed.
//   plan     from MakeMinePassPlan()
//   bytes    its buffer, on the device
//   sums     plan.sums_bytes on the device, at a multiple of 16, zeroed before
//   status   a word, zeroed before. Afterwards 0, or kTargetTooSmall: the table has an invalid
//            page. On an error the sums are unspecified
LaunchResult LaunchMinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                            uint32_t* status, Stream stream);

// Returns why the last failed call of this thread failed: CUDA's name of the error, such as
// "cudaErrorLaunchFailure", or a sentence. Empty if no call has failed. Static storage.
[[nodiscard]] std::string_view LastDeviceError();

}  // namespace cairn::kernels
