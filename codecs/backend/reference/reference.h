// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plain loops: what each step of codecs/backend/backend.h means. Written to be read; every
// other backend is tested against them.

#include "codecs/backend/backend.h"
#include "codecs/numbers/math.h"
#include "codecs/pack/elements.h"

namespace cairn::codecs::reference {

using codecs::IsRow;
using codecs::LoadElement;
using codecs::LoadParams;
using codecs::LoadPatternValue;
using codecs::StoreElement;
using codecs::StoreParams;

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

}  // namespace cairn::codecs::reference
