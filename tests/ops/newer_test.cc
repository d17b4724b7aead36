// What an onnxruntime newer than Encore may ask of an operator that Encore has: declined, not computed without it.
#include "ops/newer.h"

#include <gtest/gtest.h>

#include <map>

namespace encore::ops {
namespace {

class Node final : public NodeInfo {
 public:
  explicit Node(std::string op, std::string domain = "com.microsoft")
      : op_(std::move(op)), domain_(std::move(domain)) {}

  std::vector<bool> inputs, outputs;  // which are there
  std::map<std::string, int64_t> ints;

  const std::string& name() const override { return op_; }
  const std::string& domain() const override { return domain_; }
  const std::string& op_type() const override { return op_; }
  int since_version() const override { return 1; }
  int input_count() const override { return int(inputs.size()); }
  int output_count() const override { return int(outputs.size()); }
  bool has_input(int i) const override { return inputs[size_t(i)]; }
  bool has_output(int i) const override { return outputs[size_t(i)]; }
  Type input_type(int) const override { return Type::f32; }
  Type output_type(int) const override { return Type::f32; }
  std::optional<std::vector<int64_t>> input_dims(int) const override { return {}; }
  const Tensor* constant_input(int) const override { return nullptr; }
  std::optional<int64_t> find_int(const char* attribute) const override { return find(ints, attribute); }
  std::optional<float> find_float(const char*) const override { return {}; }
  std::optional<std::string> find_string(const char*) const override { return {}; }
  std::optional<std::vector<int64_t>> find_ints(const char*) const override { return {}; }
  std::optional<std::vector<float>> find_floats(const char*) const override { return {}; }
  std::optional<std::vector<std::string>> find_strings(const char*) const override { return {}; }
  bool kernel_has_strings() const override { return true; }
  const Tensor* find_tensor(const char*) const override { return nullptr; }

 private:
  template <class T>
  static std::optional<T> find(const std::map<std::string, T>& map, const char* attribute) {
    const auto found = map.find(attribute);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  }

  std::string op_, domain_;
};

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
