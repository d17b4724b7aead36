// What an onnxruntime newer than Encore may ask of an operator that Encore has: declined, not computed without it.
#include "ops/newer.h"

#include <gtest/gtest.h>

#include "node.h"

namespace encore::ops {
namespace {

TEST(Newer, WhatOperatorsHaveHadAllAlongIsTaken) {
  for (const char* op : {"CausalConvWithState", "GroupQueryAttention", "QMoE", "Gelu"}) {
    Node node(op);
    node.inputs.assign(16, true);
    node.outputs.assign(2, true);
    node.ints = {{"state_length", 0}, {"state_channels_last", -1}, {"state_update_capacity", 0}};
    EXPECT_EQ(why_too_new(node), "") << op;
  }
}

TEST(Newer, SlotsAreDeclinedWhereTheyAreUsed) {
  Node add("GatedAdd");
  add.inputs = {true, true, true, false};
  EXPECT_EQ(why_too_new(add), "");
  add.inputs.back() = true;
  EXPECT_EQ(why_too_new(add), "input 3 is newer than Encore's GatedAdd");
  Node attention("DynamicSparseAttention");
  attention.outputs = {true, false, false, true};
  EXPECT_EQ(why_too_new(attention), "output 3 is newer than Encore's DynamicSparseAttention");
}

TEST(Newer, AttributesAreDeclinedWhereTheyChangeSomething) {
  Node conv("CausalConvWithState");
  conv.ints["state_channels_last"] = 1;
  EXPECT_EQ(why_too_new(conv), "attribute state_channels_last is newer than Encore's CausalConvWithState");
  Node attention("DynamicSparseAttention");
  attention.ints["output_bf16"] = 1;
  EXPECT_EQ(why_too_new(attention), "attribute output_bf16 is newer than Encore's DynamicSparseAttention");
}

TEST(Newer, OtherDomainsTellByTheirVersions) {
  Node conv("CausalConvWithState", "");
  conv.outputs = {true, true, true};
  EXPECT_EQ(why_too_new(conv), "");
}

}  // namespace
}  // namespace encore::ops
