#include "ops/elementwise/expression.h"

#include <gtest/gtest.h>

#include <bit>

#include "device/error.h"
#include "ops/elementwise/instructions.h"
#include "ops/elementwise/program.h"

namespace encore::ops::tests {
namespace {

using Kind = Instruction::Kind;

TEST(Expression, IsReadAsItIsWritten) {
  for (const char* text : {
           "v0: float = add(x0, x1); out v0",
           "v0: float16 = mul(x0, 0.5); v1: bool = less(v0, -inf); v2: float16 = where(v1, x3, v0); out v2, v0",
           "roll x0 along -1 by 32; roll x0 along -2 by 1; v0: bfloat16 = leaky_relu[0.01](x0); out v0",
           "part x1 along -1 from 3 to 3; roll x0 along -2 by 1; v0: float = add(x0, x1); out v0",
           "join x0 to x2 along -1; join x3 to x3 along -2; v0: float = add(x0, x3); out v0",
           "v0: float = hard_sigmoid[0.2, 0.5](x0); v1: float16 = cast(v0); out v1",
           "v0: uint8 = to_uint8[0.5, 128](x0); v1: float16 = from_linear[0.5, 128](v0); out v0, v1",
           "v0: int64 = mod(x0, int -7); v1: bool = equal(v0, int 2147483647); v2: int32 = cast(v1); out v2, v0",
       })
    EXPECT_EQ(text_of(expression_from(text)), text);
}

TEST(Expression, SaysWhatCannotBeRead) {
  for (const char* text : {
           "",
           "out v0",
           "v0: float = add(x0, x1)",
           "v0: float = add(x0); out v0",
           "v0: float = addd(x0, x1); out v0",
           "v1: float = abs(x0); out v1",
           "v0: int8 = abs(x0); out v0",
           "v0: uint8 = to_int8[1, 0](x0); out v0",
           "v0: float = to_uint8[1, 0](x0); out v0",
           "v0: int64 = add(x0, int 2147483648); out v0",
           "v0: int64 = add(x0, int 0.5); out v0",
           "v0: int64 = add(x0, int x); out v0",
           "v0: float = abs(v0); out v0",
           "v0: float = abs(v1); out v0",
           "v0: float = abs(x-1); out v0",
           "v0: float = abs(x0); out v1",
           "v0: float = abs(x99999999999); out v0",
           "v0: float = abs(x0); out v0 and more",
           "join x0 to x1 along 1; v0: float = abs(x0); out v0",
           "join x1 to x0 along -1; v0: float = abs(x0); out v0",
           "roll x0 along 1 by 2; v0: float = abs(x0); out v0",
           "part x0 along 1 from 0 to 2; v0: float = abs(x0); out v0",
           "part x0 along -1 from 2 to 1; v0: float = abs(x0); out v0",
           "roll x0 along -1 by -2; v0: float = abs(x0); out v0",
       }) {
    try {
      expression_from(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_input) << text;
    }
  }
}

std::vector<Instruction> instructions(const char* text, const std::vector<Type>& inputs = {}) {
  Expression expression = expression_from(text);
  if (!inputs.empty()) tell_integers(expression, inputs);
  std::vector<int> all(expression.outputs.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = int(i);
  const auto made = instructions_for(expression, all);
  return made ? *made : std::vector<Instruction>();
}

std::string kinds(const char* text, const std::vector<Type>& inputs = {}) {
  std::string made;
  for (const Instruction& one : instructions(text, inputs)) made += "csl>=CS"[int(one.kind)];
  return made;
}

// c: call, s: swapped, l: load, >: save, =: store; C and S: calls of integers
TEST(Instructions, AChainStaysInTheAccumulator) {
  EXPECT_EQ(kinds("v0: float = mul(x0, x1); v1: float = add(v0, 1); v2: float = tanh(v1); out v2"), "lccc=");
  EXPECT_EQ(kinds("v0: float = exp(x0); v1: float = sub(x1, v0); out v1"), "lcs=");
}

TEST(Instructions, WhatIsReadTwiceIsSavedOnce) {
  EXPECT_EQ(kinds("v0: float = exp(x0); v1: float = mul(v0, v0); out v1"), "lc>c=");
  EXPECT_EQ(kinds("v0: float = exp(x0); v1: float = log(x1); v2: float = add(v0, v1); out v2"), "lc>lcc=");
}

TEST(Instructions, OutputsAreStoredAsSoonAsTheyAreThere) {
  EXPECT_EQ(kinds("v0: float = exp(x0); v1: float = neg(v0); out v0, v1"), "lc=>c=");
  EXPECT_EQ(kinds("v0: float = exp(x0); v1: float = neg(v0); out v1, v0"), "lc=c=");
}

TEST(Instructions, OfIntegersAreTold) {
  const char* const mixed =
      "v0: int64 = neg(x0); v1: int64 = sub(x0, v0); v2: bool = less(v1, int 5); v3: float = where(v2, x1, 0.5); "
      "v4: int32 = cast(v3); v5: int32 = where(v2, int 2, v4); out v5";
  EXPECT_EQ(kinds(mixed, {Type::i64, Type::f32}), "lCSC>cc>lC=");
  const std::vector<Instruction> made = instructions(mixed, {Type::i64, Type::f32});
  EXPECT_EQ(made[3].a.from, Instruction::From::integer);
  EXPECT_EQ(std::bit_cast<int32_t>(made[3].p), 5);
  EXPECT_EQ(made[5].b.from, Instruction::From::number);
  EXPECT_EQ(made[5].q, 0.5f);
}

TEST(Instructions, OfCastsAloneAreOfFloats) {
  const auto has_any = [](const char* text) {
    Expression expression = expression_from(text);
    tell_integers(expression, {Type::i64, Type::i32});
    return has_integers(expression);
  };
  EXPECT_FALSE(has_any("v0: float = cast(x0); v1: bool = cast(x1); v2: float = where(v1, v0, 0); out v2"));
  EXPECT_TRUE(has_any("v0: float = cast(x0); v1: int32 = cast(v0); out v1"));
  EXPECT_TRUE(has_any("v0: float = cast(x0); v1: bool = equal(x1, int 0); v2: float = where(v1, v0, 0); out v2"));
  EXPECT_EQ(kinds("v0: float = cast(x0); v1: float = neg(v0); out v1", {Type::i64}), "lcc=");
}

TEST(Instructions, AreNotMoreThanFit) {
  std::string text = "v0: float = neg(x0); ";
  const auto add = [&](int v) { text += "v" + std::to_string(v) + ": float = neg(v" + std::to_string(v - 1) + "); "; };
  for (int v = 1; v < kMostInstructions - 2; ++v) add(v);
  const std::string fits = text + "out v" + std::to_string(kMostInstructions - 3);
  EXPECT_EQ(int(instructions(fits.c_str()).size()), kMostInstructions);
  add(kMostInstructions - 2);
  EXPECT_FALSE(fits_in_a_program(expression_from(text + "out v" + std::to_string(kMostInstructions - 2)), 1));
  EXPECT_FALSE(fits_in_a_program(expression_from(fits), kMostProgramInputs + 1));
}

TEST(Instructions, ReadAsManyPiecesAsFit) {
  const auto fits = [](int pieces) {
    const std::string join = "join x1 to x" + std::to_string(pieces) + " along -1; ";
    return fits_in_a_program(expression_from(join + "v0: float = add(x0, x1); out v0"), pieces + 1);
  };
  EXPECT_TRUE(fits(kMostProgramPieces));
  EXPECT_FALSE(fits(kMostProgramPieces + 1));
}

// Five values that are there at once, and four slots.
TEST(Instructions, WantNoMoreSlotsThanThereAre) {
  std::string text;
  for (int v = 0; v < 6; ++v) text += "v" + std::to_string(v) + ": float = exp(x" + std::to_string(v) + "); ";
  const std::string four = text +
                           "v6: float = add(v0, v1); v7: float = add(v2, v3); v8: float = add(v6, v7); "
                           "v9: float = add(v4, v5); v10: float = add(v8, v9); out v10";
  EXPECT_TRUE(fits_in_a_program(expression_from(four), 6));
  std::string sums = "v0: float = exp(x0); ";
  for (int v = 1; v < 6; ++v) sums += "v" + std::to_string(v) + ": float = neg(v" + std::to_string(v - 1) + "); ";
  // Each is read again behind all of them.
  sums +=
      "v6: float = add(v5, v4); v7: float = add(v6, v3); v8: float = add(v7, v2); v9: float = add(v8, v1); "
      "v10: float = add(v9, v0); out v10";
  EXPECT_FALSE(fits_in_a_program(expression_from(sums), 1));
}

}  // namespace
}  // namespace encore::ops::tests
