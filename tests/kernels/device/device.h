// SPDX-License-Identifier: Apache-2.0
#pragma once
// What kernel tests and their benchmark run kernels on: a CUDA device, or the executor, as a device
// that is named `emulated`. A program is linked with one of emulated.cc, cuda.cc and absent.cc.
//
// Thread-safety: Owned by the main thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "kernels/attend_plan.h"
#include "kernels/encode_plan.h"
#include "kernels/mine_pass.h"
#include "kernels/mine_plan.h"
#include "kernels/plan.h"
#include "kernels/records.h"

namespace cairn::kernels::device {

struct Description {
  std::string name;         // "NVIDIA H200"; empty: there is none
  std::string driver;       // its version
  std::string unavailable;  // why there is none: "unavailable: no CUDA device"
  uint64_t free_bytes = 0;
};

// Opens the device at the first call.
const Description& Find();

// REQUIRES of all below: Find() has a name. Addresses are the device's; the host reads none.

// At a multiple of 256, plus `misalignment`. Null: there is no room.
//   is_writable  by kernels
std::byte* Allocate(size_t bytes, bool is_writable, size_t misalignment = 0);
void Free(std::byte* bytes);
void CopyIn(std::byte* to, const void* from, size_t bytes);
void CopyOut(void* to, const std::byte* from, size_t bytes);
void Fill(std::byte* to, uint8_t byte, size_t bytes);

// How many blocks a launch has from now on: as many as the device likes, as at first, or one, which
// then does all tasks one after another.
enum class Blocks : uint8_t { kMany, kOne };
void SetBlocks(Blocks blocks);

// Puts work on the device's stream.
//   seed  of the order in which the executor runs threads
void Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status, uint64_t seed = 1);
void Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results, uint32_t* status,
            uint64_t seed = 1);
// False: a kernel of the plan needs more shared memory than a block of the device has, and nothing
// is put on the stream. Some kernels that attend need more than every device has. Others do not:
// of a plan of theirs that is a fault.
[[nodiscard]] bool Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, uint64_t seed = 1);
void Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
          uint64_t seed = 1);
void MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums, uint32_t* status,
              uint64_t seed = 1);
void Copy(std::byte* to, const std::byte* from, size_t bytes);

// Waits for the stream; what went wrong since the last call. Empty: nothing.
std::string Finish();

// Seconds that the device takes for what `enqueue` puts on the stream, which is empty before. As
// one graph, or one thing after another, as the host hands them over.
enum class Timed : uint8_t { kAsGraph, kAsStream };
double Seconds(Timed how, const std::function<void()>& enqueue);

}  // namespace cairn::kernels::device
