// Einsum's equation: "bij,bjk->bik".
#pragma once
#include <string>
#include <vector>

namespace encore::ops {

// A label is a letter, or what stands for one dimension of an ellipsis.
using Labels = std::vector<int>;
inline constexpr int kEllipsis = -1;        // in an equation: the dimensions that no letter names
inline constexpr int kFirstUnnamed = 0x80;  // the last dimension of an ellipsis, then the one before, ..

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
};
// Throws Error{not_supported}, with what is wrong with the text.
Equation parse_equation(const std::string& text, int inputs);

// The labels of a tensor of `rank` dimensions, with those of the ellipsis put in; what names the term in the error.
Labels labels_of(const Labels& term, int rank, const std::string& what);

}  // namespace encore::ops
