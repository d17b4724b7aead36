#include "fuse/row_rules.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "ops/registry.h"

namespace encore::fuse {
namespace {

using Rules = std::map<std::pair<std::string_view, std::string_view>, RowRule>;

Rules all_rules() {
  Rules all;
  for (const auto& rules : {rules_of_math(), rules_of_movement(), rules_of_lookups(), rules_of_sequences()})
    for (const RowRules& some : rules)
      for (std::string_view left = some.ops; !left.empty();) {
        const size_t end = std::min(left.find(' '), left.size());
        all.emplace(std::pair(some.domain, left.substr(0, end)), some.rule);
        left.remove_prefix(std::min(end + 1, left.size()));
      }
  return all;
}

}  // namespace

RowRule find_row_rule(const NodeInfo& node) {
  static const Rules all = all_rules();
  const auto found = all.find({node.domain(), node.op_type()});
  return found == all.end() ? nullptr : found->second;
}

bool makes_rows(const NodeInfo& node) {
  constexpr std::array<const char*, 4> kMakers{"ConstantOfShape", "Expand", "Range", "Slice"};
  return std::ranges::any_of(kMakers, [&](const char* op) { return is_onnx(node, op); });
}

const Rows& PaddedStep::rows(size_t input) const {
  static const Rows none;
  return input < rows_.size() ? rows_[input] : none;
}

Beside PaddedStep::beside() const {
  const Rows* first = nullptr;
  for (size_t i = 0; i < inputs(); ++i) {
    if (axis(i) < 0) continue;
    if (first && *first->beside != *rows(i).beside) refuse("has it in another order in one input than in another");
    first = &rows(i);
  }
  return first ? *first->beside : Beside();
}

Dims PaddedStep::dims(size_t input) const {
  if (const Tensor* const held = constant(input)) return {held->shape.dims().begin(), held->shape.dims().end()};
  const auto& dims = match_.value(step_.inputs[input]).dims;
  if (!dims) refuse(text("has an input ", input, " of unknown rank"));
  return *dims;
}

std::optional<Dims> PaddedStep::numbers(size_t input) const {
  if (!has(input)) return std::nullopt;
  const ShapeSymbols symbols(match_);
  if (match_.value(step_.inputs[input]).is_constant) return symbols.constants(step_, input);
  std::vector<int> steps;
  return symbols.contents(step_.inputs[input], steps);
}

std::optional<Dims> PaddedStep::lengths(size_t input) const {
  const auto held = numbers(input);
  const bool is_symbolic = has(input) && !match_.value(step_.inputs[input]).is_constant;
  return held && (is_symbolic || std::ranges::all_of(*held, [](int64_t number) { return number >= 0; })) ? held
                                                                                                         : std::nullopt;
}

std::optional<int64_t> PaddedStep::from_end(size_t input) const {
  constexpr std::array<const char*, 4> kSameNumber{"Cast", "Identity", "Reshape", "Unsqueeze"};
  int from = has(input) ? match_.producer(step_.inputs[input]) : -1;
  while (from >= 0 && std::ranges::any_of(kSameNumber, [&](const char* op) { return is_onnx(match_.node(from), op); }))
    from = match_.producer(match_.step(from).inputs[0]);
  if (from < 0 || !is_onnx(match_.node(from), "Neg")) return std::nullopt;
  const auto held = ShapeSymbols(match_).held(match_.step(from), 0);
  return held && held->size() == 1 ? std::optional((*held)[0]) : std::nullopt;
}

std::optional<Dims> PaddedStep::target() const { return ShapeSymbols(match_).target(step_); }

std::optional<Dims> PaddedStep::axes_of(const char* attribute, size_t input) const {
  return has(input) ? ShapeSymbols(match_).constants(step_, input) : node().find_ints(attribute);
}

int PaddedStep::own_axis(const char* attribute, int64_t otherwise, int rank) const {
  const int64_t axis = node().get_int(attribute, otherwise);
  if (axis < -rank || axis >= rank) refuse(text("has ", attribute, " ", axis, " of ", rank, " dimensions"));
  return int(axis < 0 ? axis + rank : axis);
}

PaddingMask PaddedStep::rows_mask() const {
  constexpr ops::Types kMaskable = ops::kFloats | ops::kIndices;
  if (beside() != Beside() || step_.runs != Runs::on_device || !kMaskable.has(node().input_type(0)))
    refuse("sums along it");
  return {PaddingMask::rows, Type::boolean, rank(0) - 1 - axis(0)};
}

std::vector<IndexTerm> PaddedStep::index_terms(size_t input) const {
  return fuse::index_terms(match_, step_.inputs[input], known_.volumes);
}

bool PaddedStep::is_sum_of_index() const {
  if (!is_onnx(node(), "Add") || !ops::kIndices.has(node().output_type(0))) return false;
  const auto terms = fuse::index_terms(match_, step_.outputs[0], known_.volumes);
  return terms.size() > 1 &&
         std::ranges::any_of(terms, [&](const IndexTerm& term) { return is_padded_dim(term.count); });
}

std::optional<int> PaddedStep::place_of_summand(size_t input, int value) const {
  const int from = match_.producer(step_.inputs[input]);
  if (from < 0 || !is_onnx(match_.node(from), "Add") || match_.value(value).dims != dims(input)) return std::nullopt;
  const auto& summands = match_.step(from).inputs;
  const auto found = std::ranges::find(summands, value);
  return found == summands.end() ? std::nullopt : std::optional(int(found - summands.begin()));
}

bool PaddedStep::is_one(size_t input, int axis) const { return axis < 0 || dims(input)[size_t(axis)] == 1; }

bool PaddedStep::holds_zero(size_t input) const {
  const Tensor* const held = constant(input);
  return held && held->data &&
         std::ranges::all_of(std::span(held->as<const char>(), held->bytes()), [](char byte) { return byte == 0; });
}

bool PaddedStep::are_finds(int value) const {
  static const std::set<std::string> kSameValues{"Cast",    "Expand",  "Flatten",   "Identity",
                                                 "Reshape", "Squeeze", "Transpose", "Unsqueeze"};
  for (int from = match_.producer(value); from >= 0; from = match_.producer(match_.step(from).inputs[0])) {
    const NodeInfo& node = match_.node(from);
    if (is_onnx(node, "ArgMax") || is_onnx(node, "ArgMin")) return true;
    if (!node.domain().empty() || !kSameValues.contains(node.op_type())) return false;
  }
  return false;
}

bool PaddedStep::holds_finds(size_t input) const { return are_finds(step_.inputs[input]); }

bool PaddedStep::holds_finds(size_t input, int place) const {
  const int from = match_.producer(step_.inputs[input]);
  if (place < 0 || from < 0 || !is_onnx(match_.node(from), "Concat")) return false;
  const Step& concat = match_.step(from);
  const int last = rank(input) - 1, along = int(concat.node->get_int("axis", 0));
  if ((along != -1 && along != last) || size_t(place) >= concat.inputs.size()) return false;
  const auto is_one = [&](int value) {
    const auto& dims = match_.value(value).dims;
    return dims && !dims->empty() && dims->back() == 1;
  };
  return std::ranges::all_of(concat.inputs, is_one) && are_finds(concat.inputs[size_t(place)]);
}

void PaddedStep::check_is_long_enough(int axis, int64_t first) const {
  const int64_t wanted = known_.longest + first;
  if (const int64_t dim = dims(0)[size_t(axis)]; dim >= 0 && dim < wanted)
    refuse(text("has a table of ", dim, ", and ", wanted, " is longer"));
}

void PaddedStep::others_unpadded(std::initializer_list<size_t> known) const {
  for (size_t i = 0; i < inputs(); ++i)
    if (std::ranges::find(known, i) == known.end() && axis(i) != kUnpadded)
      refuse(text("has an input ", i, " that depends on it, too"));
}

void PaddedStep::all_along_one_axis() const {
  for (size_t i = 0; i < inputs(); ++i)
    if (axis(i) != axis(0) || axis(i) < 0) refuse(text("has an input ", i, " that need not be as long"));
}

void PaddedStep::refuse(const std::string& why) const { fail(Code::not_supported, ops::label_of(node()), " ", why); }

int broadcast_axis(const PaddedStep& step, size_t first, size_t last) {
  int rank = 0, made = kUnpadded;
  for (size_t i = first; i < last; ++i)
    if (step.has(i)) rank = std::max(rank, step.rank(i));
  for (size_t i = first; i < last; ++i) {
    if (step.axis(i) == kSized) step.refuse("computes with its length");
    if (step.axis(i) < 0) continue;
    const int axis = step.axis(i) + rank - step.rank(i);
    if (made >= 0 && axis != made) step.refuse("has it along two axes");
    made = axis;
  }
  for (size_t i = first; i < last && made >= 0; ++i)
    if (step.has(i) && step.axis(i) < 0 && !step.is_one(i, made - (rank - step.rank(i))))
      step.refuse(text("has an input ", i, " that need not be as long"));
  return made;
}

}  // namespace encore::fuse
