// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <atomic>
#include <string>
#include <utility>

#include "kernels/backend.h"
#include "kernels/cuda_calls.h"
#include "kernels/runtime.h"

namespace cairn::kernels {
namespace {

// Returns whether the process uses the device. If it does not, making the device current would
// initialize it, which takes hundreds of megabytes there. Returns true if the driver does not
// report it.
bool IsUsed(int device) {
  using GetState = int (*)(int device, unsigned int* flags, int* is_active);
  static const auto get_state = [] {
    constexpr const char* kName = "cuDevicePrimaryCtxGetState";
    void* found = nullptr;
#if CUDART_VERSION >= 12050
    const bool is_found =
        IsOk(cudaGetDriverEntryPointByVersion(kName, &found, 7000, cudaEnableDefault));
#else
    const bool is_found = IsOk(cudaGetDriverEntryPoint(kName, &found, cudaEnableDefault));
#endif
    return is_found ? reinterpret_cast<GetState>(found) : nullptr;
  }();
  unsigned int flags = 0;
  int is_active = 0;
  return get_state == nullptr || get_state(device, &flags, &is_active) != 0 || is_active != 0;
}

// Makes a device the thread's current one, and restores the previous one afterwards.
class OnDevice {
 public:
  explicit OnDevice(int device) : is_ok_(IsOk(cudaGetDevice(&before_))) {
    if (!is_ok_ || before_ == device) return;
    is_ok_ = is_set_ = IsOk(cudaSetDevice(device));
  }
  ~OnDevice() {
    if (is_set_ && IsUsed(before_)) static_cast<void>(IsOk(cudaSetDevice(before_)));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] bool is_ok() const { return is_ok_; }

 private:
  int before_ = 0;
  bool is_ok_, is_set_ = false;
};

// Allows calls of the thread that CUDA refuses while another thread captures a graph, and that
// would fail that capture: allocation, registration, and creation or queries of streams. None of
// these calls is part of a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() { static_cast<void>(IsOk(cudaThreadExchangeStreamCaptureMode(&mode_))); }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaRuntime final : public Runtime {
 public:
  CudaRuntime(int device, std::string name) : device_(device), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }

  std::byte* AllocateDevice(size_t bytes) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    // Every launch needs device memory. If loading fails, the launch reports it.
    if (on.is_ok()) static_cast<void>(LoadKernels());
    void* memory = nullptr;
    return on.is_ok() && IsAllocated(cudaMalloc(&memory, bytes)) ? static_cast<std::byte*>(memory)
                                                                 : nullptr;
  }
  void FreeDevice(std::byte* bytes) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    if (on.is_ok()) static_cast<void>(IsOk(cudaFree(bytes)));
  }
  std::byte* AllocateHost(size_t bytes) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    void* memory = nullptr;
    return on.is_ok() && IsAllocated(cudaMallocHost(&memory, bytes))
               ? static_cast<std::byte*>(memory)
               : nullptr;
  }
  void FreeHost(std::byte* bytes) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    if (on.is_ok()) static_cast<void>(IsOk(cudaFreeHost(bytes)));
  }
  bool RegisterHost(std::byte* bytes, size_t count) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    return on.is_ok() && IsOk(cudaHostRegister(bytes, count, cudaHostRegisterPortable));
  }
  bool RegisterHostForReading(const std::byte* bytes, size_t count) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    int is_supported = 0;
    return on.is_ok() &&
           IsOk(cudaDeviceGetAttribute(&is_supported, cudaDevAttrHostRegisterReadOnlySupported,
                                       device_)) &&
           is_supported != 0 &&
           IsOk(cudaHostRegister(const_cast<std::byte*>(bytes), count,
                                 cudaHostRegisterPortable | cudaHostRegisterReadOnly));
  }
  void UnregisterHost(const std::byte* bytes) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    if (on.is_ok()) static_cast<void>(IsOk(cudaHostUnregister(const_cast<std::byte*>(bytes))));
  }
  bool is_lost() const override { return is_lost_; }
  Stream OpenStream() override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    cudaStream_t stream = nullptr;
    return on.is_ok() && IsOk(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) ? stream
                                                                                         : nullptr;
  }
  void CloseStream(Stream stream) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    if (on.is_ok()) static_cast<void>(IsOk(cudaStreamDestroy(static_cast<cudaStream_t>(stream))));
  }

  // A graph can capture these.
  LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  LaunchResult Clear(std::byte* at, size_t bytes, Stream stream) override {
    if (stream == nullptr) return LaunchResult::kNoStream;
    const OnDevice on(device_);
    return ResultOf(on.is_ok() &&
                    IsOk(cudaMemsetAsync(at, 0, bytes, static_cast<cudaStream_t>(stream))));
  }
  LaunchResult Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                      Stream stream) override {
    const OnDevice on(device_);
    return on.is_ok() ? LaunchDecode(plan, bytes, status, stream) : LaunchResult::kDeviceError;
  }
  LaunchResult Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                      uint32_t* status, Stream stream) override {
    const OnDevice on(device_);
    return on.is_ok() ? LaunchEncode(plan, bytes, results, status, stream)
                      : LaunchResult::kDeviceError;
  }
  LaunchResult Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                      uint32_t* status, Stream stream) override {
    const OnDevice on(device_);
    return on.is_ok() ? LaunchAttend(plan, bytes, scratch, status, stream)
                      : LaunchResult::kDeviceError;
  }
  LaunchResult Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                    uint32_t* status, Stream stream) override {
    const OnDevice on(device_);
    return on.is_ok() ? LaunchMine(plan, bytes, scratch, status, stream)
                      : LaunchResult::kDeviceError;
  }
  LaunchResult MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                        uint32_t* status, Stream stream) override {
    const OnDevice on(device_);
    return on.is_ok() ? LaunchMinePass(plan, bytes, sums, status, stream)
                      : LaunchResult::kDeviceError;
  }

  LaunchResult Poll(Stream stream, bool* is_over) override {
    const RelaxedCapture outside;
    const OnDevice on(device_);
    if (!on.is_ok()) return LaunchResult::kDeviceError;
    const cudaError_t error = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    *is_over = error == cudaSuccess;
    return ResultOf(error == cudaErrorNotReady || IsOk(error));
  }

 private:
  // If a kernel has broken the context, every later call returns that kernel's error.
  bool IsAllocated(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation) is_lost_ = true;
    return IsOk(error);
  }
  static LaunchResult ResultOf(bool is_ok) {
    return is_ok ? LaunchResult::kOk : LaunchResult::kDeviceError;
  }
  [[nodiscard]] LaunchResult Copy(std::byte* to, const std::byte* from, size_t bytes,
                                  cudaMemcpyKind kind, Stream stream) const {
    if (stream == nullptr) return LaunchResult::kNoStream;
    const OnDevice on(device_);
    return ResultOf(on.is_ok() && IsOk(cudaMemcpyAsync(to, from, bytes, kind,
                                                       static_cast<cudaStream_t>(stream))));
  }

  const int device_;
  const std::string name_;
  std::atomic<bool> is_lost_{false};
};

}  // namespace

std::unique_ptr<Runtime> OpenCudaRuntime(int device) {
  cudaDeviceProp properties;
  if (!Probe().is_available || !IsOk(cudaGetDeviceProperties(&properties, device)) ||
      properties.major < kComputeMajorMin) {
    return nullptr;
  }
  return std::make_unique<CudaRuntime>(device, properties.name);
}

}  // namespace cairn::kernels
