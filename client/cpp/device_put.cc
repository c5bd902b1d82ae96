// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_impl.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/chain.h"
#include "codecs/image/settle.h"
#include "codecs/recipe/recipe.h"
#include "proto/side_object.h"

namespace cairn {
namespace {

// Returns the source payload within a raw image. Moves its tiles together over the padding.
std::span<const std::byte> SourceWithin(std::span<std::byte> image) {
  codecs::ImagePrefix prefix;
  CAIRN_CHECK(codecs::ParseImagePrefix(image, &prefix) == codecs::Error::kOk);
  const size_t begin = prefix.Tile(0).offset;
  size_t end = begin;
  for (uint32_t i = 0; i < prefix.tile_count(); ++i) {
    const size_t bytes = codecs::GeometryOf(prefix.spec(), prefix.IdOf(i).plane).SourceBytes();
    std::memmove(image.data() + end, image.data() + prefix.Tile(i).offset, bytes);
    end += bytes;
  }
  return image.subspan(begin, end - begin);
}

}  // namespace

absl::Status DeviceMover::Impl::SetSpecs(const DeviceRequest& request, absl::Time deadline,
                                         Batch& batch) {
  codecs::Recipe recipe;
  const bool is_known = codecs::ParsePolicyRecipe(space_.recipe(), &recipe) == codecs::Error::kOk;
  batch.side = nullptr;
  batch.side_on_device = nullptr;
  if (const auto kind = proto::KindFor(recipe); is_known && kind.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
    CAIRN_ASSIGN_OR_RETURN(batch.side, space_.GetCurrentSideObject(placed_.group, *kind, left));
  }
  const codecs::Digest id = batch.side == nullptr ? codecs::Digest{} : batch.side->id();
  for (size_t i = 0; i < batch.count; ++i) {
    const size_t key = batch.first + i;
    codecs::ImageSpec& spec = batch.specs[i];
    spec = cairn::SpecOf(placed_, space_.fingerprint(), request.keys[key],
                         request.first_position + key * placed_.tokens);
    if (is_known) {  // like other puts: `exact` if there is no side object
      static_cast<void>(codecs::SetRecipeOrExact(recipe, InputsOf(batch.side), id, &spec));
    }
    // Only the daemon has the previous block.
    if (!is_known || codecs::FollowsChain(spec)) {
      const codecs::Error error = codecs::SetRecipe("raw", {}, {}, &spec);
      if (error != codecs::Error::kOk) {
        return absl::InvalidArgumentError(absl::StrCat("the slice: ", ToAbsl(codecs::Name(error))));
      }
    }
  }
  if (batch.specs[0].side_object_count != 0) {
    CAIRN_ASSIGN_OR_RETURN(const DeviceSideObjects::OnDevice* side,
                           side_objects_.Upload(batch.side));
    batch.side_on_device = side->memory.data();
  }
  batch.slot_bytes = kernels::SlotBytes(batch.specs[0]);
  return ReserveSlots(kBatchImages * batch.slot_bytes);
}

absl::Status DeviceMover::Impl::ReserveSlots(uint64_t bytes) {
  if (bytes <= slots_bytes_) {
    return absl::OkStatus();
  }
  slots_ = Memory();  // freed first: there may be no room for both
  slots_bytes_ = 0;
  slots_ = Memory(device_, /*is_host=*/false, bytes);
  if (slots_.data() == nullptr) {
    return calls_.NoRoom("encoded tiles", bytes);
  }
  slots_bytes_ = bytes;
  return absl::OkStatus();
}

codecs::Error DeviceMover::Impl::MakePlan(const DeviceRequest& request, Batch& batch, size_t end) {
  std::vector<kernels::EncodeJob> jobs;
  for (size_t i = batch.encoded; i < end; ++i) {
    jobs.push_back({.spec = &batch.specs[i],
                    .source = ViewOf(request, batch, i),
                    .slots = slots_.data() + i * batch.slot_bytes,
                    .image = DeviceImage(batch, i),
                    .side = InputsOf(batch.side),
                    .side_object = batch.side_on_device});
  }
  const std::span<std::byte> room(batch.host.data() + layout_.plan, kernels::EncodePlanBytesMax());
  return kernels::MakeEncodePlan(jobs, room, &batch.plan);
}

absl::Status DeviceMover::Impl::Encode(const DeviceRequest& request, Batch& batch) {
  size_t end = batch.count;
  codecs::Error error = MakePlan(request, batch, end);
  while (error == codecs::Error::kTooLarge && end - batch.encoded > 1) {
    end = batch.encoded + (end - batch.encoded) / 2;
    error = MakePlan(request, batch, end);
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("cache: ", ToAbsl(codecs::Name(error))));
  }
  batch.planned = end;
  std::byte* const plan = batch.device.data() + layout_.plan;
  std::byte* const statuses = batch.device.data() + layout_.status;
  std::byte* const results = batch.device.data() + layout_.results;
  CAIRN_RETURN_IF_ERROR(
      calls_.Took(device_.Clear(statuses, kBatchImages * sizeof(uint32_t), calls_.stream())));
  CAIRN_RETURN_IF_ERROR(calls_.Took(
      device_.CopyIn(plan, batch.host.data() + layout_.plan, batch.plan.bytes, calls_.stream())));
  CAIRN_RETURN_IF_ERROR(
      calls_.Took(device_.Encode(batch.plan, plan, reinterpret_cast<kernels::TileResult*>(results),
                                 reinterpret_cast<uint32_t*>(statuses), calls_.stream())));
  CAIRN_RETURN_IF_ERROR(
      calls_.Took(device_.CopyOut(batch.host.data() + layout_.status, statuses,
                                  kBatchImages * sizeof(uint32_t), calls_.stream())));
  return calls_.Took(device_.CopyOut(batch.host.data() + layout_.results, results,
                                     batch.plan.tile_count * sizeof(kernels::TileResult),
                                     calls_.stream()));
}

absl::Status DeviceMover::Impl::Begin(const DeviceRequest& request, absl::Time deadline,
                                      Batch& batch) {
  batch.encoded = batch.planned = 0;
  CAIRN_RETURN_IF_ERROR(TakeStaging(batch, deadline));
  CAIRN_RETURN_IF_ERROR(SetSpecs(request, deadline, batch));
  CAIRN_RETURN_IF_ERROR(CopyPages(request, batch));
  return Encode(request, batch);
}

absl::Status DeviceMover::Impl::CopyImages(Batch& batch) {
  const size_t jobs = batch.planned - batch.encoded;
  const uint32_t tiles = batch.plan.tile_count / static_cast<uint32_t>(jobs);
  const uint64_t prefix = codecs::PrefixBytes(tiles);
  const auto* const all =
      reinterpret_cast<const kernels::TileResult*>(batch.host.data() + layout_.results);
  for (size_t job = 0; job < jobs; ++job) {
    const size_t i = batch.encoded + job;
    if (const uint32_t status = Statuses(batch)[job]; status != 0) {
      return absl::InternalError(
          absl::StrCat("the device could not encode: ",
                       ToAbsl(codecs::Name(static_cast<codecs::Error>(status)))));
    }
    const codecs::Error written =
        kernels::WritePrefix(batch.specs[i], {all + job * tiles, tiles},
                             {HostImage(batch, i), prefix}, &batch.image_bytes[i]);
    if (written != codecs::Error::kOk) {
      return absl::InternalError(
          absl::StrCat("the device encoded no image: ", ToAbsl(codecs::Name(written))));
    }
    CAIRN_RETURN_IF_ERROR(
        calls_.Took(device_.CopyOut(HostImage(batch, i) + prefix, DeviceImage(batch, i) + prefix,
                                    batch.image_bytes[i] - prefix, calls_.stream())));
  }
  batch.encoded = batch.planned;
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceMover::Impl::Advance(const DeviceRequest& request, Batch& batch) {
  CAIRN_ASSIGN_OR_RETURN(const bool is_over, calls_.IsOver());
  if (!is_over) {
    return false;
  }
  if (batch.encoded == batch.count) {
    return true;
  }
  CAIRN_RETURN_IF_ERROR(CopyImages(batch));
  if (batch.encoded < batch.count) {
    CAIRN_RETURN_IF_ERROR(Encode(request, batch));
  }
  return false;
}

absl::Status DeviceMover::Impl::AwaitImages(const DeviceRequest& request, absl::Time deadline,
                                            Batch& batch) {
  while (true) {  // ends at the deadline
    CAIRN_ASSIGN_OR_RETURN(const bool is_whole, Advance(request, batch));
    if (is_whole) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("the device was not done in time");
    }
    absl::SleepFor(kPollPause);
  }
}

absl::Status DeviceMover::Impl::Send(const DeviceRequest& request, absl::Time deadline,
                                     const Batch& batch, Meanwhile meanwhile,
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
    if (!request.names.empty()) {
      puts[i].names = request.names[key];
    }
    const std::span<std::byte> image(HostImage(batch, i), batch.image_bytes[i]);
    if (batch.specs[i].recipe.IsRaw()) {
      puts[i].source = SourceBytes{SourceWithin(image)};
    } else {
      puts[i].source = ImageBytes{image};
    }
  }
  std::vector<absl::StatusOr<PutResult>> put = space_.PutBatch(puts, left, meanwhile);
  NoteFailures(put);
  std::ranges::move(put, results.begin() + static_cast<std::ptrdiff_t>(batch.first));
  return absl::OkStatus();
}

// Encodes a batch while the previous one is being sent to the daemon.
void DeviceMover::Impl::Put(const DeviceRequest& request, absl::Time deadline,
                            std::vector<absl::StatusOr<PutResult>>& results) {
  const auto fail_from = [&results](const Batch& batch, const absl::Status& status) {
    std::fill(results.begin() + static_cast<std::ptrdiff_t>(batch.first), results.end(),
              absl::StatusOr<PutResult>(status));
  };
  Batch* whole = nullptr;  // a batch whose images are all in its staging memory
  size_t next = 0;
  while (whole != nullptr || next < request.keys.size()) {
    Batch* coming = nullptr;
    absl::StatusOr<bool> is_whole = true;  // `coming`
    if (next < request.keys.size()) {
      coming = &batches_[whole == &batches_[0] ? 1 : 0];
      coming->first = next;
      coming->count = std::min<size_t>(kBatchImages, request.keys.size() - next);
      next += coming->count;
      is_whole = false;
      if (const absl::Status begun = Begin(request, deadline, *coming); !begun.ok()) {
        is_whole = begun;
      }
    }
    if (whole != nullptr) {
      const auto advance = [&] {
        if (is_whole.ok() && !*is_whole) {
          is_whole = Advance(request, *coming);
        }
        return is_whole.ok() && !*is_whole;
      };
      if (const absl::Status sent = Send(request, deadline, *whole, advance, results); !sent.ok()) {
        return fail_from(*whole, sent);
      }
    }
    absl::Status status = is_whole.status();
    if (status.ok() && !*is_whole) {
      status = AwaitImages(request, deadline, *coming);
    }
    if (!status.ok()) {
      return fail_from(*coming, status);
    }
    whole = coming;
  }
}

}  // namespace cairn
