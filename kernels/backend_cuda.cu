// SPDX-License-Identifier: Apache-2.0
// The backend of a build with CUDA. It needs no driver to start: where there is none, or no device
// that the kernels are compiled for, it says that it is unavailable.
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/body/attend_kernels.h"
#include "kernels/body/decode_kernels.h"
#include "kernels/body/encode_kernels.h"
#include "kernels/body/mine_bank.h"
#include "kernels/body/mine_codes.h"
#include "kernels/cuda_calls.h"

namespace cairn::kernels {
namespace {

constexpr int kDevicesMax = 64;

thread_local std::string_view last_error;  // static storage

Availability Find() {
  constexpr std::string_view kName = "cuda";
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    return {kName, false, "unavailable: no CUDA driver, or one older than this program"};
  }
  if (error != cudaSuccess || count == 0) return {kName, false, "unavailable: no CUDA device"};
  for (int device = 0; device < count; ++device) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major < kComputeMajorMin) {
      return {kName, false, "unavailable: a CUDA device is older than compute capability 8.0"};
    }
  }
  return {kName, true, "available"};
}

// Blocks of each kernel that a device runs at once; 0: not asked for yet. A kernel's number is its
// list's; those that encode come behind, then those that attend, then those that mine,
// banks first.
constexpr uint32_t kAttendFirst = kDecodeLists + kEncodeLists;
constexpr uint32_t kMineFirst = kAttendFirst + kAttendLists;
constexpr uint32_t kPassFirst = kMineFirst + kMineLists;
using Residents = std::array<std::atomic<uint32_t>, kPassFirst + kPassLists>;

Residents& ResidentsOf(int device) {
  static std::array<Residents, kDevicesMax> residents;
  return residents[static_cast<size_t>(device)];
}

// Asks CUDA once a kernel and device, and lets the kernel have its shared memory.
bool FindResidents(const void* kernel, int device, uint32_t threads, uint32_t shared_bytes,
                   uint32_t* blocks) {
  int processors = 0;
  int resident = 0;
  const bool is_ok =
      IsOk(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shared_bytes))) &&
      IsOk(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) &&
      IsOk(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel,
                                                         static_cast<int>(threads), shared_bytes));
  if (!is_ok) return false;
  *blocks = static_cast<uint32_t>(processors * resident);
  return true;
}

// Puts a kernel with its one argument on a stream, with as many blocks as the device holds: a
// captured graph has them for plans of any length.
template <typename Arguments>
bool LaunchKernel(const void* kernel, uint32_t number, int device, uint32_t threads,
                  uint32_t shared_bytes, Arguments arguments, cudaStream_t stream) {
  std::atomic<uint32_t>& known = ResidentsOf(device)[number];
  uint32_t blocks = known.load(std::memory_order_relaxed);
  if (blocks == 0) {
    if (!FindResidents(kernel, device, threads, shared_bytes, &blocks)) return false;
    known.store(blocks, std::memory_order_relaxed);
  }
  void* list[] = {&arguments};
  return IsOk(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), list, shared_bytes, stream));
}

// Puts the kernels of a plan's lists on a stream.
//   first  the number of the first of its lists among all kernels
template <typename Plan, typename Arguments>
class Launch {
 public:
  Launch(const Plan& plan, uint32_t first, Arguments arguments, Stream stream, int device)
      : plan_(plan),
        first_(first),
        arguments_(arguments),
        stream_(static_cast<cudaStream_t>(stream)),
        device_(device) {}

  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    if (plan_.counts[shape.list] == 0 || !is_ok_) return;
    arguments_.list = shape.list;
    is_ok_ = LaunchKernel(reinterpret_cast<const void*>(kKernel), first_ + shape.list, device_,
                          shape.threads, shape.shared_bytes, arguments_, stream_);
  }
  [[nodiscard]] LaunchResult result() const {
    return is_ok_ ? LaunchResult::kOk : LaunchResult::kDeviceError;
  }

 private:
  const Plan& plan_;
  uint32_t first_;
  Arguments arguments_;
  cudaStream_t stream_;
  int device_;
  bool is_ok_ = true;
};

// kOk where a launch may go on, on *device.
LaunchResult CheckLaunch(Stream stream, int* device) {
  if (!Probe().is_available) return LaunchResult::kUnavailable;
  if (stream == nullptr) return LaunchResult::kNoStream;
  const bool is_known = IsOk(cudaGetDevice(device)) && *device < kDevicesMax;
  return is_known ? LaunchResult::kOk : LaunchResult::kDeviceError;
}

}  // namespace

Availability Probe() {
  static const Availability found = Find();
  return found;
}

LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream) {
  int device = 0;
  const LaunchResult result = CheckLaunch(stream, &device);
  if (result != LaunchResult::kOk) return result;
  const DecodeArgs args{reinterpret_cast<const uint8_t*>(bytes), status, 0};
  Launch launch(plan, 0, args, stream, device);
  ForEachDecodeKernel(launch);
  return launch.result();
}

LaunchResult LaunchEncode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                          uint32_t* status, Stream stream) {
  int device = 0;
  const LaunchResult result = CheckLaunch(stream, &device);
  if (result != LaunchResult::kOk) return result;
  const EncodeArgs args{reinterpret_cast<const uint8_t*>(bytes), results, status, 0};
  Launch launch(plan, kDecodeLists, args, stream, device);
  ForEachEncodeKernel(launch);
  return launch.result();
}

LaunchResult LaunchAttend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, Stream stream) {
  int device = 0;
  const LaunchResult result = CheckLaunch(stream, &device);
  if (result != LaunchResult::kOk) return result;
  const AttendArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<float*>(scratch),
                        status, 0};
  Launch launch(plan, kAttendFirst, args, stream, device);
  ForEachAttendKernel(launch);
  return launch.result();
}

LaunchResult LaunchMine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                        uint32_t* status, Stream stream) {
  int device = 0;
  const LaunchResult result = CheckLaunch(stream, &device);
  if (result != LaunchResult::kOk) return result;
  const MineArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<uint8_t*>(scratch),
                      status, 0};
  Launch launch(plan, kMineFirst, args, stream, device);
  ForEachMineKernel(launch);
  return launch.result();
}

LaunchResult LaunchMinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                            uint32_t* status, Stream stream) {
  int device = 0;
  const LaunchResult result = CheckLaunch(stream, &device);
  if (result != LaunchResult::kOk) return result;
  const MinePassArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<uint8_t*>(sums),
                          status, 0};
  Launch launch(plan, kPassFirst, args, stream, device);
  ForEachPassKernel(launch);
  return launch.result();
}

std::string_view LastDeviceError() { return last_error; }

bool IsOk(cudaError_t error) {
  if (error == cudaSuccess) return true;
  last_error = cudaGetErrorName(error);
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace cairn::kernels
