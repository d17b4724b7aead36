#include "ops/nn/window.h"

#include <gtest/gtest.h>

namespace encore::ops {
namespace {

TEST(Window, StepsOverLargePlanesDoNotWrapAround) {
  Window w;
  w.in[0] = 2, w.in[1] = 65536, w.in[2] = 32768;
  EXPECT_EQ(w.in_step(0), int64_t(1) << 31);
  EXPECT_EQ(w.in_step(1), 32768);
  EXPECT_EQ(w.in_step(2), 1);
}

}  // namespace
}  // namespace encore::ops
