#include "fuse/padded_heads.h"

#include <algorithm>
#include <cstring>

#include "fuse/joined_products.h"
#include "fuse/links.h"
#include "fuse/passes.h"
#include "ops/registry.h"

namespace encore::fuse {
namespace {

using ops::ViewStep;

constexpr int64_t kPack = 8, kLargestHead = 256;

// The steps if heads are larger: columns lie in heads from the first reshape to these on, whose last axis then stays
// whole. Nothing if it doesn't, or is not the last one in the end.
std::optional<std::vector<ViewStep>> with_larger_heads(std::vector<ViewStep> steps, size_t rank, int64_t columns,
                                                       int64_t size, int64_t padded) {
  bool is_cut = false;     // into heads
  size_t axis = rank - 1;  // of columns, or of a head's
  for (ViewStep& step : steps) {
    auto& numbers = step.numbers;
    const auto counted = [&](int64_t given) { return counted_from_first(given, rank).value_or(rank); };
    switch (step.kind) {
      case ViewStep::transpose: {
        const auto to = std::ranges::find_if(numbers, [&](int64_t from) { return counted(from) == axis; });
        if (to == numbers.end() || numbers.size() != rank) return std::nullopt;
        axis = size_t(to - numbers.begin());
        break;
      }
      case ViewStep::reshape:
        if (axis != rank - 1 || numbers.empty()) return std::nullopt;
        rank = numbers.size(), axis = rank - 1;
        if (numbers.back() == size)
          numbers.back() = padded, is_cut = true;
        else if (numbers.back() == columns && !is_cut)
          numbers.back() = columns / size * padded;
        else
          return std::nullopt;
        break;
      case ViewStep::squeeze:
      case ViewStep::select: {
        const size_t count = step.kind == ViewStep::squeeze ? numbers.size() : 1;
        for (size_t i = 0; i < count; ++i)
          if (counted(numbers[i]) >= axis) return std::nullopt;
        axis -= count, rank -= count;
        break;
      }
      case ViewStep::slice:
        if (counted(numbers[0]) != axis) break;
        if (is_cut || numbers[1] % size != 0 || numbers[2] % size != 0 || numbers[3] != columns) return std::nullopt;
        columns = numbers[2];
        for (size_t i = 1; i < 4; ++i) numbers[i] = numbers[i] / size * padded;
        break;
      default: return std::nullopt;
    }
  }
  return is_cut && axis == rank - 1 ? std::optional(std::move(steps)) : std::nullopt;
}

// Each `size` rows or columns of a constant, and zeros behind: one is `bytes` long.
std::shared_ptr<OwnTensor> with_zeros(const Tensor& constant, int axis, int64_t size, int64_t padded) {
  std::vector<int64_t> dims(constant.shape.dims().begin(), constant.shape.dims().end());
  const size_t bytes = device::size_bytes(constant.type) * size_t(constant.shape.count(axis + 1, int(dims.size()))),
               each = bytes * size_t(size);
  dims[size_t(axis)] = dims[size_t(axis)] / size * padded;
  auto made = own_numbers(constant.type, ops::Shape(dims), {});
  auto* to = made->bytes.data();
  const auto* from = static_cast<const char*>(constant.data);
  for (const char* const end = from + constant.bytes(); from < end; from += each, to += bytes * size_t(padded))
    std::memcpy(to, from, each);
  return made;
}

std::optional<ConstantProduct> constant_product(const Match& match, int y) {
  const int made = match.maker(y);
  ConstantProduct found{made, -1, -1, y};
  if (match.is(made, "Add"))
    for (const size_t i : {0, 1})
      if (match.value(match.step(made).inputs[i]).is_constant) {
        const int rows = match.step(made).inputs[1 - i];
        found = {match.only_reader(rows) == made ? match.maker(rows) : -1, made, match.step(made).inputs[i], y};
      }
  const int64_t columns = match.is(found.product, "MatMul") && match.step(found.product).inputs.size() == 2
                              ? columns_of(match, match.step(found.product))
                              : 0;
  const auto rank = match.rank(y);
  if (columns == 0 || !rank || !match.value(match.step(found.product).inputs[1]).constant) return std::nullopt;
  if (found.bias >= 0 && (!is_constant_row(match, found.bias, columns, *rank) || !match.value(found.bias).constant))
    return std::nullopt;
  return found;
}

class Padding {
 public:
  Padding(Match& match, const PaddedHeads& heads) : match_(match), heads_(heads) {}

  // What the product makes, with larger heads.
  int columns(const ConstantProduct& of) {
    const Step product = match_.step(of.product);
    const int made = product.outputs[0], weights = constant(product.inputs[1]);
    int y = match_.add_like(made, kSuffix, larger(made));
    match_.insert(again(product, {product.inputs[0], weights}, y));
    if (of.sum < 0) return y;
    const int rows = y;
    y = match_.add_like(of.y, kSuffix, larger(of.y));
    match_.insert(again(match_.step(of.sum), {rows, constant(of.bias)}, y));
    return y;
  }
  int constant(int v, bool of_rows = false) {
    const Value value = match_.value(v);
    const int axis = of_rows ? 0 : value.constant->shape.rank() - 1;
    return match_.add_constant(value.name + kSuffix, with_zeros(*value.constant, axis, heads_.size, heads_.padded));
  }
  Dims larger(int v) const {
    Dims dims = *match_.value(v).dims;
    dims.back() = dims.back() / heads_.size * heads_.padded;
    return dims;
  }
  Step again(const Step& step, std::vector<int> inputs, int y) const {
    const NodeInfo& node = *step.node;
    return match_.plan().step(operator_of(node), node.name(), std::move(inputs), {y});
  }

  static constexpr const char* kSuffix = " with larger heads";

 private:
  Match& match_;
  const PaddedHeads& heads_;
};

}  // namespace

std::optional<PaddedHeads> padded_heads(const Match& match, const std::vector<int>& inputs,
                                        const ops::ViewedAttention& how, int y, const std::set<int>& inside) {
  const auto& dims = match.value(y).dims;
  if (match.plan().is_group || !ops::kHalves.has(match.value(y).type) || !dims || dims->size() < 3) return std::nullopt;
  const int64_t size = dims->back(), padded = (size + kPack - 1) / kPack * kPack, heads = (*dims)[dims->size() - 2];
  if (size < kPack || padded == size || padded > kLargestHead || heads < 1) return std::nullopt;
  PaddedHeads made{size, padded, {}, how, match.only_reader(y, "Reshape"), -1};
  std::vector<ViewStep>* const views[] = {&made.how.q, &made.how.k, &made.how.v};
  for (size_t i = 0; i < 3; ++i) {
    const auto from = constant_product(match, inputs[i]);
    if (!from || match.value(from->y).is_output ||
        !std::ranges::all_of(match.readers(from->y), [&](int s) { return inside.contains(s); }))
      return std::nullopt;
    const int64_t columns = columns_of(match, match.step(from->product));
    auto steps =
        columns % size == 0 ? with_larger_heads(*views[i], *match.rank(from->y), columns, size, padded) : std::nullopt;
    if (!steps) return std::nullopt;
    *views[i] = std::move(*steps);
    made.from.push_back(*from);
  }
  const auto& order = how.y_order;
  if (made.flat < 0 || order.empty() || order.back() != std::ssize(order) - 1) return std::nullopt;
  const int rows = match.step(made.flat).outputs[0];
  const auto& flat = match.value(rows).dims;
  made.product = match.only_reader(rows, "MatMul");
  if (!flat || flat->back() != heads * size || made.product < 0 || match.step(made.product).inputs[0] != rows ||
      match.step(made.product).inputs.size() != 2 || columns_of(match, match.step(made.product)) == 0)
    return std::nullopt;
  const Value& weights = match.value(match.step(made.product).inputs[1]);
  if (!weights.constant || weights.constant->shape.rank() != 2 || !Links::kept(flat, dims)) return std::nullopt;
  return made;
}

void pad_heads(Match& match, int attention) {
  if (attention < 0 || !match.step(attention).node || match.step(attention).node->op_type() != "Attention" ||
      match.step(attention).node->domain() != kFusions)
    return;
  const Step step = match.step(attention);
  const auto heads = padded_heads(match, step.inputs, ops::viewed_attention(*step.node), step.outputs[0], {attention});
  if (!heads) return;
  Padding padding(match, *heads);
  std::vector<int> inputs = step.inputs;
  for (size_t i = 0; i < 3; ++i) {
    const auto first = size_t(std::ranges::find(step.inputs, step.inputs[i]) - step.inputs.begin());
    inputs[i] = first < i ? inputs[first] : padding.columns(heads->from[i]);
  }
  const int y = step.outputs[0], rows = match.step(heads->flat).outputs[0];
  const int large_y = match.add_like(y, padding.kSuffix, padding.larger(y)),
            large_rows = match.add_like(rows, padding.kSuffix, padding.larger(rows));
  Step made = match.plan().step({kFusions, "Attention", 1, ops::attributes_of(heads->how)}, step.node->name(),
                                std::move(inputs), {large_y});
  made.make = step.make;
  const Step last = match.step(heads->product);
  Step product = padding.again(last, {large_rows, padding.constant(last.inputs[1], true)}, last.outputs[0]);
  Step flat = view(match, {{ViewStep::reshape, *Links::kept(match.value(large_rows).dims, match.value(large_y).dims)}},
                   match.node(heads->flat).name(), large_y, large_rows);
  std::vector<Step> all;
  all.push_back(std::move(made));
  all.push_back(std::move(flat));
  all.push_back(std::move(product));
  match.replace({attention, heads->flat, heads->product}, std::move(all));
  for (const ConstantProduct& from : heads->from)
    if (const int s = match.producer(from.y); s >= 0) drop_unread(match, s);
}

}  // namespace encore::fuse
