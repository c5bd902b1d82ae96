// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <string>

#include "kernels/runtime.h"

namespace cairn::kernels {
namespace {

class CudaRuntime final : public Runtime {
 public:
  CudaRuntime(int device, std::string name) : device_(device), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }

  std::byte* AllocateDevice(size_t bytes) override {
    void* memory = nullptr;
    return IsCurrent() && cudaMalloc(&memory, bytes) == cudaSuccess
               ? static_cast<std::byte*>(memory)
               : nullptr;
  }
  void FreeDevice(std::byte* bytes) override {
    if (IsCurrent()) static_cast<void>(cudaFree(bytes));
  }
  std::byte* AllocateHost(size_t bytes) override {
    void* memory = nullptr;
    return IsCurrent() && cudaMallocHost(&memory, bytes) == cudaSuccess
               ? static_cast<std::byte*>(memory)
               : nullptr;
  }
  void FreeHost(std::byte* bytes) override {
    if (IsCurrent()) static_cast<void>(cudaFreeHost(bytes));
  }
  bool RegisterHost(std::byte* bytes, size_t count) override {
    return IsCurrent() && cudaHostRegister(bytes, count, cudaHostRegisterPortable) == cudaSuccess;
  }
  void UnregisterHost(std::byte* bytes) override {
    if (IsCurrent()) static_cast<void>(cudaHostUnregister(bytes));
  }
  Stream OpenStream() override {
    cudaStream_t stream = nullptr;
    return IsCurrent() && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess
               ? stream
               : nullptr;
  }
  void CloseStream(Stream stream) override {
    if (IsCurrent()) static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
  }

  LaunchResult CopyIn(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  LaunchResult Clear(std::byte* at, size_t bytes, Stream stream) override {
    if (stream == nullptr) return LaunchResult::kNoStream;
    return ResultOf(IsCurrent() &&
                    cudaMemsetAsync(at, 0, bytes, static_cast<cudaStream_t>(stream)) ==
                        cudaSuccess);
  }
  LaunchResult Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status,
                      Stream stream) override {
    return IsCurrent() ? LaunchDecode(plan, bytes, status, stream) : LaunchResult::kDeviceError;
  }
  LaunchResult Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results,
                      uint32_t* status, Stream stream) override {
    return IsCurrent() ? LaunchEncode(plan, bytes, results, status, stream)
                       : LaunchResult::kDeviceError;
  }
  LaunchResult Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch,
                      uint32_t* status, Stream stream) override {
    return IsCurrent() ? LaunchAttend(plan, bytes, scratch, status, stream)
                       : LaunchResult::kDeviceError;
  }
  LaunchResult Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch,
                    uint32_t* status, Stream stream) override {
    return IsCurrent() ? LaunchMine(plan, bytes, scratch, status, stream)
                       : LaunchResult::kDeviceError;
  }
  LaunchResult MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums,
                        uint32_t* status, Stream stream) override {
    return IsCurrent() ? LaunchMinePass(plan, bytes, sums, status, stream)
                       : LaunchResult::kDeviceError;
  }
  LaunchResult Poll(Stream stream, bool* is_over) override {
    if (!IsCurrent()) return LaunchResult::kDeviceError;
    const cudaError_t error = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    *is_over = error == cudaSuccess;
    return ResultOf(error == cudaSuccess || error == cudaErrorNotReady);
  }

 private:
  [[nodiscard]] bool IsCurrent() const { return cudaSetDevice(device_) == cudaSuccess; }
  static LaunchResult ResultOf(bool is_ok) {
    return is_ok ? LaunchResult::kOk : LaunchResult::kDeviceError;
  }
  [[nodiscard]] LaunchResult Copy(std::byte* to, const std::byte* from, size_t bytes,
                                  cudaMemcpyKind kind, Stream stream) const {
    if (stream == nullptr) return LaunchResult::kNoStream;
    return ResultOf(IsCurrent() &&
                    cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(stream)) ==
                        cudaSuccess);
  }

  const int device_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Runtime> OpenCudaRuntime(int device) {
  cudaDeviceProp properties;
  if (!Probe().is_available || cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return nullptr;
  }
  return std::make_unique<CudaRuntime>(device, properties.name);
}

}  // namespace cairn::kernels
