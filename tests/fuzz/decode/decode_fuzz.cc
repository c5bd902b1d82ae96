// SPDX-License-Identifier: Apache-2.0
// Bytes as a source: encoded by every backend, which must agree; decoded by every backend, which
// must agree; and what has to come back exactly does. The first 8 bytes choose shape, recipe and
// the profile or bank of those that have one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/settle.h"
#include "codecs/transform/demote.h"
#include "tests/support/bank_bytes.h"
#include "tests/support/profile_bytes.h"

namespace {

using namespace cairn::codecs;  // NOLINT(google-build-using-namespace): a harness of one file

using Bytes = std::vector<std::byte>;

void Require(bool condition) {
  if (!condition) std::abort();
}

ImageSpec SpecOf(const uint8_t* data) {
  constexpr std::array kDTypes = {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3,
                                  DType::kFp8E5m2};
  ImageSpec spec;
  spec.tile = {GroupKind::kKv, kDTypes[data[0] % kDTypes.size()], 1U + data[1] % 130,
               1U + data[2] % 130};
  if (data[3] % 8 == 0) spec.tile = {GroupKind::kLatent, spec.tile.dtype, spec.tile.k_dim, 0};
  if (data[3] % 8 == 1) spec.tile = {GroupKind::kOpaqueRows, DType::kBytes, spec.tile.k_dim, 0};
  spec.tokens = static_cast<uint16_t>(1 + data[4] % 140);
  spec.slice = {data[5], 1, data[5], static_cast<uint16_t>(1 + data[5] % 2)};
  spec.first_position = data[7] % 2 * 128;
  return spec;
}

Bytes ProfileOf(const ImageSpec& spec, uint8_t seed) {
  ProfileShape shape;
  shape.layers = static_cast<uint16_t>(spec.slice.layer_first + 1);
  shape.heads = static_cast<uint16_t>(spec.slice.head_first + spec.slice.head_count);
  shape.k_dim = spec.tile.k_dim;
  shape.v_dim = spec.tile.v_dim;
  if (seed % 4 != 0 && shape.k_dim >= 2) {
    shape.rope = seed % 4 == 1 ? RopeKind::kInterleaved : RopeKind::kHalf;
    shape.rotary_dims = static_cast<uint16_t>(shape.k_dim / 2 * 2);
  }
  shape.has_basis = seed % 8 == 7;
  return ProfileBytes(shape, std::mt19937_64(seed)).bytes();
}

Bytes EncodeWith(const Backend& backend, const ImageSpec& spec, const Bytes& source,
                 const EncodeInputs& inputs = {}) {
  uint64_t bytes_max = 0;
  Require(MaxImageBytes(spec, &bytes_max) == Error::kOk);
  Bytes image(bytes_max);
  size_t bytes = 0;
  Require(Encode(backend, spec, source, image, &bytes, inputs) == Error::kOk);
  image.resize(bytes);
  return image;
}

void Check(const ImageSpec& spec, const Bytes& source, const EncodeInputs& inputs) {
  const DecodeInputs side{inputs.profile, inputs.bank};
  const Bytes image = EncodeWith(ReferenceBackend(), spec, source, inputs);
  ImageView view;
  Require(ParseImage(image, &view) == Error::kOk);
  Require(VerifyTiles(view) == Error::kOk);
  Require(view.spec() == RecordedSpec(spec, {}));
  Bytes decoded(source.size());
  Require(Decode(ReferenceBackend(), view, spec.slice, decoded, side) == Error::kOk);
  Require(!spec.recipe.IsLossless() || decoded == source);
  for (const Backend* backend : CpuBackends()) {
    Require(EncodeWith(*backend, spec, source, inputs) == image);
    Bytes other(source.size());
    Require(Decode(*backend, view, spec.slice, other, side) == Error::kOk);
    Require(other == decoded);
  }
  if (spec.recipe.id != RecipeId::kKivi || spec.recipe.is_clipped || spec.recipe.bits == 2) return;
  ImageSpec narrow = spec;
  narrow.recipe.bits = 2;
  Bytes demoted(image.size());
  size_t bytes = 0;
  Require(Demote(*CpuBackends().front(), view, narrow.recipe, demoted, &bytes) == Error::kOk);
  demoted.resize(bytes);
  Require(demoted == EncodeWith(ReferenceBackend(), narrow, source));
}

void CheckWithProfile(ImageSpec spec, const Bytes& source, uint8_t seed, bool is_hot) {
  const Bytes bytes = ProfileOf(spec, seed);
  Profile profile;
  Require(ParseProfile(bytes, &profile) == Error::kOk);
  const uint32_t bits = seed % 2 == 0 ? 23 : 43;
  Require((is_hot ? SetCairnHot(profile, {}, bits, &spec)
                  : SetCairn(profile, {}, bits, seed % 3, &spec)) == Error::kOk);
  Check(spec, source, {.profile = &profile});
}

void CheckWithBank(ImageSpec spec, const Bytes& source, uint8_t seed) {
  const BankShape shape{.layers = spec.slice.layer_first + 1U,
                        .heads = uint32_t{spec.slice.head_first} + spec.slice.head_count,
                        .patterns = 1U + seed % 33,
                        .k_dim = spec.tile.k_dim,
                        .v_dim = spec.tile.v_dim};
  std::mt19937_64 random(seed);
  const Bytes bytes = BankBytes(shape, random);
  Bank bank;
  Require(ParseBank(bytes, &bank) == Error::kOk);
  constexpr std::array kNames = {"patternkv:2", "patternkv:4", "patternkv:2:l2"};
  Require(SetRecipe(kNames[seed % kNames.size()], {.bank = &bank}, {}, &spec) == Error::kOk);
  Check(spec, source, {.bank = &bank});
}

// With scores and states for each token, out of the source.
void CheckWithTokens(ImageSpec spec, const Bytes& source, bool is_planned) {
  if (is_planned) Require(ParsePlannedRecipe("arkv:paper", &spec.recipe) == Error::kOk);
  const size_t count = size_t{spec.slice.layer_count} * spec.slice.head_count * spec.tokens;
  std::vector<float> scores(count);
  std::vector<uint8_t> states(count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits,
                source.data() + i * sizeof(bits) % (source.size() / sizeof(bits) * sizeof(bits)),
                sizeof(bits));
    std::memcpy(&scores[i], &bits, sizeof(bits));
    states[i] = static_cast<uint8_t>(bits % 5);
  }
  Check(spec, source, {.token_scores = scores, .token_states = states});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kShapeBytes = 8;
  if (size < kShapeBytes) return 0;
  ImageSpec spec = SpecOf(data);
  uint64_t source_bytes = 0;
  Require(SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) == Error::kOk);
  // Repeats what is given: repetition is what finds constant groups.
  Bytes source(source_bytes);
  for (size_t i = 0; i < source.size(); ++i) {
    source[i] = size == kShapeBytes
                    ? std::byte{0}
                    : static_cast<std::byte>(data[kShapeBytes + i % (size - kShapeBytes)]);
  }
  spec.recipe = AllRecipes()[data[6] % AllRecipes().size()];
  if (data[7] < 192 && (data[7] & 2) != 0 && source.size() >= sizeof(uint32_t)) {
    CheckWithTokens(spec, source, (data[7] & 4) != 0);
    return 0;
  }
  // The last quarter, where there can be a profile.
  if (data[7] < 192 || spec.tile.kind == GroupKind::kOpaqueRows) {
    Check(spec, source, {});
    return 0;
  }
  spec.slice.layer_first = data[5] % 2;
  spec.slice.head_first = data[5] % 2;
  if (data[3] / 8 % 4 == 3) {
    CheckWithBank(spec, source, data[6]);
  } else {
    CheckWithProfile(spec, source, data[6], data[3] / 8 % 4 == 2);
  }
  return 0;
}
