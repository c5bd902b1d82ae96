// SPDX-License-Identifier: Apache-2.0
#pragma once
// The universal tables of the recipe `exact`, version 1. Each of the 16 tables is a distribution of
// how far an exponent lies below the largest exponent of its channel. The tables are part of the
// format. A stream names its tables by number.

#include <cstdint>

#include "codecs/pack/lanes32.h"

namespace cairn::codecs {

inline constexpr uint8_t kExponentTablesVersion = 1;
inline constexpr uint32_t kExponentTables = 16;

// clang-format off
CAIRN_TABLE uint16_t kExponentFrequencies[kExponentTables][kCoderSymbols] = {
    {0, 0, 19, 207, 25, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 2, 130, 103, 14, 3, 1, 1, 1, 0, 0, 0, 0, 0, 1},
    {0, 1, 29, 125, 58, 23, 10, 4, 2, 1, 1, 1, 0, 0, 0, 1},
    {0, 1, 26, 80, 74, 38, 20, 9, 4, 1, 1, 1, 0, 0, 0, 1},
    {0, 2, 89, 97, 36, 16, 7, 3, 2, 1, 1, 1, 0, 0, 0, 1},
    {0, 12, 62, 85, 51, 23, 10, 6, 2, 2, 1, 1, 0, 0, 0, 1},
    {0, 6, 71, 71, 51, 29, 15, 6, 2, 2, 1, 1, 0, 0, 0, 1},
    {0, 2, 42, 76, 60, 35, 19, 10, 6, 3, 1, 1, 0, 0, 0, 1},
    {0, 1, 51, 91, 55, 28, 14, 7, 3, 2, 1, 1, 1, 0, 0, 1},
    {0, 7, 47, 83, 59, 30, 16, 6, 3, 1, 1, 1, 1, 0, 0, 1},
    {1, 19, 96, 66, 36, 17, 9, 5, 2, 1, 1, 1, 1, 0, 0, 1},
    {0, 13, 73, 75, 41, 23, 14, 7, 5, 1, 1, 1, 1, 0, 0, 1},
    {0, 6, 32, 64, 68, 44, 20, 12, 5, 1, 1, 1, 1, 0, 0, 1},
    {0, 11, 50, 64, 49, 38, 21, 11, 5, 3, 1, 1, 1, 0, 0, 1},
    {1, 26, 60, 63, 49, 27, 13, 7, 4, 2, 1, 1, 1, 0, 0, 1},
    {4, 28, 49, 45, 34, 26, 38, 17, 7, 3, 1, 1, 1, 1, 0, 1},
};

// The cost of a symbol in 1/15 bit: 15 log2(256 / frequency), rounded to the nearest integer. The
// escape costs 16 bits, and so does a symbol that must be coded as an escape.
CAIRN_TABLE uint8_t kExponentCosts[kExponentTables][kCoderSymbols] = {
    {240, 240, 56, 5, 50, 105, 120, 120, 240, 240, 240, 240, 240, 240, 240, 240},
    {240, 240, 105, 15, 20, 63, 96, 120, 120, 120, 240, 240, 240, 240, 240, 240},
    {240, 120, 47, 16, 32, 52, 70, 90, 105, 120, 120, 120, 240, 240, 240, 240},
    {240, 120, 49, 25, 27, 41, 55, 72, 90, 120, 120, 120, 240, 240, 240, 240},
    {240, 105, 23, 21, 42, 60, 78, 96, 105, 120, 120, 120, 240, 240, 240, 240},
    {240, 66, 31, 24, 35, 52, 70, 81, 105, 105, 120, 120, 240, 240, 240, 240},
    {240, 81, 28, 28, 35, 47, 61, 81, 105, 105, 120, 120, 240, 240, 240, 240},
    {240, 105, 39, 26, 31, 43, 56, 70, 81, 96, 120, 120, 240, 240, 240, 240},
    {240, 120, 35, 22, 33, 48, 63, 78, 96, 105, 120, 120, 120, 240, 240, 240},
    {240, 78, 37, 24, 32, 46, 60, 81, 96, 120, 120, 120, 120, 240, 240, 240},
    {120, 56, 21, 29, 42, 59, 72, 85, 105, 120, 120, 120, 120, 240, 240, 240},
    {240, 64, 27, 27, 40, 52, 63, 78, 85, 120, 120, 120, 120, 240, 240, 240},
    {240, 81, 45, 30, 29, 38, 55, 66, 85, 120, 120, 120, 120, 240, 240, 240},
    {240, 68, 35, 30, 36, 41, 54, 68, 85, 96, 120, 120, 120, 240, 240, 240},
    {120, 49, 31, 30, 36, 49, 64, 78, 90, 105, 120, 120, 120, 240, 240, 240},
    {90, 48, 36, 38, 44, 49, 41, 59, 78, 96, 120, 120, 120, 120, 240, 240},
};
// clang-format on

struct ExponentTables {
  CoderTable of[kExponentTables];
  bool are_tables;
};

CAIRN_TABLE ExponentTables kExponentCoderTables = [] {
  ExponentTables tables{{}, true};
  for (uint32_t i = 0; i < kExponentTables; ++i) {
    tables.are_tables &= MakeCoderTable(kExponentFrequencies[i], &tables.of[i]);
  }
  return tables;
}();
static_assert(kExponentCoderTables.are_tables);

}  // namespace cairn::codecs
