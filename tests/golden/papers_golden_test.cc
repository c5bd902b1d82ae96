// SPDX-License-Identifier: Apache-2.0
// Replays the vectors of tests/golden/papers/ on every backend of this CPU. generate_papers.py says
// what the manifest holds.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/decode.h"
#include "codecs/image/settle.h"
#include "codecs/transform/demote.h"
#include "proto/side_object.h"
#include "tests/golden/golden.h"

namespace cairn::codecs {
namespace {

// What a line says of an image.
struct Wanted {
  std::string recipe;
  size_t bytes = 0;
  uint32_t crc = 0;
  uint32_t decoded_crc = 0;
};

class PapersGoldenTest : public testing::TestWithParam<const Backend*> {
 protected:
  // Tokens of every tile reversed, tokens 2, 7, 12, ... of the first plane zero.
  [[nodiscard]] Bytes ChildSource() const {
    Bytes child;
    const uint32_t planes = PlaneCount(source_.spec.tile.kind);
    const uint32_t rows = TileRows(source_.spec.tile.kind, source_.spec.tokens);
    size_t offset = 0;
    for (uint32_t tile = 0; tile < TilingOf(source_.spec).count(); ++tile) {
      const size_t row_bytes =
          TileBytes(source_.spec.tile, PlaneAt(source_.spec.tile.kind, tile % planes),
                    source_.spec.tokens) /
          rows;
      for (uint32_t token = 0; token < rows; ++token) {
        const auto first =
            source_.bytes.begin() + static_cast<ptrdiff_t>(offset + (rows - 1 - token) * row_bytes);
        const bool is_zero = tile % planes == 0 && token % 5 == 2;
        if (is_zero) child.resize(child.size() + row_bytes);
        if (!is_zero) child.insert(child.end(), first, first + static_cast<ptrdiff_t>(row_bytes));
      }
      offset += rows * row_bytes;
    }
    return child;
  }

  void Check(const Bytes& image, const Wanted& wanted) {
    EXPECT_EQ(image.size(), wanted.bytes);
    EXPECT_EQ(Crc32c(image), wanted.crc);
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    ASSERT_EQ(VerifyTiles(view), Error::kOk);
    const Bytes decoded = InAnyFloat(
        [&] { return DecodeOrFail(*GetParam(), view, view.spec().slice, {.bank = &bank_}); });
    EXPECT_EQ(Crc32c(decoded), wanted.decoded_crc);
  }

  void CheckImage(std::istringstream& line) {
    const Wanted wanted = WantedOf(line);
    SCOPED_TRACE(source_.name + " " + wanted.recipe);
    SetRecipe(wanted.recipe);
    image_ = InAnyFloat(
        [&] { return EncodeOrFail(*GetParam(), source_.spec, source_.bytes, {.bank = &bank_}); });
    Check(image_, wanted);
    const auto kept = KeptPath("papers", source_.name, wanted.recipe);
    if (!std::filesystem::exists(kept)) return;
    ++kept_images_;
    EXPECT_EQ(ReadFile(kept), image_);
    Check(ReadFile(kept), wanted);
  }

  void CheckChild(std::istringstream& line) {
    const Wanted wanted = WantedOf(line);
    SCOPED_TRACE(source_.name + " " + wanted.recipe + " child");
    std::vector<ImageView> parents(1);
    ASSERT_EQ(ParseImage(image_, &parents.front()), Error::kOk);
    ImageSpec spec = source_.spec;
    spec.first_position += spec.tokens;
    Check(EncodeOrFail(*GetParam(), spec, ChildSource(), {.parents = parents}), wanted);
  }

  void CheckDemotion(std::istringstream& line) {
    std::string from;
    std::string to;
    size_t bytes = 0;
    std::string crc;
    line >> from >> to >> bytes >> crc;
    SCOPED_TRACE(source_.name + " to " + to);
    ImageView view;
    ASSERT_EQ(ParseImage(image_, &view), Error::kOk);
    SetRecipe(to);
    Recipe recipe = source_.spec.recipe;
    recipe.is_local = view.spec().recipe.is_local;
    Bytes demoted(DemoteBytesMax(view, recipe));
    size_t demoted_bytes = 0;
    ASSERT_EQ(Demote(*GetParam(), view, recipe, demoted, &demoted_bytes), Error::kOk);
    demoted.resize(demoted_bytes);
    EXPECT_EQ(demoted_bytes, bytes);
    EXPECT_EQ(Crc32c(demoted), Hex(crc));
  }

  static Wanted WantedOf(std::istringstream& line) {
    Wanted wanted;
    std::string crc;
    std::string decoded_crc;
    line >> wanted.recipe >> wanted.bytes >> crc >> decoded_crc;
    wanted.crc = Hex(crc);
    wanted.decoded_crc = Hex(decoded_crc);
    return wanted;
  }

  void LoadBank(std::istringstream& line) {
    std::string name;
    size_t bytes = 0;
    std::string crc;
    line >> name >> bytes >> crc;
    bank_bytes_ = ReadFile(kFolder / "papers" / (name + ".bank"));
    ASSERT_EQ(bank_bytes_.size(), bytes);
    EXPECT_EQ(Crc32c(bank_bytes_), Hex(crc));
    ASSERT_EQ(ParseBank(bank_bytes_, &bank_), Error::kOk);
  }

  void SetRecipe(const std::string& name) {
    if (name.starts_with("patternkv")) {
      ASSERT_EQ(codecs::SetRecipe(name, {.bank = &bank_}, proto::SideObjectId(bank_bytes_),
                                  &source_.spec),
                Error::kOk);
      return;
    }
    source_.spec.recipe = RecipeNamed(name);
    source_.spec.side_object_count = 0;
    source_.spec.side_objects = {};
  }

  Bytes bank_bytes_;
  Bank bank_;
  Source source_;
  Bytes image_;  // of the last `image` line
  int kept_images_ = 0;
};

TEST_P(PapersGoldenTest, ReplaysEveryVector) {
  const int checked = ForEachLine("papers", [&](const std::string& what, std::istringstream& line) {
    if (what == "source") {
      source_ = LoadSource(line);
    } else if (what == "bank") {
      LoadBank(line);
    } else if (what == "image") {
      CheckImage(line);
    } else if (what == "child") {
      CheckChild(line);
    } else {
      ASSERT_EQ(what, "demote");
      CheckDemotion(line);
    }
  });
  EXPECT_GT(checked, 800);
  EXPECT_EQ(kept_images_, 21);
}

INSTANTIATE_TEST_SUITE_P(Backends, PapersGoldenTest,
                         testing::ValuesIn(CpuBackends().begin(), CpuBackends().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace cairn::codecs
