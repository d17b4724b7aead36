#include "device/architectures.h"

#include <gtest/gtest.h>

namespace encore::device::tests {
namespace {

TEST(Architectures, MachineCodeServesItsMajorVersionFromItsMinorOn) {
  const Architectures built{.machine = {860, 900}};
  EXPECT_TRUE(built.serve(860));
  EXPECT_TRUE(built.serve(890));
  EXPECT_TRUE(built.serve(900));
  EXPECT_FALSE(built.serve(800));
  EXPECT_FALSE(built.serve(1000));
}

TEST(Architectures, PtxServesAllThatIsLater) {
  const Architectures built{.machine = {900}, .ptx = {900}};
  EXPECT_TRUE(built.serve(1000));
  EXPECT_TRUE(built.serve(1210));
  EXPECT_FALSE(built.serve(890));
}

TEST(Architectures, MachineCodeGoesBeforePtxAndWhatIsLatestBeforeOthers) {
  const Architectures built{.machine = {800, 860, 900}, .ptx = {750, 900}};
  EXPECT_EQ(built.used_on(890), 860);
  EXPECT_EQ(built.used_on(900), 900);
  EXPECT_EQ(built.used_on(1000), 900);
  EXPECT_EQ(built.used_on(750), 750);
  EXPECT_EQ(built.used_on(700), 0);
}

TEST(Architectures, JetsonRunsNoMachineCodeOfOthers) {
  EXPECT_EQ((Architectures{.machine = {800, 860}}.used_on(870)), 0);
  EXPECT_EQ((Architectures{.machine = {800, 870}}.used_on(870)), 870);
  EXPECT_EQ((Architectures{.machine = {800}, .ptx = {800}}.used_on(870)), 800);
}

TEST(Architectures, TheReasonNamesBothAndTheWayOut) {
  const Architectures built{.machine = {800, 900}};
  EXPECT_EQ(built.why_not(900, "this one"), "");
  EXPECT_EQ(built.why_not(750, "this one"),
            "this build of Encore has code for compute capability 8.0, 9.0, and this one has 7.5; Encore needs 8.0 "
            "(Ampere) or later");
  EXPECT_EQ(built.why_not(1000, "this one"),
            "this build of Encore has code for compute capability 8.0, 9.0, and this one has 10.0; take a newer "
            "release, or build it for this GPU (CMAKE_CUDA_ARCHITECTURES=native)");
  EXPECT_EQ((Architectures{{900}, {900}}).why_not(860, "this one"),
            "this build of Encore has code for compute capability 9.0, 9.0 and later, and this one has 8.6; build it "
            "for this GPU (CMAKE_CUDA_ARCHITECTURES=native)");
}

}  // namespace
}  // namespace encore::device::tests
