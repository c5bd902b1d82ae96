// SPDX-License-Identifier: Apache-2.0
#pragma once
// CRC32C of tiles, by the tensor cores' product of bits: a warp a tile.
//
// Without initial value and final inversion a CRC is linear over GF(2): the sum of a weight for
// each bit that is set. 16 slices of 1 KiB are the rows of a matrix of bits, the weights of a
// slice's bits are another, and the lowest bits of their product are the 16 CRCs; slices are then
// joined by products with powers of x. Zeros in front weigh nothing, so what a tile lacks to whole
// slices is in front. The initial value is the same as inverting the first four bytes.

#include <cstdint>

#include "kernels/body/tasks.h"

namespace cairn::kernels {

inline constexpr uint32_t kCrcSlice = 1024;            // bytes of a row
inline constexpr uint32_t kCrcSteps = kCrcSlice / 32;  // products of a round: 256 bits each
inline constexpr uint32_t kCrcRows = 16;
inline constexpr uint32_t kCrcPolynomial = 0x82F63B78;  // reflected: bit 31 is x^0

struct CrcShared {
  // Of step, lane: the lane's words of the four parts of 8 columns, as MmaBits() takes them.
  alignas(16) uint32_t weights[kCrcSteps][kWarpLanes][8];
  uint32_t of_bit[kCrcSlice / 4 * 32];  // the CRC of a slice with that bit alone
  uint32_t shifts[5];                   // x^(8 * kCrcSlice * 2^k)
};

CAIRN_DEVICE uint32_t TimesX(uint32_t a) { return a >> 1 ^ ((a & 1) != 0 ? kCrcPolynomial : 0); }

CAIRN_DEVICE uint32_t TimesPolynomial(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    product ^= (a >> 31) != 0 ? b : 0;
    a <<= 1;
    b = TimesX(b);
  }
  return product;
}

// x^(8 * bytes)
CAIRN_DEVICE uint32_t PowerOfBytes(uint32_t bytes) {
  uint32_t power = 0x80000000U, square = 0x00800000U;  // 1 and x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) power = TimesPolynomial(power, square);
    square = TimesPolynomial(square, square);
  }
  return power;
}

// Once a block; it meets in here and at the end.
CAIRN_DEVICE void FillWeights(CrcShared* shared) {
  const uint32_t thread = ThreadIndex();
  for (uint32_t byte = thread; byte < kCrcSlice; byte += kBlockThreads) {
    // Bit i of a byte stands for x^(7 - i), and 32 more by the CRC's own definition.
    uint32_t weight = TimesPolynomial(0x00800000U, PowerOfBytes(kCrcSlice - 1 - byte));
    for (uint32_t i = 8; i-- > 0;) {
      weight = i == 7 ? TimesPolynomial(weight, 0x00000080U) : TimesX(weight);
      shared->of_bit[8 * byte + i] = weight;
    }
  }
  if (thread < 5) shared->shifts[thread] = PowerOfBytes(kCrcSlice << thread);
  SyncBlock();
  for (uint32_t at = thread; at < kCrcSteps * kWarpLanes * 8; at += kBlockThreads) {
    const uint32_t step = at / 256, lane = at / 8 % kWarpLanes, part = at / 2 % 4, half = at % 2;
    const uint32_t column = 8 * part + lane / 4;
    const uint32_t first = 256 * step + 128 * half + 32 * (lane % 4);
    uint32_t word = 0;
    for (uint32_t i = 0; i < 32; ++i) word |= (shared->of_bit[first + i] >> column & 1) << i;
    shared->weights[step][lane][at % 8] = word;
  }
  SyncBlock();
}

// Some slices of a tile, and the zeros in front of the tile.
struct CrcRound {
  const uint8_t* tile;
  uint32_t lead;          // zeros
  uint32_t first, count;  // slices; count <= kCrcRows

  // The word at byte `at` of slice first + row, the tile's first one inverted.
  CAIRN_DEVICE_MEMBER uint32_t Word(uint32_t row, uint32_t at) const {
    const uint32_t place = (first + row) * kCrcSlice + at;
    if (row >= count || place < lead) return 0;
    const uint32_t word = LoadGlobal<uint32_t>(tile + (place - lead));
    return place == lead ? ~word : word;
  }
};

// Bits 8 t + 2 part and the next of rows `group` and group + 8, for each part t of 8 columns.
CAIRN_DEVICE void MultiplyRound(const CrcRound& round, const CrcShared& shared,
                                int32_t (&d)[4][4]) {
  const uint32_t lane = ThreadIndex() % kWarpLanes, group = lane / 4, part = lane % 4;
  for (uint32_t step = 0; step < kCrcSteps; ++step) {
    const uint32_t at = 32 * step + 4 * part;
    const uint32_t a[4] = {round.Word(group, at), round.Word(group + 8, at),
                           round.Word(group, at + 16), round.Word(group + 8, at + 16)};
    const uint32_t* weights = shared.weights[step][lane];
    CAIRN_UNROLL
    for (uint32_t t = 0; t < 4; ++t) {
      const uint32_t b[2] = {weights[2 * t], weights[2 * t + 1]};
      MmaBits(d[t], a, b);
    }
  }
}

// The CRC of a round, the same in all lanes.
CAIRN_DEVICE uint32_t CrcOfRound(const CrcRound& round, const CrcShared& shared) {
  int32_t d[4][4] = {};
  MultiplyRound(round, shared, d);
  const uint32_t lane = ThreadIndex() % kWarpLanes, part = lane % 4;
  uint32_t low = 0, high = 0;  // of rows lane / 4 and lane / 4 + 8
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
  // Lane r takes row r, and moves it to the end of the round.
  const uint32_t low_row = Shuffle(low, lane % 8 * 4), high_row = Shuffle(high, lane % 8 * 4);
  uint32_t mine = lane >= round.count ? 0 : lane < 8 ? low_row : high_row;
  const uint32_t behind = lane < round.count ? round.count - 1 - lane : 0;
  CAIRN_NO_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    if ((behind >> k & 1) != 0) mine = TimesPolynomial(mine, shared.shifts[k]);
  }
  for (uint32_t lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) mine ^= ShuffleXor(mine, lanes);
  return mine;
}

// REQUIRES: bytes is a multiple of 4.
CAIRN_DEVICE uint32_t CrcOfTile(const uint8_t* tile, uint32_t bytes, const CrcShared& shared) {
  const uint32_t slices = (bytes + kCrcSlice - 1) / kCrcSlice;
  const uint32_t lead = slices * kCrcSlice - bytes;
  uint32_t crc = 0;
  for (uint32_t first = 0; first < slices; first += kCrcRows) {
    const uint32_t count = slices - first < kCrcRows ? slices - first : kCrcRows;
    const uint32_t round = CrcOfRound({tile, lead, first, count}, shared);
    CAIRN_NO_UNROLL
    for (uint32_t k = 0; k < 5; ++k) {
      if ((count >> k & 1) != 0) crc = TimesPolynomial(crc, shared.shifts[k]);
    }
    crc ^= round;
  }
  return bytes == 0 ? 0 : ~crc;  // the first four bytes are inverted, where there are any
}

CAIRN_KERNEL CAIRN_BOUNDS(kBlockThreads, 3) VerifyCrcs(DecodeArgs args) {
  CAIRN_SHARED(CrcShared, shared);
  const PlanReader reader(args.plan, args.list);
  const uint32_t warp = WarpOfBlock();
  const uint32_t step = GridBlocks() * kBlockWarps;
  if (BlockIndex() * kBlockWarps >= reader.list.count) return;  // nothing for the whole block
  FillWeights(&shared);
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
