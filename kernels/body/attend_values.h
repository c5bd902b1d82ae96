// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the values of 16 tokens at a time, in shared memory, with the same rounding as the
// decode kernels. Accepts tiles of every form in which each code has a fixed place, source
// elements, and tails of caches. See attend_any.h.

#include <cstdint>

#include "kernels/body/attend_tasks.h"
#include "kernels/body/encode_tasks.h"
#include "kernels/body/fp8_decode.h"
#include "kernels/body/hot_decode.h"
#include "kernels/body/mixed_decode.h"
#include "kernels/body/patterned_decode.h"

namespace cairn::kernels {

inline constexpr uint32_t kValueTokens = 16;  // tokens with values in shared memory

// Shared memory that some forms need in addition to a tile. The K of a part uses it first, then the
// V.
struct NarrowForms {};
struct WideForms {
  union {
    const uint8_t* patterns[kTaskTokensMax];
    MixedDecodeShared mixed;
    HotDecodeShared hot;
  };
};

template <uint32_t kDimMax, typename Forms>
struct AttendShared {
  float queries[kAttendRows][kDimMax];
  float outputs[kAttendRows][kDimMax];
  float values[kValueTokens][kDimMax + 1];  // + 1, to spread over banks
  float weights[kAttendRows][kTaskTokensMax];
  float shrink[kAttendRows];  // factor for the previous outputs, when those of the part are added
  TokenPlaces places;         // addresses of the tokens' source elements; null: none
  Forms forms;
};
using NarrowShared = AttendShared<kAttendNarrowDim, NarrowForms>;
using WideShared = AttendShared<kAttendDimMax, WideForms>;

// The K or the V of a part.
struct AttendTile {
  TileTask task;
  PlaneRecord plane;
  codecs::FormId form;
  bool is_tail;
  MixedParts mixed;
};

// ---- Which tokens exist, and where they are ----

// Finds the tokens that are source elements. The block must synchronize before and after the call.
CAIRN_DEVICE void FindSources(const AttendTile& tile, TokenPlaces* places, Fault* fault) {
  const TileTask& task = tile.task;
  const uint32_t thread = ThreadIndex();
  if (thread < kTaskTokensMax / 32) places->is_row[thread] = 0;
  if (thread < kTaskTokensMax) {
    uint8_t* place = nullptr;
    if (thread < task.token_count) {
      const uint32_t token = task.token_first + thread;
      if (tile.is_tail) {
        place = PlaceOf(tile.plane, task.target, token, fault);
      } else if (tile.form == codecs::FormId::kRaw) {
        place =
            const_cast<uint8_t*>(task.source) + static_cast<uint64_t>(token) * tile.plane.row_bytes;
      }
    }
    places->of[thread] = place;
  }
  if (task.rows == 0) return;
  SyncBlock();
  MarkRows(task, tile.plane, places, fault);
  for (uint32_t row = thread; row < task.rows; row += kBlockThreads) {
    const uint32_t at = StoredToken(task, tile.plane, row) - task.token_first;
    if (at >= task.token_count) continue;
    const uint8_t* bits =
        task.source + task.row_bits_at + static_cast<uint64_t>(row) * tile.plane.row_bytes;
    places->of[at] = const_cast<uint8_t*>(bits);
  }
}

CAIRN_DEVICE void FindForm(AttendTile*, NarrowForms*, Fault*) {}

// Finds the additional data of the form. Synchronizes the block inside; the caller must synchronize
// after it.
CAIRN_DEVICE void FindForm(AttendTile* tile, WideForms* forms, Fault* fault) {
  TileTask& task = tile->task;
  switch (tile->form) {
    case codecs::FormId::kPatterned:
      return FindPatterns(task, tile->plane, forms->patterns, fault);
    case codecs::FormId::kMixed:
      FindClasses(task, tile->plane, &forms->mixed);
      SyncBlock();
      if (PlaceMixed(forms->mixed.counts, tile->plane, &task, &tile->mixed)) return;
      *fault = Fault::kBadTile;
      task.rows = 0;  // the plan does not know where they are
      return;
    case codecs::FormId::kHot:
      FindScales(task, tile->plane, &forms->hot);
      FindWidths(tile->plane, task.head, &forms->hot.widths);
      SyncBlock();
      FillLastByte(tile->plane, task.head, &forms->hot.widths);
      SyncBlock();
      if (forms->hot.widths.row_bytes != task.code_row_bytes) *fault = Fault::kBadTile;
      return;
    default:
      return;
  }
}

// ---- Values ----

CAIRN_DEVICE uint32_t LoadCode(const uint8_t* codes, uint32_t number, uint32_t bits) {
  const uint32_t bit = number * bits;
  return LoadGlobal<uint8_t>(codes + bit / 8) >> bit % 8 & ((1U << bits) - 1);
}

CAIRN_DEVICE float AffineValue(const AttendTile& tile, uint32_t token, uint32_t channel,
                               Fault* fault) {
  const uint32_t bits = tile.plane.bits;
  const uint8_t* codes =
      tile.task.source + static_cast<uint64_t>(token) * codecs::CodeRowBytes(tile.plane.dim, bits);
  return LoadAndDequantize(tile.task, PairOf(tile.plane, token, channel),
                           LoadCode(codes, channel, bits), bits, fault);
}

CAIRN_DEVICE float Fp8Value(const AttendTile& tile, uint32_t token, uint32_t channel,
                            Fault* fault) {
  const uint8_t code = LoadGlobal<uint8_t>(tile.task.source +
                                           static_cast<uint64_t>(token) * tile.plane.dim + channel);
  if (codecs::IsE4m3Nan(code)) *fault = Worse(*fault, Fault::kBadTile);
  return codecs::Multiply(E4m3Value(code), LoadScale(tile.task, token, fault));
}

CAIRN_DEVICE float MixedValue(const AttendTile& tile, const MixedDecodeShared& shared,
                              uint32_t token, uint32_t channel, Fault* fault) {
  const PlaneRecord& plane = tile.plane;
  const uint32_t two = shared.counts[0], four = shared.counts[1], source = shared.counts[2];
  const uint32_t number = shared.channels[channel] & ((1U << kMixedClassShift) - 1);
  const auto of = static_cast<codecs::ChannelClass>(shared.channels[channel] >> kMixedClassShift);
  if (of == codecs::ChannelClass::kSourceBits) {
    const uint8_t* elements = tile.task.source + tile.mixed.source_bits;
    return LoadValue(plane.dtype, elements, token * source + number);
  }
  const bool is_four = of == codecs::ChannelClass::kFourBits;
  const uint32_t bits = is_four ? 4 : 2;
  const uint32_t row_at = is_four ? tile.mixed.four_bits + token * codecs::CodeRowBytes(four, 4)
                                  : tile.mixed.two_bits + token * codecs::CodeRowBytes(two, 2);
  const uint32_t pair = token / plane.group * (two + four) + (is_four ? number : four + number);
  return LoadAndDequantize(tile.task, pair, LoadCode(tile.task.source + row_at, number, bits), bits,
                           fault);
}

// Returns a value of `cairn-hot`. The profile must code K with its RoPE and without a basis.
CAIRN_DEVICE float HotValue(const AttendTile& tile, const HotDecodeShared& shared, uint32_t token,
                            uint32_t channel) {
  const uint8_t* codes = tile.task.source + static_cast<uint64_t>(token) * shared.widths.row_bytes;
  const uint32_t width = shared.widths.width[channel];
  float level = 0.0F;
  if (width != 0) {
    const uint32_t code = LoadBits(codes, shared.widths.bit_at[channel], width);
    level = codecs::HotValueOf(code, shared.scale[channel], width);
  }
  return codecs::Add(level, LoadChannel(tile.plane, tile.task.head, channel).mean);
}

CAIRN_DEVICE float CodedValue(const AttendTile& tile, const NarrowForms&, uint32_t at,
                              uint32_t channel, Fault* fault) {
  const uint32_t token = tile.task.token_first + at;
  return tile.form == codecs::FormId::kFp8 ? Fp8Value(tile, token, channel, fault)
                                           : AffineValue(tile, token, channel, fault);
}

CAIRN_DEVICE float CodedValue(const AttendTile& tile, const WideForms& forms, uint32_t at,
                              uint32_t channel, Fault* fault) {
  const uint32_t token = tile.task.token_first + at;
  switch (tile.form) {
    case codecs::FormId::kPatterned: {
      const float value = AffineValue(tile, token, channel, fault);
      const uint8_t* pattern = forms.patterns[at];
      if (pattern == nullptr) return value;
      return codecs::Add(value, HalfToFloat(LoadGlobal<uint16_t>(pattern + 2 * channel)));
    }
    case codecs::FormId::kMixed:
      return MixedValue(tile, forms.mixed, token, channel, fault);
    case codecs::FormId::kHot:
      return HotValue(tile, forms.hot, token, channel);
    default:
      return CodedValue(tile, NarrowForms{}, at, channel, fault);
  }
}

// Rounds a value to the dtype.
CAIRN_DEVICE float RoundTo(codecs::DType dtype, float value) {
  if (dtype == codecs::DType::kFp32) return value;
  if (dtype == codecs::DType::kBf16) return codecs::Bf16ToFloat(codecs::FloatToBf16(value));
  return codecs::Fp16ToFloat(codecs::FloatToFp16(value, codecs::Fp16Rounding::kNearestEven));
}

// Computes the values of 16 tokens of the tile in `dim` channels; `first` is the first token.
template <typename Shared>
CAIRN_DEVICE void FindValues(const AttendTile& tile, uint32_t first, uint32_t tokens, uint32_t dim,
                             Shared* shared, Fault* fault) {
  for (uint32_t i = ThreadIndex(); i < kValueTokens * dim; i += kBlockThreads) {
    const uint32_t token = i / dim, channel = i % dim, at = first + token;
    float value = 0.0F;
    if (at < tokens) {
      if (const uint8_t* place = shared->places.of[at]) {
        value = LoadValue(tile.plane.dtype, place, channel);
      } else if (!tile.is_tail) {
        value = RoundTo(tile.plane.dtype, CodedValue(tile, shared->forms, at, channel, fault));
      }
    }
    shared->values[token][channel] = value;
  }
}

}  // namespace cairn::kernels
