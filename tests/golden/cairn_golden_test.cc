// SPDX-License-Identifier: Apache-2.0
// Replays the vectors of tests/golden/cairn/. generate_cairn.py says what the manifest holds.

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

  [[nodiscard]] Bytes EncodeSource(uint32_t bits, uint32_t level) const {
    ImageSpec spec = source_.spec;
    EXPECT_EQ(SetCairn(profile_, proto::SideObjectId(profile_bytes_), bits, level, &spec),
              Error::kOk);
    return Encoded(spec);
  }

  [[nodiscard]] Bytes Encoded(const ImageSpec& spec) const {
    return InAnyFloat([&] {
      return EncodeOrFail(ReferenceBackend(), spec, source_.bytes, {.profile = &profile_});
    });
  }

  // A `hot` line.
  void CheckHot(std::istringstream& line) {
    uint32_t bits = 0;
    int32_t multiplier = 0;
    size_t bytes = 0;
    std::string crc;
    std::string decoded_crc;
    line >> bits >> multiplier >> bytes >> crc >> decoded_crc;
    SCOPED_TRACE(source_.name + " hot " + std::to_string(bits));
    ImageSpec spec = source_.spec;
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
    const auto kept = KeptPath("cairn", source_.name, how);
    if (!std::filesystem::exists(kept)) return;
    ++kept_images_;
    EXPECT_EQ(ReadFile(kept), image);
    CheckDecode(ReadFile(kept), decoded_crc);
  }

  void CheckDecode(const Bytes& image, uint32_t crc) const {
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    ASSERT_EQ(VerifyTiles(view), Error::kOk);
    for (const Backend* backend : CpuBackends()) {
      const Bytes decoded = InAnyFloat(
          [&] { return DecodeOrFail(*backend, view, view.spec().slice, {.profile = &profile_}); });
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
    SCOPED_TRACE(source_.name + " " + std::to_string(bits) + " " + std::to_string(level));
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
    SCOPED_TRACE(source_.name + " " + std::to_string(bits) + " to level " + std::to_string(to));
    const Bytes image = EncodeSource(bits, from);
    ImageView view;
    ASSERT_EQ(ParseImage(image, &view), Error::kOk);
    uint64_t max_bytes = 0;
    ASSERT_EQ(MaxImageBytes(view.spec(), &max_bytes), Error::kOk);
    const Bytes demoted = InAnyFloat([&] {
      Bytes target(max_bytes);
      size_t target_bytes = 0;
      EXPECT_EQ(DemoteSteps(view, profile_, to, target, &target_bytes), Error::kOk);
      target.resize(target_bytes);
      return target;
    });
    EXPECT_EQ(demoted.size(), bytes);
    EXPECT_EQ(Crc32c(demoted), Hex(crc));
    ASSERT_EQ(ParseImage(demoted, &view), Error::kOk);
    EXPECT_EQ(VerifyTiles(view), Error::kOk);
  }

  Bytes profile_bytes_;
  Profile profile_;
  Source source_;
  int kept_images_ = 0;
};

TEST_F(CairnGoldenTest, ReplaysEveryVector) {
  const int checked = ForEachLine("cairn", [&](const std::string& what, std::istringstream& line) {
    if (what == "profile") {
      LoadProfile(line);
    } else if (what == "source") {
      source_ = LoadSource(line);
    } else if (what == "image") {
      CheckImage(line);
    } else if (what == "hot") {
      CheckHot(line);
    } else {
      ASSERT_EQ(what, "demote");
      CheckDemotion(line);
    }
  });
  EXPECT_GT(checked, 400);
  EXPECT_EQ(kept_images_, 16);
}

}  // namespace
}  // namespace cairn::codecs
