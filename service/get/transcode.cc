// SPDX-License-Identifier: Apache-2.0
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
#include "service/get/steps.h"
#include "service/index/pin.h"

namespace cairn {
namespace {

using codecs::ImageView;
using codecs::Slice;

absl::Status CheckTarget(const GetRun& run, uint64_t bytes) {
  if (bytes > run.get.target_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_bytes is ", run.get.target_bytes, ": the payload has ", bytes));
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

// Decodes the slice, run of heads by run, each from the first image that has it.
absl::Status DecodeInto(GetRun& run, const Views& views, std::span<std::byte> target) {
  const Slice& slice = run.slice;
  const auto decode = [&](const ImageView& view, const Slice& part) -> absl::Status {
    const CopyPin& pin = run.PinOf(static_cast<size_t>(&view - views.data()));
    uint64_t bytes = 0;
    codecs::Error error = codecs::SourceBytes(view.spec().tile, part, view.spec().tokens, &bytes);
    if (error == codecs::Error::kOk) {
      const SideObject* side = pin.side_object();
      error = codecs::Decode(run.path.backend, view, part, target.first(bytes),
                             side == nullptr ? codecs::DecodeInputs() : side->content().inputs());
      target = target.subspan(bytes);
    }
    if (error == codecs::Error::kBadTile || error == codecs::Error::kNoProfile ||
        error == codecs::Error::kNoBank) {
      return run.path.DropDamaged(pin, codecs::Name(error));
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

absl::StatusOr<Extent> DecodeToStaging(GetRun& run, const Views& views) {
  CAIRN_ASSIGN_OR_RETURN(Extent source, run.path.tiers.host().AllocateStaging(run.source_bytes));
  CAIRN_RETURN_IF_ERROR(DecodeInto(run, views, source.bytes()));
  return source;
}

// Where the tiles of a lossless image lie as a source payload already, with its CRC; empty if they
// do not.
std::span<const std::byte> SourceWithin(const GetRun& run, const ImageView& view,
                                        uint32_t* crc32c) {
  codecs::CrcJoin join;
  uint64_t begin = 0;
  uint64_t end = 0;
  const codecs::Error error = view.tiling().ForEach(run.slice, [&](uint32_t index) {
    const codecs::TileEntry tile = view.Tile(index);
    if (end == 0) {
      begin = end = tile.offset;
    }
    if (tile.form != codecs::kRawForm || tile.offset != end) {
      return codecs::Error::kMismatch;  // coded, or tiles of other heads between them
    }
    join.Append(tile.crc, tile.bytes);
    end += tile.bytes;
    return codecs::Error::kOk;
  });
  if (error != codecs::Error::kOk || end - begin != run.source_bytes) {
    return {};  // there is padding between them, if all are raw
  }
  *crc32c = join.crc();
  return view.bytes().subspan(begin, end - begin);
}

// A slice of one image, which has to be decoded, and there is a device to ask.
bool IsForDevice(const GetRun& run) {
  uint32_t crc32c = 0;
  return run.path.device != nullptr && run.get.get.form == proto::Form::kSource &&
         run.views.size() == 1 && run.source_bytes <= run.get.target_bytes &&
         !run.views.front().spec().recipe.IsRaw() &&
         SourceWithin(run, run.views.front(), &crc32c).empty();
}

// Keeps the bytes of the first image, in which the payload lies, until the answer is sent.
void KeepFirst(GetRun& run, Answer* answer) {
  if (run.IsRead(0)) {
    answer->read = run.reads[0];
  } else {
    answer->pin = std::move(run.pins.front());
  }
}

// The answer but for its payload.
Answer AnswerOf(const GetRun& run) {
  const CopyPin& pin = run.PinOf(0);
  Answer answer;
  answer.promote = run.promote;
  answer.reply = {.form = run.get.get.form,
                  .tier = static_cast<uint8_t>(pin.copy().tier),
                  .first_position = pin.facts().first_position,
                  .source_bytes = run.source_bytes};
  return answer;
}

Answer Decoded(const GetRun& run, Extent source) {
  Answer answer = AnswerOf(run);
  answer.staging = std::move(source);
  answer.payload = answer.staging.bytes();
  answer.payload_crc32c = codecs::Crc32c(answer.payload);
  run.path.decoded.Add();
  return answer;
}

absl::StatusOr<Answer> ToSource(GetRun& run, const Views& views) {
  CAIRN_RETURN_IF_ERROR(CheckTarget(run, run.source_bytes));
  Answer answer = AnswerOf(run);
  if (views.size() == 1) {
    answer.payload = SourceWithin(run, views.front(), &answer.payload_crc32c);
  }
  if (!answer.payload.empty()) {
    KeepFirst(run, &answer);
    run.path.direct.Add();
    return answer;
  }
  CAIRN_ASSIGN_OR_RETURN(Extent source, DecodeToStaging(run, views));
  return Decoded(run, std::move(source));
}

absl::StatusOr<Extent> Gather(GetRun& run, const Views& views) {
  uint64_t bytes_needed = 0;
  codecs::Error error = codecs::GatheredBytes(views, run.slice, &bytes_needed);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(run, bytes_needed));
  CAIRN_ASSIGN_OR_RETURN(Extent image, run.path.tiers.host().AllocateStaging(bytes_needed));
  size_t bytes = 0;
  error = codecs::Gather(views, run.slice, image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("gather", error);
  }
  CAIRN_CHECK(bytes == bytes_needed);
  return image;
}

// Images that are coded differently have no common image but a lossless one of what they decode to.
absl::StatusOr<Extent> Recode(GetRun& run, const Views& views) {
  codecs::ImageSpec spec = views.front().spec();
  spec.slice = run.slice;
  CAIRN_CHECK(codecs::SetRecipe("raw", {}, {}, &spec) == codecs::Error::kOk);
  uint64_t bytes_max = 0;
  codecs::Error error = codecs::MaxImageBytes(spec, &bytes_max);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  CAIRN_RETURN_IF_ERROR(CheckTarget(run, bytes_max));
  CAIRN_ASSIGN_OR_RETURN(const Extent source, DecodeToStaging(run, views));
  CAIRN_ASSIGN_OR_RETURN(Extent image, run.path.tiers.host().AllocateStaging(bytes_max));
  size_t bytes = 0;
  error = codecs::Encode(run.path.backend, spec, source.bytes(), image.bytes(), &bytes);
  if (error != codecs::Error::kOk) {
    return Internal("encode", error);
  }
  image.ShrinkTo(bytes);
  return image;
}

absl::StatusOr<Answer> ToImage(GetRun& run, const Views& views) {
  Answer answer = AnswerOf(run);
  if (views.size() == 1 && views.front().spec().slice == run.slice) {
    CAIRN_RETURN_IF_ERROR(CheckTarget(run, views.front().bytes().size()));
    answer.payload = views.front().bytes();
    answer.payload_crc32c = codecs::JoinCrc32c(views.front());
    KeepFirst(run, &answer);
    run.path.direct.Add();
    return answer;
  }
  const bool is_gathered = HaveOneCoding(views);
  CAIRN_ASSIGN_OR_RETURN(answer.staging, is_gathered ? Gather(run, views) : Recode(run, views));
  (is_gathered ? run.path.gathered : run.path.recoded).Add();
  answer.payload = answer.staging.bytes();
  answer.payload_crc32c = codecs::Crc32c(answer.payload);
  return answer;
}

}  // namespace

Slice WantedOf(const GetRun& run, const Slice& whole) {
  const auto overlap = [](uint32_t first_a, uint32_t count_a, uint32_t first_b, uint32_t count_b) {
    const uint32_t first = std::max(first_a, first_b);
    const uint32_t end = std::min(first_a + count_a, first_b + count_b);
    return std::pair(static_cast<uint16_t>(first),
                     static_cast<uint16_t>(end > first ? end - first : 0));
  };
  const Slice& slice = run.slice;
  const auto [layer_first, layer_count] =
      overlap(slice.layer_first, slice.layer_count, whole.layer_first, whole.layer_count);
  const auto [head_first, head_count] =
      overlap(slice.head_first, slice.head_count, whole.head_first, whole.head_count);
  return {layer_first, layer_count, head_first, head_count};
}

absl::Status Verify(GetRun& run) {
  run.verifying_at = MonotonicNow();
  run.views.resize(run.pins.size());
  for (size_t i = 0; i < run.pins.size(); ++i) {
    if (run.IsRead(i)) {
      run.views[i] = run.reads[i]->view();
      continue;
    }
    const CopyPin& pin = run.pins[i];
    codecs::Error error = ParsePinned(pin, pin.bytes(), run.space->fingerprint(), &run.views[i]);
    // Of several it may be made of what they decode to.
    const bool is_checked_here = !run.get.is_checked_by_client || run.pins.size() > 1;
    if (error == codecs::Error::kOk && is_checked_here) {
      error = codecs::VerifyTiles(run.views[i], WantedOf(run, run.views[i].spec().slice));
    }
    if (error != codecs::Error::kOk) {
      return run.path.DropDamaged(pin, codecs::Name(error));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Answer> Transcode(GetRun& run) {
  return run.get.get.form == proto::Form::kSource ? ToSource(run, run.views)
                                                  : ToImage(run, run.views);
}

bool DecodeOnDevice(std::unique_ptr<GetRun>& run) {
  if (!IsForDevice(*run)) {
    return false;
  }
  GetPath& path = run->path;
  DecodeWork work = {.view = run->views.front(),
                     .slice = run->slice,
                     .source_bytes = run->source_bytes,
                     .side_object = run->PinOf(0).side_object()};
  if (run->IsRead(0)) {
    work.keeps = run->reads[0];
  } else {
    run->shared_pin = std::make_shared<const CopyPin>(std::move(run->pins.front()));
    work.keeps = run->shared_pin;
  }
  work.room = [&host = path.tiers.host()](uint64_t bytes) { return host.AllocateStaging(bytes); };
  const absl::Duration left = run->get.deadline - path.clock.Now();
  // The codec runs every completion, so the run has an owner again in either case.
  GetRun* const released = run.release();
  CodecDone done = [&pool = path.pool, released](absl::StatusOr<Extent> source) {
    PathPool::Job job = [released, source = std::move(source)]() mutable {
      ResumeDecoded(std::unique_ptr<GetRun>(released), std::move(source));
    };
    if (!pool.Continue(std::move(job), PathPool::Kind::kGet).ok()) {
      job();  // the daemon stops
    }
  };
  if (path.device->Decode(work, left, done)) {
    return true;
  }
  run.reset(released);
  return false;
}

void NoteAnswer(GetRun& run, const absl::StatusOr<Answer>& answer) {
  run.path.seconds(GetPath::Step::kTranscode).Observe(MonotonicNow() - run.verifying_at);
  if (answer.ok() && run.path.read_notes != nullptr) {
    run.path.read_notes->NoteRead({run.get.get.space_id, run.get.get.key},
                                  static_cast<TierId>(answer->reply.tier));
  }
}

void ResumeDecoded(std::unique_ptr<GetRun> run, absl::StatusOr<Extent> source) {
  absl::StatusOr<Answer> answer =
      source.ok() ? absl::StatusOr<Answer>(Decoded(*run, *std::move(source))) : Transcode(*run);
  NoteAnswer(*run, answer);
  Finish(std::move(run), std::move(answer));
}

void MakeAnswer(std::unique_ptr<GetRun> run) {
  const absl::Status status = Verify(*run);
  if (status.ok() && DecodeOnDevice(run)) {
    return;
  }
  absl::StatusOr<Answer> answer = status.ok() ? Transcode(*run) : absl::StatusOr<Answer>(status);
  NoteAnswer(*run, answer);
  Finish(std::move(run), std::move(answer));
}

}  // namespace cairn
