#include <gtest/gtest.h>

#include "plugin/kernels/kernel_run.h"

namespace encore::plugin {
namespace {

ops::Tensor at(uintptr_t address) {
  return {ops::Type::f32, ops::Where::device, ops::Shape{2}, reinterpret_cast<void*>(address)};
}

// As a generator has a mask in two places by turns.
TEST(NodeValue, RemembersPlacesThatTakeTurns) {
  const NodeValue value;
  const ops::Tensor one = at(0x10000), other = at(0x10100), third = at(0x20000);
  EXPECT_FALSE(value.was_at(one.data));
  value.check(one, "input", 0);
  value.check(other, "input", 0);
  EXPECT_TRUE(value.was_at(one.data));
  EXPECT_TRUE(value.was_at(other.data));
  EXPECT_FALSE(value.was_at(third.data));
  EXPECT_FALSE(value.was_at(nullptr));
  value.check(third, "input", 0);
  EXPECT_TRUE(value.was_at(third.data));
}

}  // namespace
}  // namespace encore::plugin
