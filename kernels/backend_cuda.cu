// SPDX-License-Identifier: Apache-2.0
// The backend of a build with CUDA. It starts without a driver: if there is none, or no device that
// the kernels are compiled for, it reports that it is unavailable.
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
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        major >= kComputeMajorMin) {
      return {kName, true, "available"};
    }
  }
  return {kName, false, "unavailable: no CUDA device of compute capability 8.0 or newer"};
}

// A kernel's number is its list's number. Encoding kernels follow decoding kernels; attention
// kernels and then mining kernels follow, banks first.
constexpr uint32_t kEncodeFirst = kDecodeLists;
constexpr uint32_t kAttendFirst = kEncodeFirst + kEncodeLists;
constexpr uint32_t kMineFirst = kAttendFirst + kAttendLists;
constexpr uint32_t kPassFirst = kMineFirst + kMineLists;
constexpr uint32_t kKernels = kPassFirst + kPassLists;

// The kernels of a device, after loading.
struct LoadedKernels {
  std::atomic<bool> are_loaded{false};
  // The number of blocks of each kernel that the device runs at once. 0: a block of the kernel
  // needs more shared memory than the device has.
  std::array<std::atomic<uint32_t>, kKernels> blocks{};
};

// Loads kernels to the current device, sets their shared memory, and counts their blocks.
class KernelLoader {
 public:
  KernelLoader(int processors, int shared_bytes_max, LoadedKernels* loaded)
      : processors_(processors), shared_bytes_max_(shared_bytes_max), loaded_(*loaded) {}

  // Starts a family of kernels.
  //   first  the number of its first kernel
  KernelLoader& Family(uint32_t first) {
    first_ = first;
    return *this;
  }
  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    const auto shared_bytes = static_cast<int>(shape.shared_bytes);
    if (!is_ok_ || shared_bytes > shared_bytes_max_) return;
    const auto* kernel = reinterpret_cast<const void*>(kKernel);
    int resident = 0;
    is_ok_ = IsOk(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       shared_bytes)) &&
             IsOk(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                 &resident, kernel, static_cast<int>(shape.threads), shape.shared_bytes));
    loaded_.blocks[first_ + shape.list].store(static_cast<uint32_t>(processors_ * resident),
                                              std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_ok() const { return is_ok_; }

 private:
  int processors_, shared_bytes_max_;
  LoadedKernels& loaded_;
  uint32_t first_ = 0;
  bool is_ok_ = true;
};

// Sets *loaded to the kernels of the current device, and loads them at the first call. Concurrent
// calls give the same result.
LaunchResult Load(const LoadedKernels** loaded) {
  static std::array<LoadedKernels, kDevicesMax> of_devices;
  if (!Probe().is_available) return LaunchResult::kUnavailable;
  int device = 0;
  if (!IsOk(cudaGetDevice(&device))) return LaunchResult::kDeviceError;
  if (device >= kDevicesMax) {
    last_error = "the number of the device is 64 or more";
    return LaunchResult::kUnavailable;
  }
  LoadedKernels& kernels = of_devices[static_cast<size_t>(device)];
  *loaded = &kernels;
  // Pairs with the store below.
  if (kernels.are_loaded.load(std::memory_order_acquire)) return LaunchResult::kOk;
  int major = 0, processors = 0, shared_bytes_max = 0;
  if (!IsOk(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) ||
      !IsOk(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
      !IsOk(cudaDeviceGetAttribute(&shared_bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                   device))) {
    return LaunchResult::kDeviceError;
  }
  if (major < kComputeMajorMin) {
    last_error = "the device is older than compute capability 8.0";
    return LaunchResult::kUnavailable;
  }
  KernelLoader loader(processors, shared_bytes_max, &kernels);
  ForEachDecodeKernel(loader.Family(0));
  ForEachEncodeKernel(loader.Family(kEncodeFirst));
  ForEachAttendKernel(loader.Family(kAttendFirst));
  ForEachMineKernel(loader.Family(kMineFirst));
  ForEachPassKernel(loader.Family(kPassFirst));
  if (!loader.is_ok()) return LaunchResult::kDeviceError;
  kernels.are_loaded.store(true, std::memory_order_release);
  return LaunchResult::kOk;
}

// Puts the kernels of a plan's lists on a stream.
//   first  the number of its first list among all kernels
template <typename Plan, typename Arguments>
class Launch {
 public:
  Launch(const Plan& plan, uint32_t first, Arguments arguments, Stream stream)
      : plan_(plan),
        first_(first),
        arguments_(arguments),
        stream_(static_cast<cudaStream_t>(stream)),
        result_(Check()) {}

  // Uses as many blocks as the device holds, so that a captured graph fits plans of any length.
  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    if (result_ != LaunchResult::kOk || plan_.counts[shape.list] == 0) return;
    arguments_.list = shape.list;
    void* list[] = {&arguments_};
    const bool is_ok =
        IsOk(cudaLaunchKernel(reinterpret_cast<const void*>(kKernel), dim3(Blocks(shape.list)),
                              dim3(shape.threads), list, shape.shared_bytes, stream_));
    if (!is_ok) result_ = LaunchResult::kDeviceError;
  }
  [[nodiscard]] LaunchResult result() const { return result_; }

 private:
  // Returns kOk if all kernels of the plan can be launched. Otherwise none is launched.
  LaunchResult Check() {
    if (!Probe().is_available) return LaunchResult::kUnavailable;
    if (stream_ == nullptr) return LaunchResult::kNoStream;
    if (const LaunchResult result = Load(&loaded_); result != LaunchResult::kOk) return result;
    for (uint32_t list = 0; list < plan_.counts.size(); ++list) {
      if (plan_.counts[list] == 0 || Blocks(list) != 0) continue;
      last_error = "a kernel of the plan needs more shared memory than a block of the device has";
      return LaunchResult::kUnavailable;
    }
    return LaunchResult::kOk;
  }
  [[nodiscard]] uint32_t Blocks(uint32_t list) const {
    return loaded_->blocks[first_ + list].load(std::memory_order_relaxed);
  }

  const Plan& plan_;
  uint32_t first_;
  Arguments arguments_;
  cudaStream_t stream_;
  const LoadedKernels* loaded_ = nullptr;
  LaunchResult result_;
};

}  // namespace

Availability Probe() {
  static const Availability found = Find();
  return found;
}

LaunchResult LoadKernels() {
  const LoadedKernels* loaded = nullptr;
  return Load(&loaded);
}

LaunchResult LaunchDecode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                          Stream stream) {
  const DecodeArgs args{reinterpret_cast<const uint8_t*>(bytes), status, 0};
  Launch launch(plan, 0, args, stream);
  ForEachDecodeKernel(launch);
  return launch.result();
}

LaunchResult LaunchEncode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                          uint32_t* status, Stream stream) {
  const EncodeArgs args{reinterpret_cast<const uint8_t*>(bytes), results, status, 0};
  Launch launch(plan, kEncodeFirst, args, stream);
  ForEachEncodeKernel(launch);
  return launch.result();
}

LaunchResult LaunchAttend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                          uint32_t* status, Stream stream) {
  const AttendArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<float*>(scratch),
                        status, 0};
  Launch launch(plan, kAttendFirst, args, stream);
  ForEachAttendKernel(launch);
  return launch.result();
}

LaunchResult LaunchMine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                        uint32_t* status, Stream stream) {
  const MineArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<uint8_t*>(scratch),
                      status, 0};
  Launch launch(plan, kMineFirst, args, stream);
  ForEachMineKernel(launch);
  return launch.result();
}

LaunchResult LaunchMinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                            uint32_t* status, Stream stream) {
  const MinePassArgs args{reinterpret_cast<const uint8_t*>(bytes), reinterpret_cast<uint8_t*>(sums),
                          status, 0};
  Launch launch(plan, kPassFirst, args, stream);
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
