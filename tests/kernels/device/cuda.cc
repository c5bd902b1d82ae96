// SPDX-License-Identifier: Apache-2.0
// The first CUDA device of the machine.
#include <cuda_runtime.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "kernels/backend.h"
#include "tests/kernels/device/device.h"

// The linker has launches of kernels come to `wrap`, and gives CUDA's own as `real`.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" cudaError_t CUDARTAPI __real_cudaLaunchKernel(const void* kernel, dim3 blocks,
                                                         dim3 threads, void** arguments,
                                                         size_t shared_bytes, cudaStream_t stream);
extern "C" cudaError_t CUDARTAPI __wrap_cudaLaunchKernel(const void* kernel, dim3 blocks,
                                                         dim3 threads, void** arguments,
                                                         size_t shared_bytes, cudaStream_t stream);
// NOLINTEND(bugprone-reserved-identifier)

namespace cairn::kernels::device {
namespace {

struct State {
  Description found;
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr;
  std::map<std::byte*, void*> allocations;
  std::string fault;  // the first
  Blocks blocks = Blocks::kMany;
};

State& TheState() {
  static State state;
  return state;
}

bool IsOk(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  std::string& fault = TheState().fault;
  if (fault.empty()) {
    fault = std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  }
  return false;
}

void NoteLaunch(LaunchResult result) {
  if (result == LaunchResult::kOk) return;
  std::string& fault = TheState().fault;
  if (fault.empty()) fault = "a launch was refused: " + std::string(LastDeviceError());
}

std::string DriverVersion() {
  std::string module = "unknown";
  std::ifstream("/sys/module/nvidia/version") >> module;
  int version = 0;
  if (!IsOk(cudaDriverGetVersion(&version), "cudaDriverGetVersion")) return module;
  return module + " (CUDA " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10) + ")";
}

void Open(State* state) {
  const Availability probed = Probe();
  if (!probed.is_available) {
    state->found.unavailable = std::string(probed.reason);
    return;
  }
  cudaDeviceProp properties{};
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  const bool is_open =
      IsOk(cudaSetDevice(0), "cudaSetDevice") &&
      IsOk(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties") &&
      IsOk(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo") &&
      IsOk(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking), "cudaStreamCreate") &&
      IsOk(cudaEventCreate(&state->start), "cudaEventCreate") &&
      IsOk(cudaEventCreate(&state->end), "cudaEventCreate");
  if (!is_open) {
    state->found.unavailable = "unavailable: " + state->fault;
    return;
  }
  state->found.driver = DriverVersion();
  state->found.free_bytes = free_bytes;
  state->found.name = properties.name;
}

// Of what `put` puts on the stream.
template <typename Put>
double SecondsOf(Put put) {
  State& state = TheState();
  float milliseconds = 0;
  const bool is_timed =
      IsOk(cudaEventRecord(state.start, state.stream), "cudaEventRecord") && put() &&
      IsOk(cudaEventRecord(state.end, state.stream), "cudaEventRecord") &&
      IsOk(cudaEventSynchronize(state.end), "cudaEventSynchronize") &&
      IsOk(cudaEventElapsedTime(&milliseconds, state.start, state.end), "cudaEventElapsedTime");
  return is_timed ? static_cast<double>(milliseconds) / 1000 : 0;
}

double GraphSeconds(const std::function<void()>& enqueue) {
  const cudaStream_t stream = TheState().stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  if (!IsOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture")) {
    return 0;
  }
  enqueue();
  double seconds = 0;
  if (IsOk(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture") &&
      IsOk(cudaGraphInstantiateWithFlags(&launchable, graph, 0), "cudaGraphInstantiate") &&
      IsOk(cudaGraphUpload(launchable, stream), "cudaGraphUpload")) {
    seconds =
        SecondsOf([&] { return IsOk(cudaGraphLaunch(launchable, stream), "cudaGraphLaunch"); });
  }
  if (launchable != nullptr) IsOk(cudaGraphExecDestroy(launchable), "cudaGraphExecDestroy");
  if (graph != nullptr) IsOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return seconds;
}

void CopyAndWait(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaStream_t stream = TheState().stream;
  if (bytes == 0) return;
  if (IsOk(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync")) {
    IsOk(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
}

}  // namespace

const Description& Find() {
  State& state = TheState();
  if (state.found.name.empty() && state.found.unavailable.empty()) Open(&state);
  return state.found;
}

std::byte* Allocate(size_t bytes, bool, size_t misalignment) {
  void* room = nullptr;
  if (!IsOk(cudaMalloc(&room, std::max<size_t>(bytes + misalignment, 1)), "cudaMalloc"))
    return nullptr;
  std::byte* const data = static_cast<std::byte*>(room) + misalignment;
  TheState().allocations.emplace(data, room);
  return data;
}

void Free(std::byte* bytes) {
  const auto allocation = TheState().allocations.extract(bytes);
  if (!allocation.empty()) IsOk(cudaFree(allocation.mapped()), "cudaFree");
}

void CopyIn(std::byte* to, const void* from, size_t bytes) {
  CopyAndWait(to, from, bytes, cudaMemcpyHostToDevice);
}
void CopyOut(void* to, const std::byte* from, size_t bytes) {
  CopyAndWait(to, from, bytes, cudaMemcpyDeviceToHost);
}
void Fill(std::byte* to, uint8_t byte, size_t bytes) {
  IsOk(cudaMemsetAsync(to, byte, bytes, TheState().stream), "cudaMemsetAsync");
}
void Copy(std::byte* to, const std::byte* from, size_t bytes) {
  IsOk(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, TheState().stream),
       "cudaMemcpyAsync");
}

void SetBlocks(Blocks blocks) { TheState().blocks = blocks; }

void Decode(const DecodePlan& plan, const std::byte* bytes, uint32_t* status, uint64_t) {
  NoteLaunch(LaunchDecode(plan, bytes, status, TheState().stream));
}

void Encode(const EncodePlan& plan, const std::byte* bytes, TileResult* results, uint32_t* status,
            uint64_t) {
  NoteLaunch(LaunchEncode(plan, bytes, results, status, TheState().stream));
}

bool Attend(const AttendPlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
            uint64_t) {
  const LaunchResult result = LaunchAttend(plan, bytes, scratch, status, TheState().stream);
  // Where kernels are loaded, shared memory is all that a launch can be refused for.
  if (result == LaunchResult::kUnavailable && LoadKernels() == LaunchResult::kOk) return false;
  NoteLaunch(result);
  return true;
}

void Mine(const MinePlan& plan, const std::byte* bytes, std::byte* scratch, uint32_t* status,
          uint64_t) {
  NoteLaunch(LaunchMine(plan, bytes, scratch, status, TheState().stream));
}

void MinePass(const MinePassPlan& plan, const std::byte* bytes, std::byte* sums, uint32_t* status,
              uint64_t) {
  NoteLaunch(LaunchMinePass(plan, bytes, sums, status, TheState().stream));
}

std::string Finish() {
  State& state = TheState();
  IsOk(cudaStreamSynchronize(state.stream), "cudaStreamSynchronize");
  return std::exchange(state.fault, {});
}

double Seconds(Timed how, const std::function<void()>& enqueue) {
  if (how == Timed::kAsGraph) return GraphSeconds(enqueue);
  return SecondsOf([&] {
    enqueue();
    return true;
  });
}

}  // namespace cairn::kernels::device

cudaError_t __wrap_cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                                    size_t shared_bytes, cudaStream_t stream) {
  using cairn::kernels::device::Blocks;
  if (cairn::kernels::device::TheState().blocks == Blocks::kOne) blocks = dim3(1);
  return __real_cudaLaunchKernel(kernel, blocks, threads, arguments, shared_bytes, stream);
}
