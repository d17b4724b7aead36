// Attributes that are one of several choices: what they may be, and what a user reads of those that are none.
#include "ops/choice.h"

#include <gtest/gtest.h>

#include "node.h"

namespace encore::ops {
namespace {

enum class Side { left, right };

Side side_of(const NodeInfo& node) {
  return read_choice<Side>(node, "side", "left", {{"left", Side::left}, {"right", Side::right}, {"", Side::left}});
}
int bits_of(const NodeInfo& node) { return read_choice<int>(node, "bits", 4, {{2, 20}, {4, 40}, {8, 80}}); }

template <class F>
std::string refusal(F read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::not_supported);
    return error.what();
  }
  return "";
}

TEST(Choice, NamesAndNumbersStandForValues) {
  Node node("It");
  EXPECT_EQ(side_of(node), Side::left);
  EXPECT_EQ(bits_of(node), 40);
  node.strings["side"] = "right";
  node.ints["bits"] = 8;
  EXPECT_EQ(side_of(node), Side::right);
  EXPECT_EQ(bits_of(node), 80);
}

TEST(Choice, WhatIsNoneOfThemIsNamedWithThem) {
  Node node("It");
  node.strings["side"] = "Left";
  EXPECT_EQ(refusal([&] { side_of(node); }), "side is 'Left'; it must be left, right or empty");
  node.ints["bits"] = 3;
  EXPECT_EQ(refusal([&] { bits_of(node); }), "bits is 3; it must be 2, 4 or 8");
  node.ints["bits"] = 4 + (int64_t(1) << 32);
  EXPECT_EQ(refusal([&] { bits_of(node); }), "bits is 4294967300; it must be 2, 4 or 8");
}

TEST(Choice, AFlagIsZeroOrOne) {
  Node node("It");
  EXPECT_TRUE(read_flag(node, "causal", true));
  EXPECT_FALSE(read_flag(node, "causal", false));
  node.ints["causal"] = 0;
  EXPECT_FALSE(read_flag(node, "causal", true));
  node.ints["causal"] = -1;
  EXPECT_EQ(refusal([&] { read_flag(node, "causal", true); }), "causal is -1; it must be 0 or 1");
}

}  // namespace
}  // namespace encore::ops
