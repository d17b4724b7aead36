// A tensor whose dimensions have labels and lie anywhere: what Einsum works with.
#pragma once
#include <optional>
#include <vector>

#include "ops/matmul/equation.h"
#include "ops/op.h"

namespace encore::ops {

// No label is there twice, and no dimension has one element.
struct Operand {
  struct Dim {
    int label;
    int64_t size, stride;
  };
  const void* data;
  std::vector<Dim> dims;

  const Dim* find(int label) const;
  bool has(int label) const { return find(label) != nullptr; }
  // The same, and 0 if it isn't there.
  int64_t stride(int label) const;
  // The stride of these dimensions taken as one; nothing if they don't lie one inside the other. 1 if there are none.
  std::optional<int64_t> stride(const Labels& labels) const;
  // All labels, those that lie furthest apart first.
  Labels by_stride() const;
};

// A new operand with these labels, row-major in their order; the sizes are those of `like`, where a label may be
// missing if it has one element.
Operand laid_out(void* data, const Labels& labels, const std::vector<const Operand*>& like);
// A row-major copy with the labels in this order.
Operand packed(Context& context, Type type, const Operand& x, const Labels& order);
// Copies x to `to`, which has the same labels.
void copy(Context& context, Type type, const Operand& x, const Operand& to);
// x without these labels, along which it is added up.
Operand summed(Context& context, Type type, const Operand& x, const Labels& labels);

int64_t count_of(const Operand& x);
int64_t count_of(const Operand& x, const Labels& labels);

}  // namespace encore::ops
