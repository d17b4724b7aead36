#include "fuse/shape_symbols.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "fuse/window_dims.h"
#include "ops/host_vector.h"

namespace encore::fuse {
namespace {

constexpr int kDeepest = 16;   // what computes a shape is no longer
constexpr int64_t kInt64 = 7;  // as Cast says it
constexpr int64_t kUnknown = -1;

// Operators whose first output has the dimensions of their first input.
constexpr std::string_view kSameShape[] = {"Abs",
                                           "Acos",
                                           "Acosh",
                                           "Asin",
                                           "Asinh",
                                           "Atan",
                                           "Atanh",
                                           "BatchNormalization",
                                           "BitwiseNot",
                                           "Cast",
                                           "Ceil",
                                           "Celu",
                                           "Clip",
                                           "Cos",
                                           "Cosh",
                                           "CumSum",
                                           "DequantizeLinear",
                                           "Dropout",
                                           "Elu",
                                           "Erf",
                                           "Exp",
                                           "Floor",
                                           "Gelu",
                                           "GroupNormalization",
                                           "HardSigmoid",
                                           "HardSwish",
                                           "Hardmax",
                                           "Identity",
                                           "InstanceNormalization",
                                           "IsInf",
                                           "IsNaN",
                                           "LRN",
                                           "LayerNormalization",
                                           "LeakyRelu",
                                           "Log",
                                           "LogSoftmax",
                                           "Mish",
                                           "Neg",
                                           "Not",
                                           "QuantizeLinear",
                                           "RMSNormalization",
                                           "Reciprocal",
                                           "Relu",
                                           "Round",
                                           "ScatterND",
                                           "Selu",
                                           "Shrink",
                                           "Sigmoid",
                                           "Sign",
                                           "Sin",
                                           "Sinh",
                                           "Softmax",
                                           "Softplus",
                                           "Softsign",
                                           "Sqrt",
                                           "Swish",
                                           "Tan",
                                           "Tanh",
                                           "ThresholdedRelu",
                                           "Trilu"};
constexpr std::string_view kBroadcasting[] = {"Add",  "And",         "Div",   "Equal", "Greater", "GreaterOrEqual",
                                              "Less", "LessOrEqual", "Max",   "Min",   "Mul",     "Or",
                                              "Pow",  "Sub",         "Where", "Xor"};

// Nothing if a number is none of a shape's: it would stand for a name.
std::optional<Dims> as_symbols(const Dims& numbers) {
  Dims made;
  for (int64_t number : numbers) {
    if (number < -1) return std::nullopt;
    made.push_back({number});
  }
  return made;
}

Dims broadcast_dims(Dims made, Dims other) {
  if (made.size() < other.size()) std::swap(made, other);
  for (size_t i = 1; i <= other.size(); ++i) {
    int64_t &one = made[made.size() - i], two = other[other.size() - i];
    if (one == two || two == 1) continue;
    // Of two different ones one has to be 1, so that a number above is what both become.
    if (one == 1 || two > 1)
      one = two;
    else if (one <= 1)
      one = kUnknown;
  }
  return made;
}

}  // namespace

bool are_numbers(const Dims& dims) {
  return std::ranges::all_of(dims, [](int64_t dim) { return dim >= 0; });
}

std::optional<size_t> counted_from_first(int64_t axis, size_t rank) {
  if (axis < 0) axis += int64_t(rank);
  return axis < 0 || axis >= int64_t(rank) ? std::nullopt : std::optional(size_t(axis));
}

// Version 7 is the first that broadcasts as today.
bool broadcasts(const NodeInfo& info) {
  return info.domain().empty() && info.since_version() >= 7 &&
         std::ranges::find(kBroadcasting, std::string_view(info.op_type())) != std::end(kBroadcasting);
}

size_t clamped(int64_t at, size_t size) {
  return size_t(std::clamp<int64_t>(at < 0 ? at + int64_t(size) : at, 0, int64_t(size)));
}

std::optional<Dims> ShapeSymbols::constants(const Step& step, size_t input) const {
  const Tensor* const constant = match_.plan().constant(step, input);
  if (!constant || constant->shape.rank() > 1 || (constant->type != Type::i64 && constant->type != Type::i32))
    return std::nullopt;
  return ops::host_ints(*constant, "a shape");
}

// A Slice of neighbours.
bool ShapeSymbols::is_along_the_first(const Step& step) const {
  const auto is = [&](size_t input, int64_t number) {
    return step.inputs.size() <= input || step.inputs[input] < 0 || constants(step, input) == std::vector{number};
  };
  return is(3, 0) && is(4, 1);
}

void infer_dims(Match& match, int step) {
  const Symbols& symbols = *match.plan().symbols;
  const auto finish = [&](int value, std::optional<Dims> dims) {
    if (!dims) return;
    for (int64_t& dim : *dims)
      if (dim == kUnknown) dim = match.add_symbol();
    match.set_dims(value, std::move(*dims));
  };
  for (int value : match.step(step).inputs) {
    if (value < 0) continue;
    const Tensor* const constant = match.value(value).constant;  // of a scalar nobody tells that it has no dimensions
    finish(value,
           constant ? Dims(constant->shape.dims().begin(), constant->shape.dims().end()) : match.value(value).dims);
  }
  for (size_t output = 0; output < match.step(step).outputs.size(); ++output) {
    const int value = match.step(step).outputs[output];
    if (value < 0) continue;
    std::optional<Dims> made = match.value(value).dims;
    const bool is_open = !made || !are_numbers(*made);
    // What is after a node's first output has other dimensions, as a rule.
    if (is_open && (output == 0 || is_onnx(*match.step(step).node, "Split") ||
                    is_onnx(*match.step(step).node, "DynamicQuantizeLinear")))
      if (auto found = ShapeSymbols(match).made_by(match.step(step), output);
          found && (!made || made->size() == found->size())) {
        if (!made) made.emplace(found->size(), kUnknown);
        // A name that is handed on says more than one of the value's own, of which tools invent many.
        for (size_t i = 0; i < made->size(); ++i)
          if (const int64_t dim = (*found)[i], own = (*made)[i];
              own < 0 && dim != kUnknown && (!symbols.has_name(own) || dim >= 0 || symbols.has_name(dim)))
            (*made)[i] = dim;
      }
    finish(value, std::move(made));
  }
}

std::optional<Dims> ShapeSymbols::made_by(const Step& step, size_t output) const {
  const NodeInfo& info = *step.node;
  const auto is_one_of = [&](const auto& names) {
    return info.domain().empty() && std::ranges::find(names, std::string_view(info.op_type())) != std::end(names);
  };
  if (step.inputs.empty() || step.inputs[0] < 0) return std::nullopt;
  if (is_one_of(kSameShape)) return dims(step.inputs[0]);
  if (broadcasts(info)) return broadcast(step);
  if (is_onnx(info, "DynamicQuantizeLinear")) return output == 0 ? dims(step.inputs[0]) : Dims();
  if (is_onnx(info, "MatMul") || is_onnx(info, "MatMulInteger")) return product(step);
  if (is_onnx(info, "Gemm")) return product_of_matrices(step);
  if (is_onnx(info, "Range")) return counted(step);
  if (is_onnx(info, "Split")) return split(step, output);
  if (is_onnx(info, "Flatten")) return flattened(step);
  if (is_onnx(info, "Squeeze") || (info.domain().empty() && info.op_type().starts_with("Reduce"))) return reduced(step);
  if (is_onnx(info, "ArgMax") || is_onnx(info, "ArgMin")) return reduced(step);
  if (is_onnx(info, "Reshape")) return reshaped(step);
  if (is_onnx(info, "Gather")) return gathered(step);
  if (is_onnx(info, "GatherElements")) return dims(step.inputs[1]);
  if (is_onnx(info, "Expand")) return expanded(step);
  if (is_onnx(info, "Tile") && info.since_version() >= 6) return repeated(step);
  if (is_onnx(info, "ConstantOfShape")) return held(step, 0);
  if (is_onnx(info, "Unsqueeze")) return unsqueezed(step);
  if (is_onnx(info, "Slice")) return sliced(step);
  if (is_onnx(info, "Concat")) return concatenated(step);
  const auto& before = dims(step.inputs[0]);
  if (!is_onnx(info, "Transpose"))
    return before && info.domain().empty()
               ? window_dims(info, *before,
                             step.inputs.size() > 1 && step.inputs[1] >= 0 ? dims(step.inputs[1]) : std::nullopt)
               : std::nullopt;
  const auto order = info.find_ints("perm");
  if (!before || !order || order->size() != before->size()) return std::nullopt;
  Dims made;
  for (int64_t axis : *order) {
    if (axis < 0 || size_t(axis) >= before->size()) return std::nullopt;
    made.push_back((*before)[size_t(axis)]);
  }
  return made;
}

std::optional<Dims> ShapeSymbols::broadcast(const Step& step) const {
  Dims made;
  for (size_t input = 0; input < step.inputs.size(); ++input) {
    const int value = step.inputs[input];
    if (value < 0 || (!dims(value) && !is_scalar(step, input))) return std::nullopt;
    made = broadcast_dims(std::move(made), dims(value).value_or(Dims()));
  }
  return made;
}

std::optional<Dims> ShapeSymbols::expanded(const Step& step) const {
  const auto wanted = held(step, 1);
  const bool is_known = dims(step.inputs[0]) || is_scalar(step, 0);
  if (!wanted || !is_known) return std::nullopt;
  return broadcast_dims(dims(step.inputs[0]).value_or(Dims()), *wanted);
}

// A dimension is known that is there once, or whose number is repeated so often.
std::optional<Dims> ShapeSymbols::repeated(const Step& step) const {
  auto made = dims(step.inputs[0]);
  const auto times = held(step, 1);
  if (!made || !times || made->size() != times->size()) return std::nullopt;
  for (size_t i = 0; i < made->size(); ++i) {
    int64_t& dim = (*made)[i];
    const int64_t count = (*times)[i];
    if (count == 1) continue;
    if (dim == 1 && count != kUnknown)
      dim = count;
    else if (dim < kUnknown && count > 1)
      dim = match_.plan().symbols->times(dim, count);
    else if (dim < 0 || count < 0 || __builtin_mul_overflow(dim, count, &dim))
      dim = kUnknown;
  }
  return made;
}

// A scalar's dimensions are told as unknown ones.
bool ShapeSymbols::is_scalar(const Step& step, size_t input) const {
  const Tensor* const constant = match_.plan().constant(step, input);
  return constant && constant->shape.rank() == 0;
}

std::optional<Dims> ShapeSymbols::product(const Step& step) const {
  const auto &a = dims(step.inputs[0]), &b = dims(step.inputs[1]);
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  if (b->size() == 2) {
    Dims made = *a;
    made.back() = b->back();
    return made;
  }
  if (a->size() != b->size()) return std::nullopt;
  Dims made = *a;
  for (size_t i = 0; i + 2 < made.size(); ++i)
    if (made[i] == 1)
      made[i] = (*b)[i];
    else if ((*b)[i] != made[i] && (*b)[i] != 1)
      made[i] = kUnknown;
  made.back() = b->back();
  return made;
}

std::optional<Dims> ShapeSymbols::product_of_matrices(const Step& step) const {
  const auto &a = dims(step.inputs[0]), &b = dims(step.inputs[1]);
  if (!a || !b || a->size() != 2 || b->size() != 2) return std::nullopt;
  return Dims{(*a)[step.node->get_int("transA", 0) != 0], (*b)[step.node->get_int("transB", 0) == 0]};
}

std::optional<Dims> ShapeSymbols::reshaped(const Step& step) const {
  const auto& before = dims(step.inputs[0]);
  auto made = target(step);
  if (!made || !before) return made;
  // What is left for one dimension, if all others are known in numbers, or are there before.
  const auto open = std::ranges::find(*made, kUnknown);
  if (open == made->end()) return made;
  Symbols& symbols = *match_.plan().symbols;
  int64_t all = 1, others = 1;
  Dims unmatched;
  // A dimension as a number times another one, which is a symbol, or none.
  const auto apart = [&](int64_t dim) {
    return dim > 0 ? Symbols::Multiple{1, dim} : dim < kUnknown ? symbols.parts(dim) : Symbols::Multiple{dim, 1};
  };
  for (int64_t dim : *before) {
    const auto [symbol, count] = apart(dim);
    if (symbol <= 0) unmatched.push_back(symbol);
    if (__builtin_mul_overflow(all, count, &all)) return made;
  }
  for (int64_t dim : *made) {
    if (dim == kUnknown) continue;
    const auto [symbol, count] = apart(dim);
    if (__builtin_mul_overflow(others, count, &others)) return made;
    if (symbol > 0) continue;
    const auto same = std::ranges::find(unmatched, symbol);
    if (same == unmatched.end()) return made;
    unmatched.erase(same);
  }
  if (all % others != 0) return made;
  if (unmatched.empty())
    *open = all / others;
  else if (unmatched.size() == 1 && (unmatched[0] < kUnknown || all == others))
    *open = symbols.times(unmatched[0], all / others);
  return made;
}

std::optional<Dims> ShapeSymbols::target(const Step& reshape) const {
  std::vector<int> steps;
  return target(reshape, steps);
}
std::optional<Dims> ShapeSymbols::target(const Step& reshape, std::vector<int>& steps) const {
  const NodeInfo& info = *reshape.node;
  if (info.since_version() < 5) return std::nullopt;
  std::optional<Dims> wanted = held(reshape, 1, steps, 0);
  const auto& before = dims(reshape.inputs[0]);
  for (size_t i = 0; wanted && i < wanted->size(); ++i)
    if ((*wanted)[i] == 0) {  // a dimension that stays
      if (info.get_int("allowzero", 0) != 0 || !before || i >= before->size()) return std::nullopt;
      (*wanted)[i] = (*before)[i];
    }
  return wanted;
}

std::optional<Dims> ShapeSymbols::gathered(const Step& step) const {
  const auto &from = dims(step.inputs[0]), &places = dims(step.inputs[1]);
  if (!from || from->empty() || (!places && !is_scalar(step, 1))) return std::nullopt;
  const auto axis = counted_from_first(step.node->get_int("axis", 0), from->size());
  if (!axis) return std::nullopt;
  Dims made = *from;
  made.erase(made.begin() + ptrdiff_t(*axis));
  if (places) made.insert(made.begin() + ptrdiff_t(*axis), places->begin(), places->end());
  return made;
}

std::optional<Dims> ShapeSymbols::unsqueezed(const Step& step) const {
  const auto& from = dims(step.inputs[0]);
  const auto axes = step.inputs.size() > 1 ? constants(step, 1) : step.node->find_ints("axes");
  if (!from || !axes) return std::nullopt;
  const int64_t rank = int64_t(from->size() + axes->size());
  std::vector<bool> is_new(static_cast<size_t>(rank));
  for (int64_t axis : *axes) {
    if (axis < -rank || axis >= rank || is_new[size_t(axis < 0 ? axis + rank : axis)]) return std::nullopt;
    is_new[size_t(axis < 0 ? axis + rank : axis)] = true;
  }
  Dims made;
  for (size_t i = 0, next = 0; i < is_new.size(); ++i) made.push_back(is_new[i] ? 1 : (*from)[next++]);
  return made;
}

// Of one input each dimension but its own is what all have.
std::optional<Dims> ShapeSymbols::concatenated(const Step& step) const {
  auto made = dims(step.inputs[0]);
  const auto along = made ? counted_from_first(step.node->get_int("axis", 0), made->size()) : std::nullopt;
  if (!along) return std::nullopt;
  for (size_t i = 1; i < step.inputs.size(); ++i) {
    const auto& other = step.inputs[i] < 0 ? std::nullopt : dims(step.inputs[i]);
    if (!other || other->size() != made->size()) return std::nullopt;
    int64_t &sum = (*made)[*along], part = (*other)[*along];
    if (sum < 0 || part < 0 || __builtin_add_overflow(sum, part, &sum)) sum = kUnknown;
  }
  return made;
}

// From zero, one by one.
std::optional<Dims> ShapeSymbols::counted(const Step& step) const {
  return held(step, 0) == Dims{0} && held(step, 2) == Dims{1} ? held(step, 1) : std::nullopt;
}

// Equal parts are told by their number, unless the last one is smaller.
std::optional<Dims> ShapeSymbols::split(const Step& step, size_t output) const {
  auto made = dims(step.inputs[0]);
  const auto along = made ? counted_from_first(step.node->get_int("axis", 0), made->size()) : std::nullopt;
  if (!along) return std::nullopt;
  int64_t& dim = (*made)[*along];
  const auto count = int64_t(step.outputs.size());
  const bool has_input = step.inputs.size() > 1 && step.inputs[1] >= 0;
  const auto sizes = has_input ? constants(step, 1) : step.node->find_ints("split");
  if (sizes && sizes->size() == step.outputs.size() && (*sizes)[output] >= 0)
    dim = (*sizes)[output];
  else if (!has_input && !sizes && dim >= 0 && dim % count == 0)
    dim /= count;
  else
    dim = kUnknown;
  return made;
}

std::optional<Dims> ShapeSymbols::flattened(const Step& step) const {
  const auto& from = dims(step.inputs[0]);
  const int64_t axis = step.node->get_int("axis", 1);
  if (!from || axis < -int64_t(from->size()) || axis > int64_t(from->size())) return std::nullopt;
  const auto middle = from->begin() + (axis < 0 ? axis + int64_t(from->size()) : axis);
  const auto product = [](Dims some) {
    std::erase(some, 1);
    return some.empty() ? 1 : some.size() == 1 ? some[0] : kUnknown;
  };
  return Dims{product({from->begin(), middle}), product({middle, from->end()})};
}

std::optional<Dims> ShapeSymbols::reduced(const Step& step) const {
  const auto& from = dims(step.inputs[0]);
  const NodeInfo& info = *step.node;
  const bool has_input = step.inputs.size() > 1 && step.inputs[1] >= 0, is_arg = info.op_type().starts_with("Arg");
  const bool is_squeeze = is_onnx(info, "Squeeze");
  auto axes = is_arg      ? std::optional(Dims{info.get_int("axis", 0)})
              : has_input ? constants(step, 1)
                          : info.find_ints("axes");
  if (!from || (!axes && has_input)) return std::nullopt;
  if (!axes || axes->empty()) {  // all that there are, or none
    if (is_squeeze) return std::nullopt;
    if (info.get_int("noop_with_empty_axes", 0) != 0) return from;
    axes.emplace(from->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  std::set<size_t> along;
  for (int64_t axis : *axes) {
    const auto own = counted_from_first(axis, from->size());
    if (!own) return std::nullopt;
    along.insert(*own);
  }
  const bool keeps = !is_squeeze && info.get_int("keepdims", 1) == 1;
  Dims made;
  for (size_t i = 0; i < from->size(); ++i)
    if (!along.contains(i))
      made.push_back((*from)[i]);
    else if (keeps)
      made.push_back(1);
  return made;
}

// What it leaves alone, and what of numbers is left.
std::optional<Dims> ShapeSymbols::sliced(const Step& step) const {
  const auto& from = dims(step.inputs[0]);
  const auto has = [&](size_t input) { return step.inputs.size() > input && step.inputs[input] >= 0; };
  const auto axes = has(3) ? constants(step, 3) : step.node->find_ints("axes");
  if (!from || !axes) return std::nullopt;
  const auto first = has(1) ? held(step, 1) : std::nullopt, last = has(2) ? held(step, 2) : std::nullopt,
             by = has(4) ? held(step, 4) : Dims(axes->size(), 1);
  Dims made = *from;
  for (size_t i = 0; i < axes->size(); ++i) {
    const auto own = counted_from_first((*axes)[i], made.size());
    if (!own) return std::nullopt;
    const auto number = [&](const std::optional<Dims>& list) {
      return list && list->size() == axes->size() ? (*list)[i] : kUnknown;
    };
    const int64_t dim = made[*own], begin = number(first), end = std::min(number(last), dim);
    made[*own] = begin >= 0 && end >= begin && number(by) == 1 ? end - begin : kUnknown;
  }
  return made;
}

std::optional<Dims> ShapeSymbols::contents(int value, std::vector<int>& steps, int depth) const {
  const int from = match_.producer(value);
  if (from < 0 || depth == kDeepest || match_.step(from).runs == Runs::elsewhere) return std::nullopt;
  steps.push_back(from);
  return computed(match_.step(from), steps, depth + 1);
}

// Of numbers that are equal to others or not, as exporters put ones for -1 in the target of an Expand.
std::optional<Dims> ShapeSymbols::chosen(const Step& where, std::vector<int>& steps, int depth) const {
  const int from = match_.producer(where.inputs[0]);
  if (from < 0 || depth == kDeepest || !is_onnx(*match_.step(from).node, "Equal")) return std::nullopt;
  steps.push_back(from);
  const Step& equal = match_.step(from);
  const auto a = held(equal, 0, steps, depth + 1), b = held(equal, 1, steps, depth + 1);
  const auto yes = held(where, 1, steps, depth), no = held(where, 2, steps, depth);
  if (!a || !b || !yes || !no) return std::nullopt;
  const size_t count = std::max({a->size(), b->size(), yes->size(), no->size()});
  Dims made;
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](const Dims& list) { return list.size() == 1 ? list[0] : list.at(i); };
    for (const Dims* list : {&*a, &*b, &*yes, &*no})
      if (list->size() != 1 && list->size() != count) return std::nullopt;
    const int64_t one = at(*a), two = at(*b);
    // A dimension that has a name is no number below zero, and may be any other.
    const auto is_number = [](int64_t symbol) { return symbol >= kUnknown; };
    if (is_number(one) != is_number(two) && one != kUnknown && two != kUnknown) return std::nullopt;
    if (!is_number(one) && !is_number(two) && one != two) return std::nullopt;
    made.push_back(one == two ? at(*yes) : at(*no));
  }
  return made;
}

std::optional<Dims> ShapeSymbols::held(const Step& step, size_t input, std::vector<int>& steps, int depth) const {
  if (const auto numbers = constants(step, input)) return as_symbols(*numbers);
  return contents(step.inputs[input], steps, depth);
}

std::optional<Dims> ShapeSymbols::computed(const Step& step, std::vector<int>& steps, int depth) const {
  const NodeInfo& info = *step.node;
  const auto of = [&](size_t input) { return held(step, input, steps, depth); };
  if (is_onnx(info, "Shape")) {
    const auto& all = dims(step.inputs[0]);
    if (!all || std::ranges::find(*all, kUnknown) != all->end()) return std::nullopt;  // -1 is a number here
    const size_t first = clamped(info.get_int("start", 0), all->size());
    const size_t last = clamped(info.get_int("end", int64_t(all->size())), all->size());
    if (first >= last) return Dims();
    return Dims(all->begin() + ptrdiff_t(first), all->begin() + ptrdiff_t(last));
  }
  if (is_onnx(info, "Identity") || (is_onnx(info, "Cast") && info.get_int("to", 0) == kInt64)) return of(0);
  // All dimensions but the first are one, so that the first axis says all.
  if (is_onnx(info, "Squeeze") || is_onnx(info, "Unsqueeze")) {
    auto one = of(0);
    return one && one->size() == 1 ? one : std::nullopt;
  }
  if (is_onnx(info, "Reshape")) {  // a list that stays one
    const auto wanted = constants(step, 1);
    return wanted && wanted->size() == 1 ? of(0) : std::nullopt;
  }
  if (is_onnx(info, "Where")) return chosen(step, steps, depth);
  if (is_onnx(info, "Mul")) {
    const auto a = of(0), b = of(1);
    if (!a || !b || a->size() != 1 || b->size() != 1) return std::nullopt;
    const int64_t one = (*a)[0], two = (*b)[0];
    if (one == 1) return b;
    if (two == 1) return a;
    int64_t made = 0;
    if (one < kUnknown && two > 1) return Dims{match_.plan().symbols->times(one, two)};
    if (two < kUnknown && one > 1) return Dims{match_.plan().symbols->times(two, one)};
    if (one < 1 || two < 1 || __builtin_mul_overflow(one, two, &made)) return std::nullopt;
    return std::vector{made};
  }
  if (is_onnx(info, "Div")) {
    const auto a = of(0), b = of(1);
    if (!a || !b || a->size() != 1 || b->size() != 1 || (*b)[0] < 1) return std::nullopt;
    const int64_t all = (*a)[0], by = (*b)[0];
    if (all >= 0) return Dims{all / by};
    const auto [symbol, count] = match_.plan().symbols->parts(all);
    if (all == kUnknown || count % by != 0) return std::nullopt;
    return Dims{count == by ? symbol : match_.plan().symbols->times(symbol, count / by)};
  }
  if (is_onnx(info, "Add") || is_onnx(info, "Sub")) {
    const auto a = of(0), b = of(1);
    if (!a || !b || a->size() != 1 || b->size() != 1) return std::nullopt;
    if (*b == Dims{0}) return a;
    if (is_onnx(info, "Sub")) return *a == *b ? std::optional(Dims{0}) : std::nullopt;
    if (*a == Dims{0}) return b;
    int64_t made = 0;
    const bool are_numbers = (*a)[0] > 0 && (*b)[0] > 0 && !__builtin_add_overflow((*a)[0], (*b)[0], &made);
    return are_numbers ? std::optional(Dims{made}) : std::nullopt;
  }
  if (is_onnx(info, "Concat") && info.get_int("axis", -1) == 0) {
    Dims made;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const auto part = of(i);
      if (!part) return std::nullopt;
      made.insert(made.end(), part->begin(), part->end());
    }
    return made;
  }
  if (is_onnx(info, "Gather") && info.get_int("axis", 0) == 0) {
    const auto all = of(0);
    const auto places = constants(step, 1);
    if (!all || !places) return std::nullopt;
    Dims made;
    for (int64_t at : *places) {
      if (at < 0) at += int64_t(all->size());
      if (at < 0 || at >= int64_t(all->size())) return std::nullopt;
      made.push_back((*all)[size_t(at)]);
    }
    return made;
  }
  if (is_onnx(info, "Slice") && step.inputs.size() > 2 && is_along_the_first(step)) {
    const auto all = of(0);
    const auto first = constants(step, 1), last = constants(step, 2);
    if (!all || !first || !last || first->size() != 1 || last->size() != 1) return std::nullopt;
    const size_t from = clamped((*first)[0], all->size()), to = clamped((*last)[0], all->size());
    if (from >= to) return Dims();
    return Dims(all->begin() + ptrdiff_t(from), all->begin() + ptrdiff_t(to));
  }
  return std::nullopt;
}

}  // namespace encore::fuse
