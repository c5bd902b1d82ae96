// SPDX-License-Identifier: Apache-2.0
// The step Transcode of a get: makes one payload from pinned images.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/crc_join.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "service/get/get.h"

namespace cairn {
namespace {

using codecs::ImageView;
using codecs::Slice;

absl::Status CheckTarget(const GetOp& op, uint64_t bytes) {
  if (bytes > op.target_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_bytes is ", op.target_bytes, ": the payload has ", bytes));
  }
  return absl::OkStatus();
}

absl::Status Internal(std::string_view step, codecs::Error error) {
  return absl::InternalError(absl::StrCat(ToAbsl(step), ": ", ToAbsl(codecs::Name(error))));
}

// Returns true if the images differ only in their slices. They can then be combined without
// decoding.
bool HaveOneCoding(const Views& views) {
  return std::all_of(views.begin(), views.end(), [&](const ImageView& view) {
    codecs::ImageSpec spec = view.spec();
    spec.slice = views.front().spec().slice;
    return spec == views.front().spec();
  });
}

// If the tiles of the slice are a source payload already, returns their bytes and sets *crc32c.
// Otherwise returns an empty span. Only lossless images have such tiles.
std::span<const std::byte> SourceWithin(const GetOp& op, const ImageView& view, uint32_t* crc32c) {
  codecs::CrcJoin join;
  uint64_t begin = 0;
  uint64_t end = 0;
  const codecs::Error error = view.tiling().ForEach(op.slice, [&](uint32_t index) {
    const codecs::TileEntry tile = view.Tile(index);
    if (end == 0) {
      begin = end = tile.offset;
    }
    if (tile.form != codecs::kRawForm || tile.offset != end) {
      return codecs::Error::kMismatch;  // encoded, or another tile is before it
    }
    join.Append(tile.crc, tile.bytes);
    end += tile.bytes;
    return codecs::Error::kOk;
  });
  if (error != codecs::Error::kOk || end - begin != op.source_bytes) {
    return {};  // all tiles are raw, but there is padding between them
  }
  *crc32c = join.crc();
  return view.bytes().subspan(begin, end - begin);
}

// Keeps the bytes of the first image until the answer is sent. They contain the payload.
void KeepFirst(GetOp& op, Answer* answer) {
  if (op.IsRead(0)) {
    answer->read = op.reads[0];
  } else {
    answer->pin = std::move(op.pins.front());
  }
}

// Returns the answer without its payload.
Answer EmptyAnswer(const GetOp& op) {
  const CopyPin& pin = op.PinOf(0);
  Answer answer;
  answer.reply = {.form = op.get.form,
                  .tier = static_cast<uint8_t>(pin.copy().tier),
                  .first_position = pin.facts().first_position,
                  .source_bytes = op.source_bytes};
  return answer;
}

void SetPayload(Extent staging, Answer* answer) {
  answer->staging = std::move(staging);
  answer->payload = answer->staging.bytes();
  answer->payload_crc32c = codecs::Crc32c(answer->payload);
}

}  // namespace

Slice PartWithin(const Slice& slice, const Slice& whole) {
  const auto overlap = [](uint32_t first_a, uint32_t count_a, uint32_t first_b, uint32_t count_b) {
    const uint32_t first = std::max(first_a, first_b);
    const uint32_t end = std::min(first_a + count_a, first_b + count_b);
    return std::pair(static_cast<uint16_t>(first),
                     static_cast<uint16_t>(end > first ? end - first : 0));
  };
  const auto [layer_first, layer_count] =
      overlap(slice.layer_first, slice.layer_count, whole.layer_first, whole.layer_count);
  const auto [head_first, head_count] =
      overlap(slice.head_first, slice.head_count, whole.head_first, whole.head_count);
  return {layer_first, layer_count, head_first, head_count};
}

void Gets::Transcode(GetOwner op) {
  op->transcode_began = MonotonicNow();
  if (absl::Status verified = Verify(*op); !verified.ok()) {
    return EndTranscode(std::move(op), std::move(verified));
  }
  if (IsForDevice(*op)) return DecodeOnDevice(std::move(op));
  absl::StatusOr<Answer> answer = MakePayload(*op);
  EndTranscode(std::move(op), std::move(answer));
}

void Gets::EndTranscode(GetOwner op, absl::StatusOr<Answer> answer) {
  seconds(Step::kTranscode).Observe(MonotonicNow() - op->transcode_began);
  if (!answer.ok()) return Reply(std::move(op), answer.status());
  op->answer = *std::move(answer);
  if (note_read_ != nullptr) {
    note_read_(op->block(), static_cast<TierId>(op->answer.reply.tier));
  }
  Reply(std::move(op), absl::OkStatus());
}

absl::Status Gets::Verify(GetOp& op) {
  op.views.resize(op.pins.size());
  for (size_t i = 0; i < op.pins.size(); ++i) {
    if (op.IsRead(i)) {
      op.views[i] = op.reads[i]->view();
      continue;
    }
    const CopyPin& pin = op.pins[i];
    codecs::Error error = ParsePinned(pin, pin.bytes(), op.space->fingerprint(), &op.views[i]);
    if (error != codecs::Error::kOk) {
      return DropDamaged(pin, codecs::Name(error));
    }
  }
  // The decoded values of several images may be combined, so these are verified here.
  if (op.is_checked_by_client && (op.pins.size() == 1 || CanPlace(op))) return absl::OkStatus();
  return VerifyViews(op);
}

absl::Status Gets::VerifyViews(const GetOp& op) {
  for (size_t i = 0; i < op.pins.size(); ++i) {
    if (op.IsRead(i)) continue;  // verified when it was read
    const ImageView& view = op.views[i];
    const codecs::Error error = codecs::VerifyTiles(view, PartWithin(op.slice, view.spec().slice));
    if (error != codecs::Error::kOk) {
      return DropDamaged(op.pins[i], codecs::Name(error));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Answer> Gets::MakePayload(GetOp& op) {
  return op.get.form == proto::Form::kSource ? MakeSource(op) : MakeImage(op);
}

// --- Source --------------------------------------------------------------------------------------

absl::StatusOr<Answer> Gets::MakeSource(GetOp& op) {
  CAIRN_RETURN_IF_ERROR(CheckTarget(op, op.source_bytes));
  Answer answer = EmptyAnswer(op);
  if (op.views.size() == 1) {
    answer.payload = SourceWithin(op, op.views.front(), &answer.payload_crc32c);
  }
  if (!answer.payload.empty()) {
    KeepFirst(op, &answer);
    direct_.Add();
    return answer;
  }
  CAIRN_ASSIGN_OR_RETURN(Extent source, DecodeToStaging(op));
  return AnswerWith(op, std::move(source));
}

Answer Gets::AnswerWith(const GetOp& op, Extent source) {
  Answer answer = EmptyAnswer(op);
  SetPayload(std::move(source), &answer);
  decoded_.Add();
  return answer;
}

absl::StatusOr<Extent> Gets::DecodeToStaging(GetOp& op) {
  CAIRN_ASSIGN_OR_RETURN(Extent source, tiers_.host().AllocateStaging(op.source_bytes));
  CAIRN_RETURN_IF_ERROR(DecodeInto(op, source.bytes()));
  return source;
}

// Decodes the slice. Each run of heads is decoded from the first image that has it.
absl::Status Gets::DecodeInto(GetOp& op, std::span<std::byte> target) {
  const Slice& slice = op.slice;
  const Views& views = op.views;
  if (views.size() == 1) {
    return DecodeImage(op, 0, slice, target);
  }
  for (uint16_t layer = slice.layer_first; layer < slice.layer_first + slice.layer_count; ++layer) {
    for (uint16_t head = slice.head_first; head < slice.head_first + slice.head_count;) {
      const Slice tile = {layer, 1, head, 1};
      const auto view = std::find_if(views.begin(), views.end(), [&](const ImageView& candidate) {
        return candidate.spec().slice.Contains(tile);
      });
      CAIRN_CHECK(view != views.end());
      // A run ends at the last head of this image, or before the first head that an earlier image
      // has.
      Slice run = tile;
      while (head + run.head_count < slice.head_first + slice.head_count) {
        const Slice next = {layer, 1, static_cast<uint16_t>(head + run.head_count), 1};
        if (!view->spec().slice.Contains(next) ||
            std::any_of(views.begin(), view, [&](const ImageView& earlier) {
              return earlier.spec().slice.Contains(next);
            })) {
          break;
        }
        ++run.head_count;
      }
      CAIRN_RETURN_IF_ERROR(
          DecodeImage(op, static_cast<size_t>(view - views.begin()), run, target));
      head = static_cast<uint16_t>(head + run.head_count);
    }
  }
  return absl::OkStatus();
}

// Decodes a part of one image, and moves `target` past it.
absl::Status Gets::DecodeImage(GetOp& op, size_t image, const Slice& part,
                               std::span<std::byte>& target) {
  const ImageView& view = op.views[image];
  const CopyPin& pin = op.PinOf(image);
  uint64_t bytes = 0;
  codecs::Error error = codecs::SourceBytes(view.spec().tile, part, view.spec().tokens, &bytes);
  if (error == codecs::Error::kOk) {
    const SideObject* side = pin.side_object();
    error = codecs::Decode(backend_, view, part, target.first(bytes),
                           side == nullptr ? codecs::DecodeInputs() : side->content().inputs());
    target = target.subspan(bytes);
  }
  if (error == codecs::Error::kBadTile || error == codecs::Error::kNoProfile ||
      error == codecs::Error::kNoBank) {
    return DropDamaged(pin, codecs::Name(error));
  }
  return error == codecs::Error::kOk ? absl::OkStatus() : Internal("decode", error);
}

// --- Images --------------------------------------------------------------------------------------

absl::StatusOr<Answer> Gets::MakeImage(GetOp& op) {
  Answer answer = EmptyAnswer(op);
  const ImageView& first = op.views.front();
  if (op.views.size() == 1 && first.spec().slice == op.slice) {
    CAIRN_RETURN_IF_ERROR(CheckTarget(op, first.bytes().size()));
    answer.payload = first.bytes();
    answer.payload_crc32c = codecs::JoinCrc32c(first);
    KeepFirst(op, &answer);
    direct_.Add();
    return answer;
  }
  if (CanPlace(op)) {
    if (PlaceTiles(op, &answer)) {
      placed_.Add();
      return answer;
    }
    // Verify() has left this to a client that reads the tiles where they are.
    if (op.pins.size() > 1) CAIRN_RETURN_IF_ERROR(VerifyViews(op));
  }
  const bool is_gathered = HaveOneCoding(op.views);
  CAIRN_ASSIGN_OR_RETURN(Extent image, is_gathered ? Gather(op) : Recode(op));
  (is_gathered ? gathered_ : recoded_).Add();
  SetPayload(std::move(image), &answer);
  return answer;
}

bool Gets::CanPlace(const GetOp& op) {
  return op.is_checked_by_client && op.request.reply_to.takes_places && HaveOneCoding(op.views);
}

bool Gets::PlaceTiles(GetOp& op, Answer* answer) {
  auto placed = std::make_unique<PlacedTiles>();
  placed->prefix.resize(codecs::GatheredPrefixBytes(op.views.front(), op.slice));
  placed->places.resize(
      std::min<uint64_t>(limits::kLentPlacesMax, uint64_t{op.slice.layer_count} * op.views.size()));
  codecs::PlacedImage image;
  if (codecs::GatherInPlace(op.views, op.slice, placed->prefix, placed->places, &image) !=
      codecs::Error::kOk) {
    return false;
  }
  placed->places.resize(image.places.size());
  const transport::PlacedPayload payload{placed->prefix, placed->places};
  if (std::max(image.bytes, payload.room_bytes()) > op.target_bytes) return false;
  for (size_t i = 0; i < op.pins.size(); ++i) {
    if (op.IsRead(i)) {
      placed->reads.push_back(op.reads[i]);
    } else {
      placed->pins.push_back(std::move(op.pins[i]));
    }
  }
  answer->payload = placed->prefix;
  answer->payload_crc32c = image.crc32c;
  answer->placed = std::move(placed);
  return true;
}

absl::StatusOr<Extent> Gets::Gather(GetOp& op) {
  uint64_t bytes_needed = 0;
  codecs::Error error = codecs::GatheredBytes(op.views, op.slice, &bytes_needed);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(op, bytes_needed));
  CAIRN_ASSIGN_OR_RETURN(Extent image, tiers_.host().AllocateStaging(bytes_needed));
  size_t bytes = 0;
  error = codecs::Gather(op.views, op.slice, image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_CHECK(bytes == bytes_needed);
  return image;
}

// If images are coded differently, only a lossless image of their decoded values can combine them.
absl::StatusOr<Extent> Gets::Recode(GetOp& op) {
  codecs::ImageSpec spec = op.views.front().spec();
  spec.slice = op.slice;
  CAIRN_CHECK(codecs::SetRecipe("raw", {}, {}, &spec) == codecs::Error::kOk);
  uint64_t bytes_max = 0;
  codecs::Error error = codecs::MaxImageBytes(spec, &bytes_max);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(op, bytes_max));
  CAIRN_ASSIGN_OR_RETURN(const Extent source, DecodeToStaging(op));
  CAIRN_ASSIGN_OR_RETURN(Extent image, tiers_.host().AllocateStaging(bytes_max));
  size_t bytes = 0;
  error = codecs::Encode(backend_, spec, source.bytes(), image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("encode", error);
  }
  image.ShrinkTo(bytes);
  return image;
}

// --- The device ----------------------------------------------------------------------------------

// Returns true if there is a device, and the answer is decoded from one image.
bool Gets::IsForDevice(const GetOp& op) const {
  uint32_t crc32c = 0;
  return device_ != nullptr && op.get.form == proto::Form::kSource && op.views.size() == 1 &&
         op.source_bytes <= op.target_bytes && !op.views.front().spec().recipe.IsRaw() &&
         SourceWithin(op, op.views.front(), &crc32c).empty();
}

void Gets::DecodeOnDevice(GetOwner op) {
  DecodeWork work = {.view = op->views.front(),
                     .slice = op->slice,
                     .source_bytes = op->source_bytes,
                     .side_object = op->PinOf(0).side_object()};
  if (op->IsRead(0)) {
    work.keeps = op->reads[0];
  } else {
    op->shared_pin = std::make_shared<const CopyPin>(std::move(op->pins.front()));
    work.keeps = op->shared_pin;
  }
  work.room = [&host = tiers_.host()](uint64_t bytes) { return host.AllocateStaging(bytes); };
  const absl::Duration left = op->request.deadline - clock_.Now();
  device_->Decode(std::move(work), left, [this, op = std::move(op)](Coded coded) mutable {
    if (coded.is_refused) return TakeDecoded(std::move(op), std::move(coded.result));
    // Also runs if the pool refuses because the daemon stops.
    pool_.Continue(
        [this, op = std::move(op), source = std::move(coded.result)](const absl::Status&) mutable {
          TakeDecoded(std::move(op), std::move(source));
        },
        PathPool::Kind::kGet);
  });
}

void Gets::TakeDecoded(GetOwner op, absl::StatusOr<Extent> source) {
  absl::StatusOr<Answer> answer =
      source.ok() ? absl::StatusOr<Answer>(AnswerWith(*op, *std::move(source))) : MakePayload(*op);
  EndTranscode(std::move(op), std::move(answer));
}

}  // namespace cairn
