// SPDX-License-Identifier: Apache-2.0
// Replays the vectors of tests/golden/cairn/. generate_cairn.py says what the manifest holds.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "codecs/backends.h"
#include "codecs/checksum.h"
#include "codecs/decode.h"
#include "codecs/encode.h"
#include "codecs/step_strips.h"
#include "proto/side_object.h"

namespace cairn::codecs {
namespace {

using Bytes = std::vector<std::byte>;

const std::filesystem::path kFolder = CAIRN_GOLDEN_FOLDER;

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

uint32_t Hex(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

class CairnGoldenTest : public testing::Test {
 protected:
  void LoadProfile(std::istringstream& line) {
    std::string name;
    size_t bytes = 0;
    std::string crc;
    line >> name >> bytes >> crc;
    profile_bytes_ = ReadFile(kFolder / "cairn" / (name + ".profile"));
    ASSERT_EQ(profile_bytes_.size(), bytes);
    EXPECT_EQ(Crc32c(profile_bytes_), Hex(crc));
    ASSERT_EQ(ParseProfile(profile_bytes_, &profile_), Error::kOk);
  }

  void LoadSource(std::istringstream& line) {
    uint32_t kind = 0;
    uint32_t dtype = 0;
    spec_ = {};
    line >> name_ >> kind >> dtype >> spec_.slice.layer_count >> spec_.slice.head_count >>
        spec_.tokens >> spec_.tile.k_dim >> spec_.tile.v_dim >> spec_.first_position;
    spec_.tile.kind = static_cast<GroupKind>(kind);
    spec_.tile.dtype = static_cast<DType>(dtype);
    spec_.slice.layer_first = 2;
    spec_.slice.head_first = 1;
    spec_.group = 3;
    for (size_t i = 0; i < spec_.space.size(); ++i) {
      spec_.space[i] = static_cast<uint8_t>(i);
      spec_.key[i] = static_cast<uint8_t>(32 + i);
    }
    source_ = ReadFile(kFolder / "image" / (name_ + ".bin"));
  }

  [[nodiscard]] Bytes EncodeSource(uint32_t bits, uint32_t level) const {
    ImageSpec spec = spec_;
    EXPECT_EQ(SetCairn(profile_, proto::SideObjectId(profile_bytes_), bits, level, &spec),
              Error::kOk);
    return Encoded(spec);
  }

  [[nodiscard]] Bytes Encoded(const ImageSpec& spec) const {
    uint64_t max_bytes = 0;
    EXPECT_EQ(MaxImageBytes(spec, &max_bytes), Error::kOk);
    Bytes image(max_bytes);
    size_t bytes = 0;
    EXPECT_EQ(Encode(ReferenceBackend(), spec, source_, image, &bytes, {.profile = &profile_}),
              Error::kOk);
    image.resize(bytes);
    return image;
  }

  // A `hot` line.
  void CheckHot(std::istringstream& line) {
    uint32_t bits = 0;
    int32_t multiplier = 0;
    size_t bytes = 0;
    std::string crc;
    std::string decoded_crc;
    line >> bits >> multiplier >> bytes >> crc >> decoded_crc;
    SCOPED_TRACE(name_ + " hot " + std::to_string(bits));
    ImageSpec spec = spec_;
    ASSERT_EQ(SetCairnHot(profile_, proto::SideObjectId(profile_bytes_), bits, &spec), Error::kOk);
    EXPECT_EQ(spec.recipe.multiplier, multiplier);
    const Bytes image = Encoded(spec);
    EXPECT_EQ(image.size(), bytes);
    EXPECT_EQ(Crc32c(image), Hex(crc));
    CheckDecode(image, Hex(decoded_crc));
    CheckKept(image, "hot" + std::to_string(bits), Hex(decoded_crc));
  }

  // The image that is kept of it, if one is.
  void CheckKept(const Bytes& image, const std::string& how, uint32_t decoded_crc) {
    const auto kept = kFolder / "cairn" / (name_ + "." + how + ".img");
    if (!std::filesystem::exists(kept)) return;
    ++kept_images_;
    EXPECT_EQ(ReadFile(kept), image);
    CheckDecode(ReadFile(kept), decoded_crc);
  }

  void CheckDecode(const Bytes& image, uint32_t crc) const {
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    ASSERT_EQ(VerifyTiles(view), Error::kOk);
    Bytes decoded(source_.size());
    for (const Backend* backend : CpuBackends()) {
      ASSERT_EQ(Decode(*backend, view, view.spec().slice, decoded, {.profile = &profile_}),
                Error::kOk);
      EXPECT_EQ(Crc32c(decoded), crc) << backend->name;
    }
  }

  void CheckImage(std::istringstream& line) {
    uint32_t bits = 0;
    uint32_t level = 0;
    size_t bytes = 0;
    std::string crc;
    std::string decoded_crc;
    line >> bits >> level >> bytes >> crc >> decoded_crc;
    SCOPED_TRACE(name_ + " " + std::to_string(bits) + " " + std::to_string(level));
    const Bytes image = EncodeSource(bits, level);
    EXPECT_EQ(image.size(), bytes);
    EXPECT_EQ(Crc32c(image), Hex(crc));
    CheckDecode(image, Hex(decoded_crc));
    CheckKept(image, std::to_string(bits) + "." + std::to_string(level), Hex(decoded_crc));
  }

  void CheckDemotion(std::istringstream& line) const {
    uint32_t bits = 0;
    uint32_t from = 0;
    uint32_t to = 0;
    size_t bytes = 0;
    std::string crc;
    line >> bits >> from >> to >> bytes >> crc;
    SCOPED_TRACE(name_ + " " + std::to_string(bits) + " to level " + std::to_string(to));
    const Bytes image = EncodeSource(bits, from);
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    uint64_t max_bytes = 0;
    ASSERT_EQ(MaxImageBytes(view.spec(), &max_bytes), Error::kOk);
    Bytes demoted(max_bytes);
    size_t demoted_bytes = 0;
    ASSERT_EQ(DemoteSteps(view, profile_, to, demoted, &demoted_bytes), Error::kOk);
    demoted.resize(demoted_bytes);
    EXPECT_EQ(demoted_bytes, bytes);
    EXPECT_EQ(Crc32c(demoted), Hex(crc));
    ASSERT_EQ(ParseImage(demoted, &view), Error::kOk);
    EXPECT_EQ(VerifyTiles(view), Error::kOk);
  }

  Bytes profile_bytes_;
  Profile profile_;
  std::string name_;
  ImageSpec spec_;
  Bytes source_;
  int kept_images_ = 0;
};

TEST_F(CairnGoldenTest, ReplaysEveryVector) {
  std::ifstream manifest(kFolder / "cairn" / "manifest.txt");
  ASSERT_TRUE(manifest) << kFolder;
  int checked = 0;
  for (std::string text; std::getline(manifest, text); ++checked) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "profile") {
      ASSERT_NO_FATAL_FAILURE(LoadProfile(line));
    } else if (what == "source") {
      LoadSource(line);
    } else if (what == "image") {
      CheckImage(line);
    } else if (what == "hot") {
      ASSERT_NO_FATAL_FAILURE(CheckHot(line));
    } else {
      ASSERT_EQ(what, "demote");
      CheckDemotion(line);
    }
  }
  EXPECT_GT(checked, 400);
  EXPECT_EQ(kept_images_, 16);
}

}  // namespace
}  // namespace cairn::codecs
