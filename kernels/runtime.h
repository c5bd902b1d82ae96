// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device as those use it who move images between it and a store: memory, copies and the kernels
// of plans, all in the order of one stream. CUDA's is in runtime_cuda.cu; tests have others, which
// run kernels on the CPU, fail, and damage what they copy.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/attend_plan.h"
#include "kernels/backend.h"
#include "kernels/encode_plan.h"
#include "kernels/mine_pass.h"
#include "kernels/mine_plan.h"
#include "kernels/plan.h"
#include "kernels/records.h"

namespace cairn::kernels {

// Each call leaves the current device of its thread as it was (but see OpenCudaRuntime()). All may
// be made while another thread captures a graph. Those that put something on a stream may
// themselves be captured.
//
// Thread-safety: Thread-safe, where calls name streams of their own.
class Runtime {
 public:
  Runtime() = default;
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // For people: "NVIDIA H200".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Memory of the device, at a multiple of 256; and page-locked memory of the host, which the
  // device copies without the CPU. Null: there is no room, or the device is lost.
  virtual std::byte* AllocateDevice(size_t bytes) = 0;
  virtual void FreeDevice(std::byte* bytes) = 0;
  virtual std::byte* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* bytes) = 0;
  // Pins memory of the host that others have allocated, which is then as AllocateHost()'s until it
  // is unregistered. False: the driver refuses.
  virtual bool RegisterHost(std::byte* bytes, size_t count) = 0;
  virtual void UnregisterHost(std::byte* bytes) = 0;
  // Whether an allocation has failed for another reason than room: so do all calls then.
  [[nodiscard]] virtual bool is_lost() const = 0;

  // A stream that waits for no other. Null: the device has none.
  virtual Stream OpenStream() = 0;
  virtual void CloseStream(Stream stream) = 0;

  // All of these are put on the stream and return. Host memory is AllocateHost()'s or registered
  // (other memory is copied too, but the call may wait for it), and stays as it is until the stream
  // is over.
  virtual LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes,
                              Stream stream) = 0;
  virtual LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes,
                               Stream stream) = 0;
  virtual LaunchResult Clear(std::byte* at, size_t bytes, Stream stream) = 0;
  // As LaunchDecode() and the others of kernels/backend.h.
  virtual LaunchResult Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                              Stream stream) = 0;
  virtual LaunchResult Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                              uint32_t* status, Stream stream) = 0;
  virtual LaunchResult Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                              uint32_t* status, Stream stream) = 0;
  virtual LaunchResult Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                            uint32_t* status, Stream stream) = 0;
  virtual LaunchResult MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                                uint32_t* status, Stream stream) = 0;

  // Whether all that is on the stream is over, and how it went so far. Does not wait.
  virtual LaunchResult Poll(Stream stream, bool* is_over) = 0;
};

// The CUDA device of that number. Null: there is none, and Probe() says why; or it is older than
// compute capability 8.0.
// Where the device that was current is one that the process does not use, this one stays current
// after a call: to go back would set up the other, which takes memory there.
std::unique_ptr<Runtime> OpenCudaRuntime(int device);

}  // namespace cairn::kernels
