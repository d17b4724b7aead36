// What operators make of tensors that become longer along an axis, if each row of that axis is for itself: rows of the
// output are as they were, and others are behind them.
#pragma once
#include <algorithm>
#include <set>

#include "fuse/flat_index.h"
#include "fuse/padding.h"

namespace encore::fuse {

// Of a value: the axis that becomes longer, or one of these.
inline constexpr int kUnpadded = -1;
inline constexpr int kSized = -2;  // it depends on how long the dimension is

// What an axis has besides the dimension: row (i * length + j) * inside + k of it is of the dimension's row j.
struct Beside {
  Volume outside = {}, inside = {};
  bool operator==(const Beside&) const = default;
};

// What a value has of the dimension along one axis.
struct Rows {
  int axis = kUnpadded;
  std::optional<Beside> beside = {};  // none: as the step's inputs have it
  bool count = false;                 // each value is the number of its row, counted from the first one's
  int64_t first = 0;
  int counting = -1;                    // where along the last axis each is
  bool end_in_zeros = false;            // what is behind the rows that were there is
  std::vector<PaddingMask> masks = {};  // which the step has to have for that
  std::optional<Lookup> lookup = {};    // that one of these is for

  Rows(int axis = kUnpadded) : axis(axis) {}  // what most rules have to say
  Rows(int axis, Beside beside) : axis(axis), beside(std::move(beside)) {}
  static Rows numbered(int axis, int64_t first = 0) {
    Rows made(axis);
    made.count = true, made.first = first;
    return made;
  }
};

// A step, as its rule sees it.
class PaddedStep {
 public:
  // What is known so far.
  struct Known {
    int64_t dim, longest;     // of what is padded, and how long it becomes
    std::set<int64_t> fixed;  // padding leaves them alone
    KnownVolumes volumes;
    std::vector<std::vector<Rows>> rows;  // by value: what it has of the dimension, each for itself
  };
  // `rows` are its inputs'.
  PaddedStep(const Match& match, const Step& step, std::vector<Rows> rows, const Known& known)
      : match_(match), step_(step), rows_(std::move(rows)), known_(known) {}

  const NodeInfo& node() const { return *step_.node; }
  size_t inputs() const { return step_.inputs.size(); }
  bool has(size_t input) const { return input < inputs() && step_.inputs[input] >= 0; }
  const Rows& rows(size_t input) const;  // unpadded if there is no such input
  int axis(size_t input) const { return rows(input).axis; }
  bool is_sized() const {
    return std::ranges::any_of(rows_, [](const Rows& rows) { return rows.axis == kSized; });
  }
  Beside beside() const;  // of all inputs' axes
  // Error{not_supported} for what is not known.
  Dims dims(size_t input) const;
  int rank(size_t input) const { return int(dims(input).size()); }
  const Tensor* constant(size_t input) const { return match_.plan().constant(step_, input); }
  // What a small tensor of integers holds, constant or computed from dimensions; and the same if none is below zero.
  std::optional<Dims> numbers(size_t input) const;
  std::optional<Dims> lengths(size_t input) const;
  // How far from the end what is one number below zero is.
  std::optional<int64_t> from_end(size_t input) const;
  // What a Reshape asks for; -1 is what is left.
  std::optional<Dims> target() const;
  // Of an attribute, or of an input that is constant.
  std::optional<Dims> axes_of(const char* attribute, size_t input) const;
  // Counted from the first.
  int own_axis(const char* attribute, int64_t otherwise, int rank) const;

  int64_t dim() const { return known_.dim; }  // the symbol of what is padded
  bool is_padded_dim(int64_t symbol) const { return symbol == known_.dim; }
  bool is_fixed(int64_t dim) const { return dim >= 0 || known_.fixed.contains(dim); }
  // Of the first input's axis, which the step sums along.
  PaddingMask rows_mask() const;
  const KnownVolumes& volumes() const { return known_.volumes; }
  std::optional<Volume> volume(const Dims& dims, size_t from, size_t to) const {
    return volume_of(dims, from, to, known_.volumes);
  }
  std::vector<IndexTerm> index_terms(size_t input) const;
  bool is_sum_of_index() const;  // what it adds up is an index, as models compute it of positions
  bool is_unpadded(int value) const { return known_.rows[size_t(value)].empty(); }
  bool has_unpadded(size_t input) const {  // along no axis at all
    return has(input) && axis(input) == kUnpadded && is_unpadded(step_.inputs[input]);
  }
  // Of an Add that makes an input: the place of this summand, if it has as many elements.
  std::optional<int> place_of_summand(size_t input, int value) const;
  bool is_one(size_t input, int axis) const;  // of the input's dimension; one that is not there counts as one
  bool holds_zero(size_t input) const;        // a constant that is nothing else

  // Whether an input, or what it has at a place along its last axis, is where an ArgMax has found something: no rows
  // that are added, and none that are counted from the last.
  bool holds_finds(size_t input) const;
  bool holds_finds(size_t input, int place) const;
  // The first input has as many there as there are ever to be.
  void check_is_long_enough(int axis, int64_t first = 0) const;
  // Inputs but these have to be as they were.
  void others_unpadded(std::initializer_list<size_t> inputs) const;
  void all_along_one_axis() const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  bool are_finds(int value) const;

  const Match& match_;
  const Step& step_;
  const std::vector<Rows> rows_;
  const Known& known_;
};

// What the output has: unpadded if nothing is left of the rows. Error{not_supported} if rows may come together.
using RowRule = Rows (*)(const PaddedStep& step, size_t output);
// Null for an operator of which nothing is known.
RowRule find_row_rule(const NodeInfo& node);
// Where the step repeats something as often as the dimension is long.
std::vector<int> added_axes(const PaddedStep& step);
// Whether it makes as many as a tensor of integers says.
bool makes_rows(const NodeInfo& node);

// ---- where rules are, by what operators do

struct RowRules {
  const char* domain;
  const char* ops;  // with spaces between
  RowRule rule;
};
std::span<const RowRules> rules_of_math();       // elementwise, norms, products, images
std::span<const RowRules> rules_of_movement();   // shapes, slices, concatenations
std::span<const RowRules> rules_of_lookups();    // gathers, scatters
std::span<const RowRules> rules_of_sequences();  // attention, recurrent layers

// The axis of what is broadcast, of the inputs from `first` to before `last`.
int broadcast_axis(const PaddedStep& step, size_t first, size_t last);

}  // namespace encore::fuse
