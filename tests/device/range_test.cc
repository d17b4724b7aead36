// Ranges by node. What profilers of CUDA's make of them is theirs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/label.h"
#ifndef ENCORE_CUDA
#include "device/virtual/control.h"
#endif

namespace encore::device::tests {
namespace {

TEST(Range, NobodyListens) {
  { const Label label("conv"); }
  EXPECT_FALSE(ranges_may_be_seen);
}

#ifndef ENCORE_CUDA
TEST(Range, IsANodes) {
  std::vector<std::string> seen;
  virtual_gpu::listen_to_ranges([&](const char* name) { seen.push_back(name ? name : "end"); });
  {
    const Label outer("loop");
    const Label nameless("");
    const Label inner("conv");
  }
  virtual_gpu::listen_to_ranges({});
  { const Label label("conv"); }
  EXPECT_FALSE(ranges_may_be_seen);
  EXPECT_EQ(seen, (std::vector<std::string>{"loop", "conv", "end", "end"}));
}
#endif

}  // namespace
}  // namespace encore::device::tests
