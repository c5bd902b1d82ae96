// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "client/cpp/device_impl.h"

namespace cairn {

absl::Status DeviceMover::Impl::TakeLent(Batch& batch, size_t i) {
  LentImage& lent = batch.lent[i];
  bool is_read = true;
  for (const codecs::SharedPart& part : lent.parts) {
    if (pieces_ == nullptr || !pieces_->Has(part.bytes)) {
      pieces_ = LentPieces::Of(device_, part.bytes);
    }
    if (batch.pieces == nullptr) {
      batch.pieces = pieces_;
    }
    is_read =
        is_read && pieces_ != nullptr && batch.pieces == pieces_ && pieces_->Register(part.bytes);
  }
  if (is_read) {
    return absl::OkStatus();
  }
  for (const codecs::SharedPart& part : lent.parts) {
    std::memcpy(HostImage(batch, i) + part.offset, part.bytes.data(), part.bytes.size());
  }
  const bool is_right = lent.loan->IsInForce();
  lent.loan = nullptr;
  return is_right ? absl::OkStatus()
                  : absl::NotFoundError("the loan was over before the block was copied");
}

absl::Status DeviceMover::Impl::Fetch(const DeviceRequest& request, absl::Time deadline,
                                      bool takes_loans, Batch& batch,
                                      std::vector<absl::StatusOr<GetResult>>& results) {
  GiveBack(batch);
  CAIRN_RETURN_IF_ERROR(TakeStaging(batch, deadline));
  takes_loans = takes_loans && (pieces_ == nullptr || !pieces_->is_refused());
  std::vector<GetRequest> gets(batch.count);
  for (size_t i = 0; i < batch.count; ++i) {
    gets[i].key = request.keys[batch.first + i];
    gets[i].lease = request.lease;
    gets[i].slice = slice_;
    gets[i].target = ImageTarget{.bytes = {HostImage(batch, i), layout_.image_bytes_max},
                                 .lent = takes_loans ? &batch.lent[i] : nullptr};
  }
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline));
  std::vector<absl::StatusOr<GetResult>> got = space_.GetBatch(gets, left);
  NoteFailures(got);
  for (size_t i = 0; i < batch.count; ++i) {
    const LentImage& lent = batch.lent[i];
    std::span<const std::byte> prefix;
    if (got[i].ok()) {
      prefix = lent.loan != nullptr ? std::span<const std::byte>(lent.prefix)
                                    : std::span(HostImage(batch, i), got[i]->bytes);
    }
    if (lent.loan != nullptr) {
      if (const absl::Status taken = TakeLent(batch, i); !taken.ok()) {
        got[i] = taken;
      }
    }
    batch.is_on_device[i] = got[i].ok();
    if (got[i].ok()) {  // GetBatch() has checked it: it parses
      CAIRN_CHECK(codecs::ParseImagePrefix(prefix, &batch.prefixes[i]) == codecs::Error::kOk);
      got[i]->bytes = SourceBytesOf(placed_);
    }
    results[batch.first + i] = std::move(got[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> DeviceMover::Impl::SideObjectOf(Batch& batch, size_t i,
                                                                 absl::Time deadline) {
  batch.sides[i] = nullptr;
  CAIRN_ASSIGN_OR_RETURN(const DeviceSideObjects::OnDevice* side,
                         side_objects_.Of(batch.prefixes[i].spec(), deadline));
  if (side == nullptr) {
    return nullptr;
  }
  batch.sides[i] = side->held;
  return side->memory.data();
}

absl::Status DeviceMover::Impl::CopyImage(const Batch& batch, size_t i) {
  std::byte* const to = DeviceImage(batch, i);
  if (batch.lent[i].loan == nullptr) {
    return calls_.Took(
        device_.CopyIn(to, HostImage(batch, i), batch.prefixes[i].image_bytes(), calls_.stream()));
  }
  for (const codecs::SharedPart& part : batch.lent[i].parts) {
    uint64_t offset = part.offset;
    for (const std::span<const std::byte> range : batch.pieces->Split(part.bytes)) {
      CAIRN_RETURN_IF_ERROR(
          calls_.Took(device_.CopyIn(to + offset, range.data(), range.size(), calls_.stream())));
      offset += range.size();
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceMover::Impl::DecodeSome(const DeviceRequest& request, absl::Time deadline,
                                           Batch& batch, size_t begin, size_t end,
                                           std::vector<absl::StatusOr<GetResult>>& results) {
  std::vector<kernels::DecodeJob> jobs;
  std::vector<size_t> images;
  for (size_t i = begin; i < end; ++i) {
    if (!batch.is_on_device[i]) {
      continue;
    }
    absl::StatusOr<const std::byte*> side = SideObjectOf(batch, i, deadline);
    if (!side.ok()) {
      batch.is_on_device[i] = false;
      results[batch.first + i] = side.status();
      continue;
    }
    images.push_back(i);
    jobs.push_back({.prefix = &batch.prefixes[i],
                    .image = DeviceImage(batch, i),
                    .slice = placed_.slice,
                    .target = ViewOf(request, batch, i),
                    .side = InputsOf(batch.sides[i]),
                    .side_object = *side});
  }
  if (jobs.empty()) {
    return absl::OkStatus();
  }
  kernels::DecodePlan plan;
  const std::span<std::byte> room(batch.host.data() + layout_.plan, kernels::DecodePlanBytesMax());
  const codecs::Error error = kernels::MakeDecodePlan(jobs, kernels::Verify::kYes, room, &plan);
  if (error == codecs::Error::kTooLarge && jobs.size() > 1) {
    const size_t middle = images[images.size() / 2];
    CAIRN_RETURN_IF_ERROR(DecodeSome(request, deadline, batch, begin, middle, results));
    CAIRN_RETURN_IF_ERROR(calls_.Await(deadline));  // the plan's memory is reused
    Collect(batch, begin, middle, results);
    return DecodeSome(request, deadline, batch, middle, end, results);
  }
  if (error == codecs::Error::kUnknownRecipe) {
    return absl::UnimplementedError(
        "no kernel decodes the space's recipe of 8-bit floats: choose another one, such as exact, "
        "kivi:4 or cairn-hot");
  }
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("cache: ", ToAbsl(codecs::Name(error))));
  }
  // Statuses of a plan are in the order of its jobs; the host reorders them by image.
  std::byte* const statuses = batch.device.data() + layout_.status;
  CAIRN_RETURN_IF_ERROR(
      calls_.Took(device_.Clear(statuses, kBatchImages * sizeof(uint32_t), calls_.stream())));
  for (const size_t i : images) {
    CAIRN_RETURN_IF_ERROR(CopyImage(batch, i));
  }
  CAIRN_RETURN_IF_ERROR(calls_.Took(device_.CopyIn(batch.device.data() + layout_.plan, room.data(),
                                                   plan.bytes, calls_.stream())));
  CAIRN_RETURN_IF_ERROR(
      calls_.Took(device_.Decode(plan, batch.device.data() + layout_.plan,
                                 reinterpret_cast<uint32_t*>(statuses), calls_.stream())));
  for (size_t job = 0; job < images.size(); ++job) {
    CAIRN_RETURN_IF_ERROR(calls_.Took(
        device_.CopyOut(batch.host.data() + layout_.status + images[job] * sizeof(uint32_t),
                        statuses + job * sizeof(uint32_t), sizeof(uint32_t), calls_.stream())));
  }
  return absl::OkStatus();
}

absl::Status DeviceMover::Impl::Decode(const DeviceRequest& request, absl::Time deadline,
                                       Batch& batch,
                                       std::vector<absl::StatusOr<GetResult>>& results) {
  CAIRN_RETURN_IF_ERROR(CopyPages(request, batch));
  return DecodeSome(request, deadline, batch, 0, batch.count, results);
}

void DeviceMover::Impl::Collect(Batch& batch, size_t begin, size_t end,
                                std::vector<absl::StatusOr<GetResult>>& results) {
  for (size_t i = begin; i < end; ++i) {
    const std::unique_ptr<transport::Loan> loan = std::move(batch.lent[i].loan);
    if (!batch.is_on_device[i]) {
      continue;
    }
    absl::StatusOr<GetResult>& result = results[batch.first + i];
    // The device has read the bytes. If the loan has ended meanwhile, they may be others.
    if (loan != nullptr && !loan->IsInForce()) {
      batch.is_on_device[i] = false;
      result = absl::NotFoundError("the loan was over before the device had read the block");
    } else if (const uint32_t status = Statuses(batch)[i]; status != 0) {
      batch.is_on_device[i] = false;
      const std::string_view reason = codecs::Name(static_cast<codecs::Error>(status));
      LogWarn("client",
              loan != nullptr ? "lent block failed verification on the device: asked for as a copy"
                              : "block failed verification on the device: treated as a miss",
              {{"device", device_.name()}, {"group", placed_.group}, {"reason", reason}});
      result = absl::NotFoundError(
          absl::StrCat("failed verification on the device, treated as a miss: ", ToAbsl(reason)));
      if (loan != nullptr) {
        damaged_.push_back(batch.first + i);
      }
    }
  }
}

void DeviceMover::Impl::GiveBack(Batch& batch) {
  for (LentImage& lent : batch.lent) {
    lent.loan = nullptr;
  }
  batch.pieces = nullptr;
}

void DeviceMover::Impl::Get(const DeviceRequest& request, absl::Time deadline,
                            std::vector<absl::StatusOr<GetResult>>& results) {
  damaged_.clear();
  GetRange(request, deadline, 0, request.keys.size(), /*takes_loans=*/true, results);
  // The daemon has not verified what it has lent. It verifies a copy, drops a damaged image, and
  // may find the block in another tier.
  for (const size_t key : std::exchange(damaged_, {})) {
    GetRange(request, deadline, key, key + 1, /*takes_loans=*/false, results);
  }
}

// Fetches a batch while the previous one is on the device.
void DeviceMover::Impl::GetRange(const DeviceRequest& request, absl::Time deadline, size_t begin,
                                 size_t end, bool takes_loans,
                                 std::vector<absl::StatusOr<GetResult>>& results) {
  absl::Status status;
  Batch* before = nullptr;
  size_t next = begin;
  while (status.ok() && (next < end || before != nullptr)) {
    Batch* batch = nullptr;
    if (next < end) {
      batch = &batches_[before == &batches_[0] ? 1 : 0];
      batch->first = next;
      batch->count = std::min<size_t>(kBatchImages, end - next);
      next += batch->count;
      status = Fetch(request, deadline, takes_loans, *batch, results);
    }
    if (const absl::Status over = calls_.Await(deadline); !over.ok()) {
      status = over;
      break;  // the results of earlier batches are unknown
    }
    if (before != nullptr) {
      Collect(*before, 0, before->count, results);
    }
    if (status.ok() && batch != nullptr) {
      status = Decode(request, deadline, *batch, results);
    }
    before = batch;
  }
  if (!status.ok()) {
    const size_t first = before == nullptr ? begin : before->first;
    std::fill(results.begin() + static_cast<std::ptrdiff_t>(first),
              results.begin() + static_cast<std::ptrdiff_t>(end),
              absl::StatusOr<GetResult>(status));
  }
  // A device that is lost reads nothing any more.
  if (const absl::StatusOr<bool> is_over = calls_.IsOver(); !is_over.ok() || *is_over) {
    std::ranges::for_each(batches_, GiveBack);
  }
}

}  // namespace cairn
