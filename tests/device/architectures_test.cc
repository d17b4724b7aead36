#include "device/architectures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/error.h"

namespace encore::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string why(std::string_view architectures, int major, int minor) {
  return why_no_code(architectures, {major, minor}, "this one");
}

TEST(Architectures, MachineCodeRunsOnLaterOnesOfItsMajorVersion) {
  EXPECT_EQ(why("80-real", 8, 0), "");
  EXPECT_EQ(why("80-real", 8, 9), "");
  EXPECT_NE(why("86-real", 8, 0), "");
  EXPECT_NE(why("80-real", 9, 0), "");
  EXPECT_EQ(why("80-real,90-real", 9, 0), "");
}

TEST(Architectures, PtxRunsOnAllLaterOnes) {
  for (const char* architectures : {"90-virtual", "90", "80-real,90-virtual"}) {
    EXPECT_EQ(why(architectures, 9, 0), "") << architectures;
    EXPECT_EQ(why(architectures, 12, 1), "") << architectures;
    EXPECT_NE(why(architectures, 7, 5), "") << architectures;
  }
}

TEST(Architectures, SomeCodeIsForOneCapabilityOrFamily) {
  EXPECT_EQ(why("90a", 9, 0), "");
  EXPECT_NE(why("90a", 10, 0), "");
  EXPECT_NE(why("100a-real", 10, 3), "");
  EXPECT_EQ(why("100f-real", 10, 3), "");
  EXPECT_NE(why("100f", 12, 0), "");
}

TEST(Architectures, TheReasonSaysWhatIsMissing) {
  EXPECT_EQ(why("90-real,100-real", 8, 6),
            "this build of Encore needs a GPU of compute capability 9.0 or newer, and this one has 8.6");
  EXPECT_THAT(why("90-real", 10, 0), AllOf(HasSubstr("no code for compute capability 10.0, which this one has"),
                                           HasSubstr("built for 90-real"), HasSubstr("CMAKE_CUDA_ARCHITECTURES=100")));
}

TEST(Architectures, WhatIsNoneIsRefused) {
  EXPECT_THROW(why("", 9, 0), Error);
  EXPECT_THROW(why("90-real,native", 9, 0), Error);
}

}  // namespace
}  // namespace encore::device
