// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_impl.h"
#include "codecs/format/image_header.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "codecs/recipe/recipe.h"
#include "proto/side_object.h"

namespace cairn {

absl::Status DeviceMover::Impl::SetSpecs(const DeviceRequest& request, absl::Time deadline,
                                         const Batch& batch) {
  codecs::Recipe recipe;
  const bool is_known = codecs::ParsePolicyRecipe(space_.recipe(), &recipe) == codecs::Error::kOk;
  side_ = nullptr;
  side_on_device_ = nullptr;
  if (const auto kind = proto::KindFor(recipe); is_known && kind.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
    CAIRN_ASSIGN_OR_RETURN(side_, space_.GetCurrentSideObject(placed_.group, *kind, left));
  }
  const codecs::Digest id = side_ == nullptr ? codecs::Digest{} : side_->id();
  for (size_t i = 0; i < batch.count; ++i) {
    const size_t key = batch.first + i;
    codecs::ImageSpec& spec = specs_[i];
    spec = cairn::SpecOf(placed_, space_.fingerprint(), request.keys[key],
                         request.first_position + key * placed_.tokens);
    if (is_known) {  // as other puts: `exact` where there is no side object to code with
      static_cast<void>(codecs::SetRecipeOrExact(recipe, InputsOf(side_), id, &spec));
    }
    // The daemon has the block before.
    if (!is_known || codecs::FollowsChain(spec)) {
      const codecs::Error error = codecs::SetRecipe("raw", {}, {}, &spec);
      if (error != codecs::Error::kOk) {
        return absl::InvalidArgumentError(absl::StrCat("the slice: ", ToAbsl(codecs::Name(error))));
      }
    }
  }
  if (specs_[0].side_object_count != 0) {
    CAIRN_ASSIGN_OR_RETURN(side_on_device_, Upload(side_));
  }
  slot_bytes_ = kernels::SlotBytes(specs_[0]);
  return ReserveSlots(kBatchImages * slot_bytes_);
}

absl::Status DeviceMover::Impl::ReserveSlots(uint64_t bytes) {
  if (bytes <= slots_bytes_) {
    return absl::OkStatus();
  }
  slots_ = Memory();  // first: there may be no room for both
  slots_bytes_ = 0;
  slots_ = Memory(device_, /*is_host=*/false, bytes);
  if (slots_.data() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("encoding takes ", bytes, " bytes more of ",
                                                     ToAbsl(device_.name()),
                                                     ", which has no room for them"));
  }
  slots_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status DeviceMover::Impl::EncodeSome(const DeviceRequest& request, absl::Time deadline,
                                           Batch& batch, size_t begin, size_t end) {
  std::vector<kernels::EncodeJob> jobs;
  for (size_t i = begin; i < end; ++i) {
    jobs.push_back({.spec = &specs_[i],
                    .source = ViewOf(request, batch, i),
                    .slots = slots_.data() + i * slot_bytes_,
                    .image = DeviceImage(batch, i),
                    .side = InputsOf(side_),
                    .side_object = side_on_device_});
  }
  kernels::EncodePlan plan;
  const std::span<std::byte> room(batch.host.data() + layout_.plan, kernels::EncodePlanBytesMax());
  const codecs::Error error = kernels::MakeEncodePlan(jobs, room, &plan);
  if (error == codecs::Error::kTooLarge && jobs.size() > 1) {
    const size_t middle = begin + jobs.size() / 2;
    CAIRN_RETURN_IF_ERROR(EncodeSome(request, deadline, batch, begin, middle));
    return EncodeSome(request, deadline, batch, middle, end);
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("cache: ", ToAbsl(codecs::Name(error))));
  }
  std::byte* const statuses = batch.device.data() + layout_.status;
  std::byte* const results = batch.device.data() + layout_.results;
  const uint64_t result_bytes = plan.tile_count * sizeof(kernels::TileResult);
  CAIRN_RETURN_IF_ERROR(Took(device_.Clear(statuses, kBatchImages * sizeof(uint32_t), stream_)));
  CAIRN_RETURN_IF_ERROR(
      Took(device_.CopyIn(batch.device.data() + layout_.plan, room.data(), plan.bytes, stream_)));
  CAIRN_RETURN_IF_ERROR(Took(device_.Encode(plan, batch.device.data() + layout_.plan,
                                            reinterpret_cast<kernels::TileResult*>(results),
                                            reinterpret_cast<uint32_t*>(statuses), stream_)));
  CAIRN_RETURN_IF_ERROR(Took(device_.CopyOut(batch.host.data() + layout_.status, statuses,
                                             kBatchImages * sizeof(uint32_t), stream_)));
  CAIRN_RETURN_IF_ERROR(
      Took(device_.CopyOut(batch.host.data() + layout_.results, results, result_bytes, stream_)));
  CAIRN_RETURN_IF_ERROR(Await(deadline));
  const uint32_t tiles = plan.tile_count / static_cast<uint32_t>(jobs.size());
  const auto* const all =
      reinterpret_cast<const kernels::TileResult*>(batch.host.data() + layout_.results);
  for (size_t job = 0; job < jobs.size(); ++job) {
    const size_t i = begin + job;
    if (const uint32_t status = Statuses(batch)[job]; status != 0) {
      return absl::InternalError(
          absl::StrCat("the device could not encode: ",
                       ToAbsl(codecs::Name(static_cast<codecs::Error>(status)))));
    }
    const uint64_t prefix = codecs::PrefixBytes(tiles);
    const codecs::Error written = kernels::WritePrefix(
        specs_[i], {all + job * tiles, tiles}, {HostImage(batch, i), prefix}, &image_bytes_[i]);
    if (written != codecs::Error::kOk) {
      return absl::InternalError(
          absl::StrCat("the device encoded no image: ", ToAbsl(codecs::Name(written))));
    }
    CAIRN_RETURN_IF_ERROR(
        Took(device_.CopyOut(HostImage(batch, i) + prefix, DeviceImage(batch, i) + prefix,
                             image_bytes_[i] - prefix, stream_)));
  }
  return Await(deadline);
}

absl::Status DeviceMover::Impl::Encode(const DeviceRequest& request, absl::Time deadline,
                                       Batch& batch) {
  CAIRN_RETURN_IF_ERROR(SetSpecs(request, deadline, batch));
  CAIRN_RETURN_IF_ERROR(CopyPages(request, batch));
  return EncodeSome(request, deadline, batch, 0, batch.count);
}

absl::Status DeviceMover::Impl::Send(const DeviceRequest& request, absl::Time deadline,
                                     const Batch& batch,
                                     std::vector<absl::StatusOr<PutResult>>& results) {
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  std::vector<PutRequest> puts(batch.count);
  for (size_t i = 0; i < batch.count; ++i) {
    const size_t key = batch.first + i;
    puts[i].key = request.keys[key];
    puts[i].parent = key == 0 ? request.parent : request.keys[key - 1];
    puts[i].first_position = request.first_position + key * placed_.tokens;
    puts[i].slice = slice_;
    puts[i].is_derived = request.is_derived;
    puts[i].is_durable = request.is_durable;
    const std::span<const std::byte> image(HostImage(batch, i), image_bytes_[i]);
    if (specs_[i].recipe.id == codecs::RecipeId::kRaw) {
      // Raw tiles are the source form, one behind another.
      puts[i].source = SourceBytes{image.last(SourceBytesOf(placed_))};
    } else {
      puts[i].source = ImageBytes{image};
    }
  }
  std::vector<absl::StatusOr<PutResult>> put = space_.PutBatch(puts, left);
  std::ranges::move(put, results.begin() + static_cast<std::ptrdiff_t>(batch.first));
  return absl::OkStatus();
}

void DeviceMover::Impl::Put(const DeviceRequest& request, absl::Time deadline,
                            std::vector<absl::StatusOr<PutResult>>& results) {
  Batch& batch = batches_[0];
  for (batch.first = 0; batch.first < request.keys.size(); batch.first += batch.count) {
    batch.count = std::min<size_t>(kBatchImages, request.keys.size() - batch.first);
    absl::Status status = Encode(request, deadline, batch);
    if (status.ok()) {
      status = Send(request, deadline, batch, results);
    }
    if (!status.ok()) {
      std::fill(results.begin() + static_cast<std::ptrdiff_t>(batch.first), results.end(),
                absl::StatusOr<PutResult>(status));
      return;
    }
  }
}

}  // namespace cairn
