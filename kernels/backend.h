// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface of the program to device kernels. This folder is the only one that includes CUDA
// headers. Without them absent.cc is built instead, and every caller compiles and links the same.

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

// Whether encode and decode can run on a device, and why not.
// Thread-safety: Immutable.
struct Availability {
  std::string_view name;  // of the backend: "none" or "cuda"; static storage
  bool is_available;
  std::string_view reason;  // one line for a log or `cairnctl version`; static storage
};

// Same answer for the life of the process; never fails, never throws, needs no driver.
// Thread-safety: Thread-safe.
Availability Probe();

// How a launch ended that was asked for.
enum class [[nodiscard]] LaunchResult : uint8_t{
    kOk,           // kernels are on the stream
    kUnavailable,  // nothing is on the stream. Probe() says why; where it says "available",
                   // LastDeviceError() does: the device is too old, or has too little shared memory
                   // for a kernel of the plan
    kNoStream,     // null: the legacy default stream waits for every other
    kDeviceError,  // CUDA refused; LastDeviceError() says how. The device may be lost
};

// A CUDA stream, as cudaStream_t. Launches are on the device that is current.
using Stream = void*;

// Loads all kernels to the current device. Without it the first launch on a device does. Kernels
// may not be loaded while a graph is captured, so call it before a capture; a Runtime calls it
// where it allocates memory of the device. Does nothing where they are loaded. Thread-safety:
// Thread-safe.
LaunchResult LoadKernels();

// Puts the kernels of a plan on `stream`. Where kernels are loaded, nothing allocates, synchronizes
// or copies. All memory is the caller's, reachable by the device, and stays until what is on the
// stream is over. Kernels read counts from the plan, so a captured graph serves every later plan
// that needs no kernels that the captured one did not.
//   plan    as MakeDecodePlan() gave it
//   bytes   its buffer, on the device
//   status  plan.image_count words, zeroed before. Then a word is 0 where the image was decoded,
//           else the codecs::Error that says why not: its targets are in any state, others are not
//           touched by it
// Thread-safety: Thread-safe.
LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream);

// The same of images to encode. Results are whole when what is on the stream is over.
//   plan     as MakeEncodePlan() gave it
//   bytes    its buffer, on the device
//   results  plan.tile_count of them, on the device
//   status   plan.image_count words, zeroed before. Then a word is 0 where results and image are
//            whole, else kTargetTooSmall: its table has a page that is none, or a hole; or, of a
//            stored image, kBadTile or kNotDemotable
LaunchResult LaunchEncode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                          uint32_t* status, Stream stream);

// The same of attention: outputs and log sums are whole when what is on the stream is over.
//   plan     as MakeAttendPlan() gave it
//   bytes    its buffer, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, in any state
//   status   plan.status_count words, zeroed before. Then a word is 0, or the codecs::Error that
//            says why its image or tail was not attended to: outputs and log sums of its sequence
//            are in any state, those of others are not touched by it
LaunchResult LaunchAttend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, Stream stream);

// The same of a bank to mine: its patterns are whole when what is on the stream is over.
//   plan     as MakeMinePlan() gave it
//   bytes    its buffer, on the device
//   scratch  plan.scratch_bytes on the device, at a multiple of 16, in any state
//   status   a word, zeroed before. Then it is 0, or kTargetTooSmall: the table has a page that is
//            none; or kIncomplete: a head has no token. The bank is in any state then
LaunchResult LaunchMine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                        uint32_t* status, Stream stream);

// The same of a pass over the sample of a profile: its sums are whole when what is on the stream is
// over.
//   plan     as MakeMinePassPlan() gave it
//   bytes    its buffer, on the device
//   sums     plan.sums_bytes on the device, at a multiple of 16, zeroed before
//   status   a word, zeroed before. Then it is 0, or kTargetTooSmall: the table has a page that is
//            none. Sums are in any state then
LaunchResult LaunchMinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                            uint32_t* status, Stream stream);

// Returns why the last failed call of this thread failed: CUDA's name of the error, as
// "cudaErrorLaunchFailure", or a sentence. Empty if none has failed. Static storage.
[[nodiscard]] std::string_view LastDeviceError();

}  // namespace cairn::kernels
