// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/folder.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "codecs/checksum/checksum.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TierMeta SomeMeta() {
  std::mt19937_64 random = SeededRandom();
  TierMeta meta{.segment_bytes = 256 * kMiB};
  for (std::byte& byte : meta.tier_id) {
    byte = static_cast<std::byte>(random());
  }
  return meta;
}

SegmentHeader SomeHeader() {
  return {.tier_id = SomeMeta().tier_id,
          .slot = 0x12345678,
          .seq = 0x1122334455667788,
          .segment_bytes = 4 * kMiB};
}

using Bytes = std::vector<std::byte>;

Bytes MetaBytes(const TierMeta& meta = SomeMeta()) {
  std::array<std::byte, kTierMetaBytes> bytes;
  EncodeTierMeta(meta, bytes);
  return {bytes.begin(), bytes.end()};
}

Bytes HeaderBytes(const SegmentHeader& header = SomeHeader()) {
  std::array<std::byte, kSegmentHeaderBytes> bytes;
  EncodeSegmentHeader(header, bytes);
  return {bytes.begin(), bytes.end()};
}

// Makes the CRC right again.
void Reseal(Bytes& bytes) {
  constexpr size_t kCrc = 12;
  std::memset(bytes.data() + kCrc, 0, sizeof(uint32_t));
  const uint32_t crc = codecs::Crc32c(bytes);
  std::memcpy(bytes.data() + kCrc, &crc, sizeof(crc));
}

absl::Status StatusOfMeta(const Bytes& bytes) { return ParseTierMeta(bytes).status(); }
absl::Status StatusOfHeader(const Bytes& bytes) { return ParseSegmentHeader(bytes).status(); }

void Write(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

TEST(SsdFormat, ComesBack) {
  EXPECT_EQ(ParseTierMeta(MetaBytes()).value(), SomeMeta());
  EXPECT_EQ(ParseSegmentHeader(HeaderBytes()).value(), SomeHeader());
}

TEST(SsdFormat, NoTruncationPasses) {
  for (size_t bytes = 0; bytes < kTierMetaBytes; ++bytes) {
    Bytes cut = MetaBytes();
    cut.resize(bytes);
    EXPECT_TRUE(absl::IsDataLoss(StatusOfMeta(cut))) << bytes;
  }
  for (const size_t bytes : {0, 15, 16, 52, 4095, 4097}) {
    Bytes cut = HeaderBytes();
    cut.resize(bytes);
    EXPECT_TRUE(absl::IsDataLoss(StatusOfHeader(cut))) << bytes;
  }
}

TEST(SsdFormat, NoFlippedBitPasses) {
  for (size_t bit = 0; bit < 8 * kTierMetaBytes; ++bit) {
    Bytes bytes = MetaBytes();
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(StatusOfMeta(bytes))) << bit;
  }
  const Bytes whole = HeaderBytes();
  for (size_t bit = 0; bit < 8 * kSegmentHeaderBytes; bit += bit < 512 ? 1 : 61) {
    Bytes bytes = whole;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_TRUE(absl::IsDataLoss(StatusOfHeader(bytes))) << bit;
  }
}

TEST(SsdFormat, AnotherVersionIsUnknownNotDamaged) {
  Bytes meta = MetaBytes();
  meta[4] = std::byte{2};
  Reseal(meta);
  EXPECT_TRUE(absl::IsUnimplemented(StatusOfMeta(meta)));
  meta.resize(128);  // a later one may be longer
  meta[6] = std::byte{128};
  Reseal(meta);
  EXPECT_TRUE(absl::IsUnimplemented(StatusOfMeta(meta)));
  Bytes header = HeaderBytes();
  header[4] = std::byte{9};
  Reseal(header);
  EXPECT_TRUE(absl::IsUnimplemented(StatusOfHeader(header)));
}

TEST(SsdFormat, FieldsOutOfRangeAreRefused) {
  const auto changed = [](Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = static_cast<std::byte>(value);
    Reseal(bytes);
    return bytes;
  };
  for (const auto& [at, value] :
       {std::pair<size_t, uint8_t>{8, 1}, {32, 1}, {39, 1}, {40, 1}, {63, 1}}) {
    EXPECT_TRUE(absl::IsDataLoss(StatusOfMeta(changed(MetaBytes(), at, value)))) << at;
  }
  for (const auto& [at, value] :
       {std::pair<size_t, uint8_t>{11, 1}, {41, 1}, {47, 1}, {52, 1}, {4095, 1}}) {
    EXPECT_TRUE(absl::IsDataLoss(StatusOfHeader(changed(HeaderBytes(), at, value)))) << at;
  }
  Bytes no_seq = HeaderBytes();
  std::memset(no_seq.data() + 32, 0, 8);
  Reseal(no_seq);
  EXPECT_TRUE(absl::IsDataLoss(StatusOfHeader(no_seq)));
  EXPECT_TRUE(absl::IsDataLoss(StatusOfHeader(Bytes(kSegmentHeaderBytes))));  // never written
}

TEST(TierMetaFile, IsWrittenAndReplaced) {
  const TempDir folder;
  const std::string path = folder.path().string();
  EXPECT_TRUE(absl::IsNotFound(ReadTierMeta(path).status()));
  ASSERT_TRUE(WriteTierMeta(path, SomeMeta()).ok());
  EXPECT_EQ(ReadTierMeta(path).value(), SomeMeta());
  TierMeta other = SomeMeta();
  other.segment_bytes = 8192;
  ASSERT_TRUE(WriteTierMeta(path, other).ok());
  EXPECT_EQ(ReadTierMeta(path).value(), other);
  EXPECT_FALSE(std::filesystem::exists(folder.File("tier.meta.new")));
}

TEST(TierMetaFile, WhatIsWrongIsTold) {
  const TempDir folder;
  const std::string path = folder.path().string();
  const std::string file = folder.File(kTierMetaFile);
  Bytes bytes = MetaBytes();
  bytes[20] ^= std::byte{1};
  Write(file, bytes);
  EXPECT_TRUE(absl::IsDataLoss(ReadTierMeta(path).status()));
  Write(file, {});
  EXPECT_TRUE(absl::IsDataLoss(ReadTierMeta(path).status()));
  Write(file, Bytes(100'000));
  EXPECT_TRUE(absl::IsDataLoss(ReadTierMeta(path).status()));
  bytes = MetaBytes();
  bytes[4] = std::byte{2};
  Reseal(bytes);
  Write(file, bytes);
  EXPECT_TRUE(absl::IsUnimplemented(ReadTierMeta(path).status()));
  EXPECT_EQ(std::filesystem::file_size(file), kTierMetaBytes) << "it is left in place";
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  const absl::Status status = ReadTierMeta(path).status();
  EXPECT_FALSE(status.ok() || absl::IsNotFound(status) || absl::IsDataLoss(status)) << status;
}

TEST(TierMetaFile, AnUnfinishedWriteLeavesTheOldOne) {
  const TempDir folder;
  ASSERT_TRUE(WriteTierMeta(folder.path().string(), SomeMeta()).ok());
  Write(folder.File("tier.meta.new"), Bytes(10));
  EXPECT_EQ(ReadTierMeta(folder.path().string()).value(), SomeMeta());
  EXPECT_TRUE(WriteTierMeta(folder.path().string(), SomeMeta()).ok());
}

}  // namespace
}  // namespace cairn
