// Which convolutions are matrix products where cuDNN is there, too.
#include "ops/nn/convolve.h"

#include <gtest/gtest.h>

namespace encore::ops {
namespace {

// Over lines of 199 positions, as wav2vec 2.0 says where its tokens are.
ConvProblem of_groups(int64_t channels, int64_t groups, int taps) {
  Window window;
  window.in[2] = 199;
  window.kernel[2] = taps;
  window.before[2] = window.after[2] = taps / 2;
  window.out[2] = 199 + taps / 2 * 2 - taps + 1;
  return {Type::f16, Layout::channels_first, window, 1, channels, channels, groups, false};
}

TEST(Convolve, GroupsOfManyChannelsSuitAProduct) {
  EXPECT_TRUE(suits_product(of_groups(768, 16, 128)));
  EXPECT_TRUE(suits_product(of_groups(128, 16, 3)));
  EXPECT_FALSE(suits_product(of_groups(128, 32, 3)));
  EXPECT_FALSE(suits_product(of_groups(128, 128, 3)));
  EXPECT_FALSE(suits_product(of_groups(768, 1, 128))) << "windows overlap";
}

TEST(Convolve, LargeWindowsOfGroupsAreAProductIfNothingIsTimed) {
  const device::DnnSettings measured, heuristic{.search = device::DnnSearch::heuristics},
      deterministic{.deterministic = true};
  for (const auto& settings : {heuristic, deterministic}) {
    EXPECT_TRUE(is_product(of_groups(768, 16, 128), settings));
    EXPECT_FALSE(is_product(of_groups(768, 16, 3), settings));
  }
  EXPECT_FALSE(is_product(of_groups(768, 16, 128), measured)) << "it is a rival";
}

}  // namespace
}  // namespace encore::ops
