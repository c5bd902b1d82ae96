// SPDX-License-Identifier: Apache-2.0
// Shared by hot_decode.inl and hot_encode.inl: the positions of codes in a token's bytes, for eight
// channels at a time.

#include "codecs/backend/hot_tile.h"
#include "codecs/backend/reference/reference.h"
#include "codecs/backend/reference/step.h"
#include "codecs/numbers/hot_levels.h"

namespace cairn::codecs {
namespace {

constexpr uint32_t kChannelsAtOnce = 32;
constexpr uint32_t kHotRowBytesMax = kHotWidthMax * kProfileDimMax / 8;
constexpr uint32_t kWordBytes = 8;

// Eight channels. Their codes are at most 48 bits, starting at bit `shift` of a byte; the rest are
// their positions in a word of eight bytes.
struct HotEight {
  uint64_t mask;
  uint32_t byte;
  uint32_t shift;
};

// All channels of a tile, padded with channels of width 0 to a multiple of kChannelsAtOnce.
struct HotEights {
  HotEight of[kProfileDimMax / 8];
  uint32_t channels;

  explicit HotEights(const HotTile& tile) {
    const uint32_t dim = tile.step.dim;
    channels = (dim + kChannelsAtOnce - 1) / kChannelsAtOnce * kChannelsAtOnce;
    for (uint32_t first = 0; first < channels; first += 8) {
      const uint32_t bit = first < dim ? tile.channels[first].bit_offset : 0;
      HotEight& eight = of[first / 8];
      eight = {0, bit / 8, bit % 8};
      for (uint32_t i = 0; i < 8 && first + i < dim; ++i) {
        eight.mask |= ((uint64_t{1} << tile.channels[first + i].width) - 1) << (8 * i);
      }
    }
  }
};

// Codes of a block: pair h has 16 tokens of channel 2 h in the low bytes and of channel 2 h + 1 in
// the high bytes.
struct HotPairs {
  alignas(64) uint16_t of[kProfileDimMax / 2][kBlockTokens];

  [[nodiscard]] uint8_t* At(uint32_t h) { return reinterpret_cast<uint8_t*>(of[h]); }
  [[nodiscard]] Halves16 Of(uint32_t channel) const {
    const auto* pair = reinterpret_cast<const uint8_t*>(of[channel / 2]);
    const Halves16 both = Blocks::LoadHalves(pair);
    return channel % 2 == 0 ? Spreads::LowBytes(both) : Spreads::HighBytes(both);
  }
  // Convert from and to bytes: one byte per channel, token after token.
  void Take(const uint8_t* bytes, uint32_t channels, const uint8_t (&token_at)[kBlockTokens]) {
    for (uint32_t first = 0; first < channels; first += 16) {
      Halves16 rows[8];
      for (uint32_t i = 0; i < 8; ++i) {
        rows[i] = Strips::LoadTwo(bytes + token_at[i] * channels + first,
                                  bytes + token_at[8 + i] * channels + first);
      }
      Blocks::TransposeEights(rows);
      for (uint32_t i = 0; i < 8; ++i) Blocks::StoreHalves(At(first / 2 + i), rows[i]);
    }
  }
  void Put(uint32_t channels, uint8_t* bytes) {
    for (uint32_t first = 0; first < channels; first += 16) {
      Halves16 rows[8];
      for (uint32_t i = 0; i < 8; ++i) rows[i] = Blocks::LoadHalves(At(first / 2 + i));
      Blocks::TransposeEights(rows);
      for (uint32_t i = 0; i < 8; ++i) {
        uint8_t* to = bytes + i * channels + first;
        Strips::StoreTwo(to, to + uint64_t{8} * channels, rows[i]);
      }
    }
  }
};

}  // namespace
}  // namespace cairn::codecs
