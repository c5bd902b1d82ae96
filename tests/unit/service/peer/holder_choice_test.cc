// SPDX-License-Identifier: Apache-2.0
#include "service/peer/holder_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<HolderRun> Choose(const std::vector<HolderList>& holders, size_t members_max = 3) {
  return ChooseHolders(holders, members_max);
}

TEST(HolderChoice, TakesTheLongestRunFromTheFirstMissingKey) {
  EXPECT_THAT(Choose({{0, 1}, {1, 0}, {1}, {1}}), ElementsAre(HolderRun{1, 0, 4}));
  // A later longer run does not matter.
  EXPECT_THAT(Choose({{0}, {0}, {1, 0}, {1}, {1}, {1}}),
              ElementsAre(HolderRun{0, 0, 3}, HolderRun{1, 3, 3}));
}

TEST(HolderChoice, EndsAtAKeyThatNobodyHas) {
  EXPECT_THAT(Choose({}), IsEmpty());
  EXPECT_THAT(Choose({{}, {0}}), IsEmpty());
  EXPECT_THAT(Choose({{0}, {}, {0}}), ElementsAre(HolderRun{0, 0, 1}));
}

TEST(HolderChoice, OfEqualMembersTheFirstOne) {
  EXPECT_THAT(Choose({{2, 1}, {1, 2}}), ElementsAre(HolderRun{2, 0, 2}));
}

TEST(HolderChoice, AsksFewMembers) {
  EXPECT_THAT(Choose({{0}, {1}, {2}, {3}}),
              ElementsAre(HolderRun{0, 0, 1}, HolderRun{1, 1, 1}, HolderRun{2, 2, 1}));
  EXPECT_THAT(Choose({{0}, {1}, {2}}, 1), ElementsAre(HolderRun{0, 0, 1}));
  // A member that is asked already may have more runs.
  EXPECT_THAT(Choose({{0}, {1}, {0}, {1}, {2, 0}, {2}}, 2),
              ElementsAre(HolderRun{0, 0, 1}, HolderRun{1, 1, 1}, HolderRun{0, 2, 1},
                          HolderRun{1, 3, 1}, HolderRun{0, 4, 1}));
}

}  // namespace
}  // namespace cairn
