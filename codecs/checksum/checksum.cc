// SPDX-License-Identifier: Apache-2.0
#include "codecs/checksum/checksum.h"

#include <array>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cairn::codecs {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// ---- portable: eight table lookups per word ----

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t table = 1; table < tables.size(); ++table) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[table - 1][byte];
      tables[table][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t StepByte(uint32_t state, std::byte byte) {
  return (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(byte)) & 0xFF];
}

uint32_t ExtendPortable(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  uint32_t state = ~crc;
  while (bytes >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, source, 8);
    if (target != nullptr) {
      std::memcpy(target, &word, 8);
      target += 8;
    }
    word ^= state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xFF];
    source += 8;
    bytes -= 8;
  }
  for (; bytes > 0; --bytes) {
    const std::byte byte = *source++;
    if (target != nullptr) *target++ = byte;
    state = StepByte(state, byte);
  }
  return ~state;
}

bool Always() { return true; }

#if defined(__x86_64__)

// ---- sse42: the CPU's own crc32 instruction, one stream ----

#define CAIRN_SSE42 __attribute__((target("sse4.2")))
#define CAIRN_VPCLMUL __attribute__((target("sse4.2,avx2,pclmul,vpclmulqdq")))

CAIRN_SSE42 uint32_t StateSse42(uint32_t state, const std::byte* source, size_t bytes,
                                std::byte* target) {
  uint64_t wide = state;
  while (bytes >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, source, 8);
    if (target != nullptr) {
      std::memcpy(target, &word, 8);
      target += 8;
    }
    wide = _mm_crc32_u64(wide, word);
    source += 8;
    bytes -= 8;
  }
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes) {
    const std::byte byte = *source++;
    if (target != nullptr) *target++ = byte;
    state = _mm_crc32_u8(state, static_cast<uint8_t>(byte));
  }
  return state;
}

uint32_t ExtendSse42(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  return ~StateSse42(~crc, source, bytes, target);
}

bool HasSse42() { return __builtin_cpu_supports("sse4.2") != 0; }

// ---- vpclmul: folding by carry-less multiplication, eight 256-bit registers ----
// Method: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel
// 2009.

// x^n mod P, reflected, and shifted up by the one bit that a reflected product lacks.
constexpr uint64_t PowerOfX(uint32_t n) {
  uint32_t value = 0x80000000;
  for (uint32_t i = 0; i < n; ++i) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
  return uint64_t{value} << 1;
}

// Factors for the two halves of a 128-bit lane, which move it `bits` further from the end of the
// message.
struct Fold {
  uint64_t first, second;
};
constexpr Fold FoldBy(uint32_t bits) { return {PowerOfX(bits + 32), PowerOfX(bits - 32)}; }

constexpr size_t kStride = 256;  // bytes a round: eight registers of 32
constexpr Fold kFoldStride = FoldBy(8 * kStride);
constexpr Fold kFold256 = FoldBy(256);
constexpr Fold kFold128 = FoldBy(128);

CAIRN_VPCLMUL inline __m256i Folded(__m256i lanes, __m256i factors, __m256i next) {
  const __m256i first = _mm256_clmulepi64_epi128(lanes, factors, 0x00);
  const __m256i second = _mm256_clmulepi64_epi128(lanes, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(first, second), next);
}

CAIRN_VPCLMUL inline __m256i Factors(const Fold& fold) {
  const auto first = static_cast<int64_t>(fold.first);
  const auto second = static_cast<int64_t>(fold.second);
  return _mm256_set_epi64x(second, first, second, first);
}

template <bool kCopies>
CAIRN_VPCLMUL inline __m256i Load(const std::byte* source, std::byte* target, size_t at) {
  const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
  if constexpr (kCopies) _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + at), value);
  return value;
}

// REQUIRES: bytes >= kStride. Returns the state after the whole strides; the caller processes the
// rest.
template <bool kCopies>
CAIRN_VPCLMUL uint32_t FoldStrides(uint32_t state, const std::byte* source, size_t bytes,
                                   std::byte* target) {
  __m256i lane[8];
  for (size_t i = 0; i < 8; ++i) lane[i] = Load<kCopies>(source, target, 32 * i);
  lane[0] =
      _mm256_xor_si256(lane[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(state)));
  const __m256i stride = Factors(kFoldStride);
  for (size_t at = kStride; at + kStride <= bytes; at += kStride) {
    for (size_t i = 0; i < 8; ++i) {
      lane[i] = Folded(lane[i], stride, Load<kCopies>(source, target, at + 32 * i));
    }
  }
  const __m256i by_256 = Factors(kFold256);
  for (size_t i = 1; i < 8; ++i) lane[i] = Folded(lane[i - 1], by_256, lane[i]);
  const __m128i by_128 = _mm256_castsi256_si128(Factors(kFold128));
  const __m128i low = _mm256_castsi256_si128(lane[7]);
  const __m128i high = _mm256_extracti128_si256(lane[7], 1);
  const __m128i last = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(low, by_128, 0x00),
                                                   _mm_clmulepi64_si128(low, by_128, 0x11)),
                                     high);
  const uint64_t first_half = static_cast<uint64_t>(_mm_cvtsi128_si64(last));
  const uint64_t second_half = static_cast<uint64_t>(_mm_extract_epi64(last, 1));
  return static_cast<uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, first_half), second_half));
}

uint32_t ExtendVpclmul(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  uint32_t state = ~crc;
  const size_t whole = bytes / kStride * kStride;
  if (whole > 0) {
    state = target != nullptr ? FoldStrides<true>(state, source, whole, target)
                              : FoldStrides<false>(state, source, whole, nullptr);
  }
  return ~StateSse42(state, source + whole, bytes - whole,
                     target != nullptr ? target + whole : nullptr);
}

bool HasVpclmul() {
  return HasSse42() && __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

#endif  // __x86_64__

constexpr Crc32cForm kForms[] = {
    {"portable", Always, ExtendPortable},
#if defined(__x86_64__)
    {"sse42", HasSse42, ExtendSse42},
    {"vpclmul", HasVpclmul, ExtendVpclmul},
#endif
};

struct Choice {
  const Crc32cForm* form = &kForms[0];
  bool is_kept = true;  // what the environment asks for

  Choice() {
    const char* forced = std::getenv("CAIRN_CRC_BACKEND");
    const bool is_forced = forced != nullptr && *forced != '\0';
    is_kept = !is_forced;
    for (const Crc32cForm& each : kForms) {
      if (!each.is_supported()) continue;
      form = &each;
      is_kept = is_kept || std::strcmp(each.name, forced) == 0;
      if (is_forced && is_kept) return;
    }
  }
};

const Choice& Chosen() {
  static const Choice choice;
  return choice;
}

}  // namespace

std::span<const Crc32cForm> Crc32cForms() { return kForms; }

const Crc32cForm& ActiveCrc32cForm() { return *Chosen().form; }

bool IsCrc32cChoiceKept() { return Chosen().is_kept; }

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  return ActiveCrc32cForm().extend(crc, bytes.data(), bytes.size(), nullptr);
}

uint32_t CopyCrc32c(uint32_t crc, std::byte* target, std::span<const std::byte> source) {
  if (source.empty()) return crc;
  return ActiveCrc32cForm().extend(crc, source.data(), source.size(), target);
}

}  // namespace cairn::codecs
