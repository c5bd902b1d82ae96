// SPDX-License-Identifier: Apache-2.0
// The backend of a build with CUDA. It needs no driver to start: where there is none, or no device
// that the kernels are compiled for, it says that it is unavailable.
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "kernels/backend.h"
#include "kernels/body/decode_kernels.h"

namespace cairn::kernels {
namespace {

constexpr int kDevicesMax = 64;
constexpr int kComputeMajorMin = 8;  // what kernels are compiled for, at least

thread_local cudaError_t last_error = cudaSuccess;

bool IsOk(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error == cudaSuccess;
}

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
// list's.
using Residents = std::array<std::atomic<uint32_t>, kDecodeLists>;

Residents& ResidentsOf(int device) {
  static std::array<Residents, kDevicesMax> residents;
  return residents[static_cast<size_t>(device)];
}

// Asks CUDA once a kernel and device, and lets the kernel have its shared memory.
bool FindResidents(const void* kernel, int device, const KernelShape& shape, uint32_t* blocks) {
  int processors = 0;
  int resident = 0;
  const bool is_ok =
      IsOk(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(shape.shared_bytes))) &&
      IsOk(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) &&
      IsOk(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kBlockThreads,
                                                         shape.shared_bytes));
  if (!is_ok) return false;
  *blocks = static_cast<uint32_t>(processors * resident);
  return true;
}

struct CudaLaunch {
  const DecodePlan& plan;
  DecodeArgs args;
  cudaStream_t stream;
  int device;
  bool is_ok = true;

  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    const uint32_t tasks = plan.counts[shape.list];
    if (tasks == 0 || !is_ok) return;
    const auto* kernel = reinterpret_cast<const void*>(kKernel);
    std::atomic<uint32_t>& known = ResidentsOf(device)[shape.list];
    uint32_t blocks = known.load(std::memory_order_relaxed);
    if (blocks == 0) {
      is_ok = FindResidents(kernel, device, shape, &blocks);
      if (!is_ok) return;
      known.store(blocks, std::memory_order_relaxed);
    }
    args.list = shape.list;
    void* arguments[] = {&args};
    // As many blocks as the device holds: a captured graph has them for plans of any length.
    is_ok = IsOk(cudaLaunchKernel(kernel, dim3(blocks), dim3(kBlockThreads), arguments,
                                  shape.shared_bytes, stream));
  }
};

}  // namespace

Availability Probe() {
  static const Availability found = Find();
  return found;
}

LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream) {
  if (!Probe().is_available) return LaunchResult::kUnavailable;
  if (stream == nullptr) return LaunchResult::kNoStream;
  int device = 0;
  if (!IsOk(cudaGetDevice(&device)) || device >= kDevicesMax) return LaunchResult::kDeviceError;
  const DecodeArgs args{reinterpret_cast<const uint8_t*>(bytes), status, 0};
  CudaLaunch launch{plan, args, static_cast<cudaStream_t>(stream), device};
  ForEachDecodeKernel(launch);
  return launch.is_ok ? LaunchResult::kOk : LaunchResult::kDeviceError;
}

std::string_view LastDeviceError() {
  return last_error == cudaSuccess ? std::string_view{} : cudaGetErrorName(last_error);
}

}  // namespace cairn::kernels
