// An expression as instructions on one accumulator.
#pragma once
#include <optional>
#include <vector>

#include "ops/elementwise/expression.h"

namespace encore::ops {

struct alignas(16) Instruction {
  // What it does to the accumulator, besides calling a function of it: of two operands the accumulator is the first
  // one, or the second of a swapped one, and of three the condition. The last two are calls of integers, for programs
  // that have any.
  enum class Kind : uint8_t { call, swapped_call, load, save, store, integer_call, swapped_integer_call } kind;
  ScalarFunction function{};
  uint8_t type = 0;  // a Type: what the result is rounded to
  // Where else operands are: an input, a slot in which something was saved, or p and q, which have an integer's bits.
  enum class From : uint8_t { nowhere, input, slot, number, integer };
  struct Operand {
    From from = From::nowhere;
    uint8_t index = 0;
  } a = {}, b = {};  // of save a slot, of store an output
  float p = 0, q = 0;
};
static_assert(sizeof(Instruction) == 16);  // which a kernel reads at once

inline constexpr int kMostSlots = 4, kMostInstructions = 144;

// What makes the outputs of these numbers, each stored as soon as it is there. None if that takes more instructions or
// slots than there may be.
std::optional<std::vector<Instruction>> instructions_for(const Expression& expression, const std::vector<int>& outputs);

}  // namespace encore::ops
