// SPDX-License-Identifier: Apache-2.0
// The coder alone: its vectors, its bounds, and streams that no encoder wrote.
#include "codecs/pack/lanes32.h"

#include <array>
#include <cmath>
#include <vector>

#include "codecs/checksum/checksum.h"
#include "codecs/pack/exponent_tables.h"
#include "gtest/gtest.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

using TableOf = const CoderTable& (*)(uint32_t channel);

const CoderTable& FifthTable(uint32_t) { return kExponentCoderTables.of[5]; }
const CoderTable& AnyTable(uint32_t channel) { return kExponentCoderTables.of[channel % 16]; }

// Symbols [channel][token], tokens a multiple of 32.
struct Symbols {
  uint32_t tokens;
  uint32_t dim;
  TableOf table_of;
  std::vector<uint8_t> values;
};

Symbols AllOf(uint32_t dim, uint8_t symbol) {
  return {128, dim, FifthTable, std::vector<uint8_t>(size_t{128} * dim, symbol)};
}

// Those that a linear congruential generator's slots fall on.
Symbols Generated(uint32_t tokens, uint32_t dim, TableOf table_of, uint32_t seed = 1) {
  Symbols symbols{tokens, dim, table_of, std::vector<uint8_t>(size_t{tokens} * dim)};
  for (size_t i = 0; i < symbols.values.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    symbols.values[i] =
        static_cast<uint8_t>(SymbolOfSlot(table_of(static_cast<uint32_t>(i / tokens)), seed >> 24));
  }
  return symbols;
}

std::vector<uint8_t> Encode(const Symbols& symbols, size_t room) {
  std::vector<uint8_t> buffer(room);
  const auto symbol_at = [&](uint32_t channel, uint32_t token) {
    return symbols.values[size_t{channel} * symbols.tokens + token];
  };
  uint8_t* start = EncodeStream(symbols.tokens, symbols.dim, symbols.table_of, symbol_at,
                                buffer.data(), buffer.data() + room);
  if (start == nullptr) return {};
  return {start, buffer.data() + room};
}

std::vector<uint8_t> Encode(const Symbols& symbols) {
  return Encode(symbols, StreamBytesMax(symbols.tokens, symbols.dim));
}

// Empty where the stream is refused.
std::vector<uint8_t> Decode(const std::vector<uint8_t>& stream, const Symbols& like) {
  std::vector<uint8_t> values(like.values.size());
  const auto emit = [&](uint32_t channel, uint32_t token, uint32_t symbol) {
    values[size_t{channel} * like.tokens + token] = static_cast<uint8_t>(symbol);
    return true;
  };
  if (!DecodeStream(stream.data(), stream.size(), like.tokens, like.dim, like.table_of, emit)) {
    return {};
  }
  return values;
}

struct Vector {
  Symbols symbols;
  size_t bytes;
  uint32_t crc;
  std::array<uint16_t, 4> states;
  std::array<uint8_t, 8> first;
};

TEST(Lanes32Test, VectorsComeOutByteForByte) {
  const std::vector<Vector> vectors = {
      {AllOf(2, 3),
       96,
       0xc5971574,
       {0x1f8d, 0x1f8d, 0x1f8d, 0x1f8d},
       {0x52, 0x52, 0x52, 0x52, 0x52, 0x52, 0x52, 0x52}},
      {AllOf(64, 3),
       1696,
       0x4bc7db73,
       {0x0464, 0x0464, 0x0464, 0x0464},
       {0x7c, 0x7c, 0x7c, 0x7c, 0x7c, 0x7c, 0x7c, 0x7c}},
      {Generated(128, 2, FifthTable),
       130,
       0x4f63680d,
       {0x0243, 0x6c6a, 0x044a, 0x01c3},
       {0x80, 0x70, 0x81, 0xfe, 0xe6, 0xf9, 0x3a, 0x9e}},
      {Generated(128, 64, FifthTable),
       2636,
       0x3ecb6d1b,
       {0x0115, 0x425c, 0x0477, 0x6ba9},
       {0x84, 0x98, 0xf8, 0xf9, 0x49, 0x3e, 0x2d, 0x4b}},
      {AllOf(2, 15),
       320,
       0x9456a1c3,
       {0x01ff, 0x01ff, 0x01ff, 0x01ff},
       {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
      {AllOf(64, 15),
       8256,
       0xda433ab4,
       {0x01ff, 0x01ff, 0x01ff, 0x01ff},
       {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
  };
  for (const Vector& vector : vectors) {
    const std::vector<uint8_t> stream = Encode(vector.symbols);
    ASSERT_EQ(stream.size(), vector.bytes);
    EXPECT_EQ(Crc32c(std::as_bytes(std::span(stream))), vector.crc);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(stream[2 * i] | stream[2 * i + 1] << 8, vector.states[i]);
    }
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(stream[kCoderStatesBytes + i], vector.first[i]);
    EXPECT_EQ(Decode(stream, vector.symbols), vector.symbols.values);
  }
  const std::vector<uint8_t> mixed = Encode(Generated(128, 64, AnyTable));
  EXPECT_EQ(mixed.size(), 2524U);
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(mixed))), 0x0fbac30fU);
}

TEST(Lanes32Test, EverySizeComesBack) {
  for (const uint32_t tokens : {32U, 64U, 96U, 128U}) {
    for (const uint32_t dim : {1U, 3U, 64U, 80U, 256U, 576U}) {
      const Symbols symbols = Generated(tokens, dim, AnyTable, tokens * dim);
      EXPECT_EQ(Decode(Encode(symbols), symbols), symbols.values) << tokens << " x " << dim;
    }
  }
}

TEST(Lanes32Test, TheBoundIsReachedAndHeld) {
  const Symbols symbols = AllOf(8, kEscapeSymbol);
  const uint64_t bytes_max = StreamBytesMax(128, 8);
  EXPECT_EQ(Encode(symbols, bytes_max).size(), bytes_max);
  for (size_t room = 0; room < bytes_max; room += 7) EXPECT_TRUE(Encode(symbols, room).empty());
}

TEST(Lanes32Test, TablesThatAreNoneAreRefused) {
  CoderTable table;
  const auto is_table = [&](uint16_t first, uint16_t second, uint16_t escape) {
    const uint16_t frequencies[16] = {first, second, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, escape};
    return MakeCoderTable(frequencies, &table);
  };
  EXPECT_TRUE(is_table(200, 55, 1));
  EXPECT_TRUE(is_table(1, 0, 255));
  EXPECT_FALSE(is_table(200, 54, 1));
  EXPECT_FALSE(is_table(200, 56, 1));
  EXPECT_FALSE(is_table(200, 56, 0));
  EXPECT_FALSE(is_table(256, 0, 0));
  EXPECT_FALSE(is_table(0, 0, 256));
  EXPECT_FALSE(is_table(256, 255, 1));
}

TEST(Lanes32Test, CostsAreThoseOfTheFrequencies) {
  for (uint32_t i = 0; i < kExponentTables; ++i) {
    for (uint32_t symbol = 0; symbol < kCoderSymbols; ++symbol) {
      const uint32_t frequency = kExponentFrequencies[i][symbol];
      const bool is_escape = symbol == kEscapeSymbol || frequency == 0;
      const double cost = is_escape ? 240.0 : 15.0 * std::log2(256.0 / frequency);
      EXPECT_EQ(kExponentCosts[i][symbol], std::lround(cost)) << i << " " << symbol;
    }
  }
}

TEST(Lanes32Test, TruncatedAndChangedStreamsAreRefusedOrStayInBounds) {
  std::mt19937_64 random = SeededRandom();
  const Symbols symbols = Generated(64, 24, AnyTable);
  const std::vector<uint8_t> stream = Encode(symbols);
  for (size_t bytes = kCoderStatesBytes; bytes < stream.size(); ++bytes) {
    // A block of its own, so that a sanitizer sees a read past it.
    const std::vector<uint8_t> cut(stream.begin(), stream.begin() + static_cast<long>(bytes));
    EXPECT_TRUE(Decode(cut, symbols).empty()) << bytes;
  }
  int refused = 0;
  constexpr int kTries = 4000;
  for (int i = 0; i < kTries; ++i) {
    std::vector<uint8_t> changed = stream;
    changed[random() % changed.size()] ^= static_cast<uint8_t>(1U << random() % 8);
    const std::vector<uint8_t> values = Decode(changed, symbols);
    refused += values.empty() ? 1 : 0;
    EXPECT_NE(values, symbols.values);
  }
  EXPECT_GT(refused, kTries * 9 / 10);
}

}  // namespace
}  // namespace cairn::codecs
