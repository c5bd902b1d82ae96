// SPDX-License-Identifier: Apache-2.0
#include "codecs/image/attend.h"

#include <array>
#include <vector>

#include "codecs/backend/reference/attention.h"
#include "codecs/image/decode.h"
#include "codecs/image/token_reader.h"
#include "codecs/numbers/float_guard.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

uint32_t OutputDim(const TileShape& tile, const AttentionQuery& query) {
  return tile.kind == GroupKind::kKv ? tile.v_dim : query.v_dim;
}

Error Check(const ImageSpec& spec, const AttentionQuery& query, size_t outputs, size_t log_sums) {
  const TileShape& tile = spec.tile;
  const uint32_t v_dim = OutputDim(tile, query);
  const bool has_elements = tile.kind == GroupKind::kKv || tile.kind == GroupKind::kLatent;
  const bool is_valid =
      has_elements && query.query_heads != 0 && query.query_heads % spec.slice.head_count == 0 &&
      v_dim != 0 && (tile.kind == GroupKind::kKv || v_dim <= tile.k_dim) &&
      query.queries.size() == uint64_t{query.query_heads} * tile.k_dim &&
      outputs == uint64_t{query.query_heads} * v_dim && log_sums == query.query_heads;
  if (!is_valid) return Error::kInvalidShape;
  const Slice layer = {query.layer, 1, spec.slice.head_first, spec.slice.head_count};
  return spec.slice.Contains(layer) ? Error::kOk : Error::kInvalidSlice;
}

}  // namespace

Error AttendImage(const Backend& backend, const ImageView& view, const AttentionQuery& query,
                  const DecodeInputs& inputs, std::span<float> outputs, std::span<float> log_sums) {
  const FloatGuard guard;
  const ImageSpec& spec = view.spec();
  if (const Error error = Check(spec, query, outputs.size(), log_sums.size());
      error != Error::kOk) {
    return error;
  }
  const TileShape& tile = spec.tile;
  const bool is_latent = tile.kind == GroupKind::kLatent;
  const uint32_t v_dim = OutputDim(tile, query);
  const uint32_t per_head = query.query_heads / spec.slice.head_count;
  uint64_t head_bytes = 0;
  if (const Error error = SourceBytes(tile, {0, 1, 0, 1}, spec.tokens, &head_bytes);
      error != Error::kOk) {
    return error;
  }
  std::vector<std::byte> decoded(head_bytes);
  std::array<uint8_t, kTokensPerBlockMax> kept;
  for (uint32_t i = 0; i < spec.slice.head_count; ++i) {
    const auto head = static_cast<uint16_t>(spec.slice.head_first + i);
    Error error = Decode(backend, view, {query.layer, 1, head, 1}, decoded, inputs);
    if (error == Error::kOk) error = ReadKept(view, query.layer, head, kept);
    if (error != Error::kOk) return error;
    const uint8_t* k = U8(decoded.data());
    const uint64_t k_bytes = uint64_t{spec.tokens} * tile.k_dim * ElementBytes(tile.dtype);
    const reference::AttendedTiles tiles = {tile.dtype,
                                            spec.tokens,
                                            tile.k_dim,
                                            v_dim,
                                            is_latent ? tile.k_dim : v_dim,
                                            k,
                                            is_latent ? k : k + k_bytes,
                                            kept.data()};
    for (uint32_t q = i * per_head; q < (i + 1) * per_head; ++q) {
      reference::Attend(tiles, query.queries.data() + uint64_t{q} * tile.k_dim, query.scale,
                        outputs.data() + uint64_t{q} * v_dim, &log_sums[q]);
    }
  }
  return Error::kOk;
}

}  // namespace cairn::codecs
