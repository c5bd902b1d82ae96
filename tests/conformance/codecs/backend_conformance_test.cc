// SPDX-License-Identifier: Apache-2.0
// Every step of every backend against the reference, bit for bit: all tail lengths, alignments,
// contents. A backend that this CPU cannot run is reported as skipped, by name.

#include <array>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "codecs/backend/reference/reference.h"
#include "codecs/pack/dense.h"
#include "codecs/recipe/recipe.h"
#include "tests/conformance/codecs/each_backend.h"

namespace cairn::codecs {

void PrintTo(const AffineTile& tile, std::ostream* out) {
  *out << tile.tokens << " tokens x " << tile.dim << ", dtype "
       << int{static_cast<uint8_t>(tile.dtype)} << ", " << int{tile.bits} << " bits"
       << (tile.is_clipped ? ", clipped" : "") << (tile.is_streamed ? ", streamed" : "");
}

namespace {

using Rows = std::array<uint64_t, kRowWords>;

size_t CodesBytes(const AffineTile& tile) {
  return size_t{tile.tokens} * CodeRowBytes(tile.dim, tile.bits);
}
size_t SourceBytesOf(const AffineTile& tile) {
  return size_t{tile.tokens} * tile.dim * ElementBytes(tile.dtype);
}
AffineTile WithGroup(AffineTile tile, bool is_per_channel) {
  tile.group = is_per_channel ? kKiviKGroupTokens : kKiviVGroupChannels;
  return tile;
}
size_t ParamsBytes(const AffineTile& tile, bool is_per_channel) {
  const size_t along = is_per_channel ? tile.tokens : tile.dim;
  const size_t across = is_per_channel ? tile.dim : tile.tokens;
  return (along + tile.group - 1) / tile.group * across * 4;
}

struct Encoded {
  Encoded(const AffineTile& tile, bool is_per_channel, size_t misalignment)
      : codes(CodesBytes(tile), misalignment),
        params(ParamsBytes(tile, is_per_channel), misalignment / 2) {}

  bool is_coded = true;
  Rows rows{};
  GuardedBytes codes;
  GuardedBytes params;
};

// Whether something is left that a selection would have made a row.
bool HasLarge(const AffineTile& tile, const GuardedBytes& source, const Rows& rows) {
  for (uint32_t token = 0; token < tile.tokens; ++token) {
    const uint8_t* pattern = tile.prediction->PatternOf(token, tile.dim);
    if (reference::IsRow(rows.data(), token) || pattern == nullptr) continue;
    for (uint32_t channel = 0; channel < tile.dim; ++channel) {
      const uint64_t index = uint64_t{token} * tile.dim + channel;
      const float value = reference::LoadElement(tile.dtype, source.data(), index);
      if (IsRowValue(value - reference::LoadPatternValue(pattern, channel))) return true;
    }
  }
  return false;
}

class BackendTest : public EachBackendTest {
 protected:
  // Calls check(tile, content) for every tail length of either side, each dtype and each width of
  // codes.
  template <typename Check>
  void ForEachTile(Check check) {
    constexpr std::array<uint32_t, 9> kDims = {1, 3, 8, 16, 64, 65, 80, 128, 130};
    constexpr std::array<uint32_t, 8> kTokens = {1, 2, 5, 16, 33, 128, 129, 257};
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32, DType::kFp8E4m3}) {
      for (const uint8_t bits : {8, 4, 2}) {
        for (uint32_t dim = 1; dim <= 140; ++dim) {
          Try(AffineTile{kTokens[random_() % kTokens.size()], dim, 0, dtype, bits, false}, check);
        }
        for (uint32_t tokens = 1; tokens <= 140; ++tokens) {
          Try(AffineTile{tokens, kDims[random_() % kDims.size()], 0, dtype, bits, false}, check);
        }
        for (const uint32_t dim : {192U, 256U, 576U}) {
          Try(AffineTile{128, dim, 0, dtype, bits, false}, check);
        }
        Try(AffineTile{1024, 64, 0, dtype, bits, false}, check);
      }
    }
  }

  Encoded EncodeWith(const Backend& backend, const AffineTile& tile, bool is_per_channel,
                     const GuardedBytes& source, size_t misalignment) {
    Encoded out(tile, is_per_channel, misalignment);
    OperationOf<&Backend::select_rows>(backend)(tile, source.data(), out.rows.data());
    if (is_per_channel) {
      out.is_coded = OperationOf<&Backend::encode_per_channel>(backend)(
          tile, source.data(), out.rows.data(), out.codes.data(), out.params.data());
    } else {
      OperationOf<&Backend::encode_per_token>(backend)(tile, source.data(), out.rows.data(),
                                                       out.codes.data(), out.params.data());
    }
    return out;
  }

  static void DecodeWith(const Backend& backend, const AffineTile& tile, bool is_per_channel,
                         const Encoded& from, GuardedBytes& target) {
    const auto step = is_per_channel ? OperationOf<&Backend::decode_per_channel>(backend)
                                     : OperationOf<&Backend::decode_per_token>(backend);
    step(tile, from.codes.data(), from.params.data(), target.data());
  }

  GuardedBytes Source(const AffineTile& tile, Content content) {
    GuardedBytes source(SourceBytesOf(tile), maker_.Misalignment());
    maker_.Fill(tile, content, source.data());
    return source;
  }

 private:
  template <typename Check>
  void Try(AffineTile tile, Check check) {
    tile.is_clipped = random_() % 2 == 0;
    tile.is_streamed = random_() % 2 == 0;
    const auto content = static_cast<Content>(random_() % static_cast<uint64_t>(Content::kCount));
    SCOPED_TRACE(testing::PrintToString(tile) + ", content " +
                 std::to_string(static_cast<int>(content)));
    if (!HasFailure()) check(tile, content);
  }
};

TEST_P(BackendTest, EncodesLikeTheReference) {
  ForEachTile([&](const AffineTile& any, Content content) {
    const GuardedBytes source = Source(any, content);
    for (const bool is_per_channel : {true, false}) {
      const AffineTile tile = WithGroup(any, is_per_channel);
      const Encoded wanted = EncodeWith(ReferenceBackend(), tile, is_per_channel, source, 0);
      const Encoded got =
          EncodeWith(*GetParam(), tile, is_per_channel, source, maker_.Misalignment());
      EXPECT_EQ(got.rows, wanted.rows);
      ASSERT_EQ(got.is_coded, wanted.is_coded) << (is_per_channel ? "K" : "V");
      if (wanted.is_coded) {
        EXPECT_TRUE(got.codes.Equals(wanted.codes)) << (is_per_channel ? "K" : "V");
        EXPECT_TRUE(got.params.Equals(wanted.params)) << (is_per_channel ? "K" : "V");
      }
      EXPECT_TRUE(got.codes.IsIntact() && got.params.IsIntact());
    }
  });
}

TEST_P(BackendTest, SelectsLikeTheReferenceAndKeepsBitsThatAreSet) {
  ForEachTile([&](const AffineTile& tile, Content content) {
    const GuardedBytes source = Source(tile, content);
    Rows wanted{};
    wanted[0] = 1;
    Rows got = wanted;
    OperationOf<&Backend::select_rows>(ReferenceBackend())(tile, source.data(), wanted.data());
    OperationOf<&Backend::select_rows> (*GetParam())(tile, source.data(), got.data());
    EXPECT_EQ(got, wanted);
  });
}

// Patterns that differ from what tiles hold by little and by much, and a choice of them.
struct Patterns {
  std::vector<uint8_t> values;
  std::vector<uint8_t> numbers;
  Rows is_predicted{};
  uint32_t count = 1;

  Patterns(const AffineTile& tile, std::mt19937_64& random)
      : numbers(tile.tokens), count(random() % 4 == 0 ? 1 + random() % 100 : 32) {
    values.resize(size_t{2} * count * tile.dim);
    const float spread = std::exp2(static_cast<float>(random() % 16) - 8.0F);
    std::normal_distribution<float> bell(0.0F, spread);
    for (size_t i = 0; i < values.size(); i += 2) {
      // Some patterns twice: the first of equals is taken.
      const size_t twin = i >= size_t{4} * tile.dim && random() % 8 != 0 ? 0 : 1;
      uint16_t bits = FloatToFp16(bell(random), Fp16Rounding::kNearestEven);
      if (twin == 0 && (i / 2 / tile.dim) % 5 == 4) {
        std::memcpy(&bits, values.data() + i - size_t{4} * tile.dim, 2);
      }
      if (spread == 64.0F && random() % 512 == 0)
        bits = 0x77FF;  // the largest that a bank may have
      std::memcpy(values.data() + i, &bits, 2);
    }
    for (uint32_t t = 0; t < tile.tokens; ++t) {
      numbers[t] = static_cast<uint8_t>(random() % count);
      is_predicted[t / 64] |= (random() % 4 == 0 ? uint64_t{0} : uint64_t{1}) << (t % 64);
    }
  }
  [[nodiscard]] Prediction AsPrediction() const {
    return {values.data(), numbers.data(), is_predicted.data()};
  }
};

// As many as V has groups.
std::vector<Span> SpansOf(const AffineTile& tile) {
  constexpr uint32_t kGroup = kKiviVGroupChannels;
  return std::vector<Span>(size_t{tile.tokens} * ((tile.dim + kGroup - 1) / kGroup));
}

TEST_P(BackendTest, ChoosesPatternsLikeTheReference) {
  ForEachTile([&](const AffineTile& of, Content content) {
    if (of.bits != 8 || of.tokens > 200) return;  // the choice does not depend on bits
    const GuardedBytes source = Source(of, content);
    const Patterns patterns(of, random_);
    Rows rows{};
    OperationOf<&Backend::select_rows>(ReferenceBackend())(of, source.data(), rows.data());
    for (const uint32_t group : {0U, uint32_t{kKiviVGroupChannels}}) {
      PatternedTile tile{of.tokens,     of.dim,        group,
                         of.dtype,      of.is_clipped, patterns.values.data(),
                         patterns.count};
      const auto choose = [&](const Backend& backend) {
        struct Chosen {
          Rows rows, is_predicted{};
          std::vector<uint8_t> numbers;
          std::vector<Span> spans;
          bool operator==(const Chosen&) const = default;
        } chosen{rows, {}, std::vector<uint8_t>(of.tokens, 99), SpansOf(of)};
        tile.spans = chosen.spans.data();
        OperationOf<&Backend::choose_patterns>(backend)(tile, source.data(), chosen.rows.data(),
                                                        chosen.numbers.data(),
                                                        chosen.is_predicted.data());
        return chosen;
      };
      EXPECT_TRUE(choose(*GetParam()) == choose(ReferenceBackend()))
          << patterns.count << " patterns, group " << group;
    }
  });
}

TEST_P(BackendTest, CodesWhatPatternsLeaveLikeTheReference) {
  ForEachTile([&](const AffineTile& any, Content content) {
    if (any.bits == 8 || any.tokens > 200) return;
    const GuardedBytes source = Source(any, content);
    const Patterns patterns(any, random_);
    const Prediction prediction = patterns.AsPrediction();
    for (const bool is_per_channel : {true, false}) {
      AffineTile tile = WithGroup(any, is_per_channel);
      const Encoded plain = EncodeWith(ReferenceBackend(), tile, is_per_channel, source, 0);
      tile.prediction = &prediction;
      if (HasLarge(tile, source, plain.rows)) continue;
      const Encoded wanted = EncodeWith(ReferenceBackend(), tile, is_per_channel, source, 0);
      const Encoded got =
          EncodeWith(*GetParam(), tile, is_per_channel, source, maker_.Misalignment());
      EXPECT_EQ(got.rows, wanted.rows);
      ASSERT_EQ(got.is_coded, wanted.is_coded);
      if (!wanted.is_coded) continue;
      EXPECT_TRUE(got.codes.Equals(wanted.codes)) << (is_per_channel ? "K" : "V");
      EXPECT_TRUE(got.params.Equals(wanted.params)) << (is_per_channel ? "K" : "V");
      GuardedBytes from_wanted(SourceBytesOf(tile), 0, 1);
      GuardedBytes from_got(SourceBytesOf(tile), maker_.Misalignment(), 2);
      DecodeWith(ReferenceBackend(), tile, is_per_channel, wanted, from_wanted);
      DecodeWith(*GetParam(), tile, is_per_channel, got, from_got);
      EXPECT_TRUE(from_got.Equals(from_wanted)) << (is_per_channel ? "K" : "V");
      EXPECT_TRUE(got.codes.IsIntact() && got.params.IsIntact() && from_got.IsIntact());
    }
  });
}

TEST_P(BackendTest, CodesOfKnownSpansAreTheSame) {
  ForEachTile([&](const AffineTile& any, Content content) {
    if (any.bits == 8 || any.tokens > 200) return;
    const GuardedBytes source = Source(any, content);
    AffineTile tile = WithGroup(any, false);
    Patterns patterns(tile, random_);
    patterns.is_predicted = {};
    Rows rows{};
    OperationOf<&Backend::select_rows> (*GetParam())(tile, source.data(), rows.data());
    std::vector<Span> spans = SpansOf(tile);
    OperationOf<&Backend::choose_patterns> (*GetParam())(
        {tile.tokens, tile.dim, tile.group, tile.dtype, false, patterns.values.data(),
         patterns.count, spans.data()},
        source.data(), rows.data(), patterns.numbers.data(), patterns.is_predicted.data());
    const auto encode = [&](const Span* known) {
      Encoded out(tile, false, 0);
      out.rows = rows;
      Prediction prediction = patterns.AsPrediction();
      prediction.spans = known;
      tile.prediction = &prediction;
      OperationOf<&Backend::encode_per_token> (*GetParam())(tile, source.data(), out.rows.data(),
                                                            out.codes.data(), out.params.data());
      return out;
    };
    const Encoded wanted = encode(nullptr);
    const Encoded got = encode(spans.data());
    EXPECT_EQ(got.rows, wanted.rows);
    EXPECT_TRUE(got.codes.Equals(wanted.codes) && got.params.Equals(wanted.params));
  });
}

// Any finite parameters and any codes, encoded or not.
TEST_P(BackendTest, DecodesLikeTheReference) {
  ForEachTile([&](const AffineTile& any, Content) {
    for (const bool is_per_channel : {true, false}) {
      const AffineTile tile = WithGroup(any, is_per_channel);
      Encoded from(tile, is_per_channel, maker_.Misalignment());
      for (size_t i = 0; i < from.codes.size(); ++i) {
        from.codes.data()[i] = static_cast<uint8_t>(random_());
      }
      for (size_t i = 0; i < from.params.size(); i += 4) {
        const AffineParams pair{static_cast<uint16_t>(random_() % 0x7C00 | (random_() % 2 << 15)),
                                static_cast<uint16_t>(random_() % 0x7C00)};
        std::memcpy(from.params.data() + i, &pair, 4);
      }
      GuardedBytes wanted(SourceBytesOf(tile), 0, 1);
      GuardedBytes got(SourceBytesOf(tile), maker_.Misalignment(), 2);
      DecodeWith(ReferenceBackend(), tile, is_per_channel, from, wanted);
      DecodeWith(*GetParam(), tile, is_per_channel, from, got);
      EXPECT_TRUE(got.Equals(wanted)) << (is_per_channel ? "K" : "V");
      EXPECT_TRUE(got.IsIntact());
    }
  });
}

// Parameters no encoder writes: whatever comes out, nothing outside the target is touched.
TEST_P(BackendTest, DecodesHostileParametersInBounds) {
  ForEachTile([&](const AffineTile& any, Content) {
    for (const bool is_per_channel : {true, false}) {
      const AffineTile tile = WithGroup(any, is_per_channel);
      Encoded from(tile, is_per_channel, maker_.Misalignment());
      for (size_t i = 0; i < from.params.size(); ++i) {
        from.params.data()[i] = random_() % 3 == 0 ? 0xFF : static_cast<uint8_t>(random_());
      }
      GuardedBytes target(SourceBytesOf(tile), maker_.Misalignment());
      DecodeWith(*GetParam(), tile, is_per_channel, from, target);
      EXPECT_TRUE(target.IsIntact());
    }
  });
}

TEST_P(BackendTest, CopiesWhatItStreams) {
  for (size_t count = 0; count < 300; ++count) {
    const GuardedBytes source = AnyBytes(count);
    GuardedBytes target(count, maker_.Misalignment());
    OperationOf<&Backend::copy_streamed> (*GetParam())(source.data(), count, target.data());
    EXPECT_TRUE(target.Equals(source) && target.IsIntact()) << count;
  }
}

TEST_P(BackendTest, NarrowsLikeTheReference) {
  ForEachTile([&](const AffineTile& tile, Content) {
    const GuardedBytes codes = AnyBytes(CodesBytes(tile));
    for (const uint8_t bits : {4, 2}) {
      if (bits >= tile.bits) continue;
      const size_t bytes = size_t{tile.tokens} * CodeRowBytes(tile.dim, bits);
      GuardedBytes wanted(bytes, 0, 1);
      GuardedBytes got(bytes, maker_.Misalignment(), 2);
      OperationOf<&Backend::narrow_codes>(ReferenceBackend())(tile, bits, codes.data(),
                                                              wanted.data());
      OperationOf<&Backend::narrow_codes> (*GetParam())(tile, bits, codes.data(), got.data());
      EXPECT_TRUE(got.Equals(wanted)) << "to " << int{bits};
      EXPECT_TRUE(got.IsIntact());
    }
  });
}

CAIRN_EACH_BACKEND(BackendTest);

}  // namespace
}  // namespace cairn::codecs
