// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/members/file_source.h"

namespace cairn {
namespace {

TEST(MemberFile, HasAMemberALine) {
  const auto listed = ParseMemberFile(
      "# rack 1\n\n  node-1=10.0.0.1:50160\nnode-2=[fd00::2]:50160 east  # "
      "spare\r\nnode.3=n3.test:1\teast");
  ASSERT_TRUE(listed.ok()) << listed.status();
  const std::vector<ListedMember> expected = {{"node-1", "10.0.0.1:50160", ""},
                                              {"node-2", "[fd00::2]:50160", "east"},
                                              {"node.3", "n3.test:1", "east"}};
  EXPECT_EQ(*listed, expected);
  EXPECT_TRUE(ParseMemberFile("")->empty());
}

TEST(MemberFile, NamesTheLineThatIsWrong) {
  const auto error = [](std::string_view text) {
    return std::string(ParseMemberFile(text).status().message());
  };
  const std::string expected = "line 2: expected NAME=HOST:PORT [ZONE]";
  EXPECT_EQ(error("a=h:1\nb"), expected);
  EXPECT_EQ(error("a=h:1\nb="), expected);
  EXPECT_EQ(error("a=h:1\n=h:1"), expected);
  EXPECT_EQ(error("a=h:1\nb=h:0"), expected);
  EXPECT_EQ(error("a=h:1\nb=h:65536"), expected);
  EXPECT_EQ(error("a=h:1\nb=off"), expected);
  EXPECT_EQ(error("a=h:1\nb=h:1 east west"), expected);
  EXPECT_EQ(error("a=h:1\nb=h:1 e/w"), expected);
  EXPECT_EQ(error(std::string("a=h:1\nb=h:1\0", 12)), expected);
  EXPECT_EQ(error("a=h:1\na=h:2"), "line 2: a is there twice");
}

}  // namespace
}  // namespace cairn
