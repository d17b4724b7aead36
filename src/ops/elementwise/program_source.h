// An elementwise program as source to be compiled at run time: what is known of it, but sizes and addresses.
#pragma once
#include <string>
#include <vector>

#include "ops/elementwise/expression.h"
#include "ops/elementwise/program_layout.h"

namespace encore::ops {

// Makes the outputs of these numbers. Their packs are aligned, and 31 bits count the elements of all that it reads or
// makes. What is constant, of the node's inputs, is asked for while earlier work still runs.
std::string source_of(const Expression& expression, const std::vector<int>& outputs, const ProgramLayout& layout,
                      const std::vector<bool>& constant);

}  // namespace encore::ops
