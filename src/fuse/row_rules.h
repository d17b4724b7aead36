// What operators make of tensors that become longer along an axis, if each row of that axis is for itself: rows of the
// output are as they were, and others are behind them.
#pragma once
#include <set>

#include "fuse/shape_symbols.h"

namespace encore::fuse {

// Of a value: the axis that becomes longer, or one of these.
inline constexpr int kUnpadded = -1;
inline constexpr int kSized = -2;  // it depends on how long the dimension is

// A step, as its rule sees it.
class PaddedStep {
 public:
  // `axes` are the values', `dim` is the symbol of what is padded, and `fixed` are the symbols that padding leaves
  // alone.
  PaddedStep(const Match& match, const Step& step, const std::vector<int>& axes, int64_t dim,
             const std::set<int64_t>& fixed)
      : match_(match), step_(step), axes_(axes), dim_(dim), fixed_(fixed) {}

  const NodeInfo& node() const { return *step_.node; }
  size_t inputs() const { return step_.inputs.size(); }
  bool has(size_t input) const { return input < inputs() && step_.inputs[input] >= 0; }
  int axis(size_t input) const { return has(input) ? axes_[size_t(step_.inputs[input])] : kUnpadded; }
  // Error{not_supported} for what is not known.
  Dims dims(size_t input) const;
  int rank(size_t input) const { return int(dims(input).size()); }
  const Tensor* constant(size_t input) const { return match_.plan().constant(step_, input); }
  // What a small tensor of integers holds, constant or computed from dimensions; and the same if none is below zero.
  std::optional<Dims> numbers(size_t input) const;
  std::optional<Dims> lengths(size_t input) const;
  // What a Reshape asks for; -1 is what is left.
  std::optional<Dims> target() const;
  // Of an attribute, or of an input that is constant.
  std::optional<Dims> axes_of(const char* attribute, size_t input) const;
  // Counted from the first.
  int own_axis(const char* attribute, int64_t otherwise, int rank) const;

  bool is_padded_dim(int64_t symbol) const { return symbol == dim_; }
  bool is_fixed(int64_t dim) const { return dim >= 0 || fixed_.contains(dim); }
  bool is_one(size_t input, int axis) const;  // of the input's dimension; one that is not there counts as one

  // Inputs but these have to be as they were.
  void others_unpadded(std::initializer_list<size_t> inputs) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const Match& match_;
  const Step& step_;
  const std::vector<int>& axes_;
  int64_t dim_;
  const std::set<int64_t>& fixed_;
};

// The output's axis, or what it is besides. Error{not_supported} if rows may come together.
using RowRule = int (*)(const PaddedStep& step, size_t output);
// Null for an operator of which nothing is known.
RowRule find_row_rule(const NodeInfo& node);
// Whether it makes as many as a tensor of integers says.
bool makes_rows(const NodeInfo& node);

// ---- where rules are, by what operators do

struct RowRules {
  const char* domain;
  const char* ops;  // with spaces between
  RowRule rule;
};
std::span<const RowRules> rules_of_math();       // elementwise, norms, products, images
std::span<const RowRules> rules_of_movement();   // shapes, gathers, concatenations
std::span<const RowRules> rules_of_sequences();  // attention, recurrent layers

// The axis of what is broadcast, of the inputs from `first` to before `last`.
int broadcast_axis(const PaddedStep& step, size_t first, size_t last);

}  // namespace encore::fuse
