#include "fuse/plan_text.h"

#include <gtest/gtest.h>

#include <random>

#include "device/error.h"

namespace encore::fuse::tests {
namespace {

constexpr const char* kAll = R"(in x: f16[n, 64]
in const scale: f16[64]
in y
const w: f16[64, 64]
const list: i64[3] = [1, -1, 0]
const half: f32[] = 0.5
const none: f32[0] = []
view turned: f16[n, 1, ?1, ?] of x
host s: i64[2] = Shape(x)
host c: bool = Odd(s)
elsewhere other: bool[?2, ?1] = "a b.Odd op"(y, s)
product: f16[n, 64] = MatMul(x, w)  # "it's \"that\" node"
a: f16[n, 32], _, b: f16 = Split(product, _, list) {axis = 1, num_outputs = 3}
soft = Softmax@11(a)
gelu: f16[n, 64] = com.microsoft.FastGelu(product)
made = ConstantOfShape(s) {value = ...}
sum = Odd(half, none, scale, turned, b) {f = 1.0, list = [], many = [0.5, 1e-06], one = -2, text = "\"\\\n"}
region: f16[n, 64, 2, 2] = encore.Odd(gelu) inside {
  in x: f16[n, 1, 1, 64]
  view inner: f16[n, 64, 1, 1] of x
  inner~2 = Relu(inner)
  view inner~2 of y: f16[n, 1, 1, 64]
  out y
}
chosen: f32 = If(c, product, half, s) then_branch {
  in outer product: f32[n, 64]
  in outer half
  in host s: i64[2]
  turned = Neg(product)
  out turned
} else_branch {
  in outer product
  in outer half: f32[]
  in host half
  host made = Neg(half)
  a~2, b = Loop(_, made, half, product) body {
    in v
    in outer product
    in host i: i64[]
    in host c
    in host carried at: i32[]
    host go = Identity(c)
    w = Relu(v)
    out go
    out at
    out w
    out v
  }
  out a~2
}  # "which"
out sum
out region
)";

TEST(PlanText, WhatIsReadIsWrittenTheSame) { EXPECT_EQ(text_of(plan_from(kAll)), kAll); }

TEST(PlanText, APlanIsWhatItsTextSays) {
  const Plan plan = plan_from(R"(
    # a comment, and another layout
    in x : f32[n,?]
    const two:f32[1]=[2]
    y: f32[n, ?] = Mul(x , two) # "times"
    out y)");
  ASSERT_EQ(plan.steps.size(), 1u);
  const Step& step = plan.steps[0];
  EXPECT_EQ(step.node->name(), "times");
  EXPECT_GE(step.node->since_version(), 7);
  EXPECT_EQ(step.node->input_dims(0), (std::vector<int64_t>{-1, -1}));
  EXPECT_EQ(*step.node->constant_input(1)->as<float>(), 2);
  EXPECT_EQ(plan.values[size_t(step.inputs[0])].dims, (std::vector<int64_t>{-2, -1}));
  EXPECT_TRUE(plan.values[size_t(step.outputs[0])].is_output);
}

TEST(PlanText, ValuesOfOneNameAreToldApart) {
  Plan plan = plan_from("in x: f32\ny = Relu(x)\nz = Relu(y)\nout z");
  for (Value& value : plan.values) value.name = "x";
  EXPECT_EQ(text_of(plan), "in x: f32\nx~2 = Relu(x)\nx~3 = Relu(x~2)\nout x~3\n");
}

TEST(PlanText, LargeConstantsHaveNoValues) {
  EXPECT_EQ(text_of(plan_from("const w: i32[9] = [1, 2, 3, 4, 5, 6, 7, 8, 9]\ny = Neg(w)\nout y")),
            "const w: i32[9]\ny = Neg(w)\nout y\n");
}

std::string refusal(std::string_view text) {
  try {
    plan_from(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(PlanText, ARefusalSaysWhereAndWhy) {
  EXPECT_EQ(refusal("in x\n\ny = Relu(z)"), "line 3: no value has the name 'z'");
  EXPECT_EQ(refusal("in x\nx = Relu(x)"), "line 2: there is a value 'x' already");
  EXPECT_EQ(refusal("in x: f33"), "line 1: 'f33' is no type");
  EXPECT_EQ(refusal("in x: f32[-2]"), "line 1: a dimension is -2");
  EXPECT_EQ(refusal("in x\ny = Relu(x"), "line 2: ')' is missing before ''");
  EXPECT_EQ(refusal("in x\ny = Relu@new(x)"), "line 2: 'new' is no number that can stand here");
  EXPECT_EQ(refusal("in x\ny = Relu(x) {a = 1, b = two}"), "line 2: 'two' is no number that can stand here");
  EXPECT_EQ(refusal("const c: u8[1] = [256]"), "line 1: '256' is no u8");
  EXPECT_EQ(refusal("const c: u8[2] = [1]"), "line 1: these are not as many numbers as its dimensions say");
  EXPECT_EQ(refusal("const c: string[1] = [1]"), "line 1: constants of this type cannot be written");
  EXPECT_EQ(refusal("in x\nin \"y"), "line 2: a quote does not end");
  EXPECT_EQ(refusal("in x\ny = Odd(x) inside {\n  in z"), "the text ends before a '}'");
  EXPECT_EQ(refusal("in c\ny = If(c) then_branch {\n  in outer z\n} else_branch"), "line 4: '{' is missing before ''");
  EXPECT_EQ(refusal("in c\ny = If(c) then_branch {\n} {"), "line 3: a body's name is missing");
  EXPECT_EQ(refusal("out x y"), "line 1: no value has the name 'x'");
  EXPECT_EQ(refusal("in x y"), "line 1: 'y' is too much");
}

// Whatever is done to a text, it is read or refused.
TEST(PlanText, NoTextIsTooBad) {
  std::mt19937 random(11);
  const std::string all = kAll;
  for (int round = 0; round < 5000; ++round) {
    std::string text = all;
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size(), length = 1 + random() % 8;
      if (random() % 2)
        text.erase(at, length);
      else
        text.insert(at, all, random() % all.size(), length);
    }
    try {
      const std::string written = text_of(plan_from(text));
      EXPECT_EQ(text_of(plan_from(written)), written) << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_input) << text;
    }
  }
}

}  // namespace
}  // namespace encore::fuse::tests
