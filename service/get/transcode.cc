// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/crc_join.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "proto/block_key.h"
#include "service/get/steps.h"
#include "service/step_timer.h"

namespace cairn {
namespace {

using codecs::ImageView;
using codecs::Slice;

// Damaged bytes, and those that are no image though their checksums fit, leave the index at once;
// who unlinks them counts and logs.
absl::Status Corrupt(GetContext& context, const Pin& pin, codecs::Error error) {
  if (context.path.index.Drop(pin)) {
    context.path.corrupt_tiles_host.Add();
    LogWarn("get", "image is damaged: dropped",
            {{"error", codecs::Name(error)},
             {"key", proto::Hex(std::span(pin.facts().key).first(4))},
             {"space", pin.facts().space_id},
             {"place", absl::StrCat("host+", pin.place())}});
  }
  return absl::DataLossError("damaged and dropped");
}

Slice Intersection(const Slice& a, const Slice& b) {
  const auto overlap = [](uint32_t first_a, uint32_t count_a, uint32_t first_b, uint32_t count_b) {
    const uint32_t first = std::max(first_a, first_b);
    const uint32_t end = std::min(first_a + count_a, first_b + count_b);
    return std::pair(static_cast<uint16_t>(first),
                     static_cast<uint16_t>(end > first ? end - first : 0));
  };
  const auto [layer_first, layer_count] =
      overlap(a.layer_first, a.layer_count, b.layer_first, b.layer_count);
  const auto [head_first, head_count] =
      overlap(a.head_first, a.head_count, b.head_first, b.head_count);
  return {layer_first, layer_count, head_first, head_count};
}

// Whether the side object that the image names is the one that it was published with.
bool HasItsSideObject(const Pin& pin, const ImageView& view) {
  const codecs::ImageSpec& spec = view.spec();
  const SideObject* side = pin.side_object();
  return spec.side_object_count == 0 ? side == nullptr
                                     : side != nullptr && side->id() == spec.side_objects[0];
}

// Parses every image and checks the tiles of it that the answer is made of.
absl::StatusOr<Views> Verify(GetContext& context, const BlockIndex::Pins& pins) {
  Views views(pins.size());
  for (size_t i = 0; i < pins.size(); ++i) {
    codecs::Error error = codecs::ParseImage(pins[i].bytes(), &views[i]);
    if (error == codecs::Error::kOk) {
      error = codecs::VerifyTiles(views[i], Intersection(context.slice, views[i].spec().slice));
    }
    if (error == codecs::Error::kOk && !HasItsSideObject(pins[i], views[i])) {
      error = codecs::Error::kNoProfile;
    }
    if (error != codecs::Error::kOk) {
      return Corrupt(context, pins[i], error);
    }
  }
  return views;
}

absl::Status CheckTarget(const GetContext& context, uint64_t bytes) {
  if (bytes > context.target_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_bytes is ", context.target_bytes, ": the payload has ", bytes));
  }
  return absl::OkStatus();
}

absl::Status Internal(std::string_view step, codecs::Error error) {
  return absl::InternalError(absl::StrCat(ToAbsl(step), ": ", ToAbsl(codecs::Name(error))));
}

// They differ in nothing but their slices, and so can be put together without decoding.
bool HaveOneCoding(const Views& views) {
  return std::all_of(views.begin(), views.end(), [&](const ImageView& view) {
    codecs::ImageSpec spec = view.spec();
    spec.slice = views.front().spec().slice;
    return spec == views.front().spec();
  });
}

// Decodes the slice, run of heads by run, each from the first image that has it. The views are
// those of the pins.
absl::Status DecodeInto(GetContext& context, const BlockIndex::Pins& pins, const Views& views,
                        std::span<std::byte> target) {
  const Slice& slice = context.slice;
  const auto decode = [&](const ImageView& view, const Slice& part) -> absl::Status {
    const Pin& pin = pins[static_cast<size_t>(&view - views.data())];
    uint64_t bytes = 0;
    codecs::Error error = codecs::SourceBytes(view.spec().tile, part, view.spec().tokens, &bytes);
    if (error == codecs::Error::kOk) {
      const SideObject* side = pin.side_object();
      error = codecs::Decode(context.path.backend, view, part, target.first(bytes),
                             side == nullptr ? codecs::DecodeInputs() : side->content().inputs());
      target = target.subspan(bytes);
    }
    if (error == codecs::Error::kBadTile || error == codecs::Error::kNoProfile ||
        error == codecs::Error::kNoBank) {
      return Corrupt(context, pin, error);
    }
    return error == codecs::Error::kOk ? absl::OkStatus() : Internal("decode", error);
  };
  if (views.size() == 1) {
    return decode(views.front(), slice);
  }
  for (uint16_t layer = slice.layer_first; layer < slice.layer_first + slice.layer_count; ++layer) {
    for (uint16_t head = slice.head_first; head < slice.head_first + slice.head_count;) {
      const Slice tile = {layer, 1, head, 1};
      const auto view = std::find_if(views.begin(), views.end(), [&](const ImageView& candidate) {
        return candidate.spec().slice.Contains(tile);
      });
      CAIRN_CHECK(view != views.end());
      // As far as neither this image nor an earlier one's claim ends.
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
      CAIRN_RETURN_IF_ERROR(decode(*view, run));
      head = static_cast<uint16_t>(head + run.head_count);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Extent> DecodeToStaging(GetContext& context, const BlockIndex::Pins& pins,
                                       const Views& views) {
  CAIRN_ASSIGN_OR_RETURN(Extent source, context.path.host.AllocateStaging(context.source_bytes));
  CAIRN_RETURN_IF_ERROR(DecodeInto(context, pins, views, source.bytes()));
  return source;
}

// Where the tiles of a lossless image lie as a source payload already, with its CRC; empty if they
// do not.
std::span<const std::byte> SourceWithin(const GetContext& context, const ImageView& view,
                                        uint32_t* crc32c) {
  const Slice& slice = context.slice;
  const uint32_t first =
      view.IndexOf({.layer = slice.layer_first, .head = slice.head_first, .plane = 0});
  const uint64_t count = codecs::TileCount(view.spec().tile, slice);
  if (slice.layer_count > 1 && slice.head_count < view.spec().slice.head_count) {
    return {};  // tiles of other heads between them
  }
  codecs::CrcJoin join;
  uint64_t bytes = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    const codecs::TileEntry tile = view.Tile(static_cast<uint32_t>(i));
    if (tile.form != codecs::kRawForm) {
      return {};
    }
    join.Append(tile.crc, tile.bytes);
    bytes += tile.bytes;
  }
  if (bytes != context.source_bytes) {
    return {};  // padding between them
  }
  *crc32c = join.crc();
  return view.bytes().subspan(view.Tile(first).offset, bytes);
}

absl::StatusOr<Transcoded> ToSource(GetContext& context, Promoted promoted, const Views& views) {
  CAIRN_RETURN_IF_ERROR(CheckTarget(context, context.source_bytes));
  Transcoded transcoded;
  transcoded.facts = promoted.pins.front().facts();
  if (views.size() == 1) {
    transcoded.payload = SourceWithin(context, views.front(), &transcoded.crc32c);
  }
  if (!transcoded.payload.empty()) {
    transcoded.pin = std::move(promoted.pins.front());
    context.path.direct.Add();
    return transcoded;
  }
  CAIRN_ASSIGN_OR_RETURN(transcoded.staging, DecodeToStaging(context, promoted.pins, views));
  transcoded.payload = transcoded.staging.bytes();
  transcoded.crc32c = codecs::Crc32c(transcoded.payload);
  context.path.decoded.Add();
  return transcoded;
}

absl::StatusOr<Extent> Gather(GetContext& context, const Views& views) {
  uint64_t bytes_needed = 0;
  codecs::Error error = codecs::GatheredBytes(views, context.slice, &bytes_needed);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(context, bytes_needed));
  CAIRN_ASSIGN_OR_RETURN(Extent image, context.path.host.AllocateStaging(bytes_needed));
  size_t bytes = 0;
  error = codecs::Gather(views, context.slice, image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_CHECK(bytes == bytes_needed);
  return image;
}

// Images that are coded differently have no common image but a lossless one of what they decode to.
absl::StatusOr<Extent> Recode(GetContext& context, const BlockIndex::Pins& pins,
                              const Views& views) {
  codecs::ImageSpec spec = views.front().spec();
  spec.slice = context.slice;
  CAIRN_CHECK(codecs::SetRecipe("raw", {}, {}, &spec) == codecs::Error::kOk);
  uint64_t bytes_max = 0;
  codecs::Error error = codecs::MaxImageBytes(spec, &bytes_max);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(context, bytes_max));
  CAIRN_ASSIGN_OR_RETURN(const Extent source, DecodeToStaging(context, pins, views));
  CAIRN_ASSIGN_OR_RETURN(Extent image, context.path.host.AllocateStaging(bytes_max));
  size_t bytes = 0;
  error = codecs::Encode(context.path.backend, spec, source.bytes(), image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("encode", error);
  }
  image.ShrinkTo(bytes);
  return image;
}

absl::StatusOr<Transcoded> ToImage(GetContext& context, Promoted promoted, const Views& views) {
  Transcoded transcoded;
  transcoded.facts = promoted.pins.front().facts();
  if (views.size() == 1 && views.front().spec().slice == context.slice) {
    CAIRN_RETURN_IF_ERROR(CheckTarget(context, views.front().bytes().size()));
    transcoded.payload = views.front().bytes();
    transcoded.crc32c = codecs::JoinCrc32c(views.front());
    transcoded.pin = std::move(promoted.pins.front());
    context.path.direct.Add();
    return transcoded;
  }
  const bool is_gathered = HaveOneCoding(views);
  CAIRN_ASSIGN_OR_RETURN(transcoded.staging, is_gathered ? Gather(context, views)
                                                         : Recode(context, promoted.pins, views));
  (is_gathered ? context.path.gathered : context.path.recoded).Add();
  transcoded.payload = transcoded.staging.bytes();
  transcoded.crc32c = codecs::Crc32c(transcoded.payload);
  return transcoded;
}

}  // namespace

absl::StatusOr<Transcoded> Transcode(GetContext& context, Promoted promoted) {
  const StepTimer timer(context.path.seconds(GetPath::Step::kTranscode));
  CAIRN_ASSIGN_OR_RETURN(const Views views, Verify(context, promoted.pins));
  return context.get.form == proto::Form::kSource ? ToSource(context, std::move(promoted), views)
                                                  : ToImage(context, std::move(promoted), views);
}

}  // namespace cairn
