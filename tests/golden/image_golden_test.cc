// SPDX-License-Identifier: Apache-2.0
// Replays the vectors of tests/golden/image/ and recipes/ on every backend of this CPU. generate.py
// and generate_recipes.py say what the manifests hold.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/decode.h"
#include "codecs/image/inputs.h"
#include "codecs/transform/demote.h"
#include "codecs/transform/thin.h"
#include "tests/golden/golden.h"

namespace cairn::codecs {
namespace {

// What `aux` lines are encoded with.
std::vector<float> MagnitudesOf(const ImageSpec& spec) {
  std::vector<float> magnitudes(size_t{spec.slice.layer_count} * spec.slice.head_count *
                                spec.tile.k_dim);
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = static_cast<float>(1 + 7 * i % 11) / 4;
  }
  return magnitudes;
}

// What `scored` lines are encoded with.
std::vector<float> ScoresOf(const ImageSpec& spec) {
  constexpr float kScores[19] = {0.5F,  3.0e-8F, INFINITY, 1.0e-5F,  -1.0F, 0.0F,  70000.0F,
                                 0.25F, NAN,     65519.0F, 65504.0F, 2.0F,  -0.0F, 1.0e-9F,
                                 7.7F,  0.1F,    263.81F,  INFINITY, 0.033F};
  std::vector<float> scores(size_t{spec.slice.layer_count} * spec.slice.head_count * spec.tokens);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = kScores[i % 19];
  return scores;
}

// What `planned` lines are encoded with.
std::vector<uint8_t> StatesOf(const ImageSpec& spec) {
  constexpr uint8_t kStates[23] = {1, 0, 2, 1, 0, 0, 1, 1, 0, 2, 0, 1,
                                   0, 0, 1, 0, 1, 2, 0, 1, 1, 0, 0};
  std::vector<uint8_t> states(size_t{spec.slice.layer_count} * spec.slice.head_count * spec.tokens);
  for (size_t i = 0; i < states.size(); ++i) states[i] = kStates[i % 23];
  return states;
}

Bytes EncodeSource(const Backend& backend, const Source& source, const Recipe& recipe,
                   const EncodeInputs& inputs = {}) {
  ImageSpec spec = source.spec;
  spec.recipe = recipe;
  return InAnyFloat([&] { return EncodeOrFail(backend, spec, source.bytes, inputs); });
}

class GoldenTest : public testing::TestWithParam<const Backend*> {
 protected:
  // An `image` line; one of `aux` or `scored`, with inputs.
  void CheckImage(const Source& source, std::istringstream& line, const EncodeInputs& inputs = {}) {
    std::string recipe;
    size_t bytes = 0;
    std::string crc;
    std::string decoded_crc;
    line >> recipe >> bytes >> crc >> decoded_crc;
    SCOPED_TRACE(source.name + " " + recipe);
    const Bytes image = EncodeSource(*GetParam(), source, RecipeNamed(recipe), inputs);
    EXPECT_EQ(image.size(), bytes);
    EXPECT_EQ(Crc32c(image), Hex(crc));
    CheckDecode(image, decoded_crc);

    if (!inputs.query_magnitudes.empty() || !inputs.token_scores.empty()) return;
    const auto kept = KeptPath(folder_, source.name, recipe);
    if (!std::filesystem::exists(kept)) return;
    ++kept_images_;
    const Bytes stored = ReadFile(kept);
    EXPECT_EQ(stored, image);
    CheckDecode(stored, decoded_crc);
  }

  void CheckDecode(const Bytes& image, const std::string& crc) {
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    ASSERT_EQ(VerifyTiles(view), Error::kOk);
    const Bytes decoded =
        InAnyFloat([&] { return DecodeOrFail(*GetParam(), view, view.spec().slice); });
    EXPECT_EQ(Crc32c(decoded), Hex(crc));
  }

  // A `demote` line.
  void CheckDemotion(const Source& source, std::istringstream& line) {
    std::string from;
    std::string to;
    size_t bytes = 0;
    std::string crc;
    line >> from >> to >> bytes >> crc;
    SCOPED_TRACE(source.name + " " + from + " to " + to);
    const Bytes image = EncodeSource(*GetParam(), source, RecipeNamed(from));
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    const Bytes demoted = InAnyFloat([&] {
      Bytes target(DemoteBytesMax(view, RecipeNamed(to)));
      size_t target_bytes = 0;
      EXPECT_EQ(Demote(*GetParam(), view, RecipeNamed(to), target, &target_bytes), Error::kOk);
      target.resize(target_bytes);
      return target;
    });
    EXPECT_EQ(demoted.size(), bytes);
    EXPECT_EQ(Crc32c(demoted), Hex(crc));
    ASSERT_EQ(ParseImage(demoted, &view), Error::kOk);
    EXPECT_EQ(VerifyTiles(view), Error::kOk);
  }

  // A `thin` line: thinned, and encoded in the longer chain at once.
  void CheckThinning(const Source& source, std::istringstream& line) {
    std::string recipe;
    uint64_t more = 0;
    size_t bytes = 0;
    std::string crc;
    line >> recipe >> more >> bytes >> crc;
    SCOPED_TRACE(source.name + " " + recipe + " thinned by " + std::to_string(more));
    ImageSpec spec = source.spec;
    spec.recipe = RecipeNamed(recipe);
    const uint64_t chain = spec.first_position + spec.tokens + more;
    const Bytes sealed = EncodeSource(*GetParam(), source, spec.recipe);
    ImageView view;
    ASSERT_EQ(ParseImage(sealed, &view), Error::kOk);
    uint64_t bytes_max = 0;
    ASSERT_EQ(MaxImageBytes(spec, &bytes_max), Error::kOk);
    const Bytes thinned = InAnyFloat([&] {
      Bytes target(bytes_max);
      size_t target_bytes = 0;
      EXPECT_EQ(Thin(*GetParam(), view, chain, target, &target_bytes), Error::kOk);
      target.resize(target_bytes);
      return target;
    });
    EXPECT_EQ(thinned.size(), bytes);
    EXPECT_EQ(Crc32c(thinned), Hex(crc));
    ASSERT_EQ(ParseImage(thinned, &view), Error::kOk);
    EXPECT_EQ(VerifyTiles(view), Error::kOk);
    EXPECT_EQ(EncodeSource(*GetParam(), source, spec.recipe, {.chain_tokens = chain}), thinned);
  }

  void Replay(const std::string& folder) {
    folder_ = folder;
    Source source;
    checked_ += ForEachLine(folder, [&](const std::string& what, std::istringstream& line) {
      if (what == "source") {
        source = LoadSource(line);
      } else if (what == "image") {
        CheckImage(source, line);
      } else if (what == "thin") {
        CheckThinning(source, line);
      } else if (what == "aux") {
        const std::vector<float> magnitudes = MagnitudesOf(source.spec);
        CheckImage(source, line, {.query_magnitudes = magnitudes});
      } else if (what == "scored") {
        const std::vector<float> scores = ScoresOf(source.spec);
        CheckImage(source, line, {.token_scores = scores});
      } else if (what == "planned") {
        const std::vector<uint8_t> states = StatesOf(source.spec);
        CheckImage(source, line, {.token_states = states});
      } else {
        ASSERT_EQ(what, "demote");
        CheckDemotion(source, line);
      }
    });
    std::cout << checked_ << " lines of the manifest replayed on " << GetParam()->name << "\n";
  }

  std::string folder_;
  int checked_ = 0;
  int kept_images_ = 0;
};

TEST_P(GoldenTest, ReplaysEveryVector) {
  Replay("image");
  EXPECT_GT(checked_, 800);
  EXPECT_GT(kept_images_, 20);
}

TEST_P(GoldenTest, ReplaysEveryVectorOfFurtherRecipes) {
  Replay("recipes");
  EXPECT_GT(checked_, 200);
  EXPECT_GE(kept_images_, 2);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest,
                         testing::ValuesIn(CpuBackends().begin(), CpuBackends().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cairn::codecs
