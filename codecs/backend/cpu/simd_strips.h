// SPDX-License-Identifier: Apache-2.0
#pragma once
// The primitives that strip_*.inl use. They work on 32 rANS states of the mode lanes32, or on 32
// elements of a strip, as bytes in one register of AVX2 or as 16-bit halves in two. Both ISA files
// use them, since AVX-512 includes these instructions. Everything has internal linkage: see
// codecs/backend/backend.h.

#include <immintrin.h>

#include <cstdint>

#include "codecs/backend/cpu/simd_interleave.h"

namespace cairn::codecs {
namespace {

using Bytes32 = __m256i;

// 32 lanes of 16 bits, in the order that unpack instructions produce: a has lanes 0..7 and 16..23,
// b has the others.
struct Halves32 {
  __m256i a, b;
};

// Shuffle controls for 16-bit lanes, one entry per mask m. If bit i of m is set, lane i takes the
// next byte: the one whose index is the number of set bits of m below i. Otherwise lane i becomes
// zero.
struct ExpandTable {
  alignas(16) uint8_t of[256][16];
};
// Shuffle controls for 8 halves, one entry per mask m. The low bytes of the lanes whose bits in m
// are 0 move to the end of the 8 bytes. The bytes before them are unspecified. A load may read one
// entry past the last.
struct CompressTable {
  alignas(16) uint8_t of[257][8];
};

constexpr ExpandTable kExpand = [] {
  ExpandTable table{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint8_t next = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      table.of[mask][2 * i] = (mask >> i & 1) != 0 ? next++ : 0x80;
      table.of[mask][2 * i + 1] = 0x80;
    }
  }
  return table;
}();
constexpr CompressTable kCompress = [] {
  CompressTable table{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint32_t next = 8;
    for (uint32_t i = 8; i-- > 0;) {
      if ((mask >> i & 1) == 0) table.of[mask][--next] = static_cast<uint8_t>(2 * i);
    }
  }
  return table;
}();

struct Strips {
  static Bytes32 Load(const uint8_t* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }
  static void Store(uint8_t* target, Bytes32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), a);
  }
  // If kStreams, bypasses the caches. REQUIRES: `target` is at a multiple of 32.
  template <bool kStreams>
  static void Put(uint8_t* target, Bytes32 a) {
    if constexpr (kStreams) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), a);
    } else {
      Store(target, a);
    }
  }
  static Bytes32 Set(uint32_t value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static Halves32 SetHalves(uint32_t value) {
    const __m256i a = _mm256_set1_epi16(static_cast<int16_t>(value));
    return {a, a};
  }

  // ---- Bytes ----

  static Bytes32 Add(Bytes32 a, Bytes32 b) { return _mm256_add_epi8(a, b); }
  static Bytes32 Sub(Bytes32 a, Bytes32 b) { return _mm256_sub_epi8(a, b); }
  static Bytes32 Min(Bytes32 a, Bytes32 b) { return _mm256_min_epu8(a, b); }
  static Bytes32 And(Bytes32 a, Bytes32 b) { return _mm256_and_si256(a, b); }
  static Bytes32 Or(Bytes32 a, Bytes32 b) { return _mm256_or_si256(a, b); }
  // Return a >> kBy & kMask, and (a & kMask) << kBy. REQUIRES: no bit is shifted into another byte.
  template <int kBy, int kMask>
  static Bytes32 RightBytes(Bytes32 a) {
    static_assert(kMask < 256 >> kBy);
    return And(_mm256_srli_epi16(a, kBy), Set(kMask));
  }
  template <int kBy, int kMask>
  static Bytes32 LeftBytes(Bytes32 a) {
    static_assert(kMask < 256 >> kBy);
    return _mm256_slli_epi16(And(a, Set(kMask)), kBy);
  }
  static Bytes32 Equal(Bytes32 a, Bytes32 b) { return _mm256_cmpeq_epi8(a, b); }
  static Bytes32 Above(Bytes32 a, Bytes32 b) { return _mm256_cmpgt_epi8(a, b); }  // signed
  static Bytes32 NotBelow(Bytes32 a, Bytes32 b) { return Equal(_mm256_max_epu8(a, b), a); }
  static Bytes32 Choose(Bytes32 mask, Bytes32 yes, Bytes32 no) {
    return _mm256_blendv_epi8(no, yes, mask);
  }
  // Returns a mask whose bit i is the top bit of lane i.
  static uint32_t Bits(Bytes32 a) { return static_cast<uint32_t>(_mm256_movemask_epi8(a)); }
  // Returns a mask whose bit i is bit kBit of lane i.
  template <int kBit>
  static uint32_t BitsOf(Bytes32 a) {
    return Bits(_mm256_slli_epi16(a, 7 - kBit));
  }
  // Sets all bits of lane i to bit i.
  static Bytes32 Spread(uint32_t bits) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    const __m256i bytes = _mm256_shuffle_epi8(
        all, _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i one = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, one), one);
  }
  static Bytes32 LowNibbles(Bytes32 a) { return And(a, Set(15)); }
  static Bytes32 HighNibbles(Bytes32 a) { return LowNibbles(_mm256_srli_epi16(a, 4)); }
  // Loads 16 bytes as 32 nibbles: the low nibbles into lanes 0 to 15, the high ones into lanes 16
  // to 31.
  static Bytes32 LoadNibbles(const uint8_t* source) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return LowNibbles(both);
  }
  // REQUIRES: lanes are below 16.
  static void StoreNibbles(uint8_t* target, Bytes32 a) {
    const __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(a, 1), 4);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm_or_si128(_mm256_castsi256_si128(a), high));
  }
  // Looks up 16 entries. REQUIRES: indices are below 16.
  static Bytes32 LookUp(const uint8_t* table, Bytes32 index) {
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table))),
        index);
  }

  // Transposes 16 rows of 32 columns: half h of rows[i] receives column 16 h + i. The function is
  // its own inverse.
  static void Transpose(Bytes32 (&rows)[16]) {
    Interleave<4>(
        rows, [](Bytes32 a, Bytes32 b) { return _mm256_unpacklo_epi8(a, b); },
        [](Bytes32 a, Bytes32 b) { return _mm256_unpackhi_epi8(a, b); });
  }
  static Bytes32 LoadTwo(const void* first, const void* second) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(first))),
        _mm_loadu_si128(static_cast<const __m128i*>(second)), 1);
  }
  static void StoreTwo(uint8_t* first, uint8_t* second, Bytes32 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm256_castsi256_si128(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(second), _mm256_extracti128_si256(a, 1));
  }

  // ---- Halves ----

  static Halves32 LoadHalves(const uint8_t* source) {
    const __m256i low = Load(source);
    const __m256i high = Load(source + 32);
    return {_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31)};
  }
  template <bool kStreams>
  static void PutHalves(uint8_t* target, Halves32 x) {
    Put<kStreams>(target, _mm256_permute2x128_si256(x.a, x.b, 0x20));
    Put<kStreams>(target + 32, _mm256_permute2x128_si256(x.a, x.b, 0x31));
  }
  static Halves32 Widen(Bytes32 a) {
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_unpacklo_epi8(a, zero), _mm256_unpackhi_epi8(a, zero)};
  }
  // Returns a + 256 b.
  static Halves32 Pair(Bytes32 a, Bytes32 b) {
    return {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
  }
  // REQUIRES: lanes are below 256.
  static Bytes32 Narrow(Halves32 x) { return _mm256_packus_epi16(x.a, x.b); }
  // REQUIRES: each lane is all ones or all zeros.
  static Bytes32 NarrowMask(Halves32 x) { return _mm256_packs_epi16(x.a, x.b); }

  static Halves32 Add(Halves32 x, Halves32 y) {
    return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)};
  }
  static Halves32 Sub(Halves32 x, Halves32 y) {
    return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)};
  }
  static Halves32 Mul(Halves32 x, Halves32 y) {
    return {_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)};
  }
  static Halves32 MulHigh(Halves32 x, Halves32 y) {
    return {_mm256_mulhi_epu16(x.a, y.a), _mm256_mulhi_epu16(x.b, y.b)};
  }
  static Halves32 And(Halves32 x, Halves32 y) {
    return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
  }
  static Halves32 AndNot(Halves32 no, Halves32 y) {
    return {_mm256_andnot_si256(no.a, y.a), _mm256_andnot_si256(no.b, y.b)};
  }
  static Halves32 Or(Halves32 x, Halves32 y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }
  template <int kBy>
  static Halves32 Left(Halves32 x) {
    return {_mm256_slli_epi16(x.a, kBy), _mm256_slli_epi16(x.b, kBy)};
  }
  template <int kBy>
  static Halves32 Right(Halves32 x) {
    return {_mm256_srli_epi16(x.a, kBy), _mm256_srli_epi16(x.b, kBy)};
  }
  static Halves32 Equal(Halves32 x, Halves32 y) {
    return {_mm256_cmpeq_epi16(x.a, y.a), _mm256_cmpeq_epi16(x.b, y.b)};
  }
  static Halves32 Above(Halves32 x, Halves32 y) {  // signed
    return {_mm256_cmpgt_epi16(x.a, y.a), _mm256_cmpgt_epi16(x.b, y.b)};
  }
  static Halves32 Choose(Halves32 mask, Halves32 yes, Halves32 no) {
    return {_mm256_blendv_epi8(no.a, yes.a, mask.a), _mm256_blendv_epi8(no.b, yes.b, mask.b)};
  }
  // For each of 32 pairs of bytes, returns the first byte times the low byte of `by`, plus the
  // second byte times the high byte of `by`.
  static Halves32 Dot(uint16_t by, Halves32 pairs) {
    const __m256i factors = _mm256_set1_epi16(static_cast<int16_t>(by));
    return {_mm256_maddubs_epi16(factors, pairs.a), _mm256_maddubs_epi16(factors, pairs.b)};
  }

  // Puts consecutive bytes from `source` into the lanes whose bits are set, and 0 into the other
  // lanes. Reads 40 bytes.
  static Halves32 Expand(const uint8_t* source, uint32_t bits) {
    const auto ahead = [&](uint32_t of) { return source + __builtin_popcount(of); };
    const __m256i a = LoadTwo(source, ahead(bits & 0xFFFF));
    const __m256i b = LoadTwo(ahead(bits & 0xFF), ahead(bits & 0xFFFFFF));
    const uint8_t(*table)[16] = kExpand.of;
    return {_mm256_shuffle_epi8(a, LoadTwo(table[bits & 0xFF], table[bits >> 16 & 0xFF])),
            _mm256_shuffle_epi8(b, LoadTwo(table[bits >> 8 & 0xFF], table[bits >> 24]))};
  }
  // Writes the low bytes of the lanes whose bits are not set, so that the last one is just before
  // `end`. Returns the address of the first one. Overwrites up to 8 bytes before it.
  static uint8_t* CompressBefore(uint8_t* end, Halves32 x, uint32_t left_out) {
    const auto put = [](uint8_t* target, __m128i eight, uint32_t bits) {
      const auto* control = reinterpret_cast<const __m128i*>(kCompress.of[bits & 0xFF]);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(target),
                       _mm_shuffle_epi8(eight, _mm_loadu_si128(control)));
    };
    // The stores go from the end to lower addresses. So a later store overwrites only unspecified
    // bytes of the earlier ones.
    put(end - 8, _mm256_extracti128_si256(x.b, 1), left_out >> 24);
    put(end - 16 + __builtin_popcount(left_out >> 24), _mm256_extracti128_si256(x.a, 1),
        left_out >> 16);
    put(end - 24 + __builtin_popcount(left_out >> 16), _mm256_castsi256_si128(x.b), left_out >> 8);
    put(end - 32 + __builtin_popcount(left_out >> 8), _mm256_castsi256_si128(x.a), left_out);
    return end - 32 + __builtin_popcount(left_out);
  }

  // ---- Words of 32 bits, for fp32 ----

  // Loads 32 words, split into their high and their low halves.
  static void LoadWords(const uint8_t* source, Halves32* high, Halves32* low) {
    const __m256i v[4] = {Load(source), Load(source + 32), Load(source + 64), Load(source + 96)};
    const __m256i mask = _mm256_set1_epi32(0xFFFF);
    const auto pack = [&](__m256i first, __m256i second, __m256i* h, __m256i* l) {
      const __m256i x = _mm256_permute2x128_si256(first, second, 0x20);
      const __m256i y = _mm256_permute2x128_si256(first, second, 0x31);
      *h = _mm256_packus_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16));
      *l = _mm256_packus_epi32(_mm256_and_si256(x, mask), _mm256_and_si256(y, mask));
    };
    pack(v[0], v[2], &high->a, &low->a);
    pack(v[1], v[3], &high->b, &low->b);
  }
  template <bool kStreams>
  static void PutWords(uint8_t* target, Halves32 high, Halves32 low) {
    const auto put = [](uint8_t* first, uint8_t* second, __m256i h, __m256i l) {
      const __m256i x = _mm256_unpacklo_epi16(l, h);
      const __m256i y = _mm256_unpackhi_epi16(l, h);
      Put<kStreams>(first, _mm256_permute2x128_si256(x, y, 0x20));
      Put<kStreams>(second, _mm256_permute2x128_si256(x, y, 0x31));
    };
    put(target, target + 64, high.a, low.a);
    put(target + 32, target + 96, high.b, low.b);
  }
  static void EndStreams() { _mm_sfence(); }

  // Prefetches the cache lines of `bytes` bytes at an address into the second-level cache. The
  // address may be invalid. Always inlined, because g++ 12 drops calls of a function that only
  // prefetches.
  [[gnu::always_inline]] static void Ask(const uint8_t* address, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(address) + at, _MM_HINT_T1);
    }
  }
};

}  // namespace
}  // namespace cairn::codecs
