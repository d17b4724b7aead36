// Elementwise operators that fusion has made one: an expression, run by one kernel.
#pragma once
#include <memory>

#include "ops/elementwise/expression.h"
#include "ops/elementwise/program_arguments.h"

namespace encore::ops {

// The node's attribute with the expression's text; its inputs are the node's, its outputs too.
inline constexpr const char* kExpression = "expression";

// Whether a kernel can do all of it: few enough inputs, outputs and instructions.
bool fits_in_a_program(const Expression& expression, int inputs);
std::unique_ptr<Op> make_elementwise_program(const NodeInfo& node);
// The input from each of `shifts` on along that of `axes`, counted from the end, and then from 0.
std::unique_ptr<Op> make_roll(const NodeInfo& node);

}  // namespace encore::ops
