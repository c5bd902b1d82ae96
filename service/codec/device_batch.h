// SPDX-License-Identifier: Apache-2.0
#pragma once
// A batch of images that the device encodes or decodes together. It has a stream, device memory,
// and host memory for plans and results. All of it is allocated once.
//
// layout of the device memory:
//   plan, status, results | sources, slots, images … → free ← side objects
//
// Side objects stay on the device between batches while there is room. The memory of a job stays in
// use until the stream completes or the device fails, even after the job has fallen back.
//
// Thread-safety: Owned by the codec's thread, except Make() and the destructor.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/encode_plan.h"
#include "kernels/plan.h"
#include "kernels/runtime.h"
#include "service/codec/codec_figures.h"
#include "service/codec/codec_work.h"
#include "service/memory/gpu_device.h"
#include "service/tier/host_tier.h"

namespace cairn {

// A request that waits for the device, or is on the device.
struct CodecJob {
  const SideObject* side_object() const {
    return op == CodecOp::kEncode ? encode.side_object : decode.side_object;
  }

  CodecOp op = CodecOp::kEncode;
  EncodeWork encode;  // if `op` is kEncode; otherwise `decode` is set
  DecodeWork decode;
  CodecDone done;  // null after the owner has received the result
  Extent made;     // empty until allocated
  absl::Time asked = absl::InfinitePast(), give_up = absl::InfiniteFuture();
  uint64_t device_bytes = 0;  // not including the side object
};

// Tells the owner that the CPU must do the work. Does nothing if the owner was told before.
void FallBack(CodecFigures& figures, CodecJob& job, CodecFallback reason);

// Returns how many bytes of a batch's memory are for images. The rest is for plan, status and
// results.
uint64_t RoomForImages(uint64_t batch_bytes);
// Returns the device memory that the work needs, except for its side object, which other jobs of
// the batch may share.
uint64_t DeviceBytesOf(const EncodeWork& work);
uint64_t DeviceBytesOf(const DecodeWork& work);
uint64_t SideBytesOf(const SideObject* side);

class DeviceBatch {
 public:
  // Errors: ResourceExhausted if the device or its driver has no room. `host` and `figures` must
  // outlive the batch. REQUIRES: the arena of `host` is registered with the device.
  static absl::StatusOr<std::unique_ptr<DeviceBatch>> Make(std::shared_ptr<GpuDevice> device,
                                                           HostTier& host, uint64_t bytes,
                                                           CodecFigures& figures);
  ~DeviceBatch();  // REQUIRES: is_idle()

  // Returns true if no work is on the stream.
  bool is_idle() const { return phase_ == Phase::kIdle; }
  // Returns the time at which the batch began to wait for the stream.
  absl::Time waits_since() const { return waits_since_; }
  size_t image_count() const { return jobs_.size(); }

  // Puts jobs of one kind on the stream. Returns the last jobs if the plan has no room for them.
  // REQUIRES: the batch is idle, and its memory has room for all jobs.
  std::deque<CodecJob> Begin(std::deque<CodecJob> jobs);
  // Goes to the next phase if the stream has completed. Returns false if it has not.
  bool Advance();
  // Make jobs fall back: the jobs past their deadline, or all jobs.
  void FallBackLate(absl::Time now);
  void FallBackAll(CodecFallback reason);

 private:
  enum class Phase : uint8_t {
    kIdle,
    kCoding,   // encodes only: the kernels run, until their results are read
    kCopying,  // images are copied to host memory; when decoding, also the kernels run
    kLeaving,  // all jobs have been answered; waits for the stream to complete
  };
  struct SideObjectThere {
    codecs::Digest id{};
    std::byte* at = nullptr;
  };
  struct NextCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    size_t job = 0;  // index of the job that reads it
    bool is_side = false;
  };

  DeviceBatch(std::shared_ptr<GpuDevice> device, HostTier& host, uint64_t bytes,
              CodecFigures& figures);
  absl::Status Prepare();

  std::byte* Take(uint64_t bytes);
  bool IsThere(const SideObject* side) const;
  // Sets *placed to the device address of the side object. Notes a copy if the object is not there
  // yet. Sets null if `side` is null. Returns false if there is no staging for the copy.
  bool PlaceSide(const SideObject* side, uint64_t below, const std::byte** placed);
  // Records a launch result. Returns false if the launch failed. After a failure, nothing more is
  // put on the stream.
  bool Took(kernels::LaunchResult result);
  bool CopyIn(std::byte* to, const void* from, size_t bytes);
  // Notes a copy, which is made only if the job stays in the batch.
  void Note(std::byte* to, const void* from, size_t bytes, bool is_side = false);
  // Notes a copy from memory that is not registered with the device. A direct copy would wait for
  // all work on the device, so it goes through staging. Returns false if no staging is left.
  bool NoteStaged(std::byte* to, std::span<const std::byte> from, bool is_side = false);
  void CopyNoted();
  // Drops the noted copies of that job and of all later jobs.
  void Forget(size_t first_job);
  // Gives finished results to their owners.
  void Finish();
  void End();

  // Assigns memory to the jobs. Jobs for which there is no kernel fall back.
  void PlaceAll(std::deque<CodecJob> jobs);
  // Returns how many jobs, from the first on, fit into one plan. If it returns 0, sets *error.
  size_t MakePlan(codecs::Error* error);
  kernels::PagedView ViewOfSource(const codecs::ImageSpec& spec, std::byte* base);
  const uint32_t* statuses() const;

  // --- Encoding
  bool PlaceEncode(CodecJob& job, uint64_t below);
  void LaunchEncode();
  void CopyImages();
  bool CopyImage(CodecJob& job, const kernels::EncodeJob& made, uint32_t status,
                 std::span<const kernels::TileResult> tiles);

  // --- Decoding
  bool PlaceDecode(CodecJob& job, uint64_t below);
  void LaunchDecode();
  // Jobs that the kernels found invalid fall back.
  void CheckDecoded();

  const std::shared_ptr<GpuDevice> device_;
  kernels::Runtime& runtime_;
  HostTier& host_tier_;
  const uint64_t bytes_;
  CodecFigures& figures_;
  kernels::Stream stream_ = nullptr;
  std::byte* memory_ = nullptr;  // on the device
  std::byte* host_ = nullptr;    // plan, status, results
  Phase phase_ = Phase::kIdle;
  absl::Time began_ = absl::InfinitePast();  // when Begin() was called
  absl::Time waits_since_ = absl::InfinitePast();
  std::deque<CodecJob> jobs_;
  // layers_:  per job and plane, the addresses of the layers in its source (decode: in its target)
  // parents_: per encode job, the images of the previous blocks
  std::deque<std::vector<std::byte*>> layers_;
  std::deque<std::vector<kernels::StoredImage>> parents_;
  CodecOp op_ = CodecOp::kEncode;  // the operation of all jobs
  std::vector<kernels::EncodeJob> encodes_;
  std::vector<kernels::DecodeJob> decodes_;
  kernels::EncodePlan encode_plan_;
  kernels::DecodePlan decode_plan_;
  uint64_t used_bytes_ = 0;  // used bytes at the start of memory_
  uint64_t side_begin_ = 0;  // where the side objects begin in memory_
  std::vector<SideObjectThere> sides_;
  std::vector<NextCopy> noted_;
  std::vector<Extent> staged_;  // staging that noted copies read
};

}  // namespace cairn
