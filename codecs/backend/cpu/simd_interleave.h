// SPDX-License-Identifier: Apache-2.0
#pragma once
// One step of a transpose, shared by both ISA files. Everything has internal linkage: see
// codecs/backend/backend.h.

namespace cairn::codecs {
namespace {

// In each round, interleaves the rows of the first half with the rows of the second half.
//   low, high  interleave the lanes of two rows, in the low or the high half of each 128 bits
template <int kRounds, typename Row, int kRows, typename Low, typename High>
void Interleave(Row (&rows)[kRows], const Low& low, const High& high) {
  for (int round = 0; round < kRounds; ++round) {
    Row next[kRows];
    for (int i = 0; i < kRows / 2; ++i) {
      next[2 * i] = low(rows[i], rows[i + kRows / 2]);
      next[2 * i + 1] = high(rows[i], rows[i + kRows / 2]);
    }
    for (int i = 0; i < kRows; ++i) rows[i] = next[i];
  }
}

}  // namespace
}  // namespace cairn::codecs
