#include "automatic/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace encore::automatic::tests {
namespace {

using testing::ElementsAre;

constexpr size_t kMib = size_t(1) << 20;

// Somewhere.
void* at(size_t place) { return reinterpret_cast<void*>(place << 12); }

TEST(Places, SmallTensorsMayBeAnywhere) {
  Places places;
  EXPECT_FALSE(places.was_seen({at(1), at(2)}, {kMib, kMib}, 0));
  EXPECT_TRUE(places.was_seen({at(1), at(3)}, {kMib, kMib}, 0));
  EXPECT_THAT(places.moving(), ElementsAre(false, true));
}

TEST(Places, LargeTensorsAreWhereTheyWere) {
  Places places;
  const std::vector<size_t> bytes(2, 8 * kMib);
  for (size_t place = 0; place < 8; ++place) EXPECT_FALSE(places.was_seen({at(place), at(100)}, bytes, 64 * kMib));
  for (size_t place = 0; place < 8; ++place) EXPECT_TRUE(places.was_seen({at(place), at(100)}, bytes, 64 * kMib));
  EXPECT_THAT(places.moving(), ElementsAre(false, false));
}

TEST(Places, AtManyPlacesTheyMove) {
  Places places;
  const std::vector<size_t> bytes(2, 8 * kMib);
  for (size_t place = 0; place < 8; ++place) EXPECT_FALSE(places.was_seen({at(place), at(100)}, bytes, 8 * kMib));
  EXPECT_TRUE(places.was_seen({at(8), at(100)}, bytes, 8 * kMib));
  EXPECT_THAT(places.moving(), ElementsAre(true, false));
  // The other one has been at one place, and again may be at several before it moves.
  for (size_t place = 101; place < 108; ++place) EXPECT_FALSE(places.was_seen({at(8), at(place)}, bytes, 16 * kMib));
  EXPECT_TRUE(places.was_seen({at(8), at(108)}, bytes, 16 * kMib));
  EXPECT_THAT(places.moving(), ElementsAre(true, true));
}

TEST(Places, WhatIsTooMuchToCopyDoesNot) {
  Places places;
  const std::vector<size_t> bytes(2, 8 * kMib);
  for (size_t place = 0; place < 20; ++place)
    EXPECT_FALSE(places.was_seen({at(place), at(place)}, bytes, 16 * kMib - 1));
  EXPECT_THAT(places.moving(), ElementsAre(false, false));
  EXPECT_TRUE(places.was_seen({at(20), at(20)}, bytes, 16 * kMib));
}

TEST(Places, MoreNodesMayCopyMore) {
  EXPECT_EQ(most_large_bytes(2), 8 * kMib);
  EXPECT_EQ(most_large_bytes(1000), 64 * kMib);
}

TEST(Places, TellsWhatWasElsewhere) {
  Places places;
  const std::vector<size_t> bytes{kMib, 8 * kMib};
  places.was_seen({at(1), at(2)}, bytes, 0);
  EXPECT_EQ(places.stranger(), std::nullopt);
  places.was_seen({at(3), at(4)}, bytes, 0);
  EXPECT_EQ(places.stranger(), 1u);
}

TEST(Places, WhatStaysIsToldEachTimeLater) {
  Places places;
  for (const int wanted : {16, 32}) {
    for (int i = 0; i < wanted; ++i) EXPECT_FALSE(places.stay({at(1)}));
    EXPECT_TRUE(places.stay({at(1)}));
  }
  EXPECT_FALSE(places.stay({at(2)}));
}

}  // namespace
}  // namespace encore::automatic::tests
