// SPDX-License-Identifier: Apache-2.0
#include "codecs/stages/select/min_norm.h"

#include "codecs/backend/reference/token_norm.h"
#include "codecs/stages/select/select.h"
#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kFiniteMax = 0x7F7FFFFF;  // bits of the largest finite float
constexpr size_t kCountAt = sizeof(float) * kChainRows;
constexpr size_t kDisplacedAt = kCountAt + 1;
constexpr size_t kZeroAt = kCountAt + 2;

// Returns false if the pool does not accept this norm, and so no larger one.
bool Enter(float norm, ChainHead* chain) {
  if (chain->count == kChainRows) {
    if (chain->displaced == kDisplacedMax || norm >= chain->norms[kChainRows - 1]) return false;
    ++chain->displaced;
    --chain->count;
  }
  uint32_t at = chain->count++;
  for (; at > 0 && chain->norms[at - 1] > norm; --at) chain->norms[at] = chain->norms[at - 1];
  chain->norms[at] = norm;
  return true;
}

void TraceGroup(const TileSource& source, uint32_t first, uint32_t count, HeadWork* head) {
  float norms[kKiviKGroupTokens];
  for (uint32_t i = 0; i < count; ++i) {
    norms[i] = TokenNorm(source.geometry.dtype, source.geometry.dim, source.bytes, first + i,
                         [](float value) { return BitsFloat(FloatBits(value) & 0x7FFFFFFF); });
  }
  for (uint32_t n = 0; n < kChainRows; ++n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; ++i) best = norms[i] < norms[best] ? i : best;
    if (FloatBits(norms[best]) > kFiniteMax || !Enter(norms[best], &head->chain)) return;
    const uint32_t token = first + best;
    head->rows[token / 64] |= uint64_t{1} << (token % 64);
    norms[best] = BitsFloat(kFiniteMax + 1);  // taken
  }
}

}  // namespace

void StoreChain(const ChainHead& chain, uint8_t* target) {
  for (uint32_t i = 0; i < kChainRows; ++i) {
    Store(target + i * sizeof(float), i < chain.count ? chain.norms[i] : 0.0F);
  }
  Store(target + kCountAt, chain.count);
  Store(target + kDisplacedAt, chain.displaced);
  Store(target + kZeroAt, uint16_t{0});
}

bool LoadChain(const uint8_t* source, ChainHead* chain) {
  ChainHead loaded;
  loaded.count = Load<uint8_t>(source + kCountAt);
  loaded.displaced = Load<uint8_t>(source + kDisplacedAt);
  bool is_valid = loaded.count <= kChainRows && loaded.displaced <= kDisplacedMax &&
                  (loaded.displaced == 0 || loaded.count == kChainRows) &&
                  Load<uint16_t>(source + kZeroAt) == 0;
  uint32_t previous = 0;
  for (uint32_t i = 0; i < kChainRows; ++i) {
    // The bits of positive floats have the same order as the floats.
    const auto bits = Load<uint32_t>(source + i * sizeof(float));
    is_valid &= i < loaded.count ? bits >= previous && bits <= kFiniteMax : bits == 0;
    loaded.norms[i] = BitsFloat(bits);
    previous = bits;
  }
  if (is_valid) *chain = loaded;
  return is_valid;
}

void SelectMinNorm(const Backend& backend, const TileSource& source, TilePlan* plan) {
  SelectNone(backend, source, plan);
  HeadWork* head = source.head;
  if (source.geometry.IsPerChannel()) {
    for (uint32_t first = 0; first < source.geometry.rows; first += kKiviKGroupTokens) {
      const uint32_t left = source.geometry.rows - first;
      TraceGroup(source, first, left < kKiviKGroupTokens ? left : kKiviKGroupTokens, head);
    }
  }
  for (uint32_t i = 0; i < kRowWords; ++i) plan->rows[i] |= head->rows[i];
}

}  // namespace cairn::codecs
