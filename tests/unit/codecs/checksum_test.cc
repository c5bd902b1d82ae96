// SPDX-License-Identifier: Apache-2.0
// Every form of the CRC against the vectors of RFC 3720 B.4 and against the bitwise definition.
#include "codecs/checksum/checksum.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/random.h"

namespace cairn::codecs {
namespace {

uint32_t Bitwise(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void Fill(std::mt19937_64& random, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

class ChecksumTest : public testing::TestWithParam<Crc32cForm> {
 protected:
  void SetUp() override {
    if (!GetParam().is_supported()) GTEST_SKIP() << GetParam().name << ": not on this CPU";
  }
  uint32_t Extend(uint32_t crc, std::span<const std::byte> bytes) {
    return GetParam().extend(crc, bytes.data(), bytes.size(), nullptr);
  }
};

TEST_P(ChecksumTest, MatchesTheVectorsOfRfc3720) {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  EXPECT_EQ(Extend(0, zeros), 0x8A9136AAU);
  EXPECT_EQ(Extend(0, ones), 0x62A8AB43U);
  EXPECT_EQ(Extend(0, AsBytes("123456789")), 0xE3069283U);
  EXPECT_EQ(Extend(0, {}), 0U);
}

TEST_P(ChecksumTest, EqualsTheDefinitionAtEveryLengthAndOffset) {
  std::vector<std::byte> data(2048);
  std::mt19937_64 random = SeededRandom();
  Fill(random, data);
  for (size_t bytes = 0; bytes < 1200; bytes += bytes < 600 ? 1 : 37) {
    for (const size_t offset : {0, 1, 7, 31}) {
      const auto part = std::span(data).subspan(offset, bytes);
      const uint32_t seed = static_cast<uint32_t>(random());
      ASSERT_EQ(Extend(seed, part), Bitwise(seed, part)) << bytes << " at " << offset;
    }
  }
}

TEST_P(ChecksumTest, ExtendsWhereItWasCut) {
  std::vector<std::byte> data(5000);
  std::mt19937_64 random = SeededRandom();
  Fill(random, data);
  const uint32_t whole = Extend(0, data);
  for (const size_t cut : {1, 255, 256, 257, 1024, 4999}) {
    const uint32_t first = Extend(0, std::span(data).first(cut));
    EXPECT_EQ(Extend(first, std::span(data).subspan(cut)), whole) << cut;
  }
}

TEST_P(ChecksumTest, CopiesWhatItSums) {
  std::mt19937_64 random = SeededRandom();
  for (const size_t bytes : {0, 1, 8, 255, 256, 257, 512, 4096, 70001}) {
    std::vector<std::byte> source(bytes + 1);
    Fill(random, source);
    const auto part = std::span(source).subspan(1);
    const uint32_t expected = Bitwise(7, part);
    for (const auto copy : {GetParam().extend, GetParam().stream}) {
      for (const size_t offset : {size_t{1}, size_t{32}, size_t{63}, size_t{64}}) {
        std::vector<std::byte> target(bytes + offset + 1, std::byte{0xEE});
        EXPECT_EQ(copy(7, part.data(), bytes, target.data() + offset), expected);
        EXPECT_EQ(std::memcmp(target.data() + offset, part.data(), bytes), 0);
        EXPECT_EQ(target[offset - 1], std::byte{0xEE});
        EXPECT_EQ(target.back(), std::byte{0xEE});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ChecksumTest,
                         testing::ValuesIn(Crc32cForms().begin(), Crc32cForms().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Checksum, ActiveFormIsTheBestSupported) {
  std::printf("crc32c form in use: %s\n", ActiveCrc32cForm().name);
  EXPECT_TRUE(ActiveCrc32cForm().is_supported());
}

}  // namespace
}  // namespace cairn::codecs
