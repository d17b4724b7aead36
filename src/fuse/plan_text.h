// A plan as text, for tests and tools. A line is a value that comes in, a constant, a step, or a value that goes out:
//
//   in x: f16[n, 64]
//   const w: f16[64, 64]
//   const half: f32[] = 0.5
//   host s: i64[2] = Shape(x)
//   y: f16[n, 64] = MatMul(x, w)  # "the node's name"
//   a: f16[n, 32], b: f16[n, 32] = Split(y, _) {axis = 1, num_outputs = 2}
//   z: f16[n, 64] = com.microsoft.FastGelu(y)
//   out z
//
// Constants of few elements have their values. `?` is a dimension of which nothing is known, `?1` one that only has
// this number. `_` is absent, `...` an attribute that is neither number nor text. `Softmax@11` is of an early version.
// `host` is in front of what is computed there, `elsewhere` of what is not Encore's to run. Parts of a step follow it,
// in braces, and so do its bodies, each behind its name. What a body reads from outside is `in outer`, and what it has
// in host memory `in host`, or `in host carried` if a Loop hands it on; `by data` is a Loop's of which the host does
// not know how often it runs. Quotes are around names of other letters.
#pragma once
#include <string>
#include <string_view>

#include "fuse/plan.h"

namespace encore::fuse {

std::string text_of(const Plan& plan);

// Error{invalid_input} says which line cannot be read and why. Nothing runs what only fusion has an operator for.
Plan plan_from(std::string_view text);

}  // namespace encore::fuse
