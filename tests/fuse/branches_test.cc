#include "fuse/branches.h"

#include <gmock/gmock.h>

namespace encore::fuse::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<ActionOrder> chain(int count) {
  std::vector<ActionOrder> actions(static_cast<size_t>(count));
  for (int a = 1; a < count; ++a) actions[size_t(a)].after = {a - 1};
  return actions;
}

TEST(Branches, AreNoneInAChain) {
  EXPECT_THAT(find_branches({}), IsEmpty());
  EXPECT_THAT(find_branches(chain(1)), IsEmpty());
  EXPECT_THAT(find_branches(chain(9)), IsEmpty());
  std::vector<ActionOrder> residual = chain(5);
  residual[4].after = {3, 0};
  EXPECT_THAT(find_branches(residual), IsEmpty());
}

// 0 | 1 2, 3 | 4
TEST(Branches, LieBetweenWhatAllComesAfterAndWhatComesAfterAll) {
  const std::vector<ActionOrder> actions{{}, {{0}}, {{1}}, {{0}}, {{2, 3}}};
  const std::vector<Branches> found = find_branches(actions);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 1u);
  ASSERT_EQ(found[0].actions.size(), 3u);
  EXPECT_THAT(found[0].actions[0].after, IsEmpty());
  EXPECT_THAT(found[0].actions[1].after, ElementsAre(0));
  EXPECT_THAT(found[0].actions[2].after, IsEmpty());
}

// What 3 comes after by way of 2 is not among what it waits for.
TEST(Branches, WaitForNoMoreThanTheyMust) {
  const std::vector<ActionOrder> actions{{}, {}, {{0}}, {{0, 2, 1}}, {{0, 1}}, {{3, 4}}};
  const std::vector<Branches> found = find_branches(actions);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 0u);
  ASSERT_EQ(found[0].actions.size(), 5u);
  EXPECT_THAT(found[0].actions[3].after, ElementsAre(2, 1));
  EXPECT_EQ(found[0].actions[3].before, Branches::Actions(0b111));
  EXPECT_THAT(found[0].actions[4].after, ElementsAre(1, 0));
}

TEST(Branches, EndWhereAnActionIsAlone) {
  std::vector<ActionOrder> actions{{}, {{0}}, {{0}}, {{0}}, {{0}}, {{4, 3, 2, 1}}};
  ASSERT_EQ(find_branches(actions).size(), 1u);
  EXPECT_EQ(find_branches(actions)[0].actions.size(), 4u);
  actions[3].is_alone = true;
  const std::vector<Branches> found = find_branches(actions);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 1u);
  EXPECT_EQ(found[0].actions.size(), 2u);
}

TEST(Branches, WaitForNothingOnTheHost) {
  std::vector<ActionOrder> actions = chain(4);
  actions[1].is_on_host = true;
  actions[2].after = {1}, actions[3].after = {2, 0};
  const std::vector<Branches> found = find_branches(actions);  // 0 and 2 have nothing to do with each other
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].actions.size(), 3u);
  EXPECT_TRUE(found[0].actions[1].is_on_host);
  EXPECT_THAT(found[0].actions[2].after, IsEmpty());
}

TEST(Branches, AreCutWhereThereAreVeryMany) {
  std::vector<ActionOrder> actions(2 * Branches::kMost + 10);
  const std::vector<Branches> found = find_branches(actions);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[1].first, Branches::kMost);
  EXPECT_EQ(found[2].actions.size(), 10u);
  EXPECT_THAT(found[2].actions[9].after, IsEmpty());
}

}  // namespace
}  // namespace encore::fuse::tests
