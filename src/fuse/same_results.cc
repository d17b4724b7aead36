// Passes that make no difference to results.
#include <algorithm>
#include <limits>
#include <span>

#include "fuse/passes.h"
#include "fuse/shape_symbols.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

// Whether each number of the one type is one of the other's.
bool holds(Type wide, Type narrow) {
  using ops::Types;
  switch (narrow) {
    case Type::f16:
    case Type::bf16: return (Types{Type::f32, Type::f64}).has(wide);
    case Type::f32: return wide == Type::f64;
    case Type::i8: return (Types{Type::i16, Type::i32, Type::i64}).has(wide);
    case Type::u8: return (Types{Type::i16, Type::u16, Type::i32, Type::u32, Type::i64, Type::u64}).has(wide);
    case Type::i16: return (Types{Type::i32, Type::i64}).has(wide);
    case Type::u16: return (Types{Type::i32, Type::u32, Type::i64, Type::u64}).has(wide);
    case Type::i32: return (Types{Type::i64, Type::f64}).has(wide);
    case Type::u32: return (Types{Type::i64, Type::u64, Type::f64}).has(wide);
    default: return false;
  }
}

// Makes the step's result of a value that is two steps before.
void skip_to(Match& match, int s, int x, Operator op) {
  const int between = match.producer(match.step(s).inputs[0]);
  match.replace({s}, match.plan().step(std::move(op), match.node(s).name(), {x}, match.step(s).outputs));
  drop_unread(match, between);
}

// All attributes are known, and the same.
bool have_same_attributes(const NodeInfo& a, const NodeInfo& b) {
  const ops::Attributes ours = a.attributes();
  return ours == b.attributes() && std::ranges::none_of(ours, [](const auto& one) {
           return std::holds_alternative<std::monostate>(one.second) ||
                  std::holds_alternative<const Tensor*>(one.second);
         });
}

bool pads_nothing(const Match& match, int s) {
  if (!match.is(s, "Pad")) return false;
  const auto pads = match.node(s).since_version() < 11 ? match.node(s).find_ints("pads")
                                                       : ShapeSymbols(match).constants(match.step(s), 1);
  return pads && std::ranges::all_of(*pads, [](int64_t count) { return count == 0; });
}

bool joins_nothing(const Match& match, int s) {
  if (!match.is(s, "Concat") || match.step(s).inputs.size() != 1) return false;
  const auto rank = match.rank(match.step(s).inputs[0]);
  return rank && counted_from_first(match.node(s).get_int("axis", 1), *rank);
}

// From the first element of an axis to beyond the last.
bool cuts_nothing(const Match& match, int s) {
  if (!match.is(s, "Slice") || match.node(s).since_version() < 10) return false;
  const ShapeSymbols symbols(match);
  const Step& step = match.step(s);
  const auto& dims = match.value(step.inputs[0]).dims;
  const auto has = [&](size_t input) { return step.inputs.size() > input && step.inputs[input] >= 0; };
  const auto begin = symbols.constants(step, 1), end = symbols.held(step, 2), axes = symbols.constants(step, 3),
             by = has(4) ? symbols.constants(step, 4) : Dims(axes ? axes->size() : 0, 1);
  if (!dims || !begin || !end || !axes || !by || begin->size() != axes->size() || end->size() != axes->size() ||
      by->size() != axes->size())
    return false;
  for (size_t i = 0; i < axes->size(); ++i) {
    const auto axis = counted_from_first((*axes)[i], dims->size());
    if (!axis || (*begin)[i] != 0 || (*by)[i] != 1) return false;
    const int64_t dim = (*dims)[*axis];
    if ((*end)[i] != std::numeric_limits<int64_t>::max() && (dim < 0 || (*end)[i] < dim)) return false;
  }
  return true;
}

// Every dimension is as large afterwards.
bool resizes_nothing(const Match& match, int s) {
  if (!match.is(s, "Resize") && !match.is(s, "Upsample")) return false;
  const Step& step = match.step(s);
  const NodeInfo& info = *step.node;
  const bool is_first = info.op_type() == "Upsample" || info.since_version() == 10;
  if (info.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize") return false;
  const auto& dims = match.value(step.inputs[0]).dims;
  const bool has_sizes = !is_first && info.has_input(3);
  if (const auto sizes = has_sizes ? ShapeSymbols(match).held(step, 3) : std::nullopt; sizes && !sizes->empty()) {
    const auto axes = info.find_ints("axes");
    if (!dims || sizes->size() != (axes ? axes->size() : dims->size())) return false;
    for (size_t i = 0; i < sizes->size(); ++i) {
      const auto axis = axes ? counted_from_first((*axes)[i], dims->size()) : std::optional(i);
      if (!axis || (*sizes)[i] == -1 || (*sizes)[i] != (*dims)[*axis]) return false;
    }
    return true;
  }
  const int input = is_first ? 1 : 2;
  const Tensor* const scales = info.has_input(input) ? info.constant_input(input) : nullptr;
  return scales && scales->type == Type::f32 && scales->count() > 0 &&
         std::ranges::all_of(std::span(scales->as<const float>(), size_t(scales->count())),
                             [](float scale) { return scale == 1; });
}

bool reshapes_nothing(const Match& match, int s) {
  if (!match.is(s, "Reshape") && !match.is(s, "Flatten")) return false;
  const auto &from = match.value(match.step(s).inputs[0]).dims, &to = match.value(match.step(s).outputs[0]).dims;
  return from && from == to && std::ranges::count(*from, -1) == 0;
}

bool is_unread(const Match& match, int s) {
  return std::ranges::all_of(match.step(s).outputs,
                             [&](int v) { return v < 0 || (match.readers(v).empty() && !match.value(v).is_output); });
}

// A Split's parts.
void leave_out_unread(Match& match, int s) {
  if (!match.is(s, "Split")) return;
  std::vector<int> outputs = match.step(s).outputs;
  for (int& v : outputs)
    if (v >= 0 && match.readers(v).empty() && !match.value(v).is_output) v = -1;
  const NodeInfo& node = match.node(s);
  if (outputs != match.step(s).outputs)
    match.replace({s}, match.plan().step(operator_of(node), node.name(), match.step(s).inputs, outputs));
}

}  // namespace

bool draws(const NodeInfo& info) {
  constexpr const char* kDrawing[] = {"Bernoulli",        "BiasDropout",      "BitmaskBiasDropout", "BitmaskDropout",
                                      "Dropout",          "Multinomial",      "RandomNormal",       "RandomUniform",
                                      "RandomNormalLike", "RandomUniformLike"};
  return std::ranges::find(kDrawing, info.op_type()) != std::end(kDrawing);
}

void drop_casts(Match& match, int second) {
  const bool asks = match.is(second, "IsInf") || match.is(second, "IsNaN");
  if (!asks && !match.is(second, "Cast")) return;
  const int wide = match.step(second).inputs[0], first = match.maker(wide, "Cast");
  if (first < 0) return;
  const int x = match.step(first).inputs[0];
  const Type type = match.value(x).type;
  if (!holds(match.value(wide).type, type)) return;
  if (asks && (ops::kHalves | ops::Types{Type::f32}).has(type))
    skip_to(match, second, x, {ops::kOnnx, match.node(second).op_type(), 20, match.node(second).attributes()});
  else if (!asks && match.value(match.step(second).outputs[0]).type == type)
    skip_to(match, second, x, {ops::kOnnx, "Identity", 16});
}

void join_transposes(Match& match, int second) {
  const int first = match.is(second, "Transpose") ? match.maker(match.step(second).inputs[0], "Transpose") : -1;
  const auto before = first < 0 ? std::nullopt : match.node(first).find_ints("perm");
  const auto after = before ? match.node(second).find_ints("perm") : std::nullopt;
  if (!after || after->size() != before->size()) return;
  std::vector<int64_t> order;
  for (int64_t axis : *after) {
    if (axis < 0 || size_t(axis) >= before->size()) return;
    order.push_back((*before)[size_t(axis)]);
  }
  const int x = match.step(first).inputs[0];
  if (std::ranges::is_sorted(order)) return skip_to(match, second, x, {ops::kOnnx, "Identity", 16});
  skip_to(match, second, x, {ops::kOnnx, "Transpose", 13, {{"perm", std::move(order)}}});
}

void drop_identity(Match& match, int identity) {
  if (!match.is(identity, "Identity") && !pads_nothing(match, identity) && !cuts_nothing(match, identity) &&
      !joins_nothing(match, identity) && !resizes_nothing(match, identity) && !reshapes_nothing(match, identity))
    return;
  const int x = match.step(identity).inputs[0], y = match.step(identity).outputs[0];
  if (match.value(y).is_output) return;
  match.substitute(y, x);
  drop_unread(match, identity);
}

void share_result(Match& match, int second) {
  constexpr size_t kMostReaders = 64;
  const Step& step = match.step(second);
  const NodeInfo& info = *step.node;
  if (!match.is_there(second) || !info.domain().empty() || draws(info) || step.inputs.empty() || step.inputs[0] < 0)
    return;
  const std::vector<int>& readers = match.readers(step.inputs[0]);
  const auto is_same = [&](int s) {
    const Step& other = match.step(s);
    return s < second && match.is(s, info.op_type().c_str()) && other.inputs == step.inputs &&
           other.node->since_version() == info.since_version() && other.outputs.size() == step.outputs.size() &&
           have_same_attributes(*other.node, info);
  };
  if (readers.size() > kMostReaders) return;
  const auto first = std::ranges::find_if(readers, is_same);
  if (first == readers.end()) return;
  const std::vector<int> had = match.step(*first).outputs, made = step.outputs;
  for (size_t i = 0; i < made.size(); ++i)
    if (made[i] >= 0 && (had[i] < 0 || match.value(made[i]).is_output)) return;
  for (size_t i = 0; i < made.size(); ++i)
    if (made[i] >= 0) match.substitute(made[i], had[i]);
  drop_unread(match, second);
}

void drop_unread(Match& match, int step) {
  std::vector<int> open{step};
  while (!open.empty()) {
    const int s = open.back();
    open.pop_back();
    if (!match.step(s).node) continue;
    if (!is_unread(match, s)) {
      leave_out_unread(match, s);
      continue;
    }
    const std::vector<int> inputs = match.step(s).inputs;
    match.remove(s);
    for (int v : inputs)
      if (const int from = match.producer(v); from >= 0) open.push_back(from);
  }
}

}  // namespace encore::fuse
