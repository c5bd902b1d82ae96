// SPDX-License-Identifier: Apache-2.0
#pragma once
// The implementation of DeviceMover. device.cc has the code that gets and puts share; device_get.cc
// and device_put.cc have the rest. Private to client/cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "client/cpp/data.h"
#include "client/cpp/device.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/device_side_objects.h"
#include "client/cpp/device_staging.h"
#include "client/cpp/lent_image.h"
#include "client/cpp/lent_pieces.h"
#include "client/cpp/paged.h"
#include "client/cpp/side_objects.h"
#include "codecs/image/image.h"

namespace cairn {

// Thread-safety: as for DeviceMover.
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
      status = calls_.Await(deadline);  // for the work of an earlier call
    }
    if (!status.ok()) {
      std::fill(results.begin(), results.end(), status);
      return results;
    }
    std::ranges::for_each(batches_, GiveBack);
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

  // Maximum number of side objects on the device: more than enough for the spaces of one mover.
  static constexpr size_t kSideObjectsMax = 2 * kernels::kPlanProfilesMax;

  // Offsets of the parts of a batch. Host memory and device memory have the same offsets. Images
  // come last, because on the host they are in the staging memory instead.
  struct Layout {
    uint64_t image_bytes_max = 0;  // maximum for one image
    uint64_t pages = 0, plan = 0, status = 0, results = 0, images = 0;
    uint64_t bytes = 0;  // total size of the parts before the images

    uint64_t ImagesBytes() const { return kBatchImages * image_bytes_max; }
  };

  // Images that are moved together. The batch's memory is in use until the work on the stream is
  // complete.
  struct Batch {
    size_t first = 0, count = 0;  // range of the request's keys
    Memory host, device;
    DeviceStaging staging;
    // --- For a get.
    std::array<codecs::ImagePrefix, kBatchImages> prefixes;
    std::array<SideObjectHandle, kBatchImages> sides;
    // Images that the device reads in the daemon's memory. The loans of all others are null. The
    // pieces have the lent memory of the batch.
    std::array<LentImage, kBatchImages> lent;
    std::shared_ptr<LentPieces> pieces;
    // Marks the images that are on the device. All other images already have their results.
    std::array<bool, kBatchImages> is_on_device{};
    // --- For a put.
    std::array<codecs::ImageSpec, kBatchImages> specs;
    SideObjectHandle side;
    const std::byte* side_on_device = nullptr;
    uint64_t slot_bytes = 0;  // per image
    std::array<uint64_t, kBatchImages> image_bytes{};
    kernels::EncodePlan plan;  // for the images from `encoded` up to `planned`
    size_t encoded = 0;        // number of images that are being copied to the staging memory
    size_t planned = 0;        // number of images whose kernels are on the stream
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
  // Gets staging memory for the batch. REQUIRES: no work on the stream uses the batch's earlier
  // memory.
  absl::Status TakeStaging(Batch& batch, absl::Time deadline);
  // Copies the batch's entries of the block table to the device.
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

  // --- Get. Gets the blocks of the keys in [begin, end).
  void GetRange(const DeviceRequest& request, absl::Time deadline, size_t begin, size_t end,
                bool takes_loans, std::vector<absl::StatusOr<GetResult>>& results);
  absl::Status Fetch(const DeviceRequest& request, absl::Time deadline, bool takes_loans,
                     Batch& batch, std::vector<absl::StatusOr<GetResult>>& results);
  // Prepares a lent image for the device: registers its memory. If the device does not read that,
  // copies the image to the staging memory and gives the loan back. Errors: NotFound if the loan
  // has ended meanwhile.
  absl::Status TakeLent(Batch& batch, size_t i);
  // Starts copying an image to the device.
  absl::Status CopyImage(const Batch& batch, size_t i);
  // Uploads the image's side object to the device and returns its address. Null: it has none.
  absl::StatusOr<const std::byte*> SideObjectOf(Batch& batch, size_t i, absl::Time deadline);
  absl::Status Decode(const DeviceRequest& request, absl::Time deadline, Batch& batch,
                      std::vector<absl::StatusOr<GetResult>>& results);
  // Decodes the images in [begin, end) with one plan, or with two if one would be too large.
  absl::Status DecodeSome(const DeviceRequest& request, absl::Time deadline, Batch& batch,
                          size_t begin, size_t end,
                          std::vector<absl::StatusOr<GetResult>>& results);
  // Sets the results of images that the device could not verify, or whose loan has ended before the
  // device had read them. Gives all loans back. REQUIRES: the work on the stream is complete.
  void Collect(Batch& batch, size_t begin, size_t end,
               std::vector<absl::StatusOr<GetResult>>& results);
  // REQUIRES: the work on the stream is complete.
  static void GiveBack(Batch& batch);

  // --- Put. Sets the specs of the batch: with the space's recipe if there are kernels for it, else
  // with raw.
  absl::Status SetSpecs(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Reserves memory for the slots of a batch. REQUIRES: the work on the stream is complete.
  absl::Status ReserveSlots(uint64_t bytes);
  // Puts the batch's first work on the stream. REQUIRES: the work on the stream is complete.
  absl::Status Begin(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Launches kernels for images that are not planned yet: as many as fit into a plan.
  absl::Status Encode(const DeviceRequest& request, Batch& batch);
  codecs::Error MakePlan(const DeviceRequest& request, Batch& batch, size_t end);
  // Starts copying the encoded images to the staging memory. REQUIRES: the work on the stream is
  // complete.
  absl::Status CopyImages(Batch& batch);
  // Starts the batch's next work, without waiting. Returns true once all its images are in the
  // staging memory.
  absl::StatusOr<bool> Advance(const DeviceRequest& request, Batch& batch);
  absl::Status AwaitImages(const DeviceRequest& request, absl::Time deadline, Batch& batch);
  // Sends the batch to the daemon. Runs `meanwhile` until it is sent.
  absl::Status Send(const DeviceRequest& request, absl::Time deadline, const Batch& batch,
                    Meanwhile meanwhile, std::vector<absl::StatusOr<PutResult>>& results);

  Space& space_;
  kernels::Runtime& device_;
  const GroupSlice slice_;
  const PlacedSlice placed_;
  Layout layout_;
  std::array<Batch, 2> batches_;
  std::shared_ptr<LentPieces> pieces_;  // of the memory that was lent last; null: none yet
  std::vector<size_t> damaged_;         // keys of lent images that did not pass verification
  DeviceSideObjects side_objects_;
  Memory slots_;  // device memory for a batch that is being encoded
  uint64_t slots_bytes_ = 0;
  DeviceCalls calls_;  // destroyed first: it waits for the stream, which uses the memory above
};

}  // namespace cairn
