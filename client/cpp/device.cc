// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/device.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_impl.h"

namespace cairn {
namespace {

// Alignment of images: when a connection ends, it detaches the pages of images that it was to fill.
constexpr uint64_t kImageAlignment = 4096;

}  // namespace

absl::Status DeviceMover::Impl::Prepare() {
  const codecs::GroupKind kind = placed_.tile.kind;
  if (kind != codecs::GroupKind::kKv && kind != codecs::GroupKind::kLatent) {
    return absl::InvalidArgumentError(
        "only KV and latents have paged caches; the group has neither");
  }
  const codecs::ImageSpec raw = cairn::SpecOf(placed_, space_.fingerprint(), {}, 0);
  const uint64_t tiles = codecs::TilingOf(raw).count();
  layout_.image_bytes_max = RoundUpTo(ImageBytesMaxOf(placed_), kImageAlignment);
  const auto take = [this](uint64_t bytes) {
    const uint64_t at = layout_.bytes;
    layout_.bytes += RoundUpTo(bytes);
    return at;
  };
  layout_.pages = take(uint64_t{kBatchImages} * placed_.tokens * sizeof(int32_t));
  layout_.plan = take(std::max(kernels::DecodePlanBytesMax(), kernels::EncodePlanBytesMax()));
  layout_.status = take(kBatchImages * sizeof(uint32_t));
  layout_.results = take(kBatchImages * tiles * sizeof(kernels::TileResult));
  layout_.images = layout_.bytes;
  const uint64_t device_bytes = layout_.bytes + layout_.ImagesBytes();
  for (Batch& batch : batches_) {
    batch.host = Memory(device_, /*is_host=*/true, layout_.bytes);
    batch.device = Memory(device_, /*is_host=*/false, device_bytes);
    if (batch.host.data() == nullptr || batch.device.data() == nullptr) {
      return calls_.NoRoom("two batches", 2 * (device_bytes + layout_.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceMover::Impl::Check(const DeviceRequest& request, bool is_put) const {
  CAIRN_RETURN_IF_ERROR(calls_.Check());
  CAIRN_RETURN_IF_ERROR(CheckStream(request.stream));
  const DeviceCache& cache = request.cache;
  if (cache.block_count < 1 || cache.block_count > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache.block_count is ", cache.block_count, ", expected 1 to ", INT32_MAX));
  }
  CAIRN_RETURN_IF_ERROR(CheckTable(cache.tokens_per_block, cache.block_count, placed_.tokens,
                                   request.table, is_put ? ViewUse::kSource : ViewUse::kTarget));
  if (request.table.size() != request.keys.size() * PagesPerKey(request)) {
    return absl::InvalidArgumentError(absl::StrCat("the table has ", request.table.size(),
                                                   " blocks, expected ", PagesPerKey(request),
                                                   " for each of ", request.keys.size(), " keys"));
  }
  return absl::OkStatus();
}

absl::Status DeviceMover::Impl::TakeStaging(Batch& batch, absl::Time deadline) {
  return batch.staging.Take(calls_, layout_.ImagesBytes(), [&]() -> absl::StatusOr<Buffer> {
    CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
    return space_.AllocateStaging(layout_.ImagesBytes(), left);
  });
}

absl::Status DeviceMover::Impl::CopyPages(const DeviceRequest& request, const Batch& batch) {
  const size_t per_key = PagesPerKey(request);
  const auto rows = request.table.subspan(batch.first * per_key, batch.count * per_key);
  auto* const pages = reinterpret_cast<int32_t*>(batch.host.data() + layout_.pages);
  std::transform(rows.begin(), rows.end(), pages,
                 [](int64_t page) { return static_cast<int32_t>(page); });
  return calls_.Took(device_.CopyIn(batch.device.data() + layout_.pages,
                                    batch.host.data() + layout_.pages,
                                    rows.size() * sizeof(int32_t), calls_.stream()));
}

kernels::PagedView DeviceMover::Impl::ViewOf(const DeviceRequest& request, const Batch& batch,
                                             size_t i) const {
  const size_t per_key = PagesPerKey(request);
  kernels::PagedView view;
  view.k = request.cache.k;
  view.v = request.cache.v;
  view.pages = reinterpret_cast<const int32_t*>(batch.device.data() + layout_.pages) + i * per_key;
  view.page_entries = static_cast<uint32_t>(per_key);
  view.page_count = static_cast<uint32_t>(request.cache.block_count);
  view.page_tokens = request.cache.tokens_per_block;
  return view;
}

DeviceMover::DeviceMover(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMover::~DeviceMover() = default;

absl::StatusOr<std::unique_ptr<DeviceMover>> DeviceMover::Make(Space& space,
                                                               kernels::Runtime& device,
                                                               const GroupSlice& slice) {
  CAIRN_ASSIGN_OR_RETURN(const PlacedSlice placed, space.Place(slice));
  auto impl = std::make_unique<Impl>(space, device, slice, placed);
  CAIRN_RETURN_IF_ERROR(impl->Prepare());
  return std::unique_ptr<DeviceMover>(new DeviceMover(std::move(impl)));
}

std::vector<absl::StatusOr<GetResult>> DeviceMover::Get(const DeviceRequest& request) {
  return impl_->Run<GetResult>(request, /*is_put=*/false, [&](absl::Time deadline, auto& results) {
    impl_->Get(request, deadline, results);
  });
}

std::vector<absl::StatusOr<PutResult>> DeviceMover::Put(const DeviceRequest& request) {
  return impl_->Run<PutResult>(request, /*is_put=*/true, [&](absl::Time deadline, auto& results) {
    impl_->Put(request, deadline, results);
  });
}

bool DeviceMover::is_lost() const { return impl_->is_lost(); }

}  // namespace cairn
