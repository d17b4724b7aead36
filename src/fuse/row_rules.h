// What operators make of tensors that become longer along an axis, if each row of that axis is for itself: rows of the
// output are as they were, and others are behind them.
#pragma once
#include <set>

#include "fuse/padding.h"
#include "fuse/shape_symbols.h"

namespace encore::fuse {

// Of a value: the axis that becomes longer, or one of these.
inline constexpr int kUnpadded = -1;
inline constexpr int kSized = -2;  // it depends on how long the dimension is

// A product of dimensions.
struct Volume {
  int64_t number = 1;
  Dims symbols = {};  // in their order
  bool operator==(const Volume&) const = default;
};

// What an axis has besides the dimension: row (i * length + j) * inside + k of it is of the dimension's row j.
struct Beside {
  Volume outside = {}, inside = {};
  bool operator==(const Beside&) const = default;
};

// What a value has of the dimension along one axis.
struct Rows {
  int axis = kUnpadded;
  std::optional<Beside> beside = {};    // none: as the step's inputs have it
  bool count = false;                   // each value is the number of its row
  bool begin_with_count = false;        // the first along the last axis is
  bool end_in_zeros = false;            // what is behind the rows that were there is
  std::vector<PaddingMask> masks = {};  // which the step has to have for that

  Rows(int axis = kUnpadded) : axis(axis) {}  // what most rules have to say
  Rows(int axis, Beside beside) : axis(axis), beside(std::move(beside)) {}
  static Rows numbered(int axis) {
    Rows made(axis);
    made.count = true;
    return made;
  }
};

// A step, as its rule sees it.
class PaddedStep {
 public:
  // `rows` are its inputs', `dim` is the symbol of what is padded, to `longest` at most, and `fixed` are those that
  // padding leaves alone.
  PaddedStep(const Match& match, const Step& step, std::vector<Rows> rows, int64_t dim, int64_t longest,
             const std::set<int64_t>& fixed)
      : match_(match), step_(step), rows_(std::move(rows)), dim_(dim), longest_(longest), fixed_(fixed) {}

  const NodeInfo& node() const { return *step_.node; }
  size_t inputs() const { return step_.inputs.size(); }
  bool has(size_t input) const { return input < inputs() && step_.inputs[input] >= 0; }
  const Rows& rows(size_t input) const;  // unpadded if there is no such input
  int axis(size_t input) const { return rows(input).axis; }
  Beside beside() const;  // of all inputs' axes
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

  int64_t dim() const { return dim_; }  // the symbol of what is padded
  bool is_padded_dim(int64_t symbol) const { return symbol == dim_; }
  bool is_fixed(int64_t dim) const { return dim >= 0 || fixed_.contains(dim); }
  // Of the first input's axis, which the step sums along.
  PaddingMask rows_mask() const;
  bool is_one(size_t input, int axis) const;  // of the input's dimension; one that is not there counts as one
  bool holds_zero(size_t input) const;        // a constant that is nothing else

  // The first input has as many there as there are ever to be.
  void check_is_long_enough(int axis) const;
  // Inputs but these have to be as they were.
  void others_unpadded(std::initializer_list<size_t> inputs) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const Match& match_;
  const Step& step_;
  const std::vector<Rows> rows_;
  const int64_t dim_, longest_;
  const std::set<int64_t>& fixed_;
};

// What the output has: unpadded if nothing is left of the rows. Error{not_supported} if rows may come together.
using RowRule = Rows (*)(const PaddedStep& step, size_t output);
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
