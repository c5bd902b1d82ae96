// SPDX-License-Identifier: Apache-2.0
#pragma once
// Computes the CRC32C of tiles with the bit-matrix products of tensor cores. One warp per tile.
//
// Without its initial value and its final inversion, a CRC is linear over GF(2). Each bit of the
// data has a weight, and the CRC is the sum of the weights of the bits that are set. 16 slices of 1
// KiB are the rows of one bit matrix. The weights of a slice's bits are the second matrix. The
// lowest bits of the elements of their product are the 16 CRCs. Products with powers of x then join
// the CRCs of the slices. Zeros before the data do not change the CRC. So zeros are put before a
// tile to fill it up to whole slices. Inverting the first four bytes has the same effect as the
// initial value.

#include <cstdint>

#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kCrcSlice = 1024;            // bytes of a row of the matrix
inline constexpr uint32_t kCrcSteps = kCrcSlice / 32;  // products per round, of 256 bits each
inline constexpr uint32_t kCrcRows = 16;
inline constexpr uint32_t kCrcShifts = 5;               // powers of two up to kCrcRows slices
inline constexpr uint32_t kCrcPolynomial = 0x82F63B78;  // reflected: bit 31 is x^0

// The weights of a slice's bits, and the factors that join slices. The table is a constant of the
// module. Each block copies it to shared memory, because computing it there would take a hundred
// times as long.
struct CrcTable {
  // Indexed by [step][pair][lane]. An entry has the lane's four words for 16 columns of the second
  // matrix: two for columns 0 to 7, then two for columns 8 to 15, as MmaBits() takes them.
  U32x4 weights[kCrcSteps * 2 * kWarpLanes];
  uint32_t shifts[kCrcShifts];  // x^(8 * kCrcSlice * 2^k)
};

CAIRN_HD constexpr uint32_t TimesX(uint32_t a) {
  return a >> 1 ^ ((a & 1) != 0 ? kCrcPolynomial : 0);
}

CAIRN_HD constexpr uint32_t TimesPolynomial(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    product ^= (a >> 31) != 0 ? b : 0;
    a <<= 1;
    b = TimesX(b);
  }
  return product;
}

constexpr CrcTable MakeCrcTable() {
  CrcTable table{};
  // The CRC of a slice in which only that bit is set. The CRC of the last bit is x^32 by
  // definition.
  uint32_t of_bit[8 * kCrcSlice] = {};
  uint32_t weight = kCrcPolynomial;
  for (uint32_t bit = 8 * kCrcSlice; bit-- > 0; weight = TimesX(weight)) of_bit[bit] = weight;
  for (uint32_t at = 0; at < kCrcSteps * 2 * kWarpLanes; ++at) {
    const uint32_t step = at / 64, pair = at / kWarpLanes % 2, lane = at % kWarpLanes;
    uint32_t words[4] = {};
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t column = 16 * pair + 8 * (i / 2) + lane / 4;
      const uint32_t first = 256 * step + 128 * (i % 2) + 32 * (lane % 4);
      for (uint32_t bit = 0; bit < 32; ++bit) {
        words[i] |= (of_bit[first + bit] >> column & 1) << bit;
      }
    }
    table.weights[at] = {words[0], words[1], words[2], words[3]};
  }
  uint32_t power = 0x00800000U;  // x^8
  for (uint32_t bytes = 1; bytes < kCrcSlice; bytes *= 2) power = TimesPolynomial(power, power);
  for (uint32_t& shift : table.shifts) {
    shift = power;
    power = TimesPolynomial(power, power);
  }
  return table;
}

CAIRN_TABLE CrcTable kCrcTable = MakeCrcTable();

// Copies the table to shared memory. All threads of a block call it once. It synchronizes the
// block.
CAIRN_DEVICE void LoadCrcTable(CrcTable* shared) {
  constexpr uint32_t kPieces = kCrcSteps * 2 * kWarpLanes;
  static_assert(kPieces % kBlockThreads == 0);
  const uint32_t thread = ThreadIndex();
  CAIRN_UNROLL
  for (uint32_t at = 0; at < kPieces; at += kBlockThreads) {
    shared->weights[at + thread] = kCrcTable.weights[at + thread];
  }
  if (thread < kCrcShifts) shared->shifts[thread] = kCrcTable.shifts[thread];
  SyncBlock();
}

// The part of a tile that one round processes, with the zeros before the tile.
struct CrcRound {
  const uint8_t* tile;
  uint32_t lead;          // number of zeros before the tile
  uint32_t first, count;  // range of slices; count <= kCrcRows

  // Returns the word at byte `at` of slice first + row. The tile's first word is inverted.
  CAIRN_DEVICE_MEMBER uint32_t Word(uint32_t row, uint32_t at) const {
    const uint32_t place = (first + row) * kCrcSlice + at;
    if (row >= count || place < lead) return 0;
    const uint32_t word = LoadGlobal<uint32_t>(tile + (place - lead));
    return place == lead ? ~word : word;
  }
};

// Adds the product for a round to d[t]. Then the lowest bits of d[t][0] and d[t][1] are the bits
// 8 t + 2 part and 8 t + 2 part + 1 of the CRC of row `group`. Those of d[t][2] and d[t][3] are the
// same bits of the CRC of row group + 8. `group` is the lane's index / 4, and `part` is it mod 4.
CAIRN_DEVICE void MultiplyRound(const CrcRound& round, const CrcTable& table, int32_t (&d)[4][4]) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, group = lane / 4, part = lane % 4;
  for (uint32_t step = 0; step < kCrcSteps; ++step) {
    const uint32_t at = 32 * step + 4 * part;
    const uint32_t a[4] = {round.Word(group, at), round.Word(group + 8, at),
                           round.Word(group, at + 16), round.Word(group + 8, at + 16)};
    CAIRN_UNROLL
    for (uint32_t pair = 0; pair < 2; ++pair) {
      const U32x4 weights = table.weights[(2 * step + pair) * kWarpLanes + lane];
      const uint32_t first[2] = {weights.x, weights.y}, second[2] = {weights.z, weights.w};
      MmaBits(d[2 * pair], a, first);
      MmaBits(d[2 * pair + 1], a, second);
    }
  }
}

// Returns the CRC of a round, in all lanes.
CAIRN_DEVICE uint32_t CrcOfRound(const CrcRound& round, const CrcTable& table) {
  int32_t d[4][4] = {};
  MultiplyRound(round, table, d);
  const uint32_t lane = ThreadIndex() % kWarpLanes, part = lane % 4;
  uint32_t low = 0, high = 0;  // CRCs of the rows lane / 4 and lane / 4 + 8
  CAIRN_UNROLL
  for (uint32_t t = 0; t < 4; ++t) {
    const uint32_t at = 8 * t + 2 * part;
    low |= (static_cast<uint32_t>(d[t][0]) & 1) << at | (static_cast<uint32_t>(d[t][1]) & 1)
                                                            << (at + 1);
    high |= (static_cast<uint32_t>(d[t][2]) & 1) << at | (static_cast<uint32_t>(d[t][3]) & 1)
                                                             << (at + 1);
  }
  for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
    low |= ShuffleXor(low, lanes);
    high |= ShuffleXor(high, lanes);
  }
  // Lane r takes the CRC of row r. It shifts the CRC by the distance from the row to the end of the
  // round.
  const uint32_t low_row = Shuffle(low, lane % 8 * 4), high_row = Shuffle(high, lane % 8 * 4);
  uint32_t mine = lane >= round.count ? 0 : lane < 8 ? low_row : high_row;
  const uint32_t behind = lane < round.count ? round.count - 1 - lane : 0;
  CAIRN_NO_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    if ((behind >> k & 1) != 0) mine = TimesPolynomial(mine, table.shifts[k]);
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) mine ^= ShuffleXor(mine, lanes);
  return mine;
}

// REQUIRES: bytes is a multiple of 4.
CAIRN_DEVICE uint32_t CrcOfTile(const uint8_t* tile, uint32_t bytes, const CrcTable& table) {
  const uint32_t slices = (bytes + kCrcSlice - 1) / kCrcSlice;
  const uint32_t lead = slices * kCrcSlice - bytes;
  uint32_t crc = 0;
  for (uint32_t first = 0; first < slices; first += kCrcRows) {
    const uint32_t count = slices - first < kCrcRows ? slices - first : kCrcRows;
    const uint32_t round = CrcOfRound({tile, lead, first, count}, table);
    CAIRN_NO_UNROLL
    for (uint32_t k = 0; k < kCrcShifts; ++k) {
      if ((count >> k & 1) != 0) crc = TimesPolynomial(crc, table.shifts[k]);
    }
    crc ^= round;
  }
  return bytes == 0 ? 0 : ~crc;  // Word() has inverted the first four bytes, unless there are none
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) VerifyCrcs(DecodeArgs args) {
  CAIRN_SHARED(CrcTable, shared);
  const PlanReader reader(args.plan, args.list);
  const uint32_t warp = WarpOfBlock();
  const uint32_t step = GridBlocks() * kBlockWarps;
  if (BlockIndex() * kBlockWarps >= reader.list.count) return;  // the block has no tiles
  LoadCrcTable(&shared);
  for (uint32_t index = BlockIndex() * kBlockWarps + warp; index < reader.list.count;
       index += step) {
    const TileTask task = reader.Task(index);
    const uint32_t crc = CrcOfTile(task.source, task.bytes, shared);
    if (crc != task.crc && ThreadIndex() % kWarpLanes == 0) {
      ReportFault(Fault::kBadChecksum, reader.Plane(task.plane), args.status);
    }
  }
}

}  // namespace cairn::kernels
