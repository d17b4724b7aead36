#include "rewritten.h"

namespace encore::fuse::tests {
namespace {

TEST(Passes, TakeStepsWithoutInputs) {
  const std::string plan = R"(e: f32[4] = RandomNormal() {shape = [4], seed = 3.0}
b: f32[4] = Tanh(e)
out b
)";
  for (const Pass& pass : passes()) EXPECT_EQ(after(pass.name, plan), text_of(plan_from(plan))) << pass.name;
}

}  // namespace
}  // namespace encore::fuse::tests
