// SPDX-License-Identifier: Apache-2.0
// encode_strip and decode_strips of every backend against the reference, bit for bit: all tail
// lengths, alignments and contents, one strip and several at once, rooms that are just enough and
// just not. A backend that this CPU cannot run is reported as skipped, by name.

#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <vector>

#include "codecs/pack/strip.h"
#include "tests/conformance/codecs/each_backend.h"

namespace cairn::codecs {

void PrintTo(const StripShape& shape, std::ostream* out) {
  *out << shape.tokens << " tokens x " << shape.dim << ", dtype "
       << int{static_cast<uint8_t>(shape.dtype)} << (shape.is_fast ? ", fast" : "");
}

namespace {

size_t SourceBytesOf(const StripShape& shape) { return ElementCount(shape) * BytesOf(shape.dtype); }

// Contents that tiles.h does not know: what lossless coding finds hard.
enum class Lossless : uint8_t { kFarApart, kAllExponents, kZeros, kFewEscapes, kWrapped, kCount };

class StripTest : public EachBackendTest {
 protected:
  template <typename Check>
  void ForEachShape(Check check) {
    constexpr std::array<uint32_t, 9> kDims = {1, 3, 31, 32, 64, 80, 96, 128, 130};
    constexpr std::array<uint32_t, 8> kTokens = {1, 16, 31, 33, 63, 64, 127, 128};
    for (const DType dtype :
         {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3, DType::kFp8E5m2}) {
      for (const bool is_fast : {false, true}) {
        for (uint32_t dim = 1; dim <= 140; dim += 1 + random_() % 5) {
          Try({kTokens[random_() % kTokens.size()], dim, dtype, is_fast}, check);
        }
        for (uint32_t tokens = 1; tokens <= kStripTokens; tokens += 1 + random_() % 5) {
          Try({tokens, kDims[random_() % kDims.size()], dtype, is_fast}, check);
        }
        for (const uint32_t dim : {192U, 256U, 576U, 4096U}) {
          Try({dim > 1000 ? 40U : 128U, dim, dtype, is_fast}, check);
        }
      }
    }
  }

  GuardedBytes Source(const StripShape& shape) {
    GuardedBytes source(SourceBytesOf(shape), maker_.Misalignment());
    const uint64_t known = static_cast<uint64_t>(Content::kCount);
    const uint64_t content = random_() % (known + static_cast<uint64_t>(Lossless::kCount));
    AffineTile tile{};
    tile.tokens = shape.tokens;
    tile.dim = shape.dim;
    tile.dtype = shape.dtype;
    if (content < known) {
      maker_.Fill(tile, static_cast<Content>(content), source.data());
      return source;
    }
    maker_.Fill(tile, Content::kBell, source.data());
    const uint32_t bytes = BytesOf(shape.dtype);
    for (uint64_t i = 0; i < ElementCount(shape); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, source.data() + i * bytes, bytes);
      bits = Changed(static_cast<Lossless>(content - known), shape, i, bits);
      std::memcpy(source.data() + i * bytes, &bits, bytes);
    }
    return source;
  }

  // Empty where the room does not suffice.
  static std::vector<uint8_t> Encode(const Backend& backend, const StripShape& shape,
                                     const GuardedBytes& source, GuardedBytes& room) {
    const uint64_t bytes = OperationOf<&Backend::encode_strip>(backend)(shape, source.data(),
                                                                        room.data(), room.size());
    EXPECT_LE(bytes, room.size());
    EXPECT_TRUE(room.IsIntact());
    return {room.data(), room.data() + bytes};
  }

 private:
  template <typename Check>
  void Try(const StripShape& shape, Check check) {
    SCOPED_TRACE(testing::PrintToString(shape));
    if (!HasFailure()) check(shape);
  }

  uint32_t Changed(Lossless content, const StripShape& shape, uint64_t index, uint32_t bits) {
    const uint32_t shift = ExponentShift(shape.dtype);
    const uint32_t mask = ExponentMask(shape.dtype);
    const uint32_t rest = bits & ~(mask << shift);
    const auto channel = static_cast<uint32_t>(index % shape.dim);
    switch (content) {
      case Lossless::kFarApart:
        return channel % 3 == 0 ? rest | (channel * 7 & mask) << shift : bits;
      case Lossless::kAllExponents:
        return rest | (static_cast<uint32_t>(index) & mask) << shift;
      case Lossless::kZeros:
        return channel % 2 == 0 ? 0 : bits;
      case Lossless::kWrapped:  // dead channels, whose top is low: 8 bits wrap to just below it
        return rest | (random_() % 4 == 0 ? mask - random_() % 9 : 0) << shift;
      default:
        return random_() % 50 == 0 ? rest | (static_cast<uint32_t>(random_()) & mask) << shift
                                   : bits;
    }
  }
};

TEST_P(StripTest, EncodesLikeTheReference) {
  ForEachShape([&](const StripShape& shape) {
    const GuardedBytes source = Source(shape);
    GuardedBytes wide(RawStripBytes(shape) + random_() % 300, 0);
    const std::vector<uint8_t> wanted = Encode(ReferenceBackend(), shape, source, wide);
    ASSERT_FALSE(wanted.empty());
    for (const size_t room_bytes : {wanted.size(), wanted.size() + 16, wide.size()}) {
      GuardedBytes room(room_bytes, maker_.Misalignment());
      ASSERT_EQ(Encode(*GetParam(), shape, source, room), wanted) << room_bytes;
    }
    for (const size_t less : {size_t{1}, size_t{16}, 1 + random_() % wanted.size()}) {
      if (less >= wanted.size()) continue;
      GuardedBytes room(wanted.size() - less, maker_.Misalignment());
      ASSERT_TRUE(Encode(*GetParam(), shape, source, room).empty()) << less;
    }
  });
}

TEST_P(StripTest, DecodesAnyNumberAtOnce) {
  ForEachShape([&](const StripShape& first) {
    const auto count = static_cast<uint32_t>(1 + random_() % kStripsAtOnce);
    std::vector<GuardedBytes> sources;
    std::vector<GuardedBytes> strips;
    std::vector<GuardedBytes> targets;
    std::array<StripJob, kStripsAtOnce> jobs{};
    for (uint32_t i = 0; i < count; ++i) {
      StripShape shape = first;
      if (random_() % 3 == 0) shape.dim = 1 + static_cast<uint32_t>(random_() % 100);
      sources.push_back(Source(shape));
      GuardedBytes room(RawStripBytes(shape), 0);
      const std::vector<uint8_t> strip = Encode(ReferenceBackend(), shape, sources[i], room);
      strips.emplace_back(strip.size(), maker_.Misalignment());
      std::memcpy(strips[i].data(), strip.data(), strip.size());
      targets.emplace_back(SourceBytesOf(shape), maker_.Misalignment());
      jobs[i] = {shape, {}, strips[i].data(), kNoMemory, targets[i].data(), random_() % 2 == 0};
      ASSERT_TRUE(ParseStrip(shape, strips[i].data(), strip.size(), &jobs[i].parts));
    }
    ASSERT_TRUE(OperationOf<&Backend::decode_strips>(*GetParam())(jobs.data(), count));
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(targets[i].Equals(sources[i])) << i;
      ASSERT_TRUE(targets[i].IsIntact());
    }
  });
}

TEST_P(StripTest, DecodesHostileStripsInBounds) {
  ForEachShape([&](const StripShape& shape) {
    if (ElementCount(shape) > 20000) return;
    const GuardedBytes source = Source(shape);
    GuardedBytes room(RawStripBytes(shape), 0);
    const std::vector<uint8_t> strip = Encode(ReferenceBackend(), shape, source, room);
    GuardedBytes changed(strip.size(), maker_.Misalignment());
    std::memcpy(changed.data(), strip.data(), strip.size());
    // Everything behind par, so that it parses.
    const uint64_t first = kStripHeaderBytes + shape.dim;
    for (uint64_t at = first; at < strip.size(); at += 1 + random_() % 16) {
      changed.data()[at] = static_cast<uint8_t>(random_() % 3 == 0 ? 0xFF : random_());
    }
    StripParts parts = {};
    ASSERT_TRUE(ParseStrip(shape, changed.data(), changed.size(), &parts));
    const auto decode = [&](const Backend& backend, GuardedBytes& target) {
      const StripJob job{shape, parts, changed.data(), kNoMemory, target.data(), false};
      const bool is_ok = OperationOf<&Backend::decode_strips>(backend)(&job, 1);
      EXPECT_TRUE(target.IsIntact());
      return is_ok;
    };
    GuardedBytes wanted(SourceBytesOf(shape), 0);
    GuardedBytes got(SourceBytesOf(shape), maker_.Misalignment());
    const bool is_ok = decode(ReferenceBackend(), wanted);
    ASSERT_EQ(decode(*GetParam(), got), is_ok);
    ASSERT_TRUE(!is_ok || got.Equals(wanted));
  });
}

CAIRN_EACH_BACKEND(StripTest);

}  // namespace
}  // namespace cairn::codecs
