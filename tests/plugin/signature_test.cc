#include "plugin/model/signature.h"

#include <gtest/gtest.h>

namespace encore::plugin {
namespace {

using device::Type;
using Dims = std::vector<int64_t>;

TEST(Signature, NamesTheOneThatFits) {
  const Signature s({{"x", Type::f32, Dims{-1, 3}}, {"mask", Type::i64, Dims{-1, 3}}}, {{"y", Type::f32, Dims{2, 2}}});
  EXPECT_EQ(s.describe_input(Type::f32, {5, 3}), "input 'x' (float[5,3])");
  EXPECT_EQ(s.describe_input(Type::i64, {1, 3}), "input 'mask' (int64[1,3])");
  EXPECT_EQ(s.describe_output(Type::f32, {2, 2}), "output 'y' (float[2,2])");
}

TEST(Signature, NamesAllThatFit) {
  const Signature s({{"a", Type::f32, Dims{-1}}, {"b", Type::f32, Dims{4}}, {"c", Type::f32, std::nullopt}}, {});
  EXPECT_EQ(s.describe_input(Type::f32, {4}), "input 'a', 'b' or 'c' (float[4])");
  EXPECT_EQ(s.describe_input(Type::f32, {5}), "input 'a' or 'c' (float[5])");
}

TEST(Signature, SaysShapeAndTypeOfWhatFitsNone) {
  const Signature s({{"a", Type::f32, Dims{4}}}, {});
  EXPECT_EQ(s.describe_input(Type::f16, {4}), "a tensor float16[4]");
  EXPECT_EQ(s.describe_output(Type::f32, {}), "a tensor float[]");
}

TEST(Signature, KnowsTheOneMakerOfAnOutput) {
  const Signature s({}, {{"n", Type::i64, Dims{2}, "by Shape node 'shape'"},
                         {"m", Type::i64, Dims{3}, "by Shape node 'a'"},
                         {"k", Type::i64, Dims{3}, "by Shape node 'b'"},
                         {"x", Type::f32, Dims{2}}});
  EXPECT_EQ(s.makers(Type::i64, {2}), ", by Shape node 'shape'");
  EXPECT_EQ(s.makers(Type::i64, {3}), "");
  EXPECT_EQ(s.makers(Type::f32, {2}), "");
  EXPECT_EQ(s.makers(Type::f32, {5}), "");
}

}  // namespace
}  // namespace encore::plugin
