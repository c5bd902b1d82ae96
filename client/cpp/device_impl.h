// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a DeviceMover is made of: device.cc has what gets and puts share, device_get.cc and
// device_put.cc each of them. Private to client/cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "client/cpp/data.h"
#include "client/cpp/device.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/device_side_objects.h"
#include "client/cpp/device_staging.h"
#include "client/cpp/paged.h"
#include "client/cpp/side_objects.h"
#include "codecs/image/image.h"

namespace cairn {

// Thread-safety: as of DeviceMover.
class DeviceMover::Impl {
 public:
  Impl(Space& space, kernels::Runtime& device, const GroupSlice& slice, const PlacedSlice& placed)
      : space_(space),
        device_(device),
        slice_(slice),
        placed_(placed),
        side_objects_(space, calls_),
        calls_(device) {}

  absl::Status Prepare();
  bool is_lost() const { return calls_.is_lost(); }

  template <typename Result, typename Move>
  std::vector<absl::StatusOr<Result>> Run(const DeviceRequest& request, bool is_put, Move move) {
    std::vector<absl::StatusOr<Result>> results(request.keys.size(),
                                                absl::InternalError("the request never ran"));
    const absl::Time deadline =
        MonotonicNow() +
        (request.timeout > absl::ZeroDuration() ? request.timeout : kDataTimeoutDefault);
    absl::Status status = Check(request, is_put);
    if (status.ok()) {
      status = calls_.Await(deadline);  // what a call before left behind
    }
    if (!status.ok()) {
      std::fill(results.begin(), results.end(), status);
      return results;
    }
    calls_.Use(request.stream);
    side_objects_.DropStaged();
    side_objects_.DropOldest(kSideObjectsMax);
    move(deadline, results);
    return results;
  }

  void Get(const DeviceRequest& request, absl::Time deadline,
           std::vector<absl::StatusOr<GetResult>>& results);
  void Put(const DeviceRequest& request, absl::Time deadline,
           std::vector<absl::StatusOr<PutResult>>& results);

 private:
  using Memory = DeviceMemory;

  // Side objects that stay on the device: of the spaces that one mover sees, more than enough.
  static constexpr size_t kSideObjectsMax = 2 * kernels::kPlanProfilesMax;

  // Where the parts of a batch lie, in the memory of the host and, at the same places, of the
  // device. Images come last: on the host they lie in the staging.
  struct Layout {
    uint64_t image_bytes_max = 0;  // of one
    uint64_t pages = 0, plan = 0, status = 0, results = 0, images = 0;
    uint64_t bytes = 0;  // of what comes before the images

    uint64_t ImagesBytes() const { return kBatchImages * image_bytes_max; }
  };

  // Images that are moved together. Its memory is in use until the stream is over.
  struct Batch {
    size_t first = 0, count = 0;  // of the request's keys
    Memory host, device;
    DeviceStaging staging;
    // --- Of a get.
    std::array<codecs::ImagePrefix, kBatchImages> prefixes;
    std::array<SideObjectHandle, kBatchImages> sides;
    // Of those that are under way; others have their result already.
    std::array<bool, kBatchImages> is_on_device{};
    // --- Of a put.
    std::array<codecs::ImageSpec, kBatchImages> specs;
    SideObjectHandle side;
    const std::byte* side_on_device = nullptr;
    uint64_t slot_bytes = 0;  // of an image
    std::array<uint64_t, kBatchImages> image_bytes{};
    kernels::EncodePlan plan;  // of images [encoded, planned)
    size_t encoded = 0;        // so many are on their way to the staging, or there
    size_t planned = 0;        // for so many there are kernels on the stream, or were
  };

  std::byte* HostImage(const Batch& batch, size_t i) const {
    return batch.staging.data() + i * layout_.image_bytes_max;
  }
  std::byte* DeviceImage(const Batch& batch, size_t i) const {
    return batch.device.data() + layout_.images + i * layout_.image_bytes_max;
  }
  const uint32_t* Statuses(const Batch& batch) const {
    return reinterpret_cast<const uint32_t*>(batch.host.data() + layout_.status);
  }
  size_t PagesPerKey(const DeviceRequest& request) const {
    return placed_.tokens / request.cache.tokens_per_block;
  }

  absl::Status Check(const DeviceRequest& request, bool is_put) const;
  // Memory for the batch's images. REQUIRES: nothing on the stream uses what the batch had.
  absl::Status TakeStaging(Batch& batch, absl::Time deadline);
  // The batch's rows of the block table, to the device.
  absl::Status CopyPages(const DeviceRequest& request, const Batch& batch);
  kernels::PagedView ViewOf(const DeviceRequest& request, const Batch& batch, size_t i) const;

  template <typename Result>
  void NoteFailures(const std::vector<absl::StatusOr<Result>>& results) {
    if (std::ranges::any_of(results, [](const auto& result) {
          return absl::IsUnavailable(result.status()) || absl::IsDeadlineExceeded(result.status());
        })) {
      for (Batch& batch : batches_) {
        batch.staging.OnCallsFailed();
      }
    }
  }

  // --- Get.
  absl::Status Fetch(const DeviceRequest& request, absl::Time deadline, Batch& batch,
                     std::vector<absl::StatusOr<GetResult>>& results);
  // The image's side object, on the device as well; null where it has none.
  absl::StatusOr<const std::byte*> SideObjectOf(Batch& batch, size_t i, absl::Time deadline);
  absl::Status Decode(const DeviceRequest& request, absl::Time deadline, Batch& batch,
                      std::vector<absl::StatusOr<GetResult>>& results);
  // Those images from `begin` to before `end`, in one plan, or where that is too large in two.
  absl::Status DecodeSome(const DeviceRequest& request, absl::Time deadline, Batch& batch,
                          size_t begin, size_t end,
                          std::vector<absl::StatusOr<GetResult>>& results);
  void Collect(const Batch& batch, size_t begin, size_t end,
               std::vector<absl::StatusOr<GetResult>>& results);

  // --- Put.
  // What the batch is encoded as: the space's recipe where it has kernels, else raw.
  absl::Status SetSpecs(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Room for the slots of a batch. REQUIRES: the stream is over.
  absl::Status ReserveSlots(uint64_t bytes);
  // Puts the first of the batch's work on the stream. REQUIRES: the stream is over.
  absl::Status Begin(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Kernels for images that have none yet, as many as fit in a plan.
  absl::Status Encode(const DeviceRequest& request, Batch& batch);
  codecs::Error MakePlan(const DeviceRequest& request, Batch& batch, size_t end);
  // What the kernels encoded, on its way to the staging. REQUIRES: the stream is over.
  absl::Status CopyImages(Batch& batch);
  // Does what the batch is ready for, and waits for nothing. True: all of its images are in the
  // staging.
  absl::StatusOr<bool> Advance(const DeviceRequest& request, Batch& batch);
  absl::Status AwaitImages(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Does `meanwhile` while the batch is on its way to the daemon.
  absl::Status Send(const DeviceRequest& request, absl::Time deadline, const Batch& batch,
                    Meanwhile meanwhile, std::vector<absl::StatusOr<PutResult>>& results);

  Space& space_;
  kernels::Runtime& device_;
  const GroupSlice slice_;
  const PlacedSlice placed_;
  Layout layout_;
  std::array<Batch, 2> batches_;
  DeviceSideObjects side_objects_;
  Memory slots_;  // of the device, for a batch that is being encoded
  uint64_t slots_bytes_ = 0;
  DeviceCalls calls_;  // destroyed first: waits for the stream, which uses the memory above
};

}  // namespace cairn
