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

// The use of the bytes that a pass reads.
enum class Keep : uint8_t { kNothing, kCopy, kCopyPastCaches };

template <Keep kKeep>
CAIRN_VPCLMUL inline __m256i Load(const std::byte* source, std::byte* target, size_t at) {
  const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
  auto* copy = reinterpret_cast<__m256i*>(target + at);
  if constexpr (kKeep == Keep::kCopy) _mm256_storeu_si256(copy, value);
  if constexpr (kKeep == Keep::kCopyPastCaches) _mm256_stream_si256(copy, value);
  return value;
}

CAIRN_VPCLMUL inline __m128i Folded(__m128i lane, const Fold& fold, __m128i next) {
  const __m128i factors =
      _mm_set_epi64x(static_cast<int64_t>(fold.second), static_cast<int64_t>(fold.first));
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, factors, 0x00),
                                     _mm_clmulepi64_si128(lane, factors, 0x11)),
                       next);
}

CAIRN_VPCLMUL inline uint32_t Reduced(__m128i last) {
  const auto first_half = static_cast<uint64_t>(_mm_cvtsi128_si64(last));
  const auto second_half = static_cast<uint64_t>(_mm_extract_epi64(last, 1));
  return static_cast<uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, first_half), second_half));
}

// REQUIRES: bytes >= kStride. Returns the state after the whole strides; the caller processes the
// rest.
template <Keep kKeep>
CAIRN_VPCLMUL uint32_t FoldStrides(uint32_t state, const std::byte* source, size_t bytes,
                                   std::byte* target) {
  __m256i lane[8];
  for (size_t i = 0; i < 8; ++i) lane[i] = Load<kKeep>(source, target, 32 * i);
  lane[0] =
      _mm256_xor_si256(lane[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(state)));
  const __m256i stride = Factors(kFoldStride);
  for (size_t at = kStride; at + kStride <= bytes; at += kStride) {
    for (size_t i = 0; i < 8; ++i) {
      lane[i] = Folded(lane[i], stride, Load<kKeep>(source, target, at + 32 * i));
    }
  }
  const __m256i by_256 = Factors(kFold256);
  for (size_t i = 1; i < 8; ++i) lane[i] = Folded(lane[i - 1], by_256, lane[i]);
  return Reduced(
      Folded(_mm256_castsi256_si128(lane[7]), kFold128, _mm256_extracti128_si256(lane[7], 1)));
}

// Processes the bytes before the first whole line of the target, the whole strides, and the rest.
template <typename Strides>
CAIRN_SSE42 uint32_t ExtendByStrides(uint32_t crc, const std::byte* source, size_t bytes,
                                     std::byte* target, size_t alignment, const Strides& strides) {
  uint32_t state = ~crc;
  if (alignment > 1) {
    const size_t past = reinterpret_cast<uintptr_t>(target) % alignment;
    const size_t head = past == 0 ? 0 : alignment - past < bytes ? alignment - past : bytes;
    state = StateSse42(state, source, head, target);
    source += head;
    target += head;
    bytes -= head;
  }
  const size_t whole = bytes / kStride * kStride;
  if (whole > 0) state = strides(state, source, whole, target);
  return ~StateSse42(state, source + whole, bytes - whole,
                     target != nullptr ? target + whole : nullptr);
}

uint32_t ExtendVpclmul(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  return ExtendByStrides(
      crc, source, bytes, target, 1,
      target != nullptr ? FoldStrides<Keep::kCopy> : FoldStrides<Keep::kNothing>);
}

uint32_t StreamVpclmul(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  crc = ExtendByStrides(crc, source, bytes, target, 32, FoldStrides<Keep::kCopyPastCaches>);
  _mm_sfence();
  return crc;
}

bool HasVpclmul() {
  return HasSse42() && __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

// ---- vpclmul512: the same with four 512-bit registers ----

#define CAIRN_VPCLMUL512 \
  __attribute__((target("sse4.2,avx2,pclmul,vpclmulqdq,avx512f,avx512vl,avx512bw")))

constexpr Fold kFold512 = FoldBy(512);
constexpr Fold kFold384 = FoldBy(384);

CAIRN_VPCLMUL512 inline __m512i Factors512(const Fold& fold) {
  const auto first = static_cast<int64_t>(fold.first);
  const auto second = static_cast<int64_t>(fold.second);
  return _mm512_set_epi64(second, first, second, first, second, first, second, first);
}

CAIRN_VPCLMUL512 inline __m512i Folded512(__m512i lanes, __m512i factors, __m512i next) {
  constexpr int kXor = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, factors, 0x00),
                                   _mm512_clmulepi64_epi128(lanes, factors, 0x11), next, kXor);
}

template <Keep kKeep>
CAIRN_VPCLMUL512 inline __m512i Load512(const std::byte* source, std::byte* target, size_t at) {
  const __m512i value = _mm512_loadu_si512(source + at);
  if constexpr (kKeep == Keep::kCopy) _mm512_storeu_si512(target + at, value);
  if constexpr (kKeep == Keep::kCopyPastCaches) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), value);
  }
  return value;
}

// REQUIRES: as FoldStrides().
template <Keep kKeep>
CAIRN_VPCLMUL512 uint32_t FoldStrides512(uint32_t state, const std::byte* source, size_t bytes,
                                         std::byte* target) {
  __m512i lane[4];
  for (size_t i = 0; i < 4; ++i) lane[i] = Load512<kKeep>(source, target, 64 * i);
  lane[0] =
      _mm512_xor_si512(lane[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m512i stride = Factors512(kFoldStride);
  for (size_t at = kStride; at + kStride <= bytes; at += kStride) {
    for (size_t i = 0; i < 4; ++i) {
      lane[i] = Folded512(lane[i], stride, Load512<kKeep>(source, target, at + 64 * i));
    }
  }
  const __m512i by_512 = Factors512(kFold512);
  for (size_t i = 1; i < 4; ++i) lane[i] = Folded512(lane[i - 1], by_512, lane[i]);
  // Goes through memory, because GCC 12 reports the extracting intrinsics as uses of uninitialized
  // values.
  __m128i parts[4];
  _mm512_storeu_si512(parts, lane[3]);
  __m128i last = Folded(parts[0], kFold384, parts[3]);
  last = Folded(parts[1], kFold256, last);
  last = Folded(parts[2], kFold128, last);
  return Reduced(last);
}

uint32_t ExtendVpclmul512(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  return ExtendByStrides(
      crc, source, bytes, target, 1,
      target != nullptr ? FoldStrides512<Keep::kCopy> : FoldStrides512<Keep::kNothing>);
}

uint32_t StreamVpclmul512(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target) {
  crc = ExtendByStrides(crc, source, bytes, target, 64, FoldStrides512<Keep::kCopyPastCaches>);
  _mm_sfence();
  return crc;
}

bool HasVpclmul512() {
  return HasVpclmul() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
}

#endif  // __x86_64__

constexpr Crc32cForm kForms[] = {
    {"portable", Always, ExtendPortable, ExtendPortable},
#if defined(__x86_64__)
    {"sse42", HasSse42, ExtendSse42, ExtendSse42},
    {"vpclmul", HasVpclmul, ExtendVpclmul, StreamVpclmul},
    {"vpclmul512", HasVpclmul512, ExtendVpclmul512, StreamVpclmul512},
#endif
};

struct Choice {
  const Crc32cForm* form = &kForms[0];
  bool is_kept = true;  // whether the implementation that the environment names is used

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

uint32_t StreamCrc32c(uint32_t crc, std::byte* target, std::span<const std::byte> source) {
  if (source.empty()) return crc;
  return ActiveCrc32cForm().stream(crc, source.data(), source.size(), target);
}

}  // namespace cairn::codecs
