#include "ops/few.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/latest.h"

namespace encore::ops {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::Optional;

TEST(Few, AreWithinTheVectorItself) {
  Few<int, 3> few{1, 2};
  few.push_back(3);
  EXPECT_THAT(few, ElementsAre(1, 2, 3));
  EXPECT_EQ(few.back(), 3);
  const auto* const begin = reinterpret_cast<const char*>(few.data());
  EXPECT_GE(begin, reinterpret_cast<const char*>(&few));
  EXPECT_LT(begin, reinterpret_cast<const char*>(&few + 1));
}

TEST(Few, MayBeMany) {
  std::vector<int> wanted;
  Few<int, 3> made;
  for (int i = 0; i < 10; ++i) {
    made.push_back(i);
    wanted.push_back(i);
    const Few<int, 3> copy = made;
    EXPECT_THAT(copy, ElementsAreArray(wanted));
  }
  made.append(wanted);
  wanted.insert(wanted.end(), wanted.begin(), wanted.begin() + 10);
  EXPECT_THAT(made, ElementsAreArray(wanted));
  made[12] = 7;
  EXPECT_EQ(made[12], 7);
}

TEST(Few, BeginWithNothing) {
  EXPECT_THAT((Few<int>(2)), ElementsAre(0, 0));
  EXPECT_TRUE(Few<int>().empty());
  EXPECT_THAT((Few<int, 2>(std::vector{1, 2, 3})), ElementsAre(1, 2, 3));
}

TEST(Latest, IsOfItsKeyAlone) {
  Latest<int, std::string> latest;
  EXPECT_FALSE(latest.find(1));
  latest.keep(1, "one");
  EXPECT_THAT(latest.find(1), Optional(std::string("one")));
  EXPECT_FALSE(latest.find(2));
  latest.keep(2, "two");
  EXPECT_FALSE(latest.find(1));
  EXPECT_THAT(latest.find(2), Optional(std::string("two")));
}

}  // namespace
}  // namespace encore::ops
