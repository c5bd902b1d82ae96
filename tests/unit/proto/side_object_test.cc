// SPDX-License-Identifier: Apache-2.0
#include "proto/side_object.h"

#include <algorithm>
#include <array>

#include "gtest/gtest.h"
#include "tests/support/side_object_bytes.h"

namespace cairn::proto {
namespace {

TEST(SideObjectTest, IsNamedByTheSha256OfItsBytes) {
  const std::array bytes = {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  const codecs::Digest id = SideObjectId(bytes);
  const std::array<uint8_t, 4> first = {0xBA, 0x78, 0x16, 0xBF};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), id.begin()));
  EXPECT_EQ(id[31], 0xAD);
  EXPECT_EQ(SideObjectId({})[0], 0xE3);
}

TEST(SideObjectTest, EachKindIsReadAsItselfAlone) {
  const codecs::ProfileShape shape = {.layers = 2, .heads = 2, .k_dim = 16, .v_dim = 16};
  for (const SideObjectCase& one : {kProfileCase, kBankCase}) {
    const auto bytes = SideObjectBytes(one.kind, 1, shape);
    ASSERT_EQ(KindOf(bytes), one.kind);
    const auto other =
        one.kind == SideObjectKind::kBank ? SideObjectKind::kProfile : SideObjectKind::kBank;
    SideObjectContent content;
    EXPECT_EQ(SideObjectContent::Parse(other, bytes, &content), codecs::Error::kBadMagic);
    ASSERT_EQ(SideObjectContent::Parse(one.kind, bytes, &content), codecs::Error::kOk);
    EXPECT_EQ(content.kind(), one.kind);
    EXPECT_EQ(content.profile() != nullptr, one.kind == SideObjectKind::kProfile);
    EXPECT_EQ(content.inputs().bank, content.bank());
    EXPECT_EQ(content.bank() != nullptr, one.kind == SideObjectKind::kBank);
    codecs::Recipe recipe;
    ASSERT_EQ(codecs::ParsePolicyRecipe(one.recipe, &recipe), codecs::Error::kOk);
    EXPECT_EQ(KindFor(recipe), one.kind);
  }
  EXPECT_EQ(KindOf({}), std::nullopt);
  EXPECT_EQ(KindOf(std::array<std::byte, 8>{}), std::nullopt);
  EXPECT_EQ(KindFor(codecs::Recipe{}), std::nullopt);
}

}  // namespace
}  // namespace cairn::proto
