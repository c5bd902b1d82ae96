// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface to a device for code that moves images between the device and a store: memory,
// copies and the kernels of plans, all in the order of one stream. runtime_cuda.cu implements it
// for CUDA. Tests have other implementations, which run kernels on the CPU, fail, or damage the
// bytes that they copy.

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

// Calls do not change the current device of their thread; OpenCudaRuntime() states its exception.
// All calls are allowed while another thread captures a graph. Calls that put work on a stream can
// themselves be captured.
//
// Thread-safety: Thread-safe, if concurrent calls use different streams.
class Runtime {
 public:
  Runtime() = default;
  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Returns the device's name for people: "NVIDIA H200".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Allocate device memory at a multiple of 256, or page-locked host memory, which the device
  // copies without the CPU. Return null if there is no room, or the device is lost.
  virtual std::byte* AllocateDevice(size_t bytes) = 0;
  virtual void FreeDevice(std::byte* bytes) = 0;
  virtual std::byte* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* bytes) = 0;
  // Page-locks host memory that another component has allocated. Until it is unregistered, it can
  // be used like memory from AllocateHost(). Returns false if the driver refuses.
  virtual bool RegisterHost(std::byte* bytes, size_t count) = 0;
  // The same for memory that this process can only read. CopyIn() can then copy from it. Returns
  // false, too, if the device cannot do this.
  virtual bool RegisterHostForReading(const std::byte* bytes, size_t count) = 0;
  // Undoes either call. REQUIRES: the device no longer uses the memory.
  virtual void UnregisterHost(const std::byte* bytes) = 0;
  // Returns whether an allocation has failed for a reason other than lack of room. All later calls
  // then fail.
  [[nodiscard]] virtual bool is_lost() const = 0;

  // Opens a stream that does not wait for other streams. Returns null if the device has no more.
  virtual Stream OpenStream() = 0;
  virtual void CloseStream(Stream stream) = 0;

  // Each of these calls puts work on the stream and returns. Host memory should come from
  // AllocateHost() or be registered. Other memory is copied too, but then the call may wait for the
  // copy. The memory must stay unchanged until the work on the stream has completed.
  virtual LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes,
                              Stream stream) = 0;
  virtual LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes,
                               Stream stream) = 0;
  virtual LaunchResult Clear(std::byte* at, size_t bytes, Stream stream) = 0;
  // Does the same as LaunchDecode(). The functions below are like the other launches of
  // kernels/backend.h.
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

  // Sets *is_over to whether all work on the stream has completed. Returns the result of the work
  // so far. Does not wait.
  virtual LaunchResult Poll(Stream stream, bool* is_over) = 0;
};

// Opens a CUDA device. Returns null if the device does not exist (Probe() has the reason), or if it
// is older than compute capability 8.0. The call normally restores the thread's current device. But
// if the process does not use that device yet, `device` stays current: switching back would
// initialize the other device and take memory there.
std::unique_ptr<Runtime> OpenCudaRuntime(int device);

}  // namespace cairn::kernels
