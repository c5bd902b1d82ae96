// SPDX-License-Identifier: Apache-2.0
// DeviceImages (declared in attention.h): encoded blocks on a device.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/attention.h"
#include "client/cpp/device.h"
#include "client/cpp/device_calls.h"
#include "client/cpp/device_memory.h"
#include "client/cpp/device_side_objects.h"
#include "client/cpp/options.h"
#include "codecs/image/image.h"

namespace cairn {
namespace {

constexpr size_t kBatchImages = DeviceMover::kBatchImages;  // that are fetched at once

}  // namespace

class DeviceImages::Impl {
 public:
  Impl(Space& space, kernels::Runtime& device, const GroupSlice& slice, const PlacedSlice& placed)
      : space_(space),
        device_(device),
        slice_(slice),
        placed_(placed),
        image_bytes_max_(RoundUpTo(ImageBytesMaxOf(placed))),
        side_objects_(space, calls_),
        calls_(device) {}

  absl::StatusOr<size_t> Append(const DeviceImagesRequest& request) {
    CAIRN_RETURN_IF_ERROR(CheckStream(request.stream));
    const absl::Time deadline =
        MonotonicNow() +
        (request.timeout > absl::ZeroDuration() ? request.timeout : kDataTimeoutDefault);
    CAIRN_RETURN_IF_ERROR(calls_.Await(deadline));  // the work of an earlier call
    DropUnkept();
    calls_.Use(request.stream);
    size_t appended = 0;
    while (appended < request.keys.size()) {
      const auto keys =
          request.keys.subspan(appended, std::min(kBatchImages, request.keys.size() - appended));
      CAIRN_ASSIGN_OR_RETURN(const size_t count, AppendSome(keys, request.lease, deadline));
      appended += count;
      if (count < keys.size()) {
        break;
      }
    }
    return appended;
  }

  const PlacedSlice& placed() const { return placed_; }
  std::span<const kernels::AttendImage> images() const { return images_; }

 private:
  // Drops the memory of images that an earlier call did not finish. REQUIRES: the work on the
  // stream has completed.
  void DropUnkept() {
    memories_.resize(memories_kept_);
    prefixes_.resize(images_.size());
    side_objects_.DropStaged();
  }

  // Appends up to kBatchImages images, through the staging memory.
  absl::StatusOr<size_t> AppendSome(std::span<const BlockKey> keys, const LeaseToken& lease,
                                    absl::Time deadline) {
    if (staging_.data() == nullptr) {
      staging_ = DeviceMemory(device_, /*is_host=*/true, kBatchImages * image_bytes_max_);
    }
    if (staging_.data() == nullptr) {
      return calls_.NoRoom("images", kBatchImages * image_bytes_max_);
    }
    std::vector<GetRequest> gets(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      gets[i].key = keys[i];
      gets[i].lease = lease;
      gets[i].slice = slice_;
      gets[i].target = ImageTarget{{staging_.data() + i * image_bytes_max_, image_bytes_max_}};
    }
    CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
    const std::vector<absl::StatusOr<GetResult>> got = space_.GetBatch(gets, left);
    size_t count = 0;
    uint64_t bytes = 0;
    for (; count < got.size() && got[count].ok(); ++count) {
      bytes += RoundUpTo(got[count]->bytes);
    }
    if (count < got.size() && !absl::IsNotFound(got[count].status()) && count == 0) {
      return got[0].status();
    }
    CAIRN_RETURN_IF_ERROR(Keep({got.data(), count}, bytes, deadline));
    if (count < got.size() && !absl::IsNotFound(got[count].status())) {
      return got[count].status();
    }
    return count;
  }

  // Keeps the images in the staging memory, `bytes` in all.
  absl::Status Keep(std::span<const absl::StatusOr<GetResult>> got, uint64_t bytes,
                    absl::Time deadline) {
    if (got.empty()) {
      return absl::OkStatus();
    }
    DeviceMemory& memory = memories_.emplace_back(device_, /*is_host=*/false, bytes);
    if (memory.data() == nullptr) {
      memories_.pop_back();
      return calls_.NoRoom("images", bytes);
    }
    std::vector<kernels::AttendImage> coming;
    std::byte* to = memory.data();
    for (size_t i = 0; i < got.size(); ++i) {
      const std::span<const std::byte> image(staging_.data() + i * image_bytes_max_, got[i]->bytes);
      codecs::ImagePrefix& prefix = prefixes_.emplace_back();
      CAIRN_CHECK(codecs::ParseImagePrefix(image, &prefix) == codecs::Error::kOk);  // verified
      if (const std::string_view why = kernels::WhyDecodeFirst(prefix.spec()); !why.empty()) {
        return absl::UnimplementedError(absl::StrCat("decode first: ", ToAbsl(why)));
      }
      CAIRN_ASSIGN_OR_RETURN(const DeviceSideObjects::OnDevice* side,
                             side_objects_.Of(prefix.spec(), deadline));
      CAIRN_RETURN_IF_ERROR(
          calls_.Took(device_.CopyIn(to, image.data(), image.size(), calls_.stream())));
      coming.push_back({.prefix = &prefix, .image = to});
      if (side != nullptr) {
        coming.back().side = InputsOf(side->held);
        coming.back().side_object = side->memory.data();
      }
      to += RoundUpTo(image.size());
    }
    CAIRN_RETURN_IF_ERROR(calls_.Await(deadline));
    images_.insert(images_.end(), coming.begin(), coming.end());
    memories_kept_ = memories_.size();
    return absl::OkStatus();
  }

  Space& space_;
  kernels::Runtime& device_;
  const GroupSlice slice_;
  const PlacedSlice placed_;
  const uint64_t image_bytes_max_;
  DeviceMemory staging_;  // host memory, in use until the work on the stream has completed
  // The memory of images_, followed by memory of images that a call did not finish.
  std::vector<DeviceMemory> memories_;
  size_t memories_kept_ = 0;
  std::deque<codecs::ImagePrefix> prefixes_;
  DeviceSideObjects side_objects_;  // side objects of images_ stay here
  std::vector<kernels::AttendImage> images_;
  DeviceCalls calls_;  // destroyed first: it waits for the stream, which uses the memory above
};

DeviceImages::DeviceImages(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceImages::~DeviceImages() = default;

absl::StatusOr<std::unique_ptr<DeviceImages>> DeviceImages::Make(Space& space,
                                                                 kernels::Runtime& device,
                                                                 const GroupSlice& slice) {
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, space.Place(slice));
  return std::unique_ptr<DeviceImages>(
      new DeviceImages(std::make_unique<Impl>(space, device, slice, placed)));
}

absl::StatusOr<size_t> DeviceImages::Append(const DeviceImagesRequest& request) {
  return impl_->Append(request);
}

const PlacedSlice& DeviceImages::slice() const { return impl_->placed(); }

std::span<const kernels::AttendImage> DeviceImages::images() const { return impl_->images(); }

}  // namespace cairn
