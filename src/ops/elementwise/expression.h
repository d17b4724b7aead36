// Several elementwise operators as one: values, each a scalar function of inputs, numbers and values before it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/elementwise/scalar_function.h"
#include "ops/op.h"

namespace encore::ops {

const char* name(ScalarFunction function);  // in an expression's text
int operands_of(ScalarFunction function);   // how many
bool is_of_integers(ScalarFunction function);
bool is_division(ScalarFunction function);  // or what is left by one

// A function with its operator's attributes, of which none has more than two.
struct ScalarCall {
  ScalarFunction function;
  float p = 0, q = 0;
  bool operator==(const ScalarCall&) const = default;
};
// What the operator computes, if it is one of these functions and no more; its inputs are the operands, in their order,
// the first ones.
std::optional<ScalarCall> scalar_call(const NodeInfo& node);

struct Expression {
  struct Operand {
    enum class Kind : uint8_t { input, value, number, integer } kind;
    int index = 0;  // or the integer, of 32 bits
    float number = 0;
    bool operator==(const Operand&) const = default;
  };
  struct Value {
    ScalarCall call;
    Type type;  // f32, f16, bf16, boolean, i32 or i64: what it is rounded to, or wraps around in; u8 or i8 if quantized
    std::vector<Operand> operands;
    bool of_integers = false;  // operands, but a condition, in a program that has integers; the text does not tell
    bool operator==(const Value&) const = default;
  };
  // Inputs from one to another that are read as one, side by side along an axis, counted from its end and so negative.
  // Operands name the first.
  struct Join {
    int input, last, axis;
    bool operator==(const Join&) const = default;
  };
  // An input that is read from `shift` on along an axis, counted likewise, and then from 0.
  struct Roll {
    int input, axis;
    int64_t shift;
    bool operator==(const Roll&) const = default;
  };
  // An input of which only what lies from `begin` to `end` along an axis, counted likewise, is there.
  struct Part {
    int input, axis;
    int64_t begin, end;
    bool operator==(const Part&) const = default;
  };
  std::vector<Join> joins;
  std::vector<Part> parts;
  std::vector<Roll> rolls;
  std::vector<Value> values;  // each before those that read it
  std::vector<int> outputs;   // values
  bool operator==(const Expression&) const = default;
};

// "join x1 to x3 along -1; part x0 along -1 from 0 to 64; roll x1 along -1 by 32; v0: float16 = mul(x0, 0.5); v1:
// float16 = leaky_relu[0.01](v0); out v1", where an integer is "int 5"
std::string text_of(const Expression& expression);
// Error{invalid_input} says what cannot be read.
Expression expression_from(std::string_view text);

// Says of each value whether it is made of integers, where inputs are of these types. What only casts those that it
// reads has none: there they become floats as they are read.
void tell_integers(Expression& expression, const std::vector<Type>& inputs);
bool has_integers(const Expression& expression);  // once that is told

}  // namespace encore::ops
