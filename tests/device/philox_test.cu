// The generator against the vectors that its authors publish.
#include "device/philox.h"

#include <gtest/gtest.h>

#include "kernels.h"

namespace encore::device::tests {

struct Vector {
  uint64_t seed, sequence, index;
};
struct Generate {
  const Vector* at;
  Random4* words;
  DEVICE_FN void operator()(int64_t i) const { words[i] = philox(at[i].seed, at[i].sequence, at[i].index); }
};

namespace {

TEST(Philox, GivesThePublishedNumbers) {
  const std::vector<Vector> at = {{0, 0, 0},
                                  {~uint64_t(0), ~uint64_t(0), ~uint64_t(0)},
                                  {0x299f31d0'a4093822, 0x03707344'13198a2e, 0x85a308d3'243f6a88}};
  const uint32_t wanted[][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  Stream stream(0);
  DeviceArray<Vector> in(at);
  DeviceArray<Random4> out(at.size());
  for_each_index(stream, int64_t(at.size()), Generate{in.data(), out.data()});
  const auto seen = out.download(stream);
  for (size_t i = 0; i < at.size(); ++i)
    for (size_t k = 0; k < 4; ++k) EXPECT_EQ(seen[i].word[k], wanted[i][k]) << i << ", word " << k;
}

}  // namespace
}  // namespace encore::device::tests
