#include "ops/matmul/operand.h"

#include <algorithm>

#include "ops/reduce/reductions.h"
#include "ops/shape/strided.h"

namespace encore::ops {

const Operand::Dim* Operand::find(int label) const {
  for (const Dim& dim : dims)
    if (dim.label == label) return &dim;
  return nullptr;
}

int64_t Operand::stride(int label) const {
  const Dim* dim = find(label);
  return dim ? dim->stride : 0;
}

std::optional<int64_t> Operand::stride(const Labels& labels) const {
  std::optional<int64_t> innermost;
  int64_t next = 0;
  for (size_t i = labels.size(); i-- > 0;) {
    const Dim* dim = find(labels[i]);
    if (!dim) continue;
    if (innermost && dim->stride != next) return std::nullopt;
    if (!innermost) innermost = dim->stride;
    next = dim->stride * dim->size;
  }
  return innermost.value_or(1);
}

Labels Operand::by_stride() const {
  std::vector<Dim> sorted = dims;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  Labels labels;
  for (const Dim& dim : sorted) labels.push_back(dim.label);
  return labels;
}

Operand laid_out(void* data, const Labels& labels, const std::vector<const Operand*>& like) {
  Operand made{data, {}};
  int64_t stride = 1;
  for (size_t i = labels.size(); i-- > 0;)
    for (const Operand* other : like)
      if (const Operand::Dim* dim = other->find(labels[i])) {
        made.dims.insert(made.dims.begin(), {labels[i], dim->size, stride});
        stride = checked_product(stride, dim->size);
        break;
      }
  return made;
}

void copy(Context& context, Type type, const Operand& x, const Operand& to) {
  StridedCopy copy;
  for (const Operand::Dim& dim : to.dims) copy.add(dim.size, x.stride(dim.label), dim.stride);
  copy.run(context.stream(), x.data, const_cast<void*>(to.data), device::size_bytes(type));
}

Operand packed(Context& context, Type type, const Operand& x, const Labels& order) {
  void* data = context.scratch(size_t(checked_product(count_of(x), int64_t(device::size_bytes(type)))));
  const Operand made = laid_out(data, order, {&x});
  copy(context, type, x, made);
  return made;
}

Operand summed(Context& context, Type type, const Operand& x, const Labels& labels) {
  if (labels.empty()) return x;
  // As it lies, if nothing lies between its elements.
  Labels order = x.by_stride();
  const bool dense = x.stride(order) == 1;
  const auto is_summed = [&](int label) { return std::count(labels.begin(), labels.end(), label) > 0; };
  if (!dense) std::stable_partition(order.begin(), order.end(), [&](int label) { return !is_summed(label); });
  const Operand from = dense ? x : packed(context, type, x, order);
  std::vector<int64_t> dims;
  std::vector<bool> reduced;
  Labels kept;
  for (int label : order) {
    dims.push_back(from.find(label)->size);
    reduced.push_back(is_summed(label));
    if (!reduced.back()) kept.push_back(label);
  }
  // Unsigned sums have the bits of signed ones.
  const Type as = type == Type::u32 ? Type::i32 : type == Type::u64 ? Type::i64 : type;
  Tensor all{as, Where::device, Shape(dims), const_cast<void*>(from.data)};
  gather_axes(context, all, reduced);
  Operand sum = laid_out(nullptr, kept, {&x});
  sum.data = context.scratch(size_t(count_of(sum)) * device::size_bytes(type));
  reduce_sum(context, all, reduced, Tensor{as, Where::device, {}, const_cast<void*>(sum.data)});
  return sum;
}

int64_t count_of(const Operand& x) {
  int64_t count = 1;
  for (const Operand::Dim& dim : x.dims) count = checked_product(count, dim.size);
  return count;
}

int64_t count_of(const Operand& x, const Labels& labels) {
  int64_t count = 1;
  for (int label : labels)
    if (const Operand::Dim* dim = x.find(label)) count = checked_product(count, dim->size);
  return count;
}

}  // namespace encore::ops
