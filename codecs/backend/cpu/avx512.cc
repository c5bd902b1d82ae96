// SPDX-License-Identifier: Apache-2.0
#include "codecs/backend/cpu/cpu.h"
#include "codecs/backend/cpu/simd_avx512.h"
#include "codecs/backend/cpu/simd_blocks.h"
#include "codecs/backend/cpu/simd_groups.h"
#include "codecs/backend/cpu/simd_patterns.h"
#include "codecs/backend/cpu/simd_spread.h"
#include "codecs/backend/cpu/simd_strips.h"
// The sentences, in these words.
#include "codecs/backend/cpu/affine.inl"
#include "codecs/backend/cpu/affine_codes2.inl"
#include "codecs/backend/cpu/affine_decode.inl"
#include "codecs/backend/cpu/affine_encode.inl"
#include "codecs/backend/cpu/affine_encode_tokens.inl"
#include "codecs/backend/cpu/fp8.inl"
#include "codecs/backend/cpu/lanes32.inl"
#include "codecs/backend/cpu/mixed.inl"
#include "codecs/backend/cpu/patterns.inl"
#include "codecs/backend/cpu/small_norm.inl"
#include "codecs/backend/cpu/step.inl"
#include "codecs/backend/cpu/step_blocks.inl"
#include "codecs/backend/cpu/step_decode.inl"
#include "codecs/backend/cpu/step_encode.inl"
#include "codecs/backend/cpu/strip.inl"
#include "codecs/backend/cpu/strip_choice.inl"
#include "codecs/backend/cpu/strip_decode.inl"
#include "codecs/backend/cpu/strip_encode.inl"
// Uses those of steps.
#include "codecs/backend/cpu/hot.inl"
#include "codecs/backend/cpu/hot_decode.inl"
#include "codecs/backend/cpu/hot_encode.inl"

namespace cairn::codecs {

extern const Backend kAvx512Backend = {
    .name = "avx512",
    .is_supported = SupportsAvx512,
    .select_rows = SelectRows,
    .encode_per_channel = EncodePerChannel,
    .encode_per_token = EncodePerToken,
    .decode_per_channel = DecodePerChannel,
    .decode_per_token = DecodePerToken,
    .encode_fp8 = EncodeFp8,
    .decode_fp8 = DecodeFp8,
    .decode_mixed = DecodeMixed,
    .copy_streamed = CopyStreamed,
    .narrow_codes = nullptr,
    .choose_patterns = ChoosePatterns,
    .encode_strip = EncodeStrip,
    .decode_strips = DecodeStrips,
    .encode_step_strip = EncodeStepStrip,
    .decode_step_strips = DecodeStepStrips,
    .encode_hot_strip = EncodeHotStrip,
    .decode_hot_strip = DecodeHotStrip,
};

}  // namespace cairn::codecs
