// SPDX-License-Identifier: Apache-2.0
// The C ABI: token scores, token plans, and token data in images.
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/c/cairn.h"
#include "client/c/convert.h"
#include "client/c/guard.h"
#include "client/cpp/transfer.h"
#include "codecs/image/token_reader.h"
#include "codecs/stages/select/attention.h"
#include "codecs/stages/select/token_plan.h"

namespace cairn::c {
namespace {

using codecs::AttentionShape;
using codecs::LayerStatistics;

absl::StatusOr<AttentionShape> ShapeOf(const cairn_attention& given) {
  const AttentionShape shape{given.query_heads, given.kv_heads, given.queries, given.keys};
  if (!shape.IsValid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: ", given.query_heads, " query heads, ", given.kv_heads,
                     " KV heads, ", given.queries, " queries and ", given.keys,
                     " keys; expected heads that divide, keys, and at most 2^31 weights"));
  }
  return shape;
}

// Returns the given weights, or computes them into *made.
absl::StatusOr<std::span<const float>> WeightsOf(const cairn_attention& given,
                                                 const AttentionShape& shape,
                                                 std::vector<float>* made) {
  if (given.weights != nullptr) {
    return std::span(given.weights, shape.weight_count());
  }
  CAIRN_RETURN_IF_ERROR(CheckPointer("attention.query_values", given.query_values, shape.queries));
  CAIRN_RETURN_IF_ERROR(CheckPointer("attention.key_values", given.key_values));
  if (given.dim == 0 || given.dim > codecs::kDimMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.dim is ", given.dim, ", expected 1 to ", codecs::kDimMax));
  }
  made->resize(shape.weight_count());
  const size_t queries = size_t{shape.query_heads} * shape.queries * given.dim;
  const size_t keys = size_t{shape.kv_heads} * shape.keys * given.dim;
  codecs::AttentionOf(shape, given.dim, static_cast<float>(given.scale),
                      {given.query_values, queries}, {given.key_values, keys}, *made);
  return std::span<const float>(*made);
}

// Calls read(view, layer, head, the head's tokens in `target`) for each head of an image.
template <typename T, typename Read>
absl::Status ReadTokens(const void* image, size_t image_bytes, T* target, const Read& read) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("target", target));
  CAIRN_ASSIGN_OR_RETURN(const codecs::ImageView view, ParseGiven(image, image_bytes));
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::VerifyTiles(view), "image"));
  const auto& [layer_first, layer_count, head_first, head_count] = view.spec().slice;
  const size_t tokens = view.spec().tokens;
  for (uint32_t layer = 0; layer < layer_count; ++layer) {
    for (uint32_t head = 0; head < head_count; ++head) {
      CAIRN_RETURN_IF_ERROR(
          FromCodec(read(view, static_cast<uint16_t>(layer_first + layer),
                         static_cast<uint16_t>(head_first + head), std::span(target, tokens)),
                    "image"));
      target += tokens;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::c

// Outside all namespaces: C functions.
namespace codecs = cairn::codecs;
using cairn::c::CheckPointer;
using cairn::c::CheckStruct;
using cairn::c::Guard;
using cairn::c::ReadStruct;
using cairn::c::ReadTokens;
using cairn::c::ShapeOf;
using cairn::c::WeightsOf;

int cairn_token_scores(const cairn_attention* attention, float* scores,
                       cairn_layer_statistics* statistics) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("attention", attention));
    CAIRN_RETURN_IF_ERROR(CheckPointer("scores", scores));
    const cairn_attention given = ReadStruct(attention);
    CAIRN_ASSIGN_OR_RETURN(const codecs::AttentionShape shape, ShapeOf(given));
    std::vector<float> made;
    CAIRN_ASSIGN_OR_RETURN(const std::span<const float> weights, WeightsOf(given, shape, &made));
    codecs::ScoreTokens(shape, weights, given.gamma, {scores, size_t{shape.kv_heads} * shape.keys});
    if (statistics != nullptr) {
      const codecs::LayerStatistics found = codecs::StatisticsOf(shape, weights);
      *statistics = {found.entropy, found.variance, found.kurtosis};
    }
    return absl::OkStatus();
  });
}

int cairn_layer_shares(const cairn_layer_statistics* layers, size_t layer_count, double* shares) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckPointer("layers", layers, layer_count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("shares", shares, layer_count));
    std::vector<codecs::LayerStatistics> read(layer_count);
    for (size_t i = 0; i < layer_count; ++i) {
      read[i] = {layers[i].entropy, layers[i].variance, layers[i].kurtosis};
    }
    codecs::LayerShares(read, {shares, layer_count});
    return absl::OkStatus();
  });
}

int cairn_plan_tokens(const cairn_token_budget* budget, const float* scores, uint32_t heads,
                      uint32_t tokens, uint8_t* states) {
  return Guard([&]() -> absl::Status {
    CAIRN_RETURN_IF_ERROR(CheckStruct("budget", budget));
    const size_t count = size_t{heads} * tokens;
    CAIRN_RETURN_IF_ERROR(CheckPointer("scores", scores, count));
    CAIRN_RETURN_IF_ERROR(CheckPointer("states", states, count));
    const cairn_token_budget given = ReadStruct(budget);
    if (given.low_bytes == 0 || given.low_bytes > given.original_bytes ||
        !(given.original_share >= 0 && given.original_share <= 1)) {
      return absl::InvalidArgumentError(
          "budget: expected 1 <= low_bytes <= original_bytes, and original_share of 0 to 1");
    }
    const codecs::TokenBudget plan{given.bytes, given.original_bytes, given.low_bytes,
                                   given.original_share};
    std::vector<codecs::TokenState> planned(count);
    if (given.is_uniform != 0) {
      codecs::PlanUniform(plan, {scores, count}, tokens, planned);
    } else {
      for (size_t at = 0; at < count; at += tokens) {
        codecs::PlanTokens(plan, {scores + at, tokens}, std::span(planned).subspan(at, tokens));
      }
    }
    for (size_t i = 0; i < count; ++i) {
      states[i] = static_cast<uint8_t>(planned[i]);
    }
    return absl::OkStatus();
  });
}

int cairn_image_scores(const void* image, size_t image_bytes, float* scores) {
  return Guard([&] { return ReadTokens(image, image_bytes, scores, codecs::ReadScores); });
}

int cairn_image_kept(const void* image, size_t image_bytes, uint8_t* kept) {
  return Guard([&] { return ReadTokens(image, image_bytes, kept, codecs::ReadKept); });
}
