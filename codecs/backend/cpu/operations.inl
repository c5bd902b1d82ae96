// SPDX-License-Identifier: Apache-2.0
// All operations of codecs/backend/backend.h for one ISA. Included once by each ISA file, after its
// primitives (struct Simd).

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
// Uses the functions of steps.
#include "codecs/backend/cpu/hot.inl"
#include "codecs/backend/cpu/hot_decode.inl"
#include "codecs/backend/cpu/hot_encode.inl"

namespace cairn::codecs {
namespace {

using reference::NarrowCodes;  // the plain loop

}  // namespace
}  // namespace cairn::codecs
