// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops: what each step of codecs/backend/backend.h means. Written to be read; every
// other backend is tested against them.

#include "codecs/backend/backend.h"
#include "codecs/numbers/math.h"

namespace cairn::codecs::reference {

void SelectRows(const AffineTile& tile, const uint8_t* source, uint64_t* rows);
bool EncodePerChannel(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                      uint8_t* codes, uint8_t* params);
void EncodePerToken(const AffineTile& tile, const uint8_t* source, uint64_t* rows, uint8_t* codes,
                    uint8_t* params);
void DecodePerChannel(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                      uint8_t* target);
void DecodePerToken(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                    uint8_t* target);
void DecodeMixed(const MixedTile& tile, uint8_t* target);
void ChoosePatterns(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                    uint8_t* numbers, uint64_t* is_predicted);
void CopyStreamed(const uint8_t* source, uint64_t bytes, uint8_t* target);
void NarrowCodes(const AffineTile& tile, uint8_t target_bits, const uint8_t* codes,
                 uint8_t* target);

uint64_t EncodeStrip(const StripShape& shape, const uint8_t* source, uint8_t* target,
                     uint64_t room);
bool DecodeStrips(const StripJob* jobs, uint32_t count);

// Writes element `index` of a strip: its exponent, and what the strip has of it besides.
void JoinElement(const StripJob& job, uint64_t index, uint32_t exponent);

// Element `index` of a tile, to and from fp32.
[[nodiscard]] float LoadElement(DType dtype, const uint8_t* source, uint64_t index);
void StoreElement(DType dtype, uint8_t* target, uint64_t index, float value);

// Of a pattern.
[[nodiscard]] float LoadPatternValue(const uint8_t* pattern, uint32_t channel);

[[nodiscard]] inline bool IsRow(const uint64_t* rows, uint32_t token) {
  return ((rows[token / 64] >> (token % 64)) & 1) != 0;
}

// Params as they are stored: pair `group` of a tile.
[[nodiscard]] AffineParams LoadParams(const uint8_t* params, uint64_t group);
void StoreParams(uint8_t* params, uint64_t group, AffineParams pair);

}  // namespace cairn::codecs::reference
