// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/record.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/random.h"
#include "tests/unit/service/ssd/records.h"

namespace cairn {
namespace {

// One kind of record: its key, its value, and the status of parsing.
struct Sample {
  std::string name, key, value;
  std::function<absl::Status(std::string_view key, std::string_view value)> parse;
};

std::vector<Sample> Samples(std::mt19937_64& random) {
  const std::string extent = ExtentKey({.seq = random(), .page = 7});
  const std::string segment = SegmentKey(static_cast<uint32_t>(random()));
  const std::string space = SpaceKey(static_cast<uint32_t>(random()));
  const std::string meta = MetaKey("tier");
  const std::string fields = FieldsKey({.seq = random(), .page = 7});
  const auto of = [](auto parse) {
    return [parse](std::string_view key, std::string_view value) {
      return parse(key, value).status();
    };
  };
  return {{"extent", extent, EncodeExtent(extent, RandomExtent(random)), of(ParseExtent)},
          {"segment", segment,
           EncodeSegment(segment, {.seq = random() | 1, .state = SegmentRecord::State::kSealed}),
           of(ParseSegment)},
          {"space", space, EncodeSpace(space, RandomSpace(random)), of(ParseSpace)},
          {"meta", meta, EncodeMeta(meta, "a value"), of(ParseMeta)},
          {"fields", fields, EncodeFields(fields, SomeNames(3)), of(ParseFields)}};
}

TEST(Record, KeysSortByNumber) {
  EXPECT_LT(ExtentKey({.seq = 1, .page = 0xFFFFFFFF}), ExtentKey({.seq = 2, .page = 0}));
  EXPECT_LT(ExtentKey({.seq = 0xFF, .page = 0}), ExtentKey({.seq = 0x100, .page = 0}));
  EXPECT_LT(ExtentKey({.seq = 3, .page = 0xFF}), ExtentKey({.seq = 3, .page = 0x100}));
  EXPECT_LT(SegmentKey(255), SegmentKey(256));
}

TEST(Record, KeysComeBack) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 1000; ++i) {
    const ExtentPlace place{.seq = random(), .page = static_cast<uint32_t>(random())};
    EXPECT_EQ(ParseExtentKey(ExtentKey(place)).value(), place);
    EXPECT_EQ(ParseNumberKey(RecordKind::kSegment, SegmentKey(place.page)).value(), place.page);
    EXPECT_EQ(ParseNumberKey(RecordKind::kSpace, SpaceKey(place.page)).value(), place.page);
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseExtentKey("e").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseExtentKey(SegmentKey(1)).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseNumberKey(RecordKind::kSpace, SegmentKey(1)).status()));
}

TEST(Record, ExtentsComeBack) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 3000; ++i) {
    const ExtentRecord record = RandomExtent(random);
    const std::string key = ExtentKey({.seq = random(), .page = static_cast<uint32_t>(random())});
    const std::string value = EncodeExtent(key, record);
    EXPECT_LE(value.size(), kExtentRecordBytesMax);
    const auto parsed = ParseExtent(key, value);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, record);
  }
}

TEST(Record, NamesComeBack) {
  const std::string key = FieldsKey({.seq = 9, .page = 1});
  EXPECT_EQ(ParseFieldsKey(key).value(), (ExtentPlace{.seq = 9, .page = 1}));
  EXPECT_TRUE(EncodeFields(key, nullptr).empty());
  for (const uint32_t tokens : {0U, 1U, 1024U}) {
    const EngineNamesRef names = SomeNames(tokens);
    const auto parsed = ParseFields(key, EncodeFields(key, names));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(**parsed, *names);
  }
}

TEST(Record, FieldsOfALaterReleaseAreSkipped) {
  const std::string key = FieldsKey({.seq = 9, .page = 1});
  const EngineNamesRef names = SomeNames(2);
  std::string value = EncodeFields(key, names);
  value.resize(value.size() - sizeof(uint32_t));
  value.insert(1, std::string("\x63\x00\x03\x00new", 7));
  value.append(std::string("\x64\x00\x00\x00", 4));
  std::string cut = value + "\x65";
  std::string late = value;
  SealRecord(key, &value);
  const auto parsed = ParseFields(key, value);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(**parsed, *names);
  SealRecord(key, &cut);
  EXPECT_TRUE(absl::IsDataLoss(ParseFields(key, cut).status()));
  std::string wrong = std::string("\x01\x01\x00\x03\x00old", 8);  // a hash of 3 bytes
  SealRecord(key, &wrong);
  EXPECT_TRUE(absl::IsDataLoss(ParseFields(key, wrong).status()));
  late[0] = 2;
  SealRecord(key, &late);
  EXPECT_TRUE(absl::IsUnimplemented(ParseFields(key, late).status()));
}

TEST(Record, SegmentsSpacesAndMetaComeBack) {
  std::mt19937_64 random = SeededRandom();
  for (int i = 0; i < 300; ++i) {
    const std::string slot = SegmentKey(static_cast<uint32_t>(i));
    const SegmentRecord segment{.seq = random() | 1, .state = SegmentRecord::State::kOpen};
    EXPECT_EQ(ParseSegment(slot, EncodeSegment(slot, segment)).value(), segment);
    const std::string number = SpaceKey(static_cast<uint32_t>(i));
    const SpaceRecord space = RandomSpace(random);
    const auto parsed = ParseSpace(number, EncodeSpace(number, space));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(IsSame(*parsed, space));
    const std::string meta = MetaKey("name");
    const std::string bytes(static_cast<size_t>(i), static_cast<char>(i));
    EXPECT_EQ(ParseMeta(meta, EncodeMeta(meta, bytes)).value(), bytes);
  }
}

TEST(Record, NoTruncationPasses) {
  std::mt19937_64 random = SeededRandom();
  for (const Sample& sample : Samples(random)) {
    for (size_t bytes = 0; bytes < sample.value.size(); ++bytes) {
      EXPECT_TRUE(absl::IsDataLoss(sample.parse(sample.key, sample.value.substr(0, bytes))))
          << sample.name << " cut to " << bytes;
    }
    EXPECT_TRUE(absl::IsDataLoss(sample.parse(sample.key, sample.value + '\0'))) << sample.name;
  }
}

TEST(Record, NoFlippedBitPasses) {
  std::mt19937_64 random = SeededRandom();
  for (const Sample& sample : Samples(random)) {
    for (size_t bit = 0; bit < 8 * sample.value.size(); ++bit) {
      std::string value = sample.value;
      value[bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_TRUE(absl::IsDataLoss(sample.parse(sample.key, value))) << sample.name << " " << bit;
    }
  }
}

TEST(Record, StandsUnderItsOwnKeyOnly) {
  std::mt19937_64 random = SeededRandom();
  for (const Sample& sample : Samples(random)) {
    std::string key = sample.key;
    key.back() = static_cast<char>(key.back() ^ 1);
    EXPECT_TRUE(absl::IsDataLoss(sample.parse(key, sample.value))) << sample.name;
  }
}

// A later release's: whole, of another version.
TEST(Record, AnotherVersionIsUnknownNotDamaged) {
  std::mt19937_64 random = SeededRandom();
  for (const Sample& sample : Samples(random)) {
    std::string value = sample.value.substr(0, sample.value.size() - sizeof(uint32_t));
    value[0] = 9;
    SealRecord(sample.key, &value);
    EXPECT_TRUE(absl::IsUnimplemented(sample.parse(sample.key, value))) << sample.name;
    std::string longer = value.substr(0, value.size() - sizeof(uint32_t)) + "what comes later";
    SealRecord(sample.key, &longer);
    EXPECT_TRUE(absl::IsUnimplemented(sample.parse(sample.key, longer))) << sample.name;
  }
}

// What has the right CRC and breaks a limit: `at` of the value gets `byte`.
absl::Status ParseChangedExtent(size_t at, char byte) {
  std::mt19937_64 random = SeededRandom();
  ExtentRecord record = RandomExtent(random);
  record.side_object = {};
  record.recipe = {};
  record.expires_unix_s = 0;
  const std::string key = ExtentKey({.seq = 1, .page = 1});
  std::string value = EncodeExtent(key, record);
  value.resize(value.size() - sizeof(uint32_t));
  value.at(at) = byte;
  SealRecord(key, &value);
  return ParseExtent(key, value).status();
}

TEST(Record, ExtentsOutOfRangeAreRefused) {
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(1, 1)));   // a side object that is not there
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(1, 2)));   // a flag
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(2, 16)));  // group
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(79, 1)));  // first position
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(84, 1)));  // source bytes
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(95, 1)));  // image bytes
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(103, '\x80')));   // created
  EXPECT_TRUE(absl::IsDataLoss(ParseChangedExtent(109, 8)));        // tokens
  EXPECT_TRUE(absl::IsUnimplemented(ParseChangedExtent(118, 99)));  // recipe
}

TEST(Record, ExtentWithoutARangeIsNotWritten) {
  ExtentRecord record;
  EXPECT_FALSE(IsInRange(record));
  record.tokens = 1;
  record.slice = {0, 1, 0, 1};
  record.source_bytes = 1;
  record.image_bytes = 1;
  EXPECT_TRUE(IsInRange(record));
  record.slice = {65535, 1, 0, 1};
  EXPECT_FALSE(IsInRange(record));
}

}  // namespace
}  // namespace cairn
