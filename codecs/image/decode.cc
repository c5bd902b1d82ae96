// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/decode.h"

#include "codecs/backend/step_scratch.h"
#include "codecs/forms/steps.h"
#include "codecs/forms/strips.h"
#include "codecs/image/settle.h"
#include "codecs/image/tiles.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

// A target of at least this is more than a core's own caches keep, so it is written past all of
// them: that spares reading it first. Half the time of raw and kivi:2 on a Zen 3.
constexpr uint64_t kStreamedBytesMin = uint64_t{1} << 20;

}  // namespace

Error Decode(const Backend& backend, const ImageView& view, const Slice& slice,
             std::span<std::byte> target, const DecodeInputs& inputs) {
  const FloatGuard guard;
  const ImageSpec& spec = view.spec();
  if (const Error error = CheckCodableWith(spec, inputs); error != Error::kOk) return error;
  if (slice.IsEmpty() || !spec.slice.Contains(slice)) return Error::kInvalidSlice;
  uint64_t target_bytes = 0;
  if (const Error error = SourceBytes(spec.tile, slice, spec.tokens, &target_bytes);
      error != Error::kOk) {
    return error;
  }
  if (target.size() < target_bytes) return Error::kTargetTooSmall;
  const bool is_streamed = target_bytes >= kStreamedBytesMin;
  StepScratch scratch;
  StripDecoder strips(backend, is_streamed);
  StepStripDecoder steps(backend, is_streamed, &scratch);
  const DecodeWork work{backend, inputs, is_streamed, &scratch, &strips, &steps};
  uint8_t* out = U8(target.data());
  const Error error = view.tiling().ForEach(slice, [&](uint32_t index) {
    const StoredTile tile = StoredTileOf(view, index);
    if (!FormOf(tile.entry.form)->decode(work, tile, out)) return Error::kBadTile;
    out += tile.geometry.SourceBytes();
    return Error::kOk;
  });
  if (error != Error::kOk) return error;
  return strips.Flush() && steps.Flush() ? Error::kOk : Error::kBadTile;
}

}  // namespace cairn::codecs
