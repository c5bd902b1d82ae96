// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images that are coded together: a stream, memory of the device, and what of the host's the device
// reads plans from and writes results to. All of it is taken once.
//
//   the device's memory:  plan, status, results | sources, slots, images … → free ← side objects
//
// Side objects stay from batch to batch as long as there is room. What is handed to a batch keeps
// its memory until the stream is over or the device has failed, whatever its owner was told
// meanwhile.
//
// Thread-safety: Owned by the codec's thread, but for Make() and the destructor.

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

// Work that waits for the device, or is on it.
struct CodecJob {
  const SideObject* side_object() const {
    return op == CodecOp::kEncode ? encode.side_object : decode.side_object;
  }

  CodecOp op = CodecOp::kEncode;
  EncodeWork encode;  // of either, the one that op names
  DecodeWork decode;
  CodecDone done;  // null: its owner has been told
  Extent made;     // empty until there is room for it
  absl::Time asked = absl::InfinitePast(), give_up = absl::InfiniteFuture();
  uint64_t device_bytes = 0;  // beside the side object
};

// Tells the owner that the device does not do it. Nothing if it has been told already.
void FallBack(CodecFigures& figures, CodecJob& job, CodecFallback reason);

// Of the memory of a batch; the rest is plan, status and results.
uint64_t RoomForImages(uint64_t batch_bytes);
// What the work takes of it. The side object, which others of a batch may share, comes on top.
uint64_t DeviceBytesOf(const EncodeWork& work);
uint64_t DeviceBytesOf(const DecodeWork& work);
uint64_t SideBytesOf(const SideObject* side);

class DeviceBatch {
 public:
  // ResourceExhausted: the device, or its driver, has no room. `host`, whose arena is registered
  // with the device, and `figures` outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceBatch>> Make(std::shared_ptr<GpuDevice> device,
                                                           HostTier& host, uint64_t bytes,
                                                           CodecFigures& figures);
  ~DeviceBatch();  // REQUIRES: is_idle()

  // Nothing of it is on the stream.
  bool is_idle() const { return phase_ == Phase::kIdle; }
  // Since when it waits for what is on the stream.
  absl::Time waits_since() const { return waits_since_; }
  size_t image_count() const { return jobs_.size(); }

  // Puts jobs of one kind on the stream; returns those at their end that the plan had no room for.
  // REQUIRES: it is idle; all jobs together have room.
  std::deque<CodecJob> Begin(std::deque<CodecJob> jobs);
  // Goes on where the stream is over; false: it is not.
  bool Advance();
  // Tells those whose time is over, or all, that the device does not do it.
  void FallBackLate(absl::Time now);
  void FallBackAll(CodecFallback reason);

 private:
  enum class Phase : uint8_t {
    kIdle,
    kCoding,   // encoding, up to results
    kCopying,  // to its place in the host's memory; decoding in front of it
    kLeaving,  // its owners have been told; waits for the end of the stream
  };
  struct SideObjectThere {
    codecs::Digest id{};
    std::byte* at = nullptr;
  };
  struct NextCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    size_t job = 0;  // that has what is read
    bool is_side = false;
  };

  DeviceBatch(std::shared_ptr<GpuDevice> device, HostTier& host, uint64_t bytes,
              CodecFigures& figures);
  absl::Status Prepare();

  std::byte* Take(uint64_t bytes);
  bool IsThere(const SideObject* side) const;
  // *placed: where the side object is, or is to be, on the device; null: it needs none. False:
  // there is no staging for it.
  bool PlaceSide(const SideObject* side, uint64_t below, const std::byte** placed);
  // Records whether the device takes it; false: it does not, and nothing more is put on the stream.
  bool Took(kernels::LaunchResult result);
  bool CopyIn(std::byte* to, const void* from, size_t bytes);
  // To be copied where the job is one of the batch's in the end.
  void Note(std::byte* to, const void* from, size_t bytes, bool is_side = false);
  // The same for memory that is not registered with the device: a copy out of that would wait for
  // all that the device does, so it goes by way of staging. False: there is none left.
  bool NoteStaged(std::byte* to, std::span<const std::byte> from, bool is_side = false);
  void CopyNoted();
  // Of that job and those behind it, nothing is put on the stream.
  void Forget(size_t first_job);
  // What is whole goes to its owners.
  void Finish();
  void End();

  // Lays the jobs out in memory; those that no kernel does are handed back.
  void PlaceAll(std::deque<CodecJob> jobs);
  // The most jobs that a plan takes, from the first; 0: not even that one, and why.
  size_t MakePlan(codecs::Error* error);
  kernels::PagedView ViewOfSource(const codecs::ImageSpec& spec, std::byte* base);
  const uint32_t* statuses() const;

  // --- device_encode.cc
  bool PlaceEncode(CodecJob& job, uint64_t below);
  void LaunchEncode();
  void CopyImages();
  bool CopyImage(CodecJob& job, const kernels::EncodeJob& made, uint32_t status,
                 std::span<const kernels::TileResult> tiles);

  // --- device_decode.cc
  bool PlaceDecode(CodecJob& job, uint64_t below);
  void LaunchDecode();
  // Hands back what the kernels found a fault in.
  void CheckDecoded();

  const std::shared_ptr<GpuDevice> device_;
  kernels::Runtime& runtime_;
  HostTier& host_tier_;
  const uint64_t bytes_;
  CodecFigures& figures_;
  kernels::Stream stream_ = nullptr;
  std::byte* memory_ = nullptr;  // of the device
  std::byte* host_ = nullptr;    // plan, status, results
  Phase phase_ = Phase::kIdle;
  absl::Time began_ = absl::InfinitePast();  // to put it on the stream
  absl::Time waits_since_ = absl::InfinitePast();
  std::deque<CodecJob> jobs_;
  // Of each job. Addresses of layers for planes; images of blocks before.
  std::deque<std::vector<std::byte*>> layers_;
  std::deque<std::vector<kernels::StoredImage>> parents_;
  CodecOp op_ = CodecOp::kEncode;  // of all jobs
  std::vector<kernels::EncodeJob> encodes_;
  std::vector<kernels::DecodeJob> decodes_;
  kernels::EncodePlan encode_plan_;
  kernels::DecodePlan decode_plan_;
  uint64_t used_bytes_ = 0;  // from the front of the memory
  uint64_t side_begin_ = 0;  // of what side objects have of it
  std::vector<SideObjectThere> sides_;
  std::vector<NextCopy> noted_;
  std::vector<Extent> staged_;  // what some of them are copied from
};

}  // namespace cairn
