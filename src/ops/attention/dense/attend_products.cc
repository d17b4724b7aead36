#include "ops/attention/dense/attend_products.h"

#include "ops/norm/softmax.h"
#include "ops/shape/movement.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

constexpr size_t kBytes = sizeof(float);

// Matrices as a batch of products has them.
struct Factor {
  const void* data;
  int64_t leading, distance;
  bool is_turned;
  void* scratch;  // null: they are where they were
};

struct Sizes {
  int64_t batch, heads, rows, columns;
  int64_t group = 1;  // heads for which one is there
  int64_t count() const { return batch * heads * rows * columns; }
  HeadMatrices dense(const void* data, bool is_turned = false) const {
    return {data, heads * rows * columns, rows * columns, is_turned ? 1 : columns, is_turned ? rows : 1};
  }
};

void copy(Context& context, const HeadMatrices& from, const HeadMatrices& to, const Sizes& sizes) {
  StridedCopy copy;
  copy.add(sizes.batch, from.batch, to.batch);
  copy.add(sizes.heads / sizes.group, from.head, to.head * sizes.group);
  copy.add(sizes.group, 0, to.head);
  copy.add(sizes.rows, from.row, to.row);
  copy.add(sizes.columns, from.column, to.column);
  copy.run(context.stream(), from.data, const_cast<void*>(to.data), kBytes);
}

// How far apart the matrices of all heads are, if it is evenly.
std::optional<int64_t> distance_of(const HeadMatrices& all, const Sizes& sizes) {
  const int64_t distance = sizes.heads == 1 ? all.batch : all.head;
  if (distance < 0 || (sizes.batch > 1 && sizes.heads > 1 && all.batch != sizes.heads * all.head)) return std::nullopt;
  return distance;
}

Factor factor_of(Context& context, HeadMatrices all, const Sizes& sizes) {
  const bool is_turned = all.column != 1 && all.row == 1;
  const bool is_matrix = is_turned ? all.column >= sizes.rows : all.column == 1 && all.row >= sizes.columns;
  void* scratch = nullptr;
  if (sizes.group > 1 || !is_matrix || !distance_of(all, sizes)) {
    scratch = context.scratch(size_t(sizes.count()) * kBytes);
    const HeadMatrices dense = sizes.dense(scratch, is_turned);
    copy(context, all, dense, sizes);
    all = dense;
  }
  return {all.data, is_turned ? all.column : all.row, *distance_of(all, sizes), is_turned, scratch};
}

// Whether products can be written there: one after the other, or their rows in turn.
bool holds_products(const HeadMatrices& y, const Sizes& sizes) {
  const auto distance = distance_of(y, sizes);
  const int64_t products = sizes.batch * sizes.heads;
  return distance && y.row >= sizes.columns &&
         (products == 1 || *distance >= (sizes.rows - 1) * y.row + sizes.columns ||
          (*distance >= sizes.columns && y.row >= (products - 1) * *distance + sizes.columns));
}

// With what is added as the softmax reads it.
void take_softmax(Context& context, const ProductAttention& p, const Tensor& scores) {
  if (!p.mask) return masked_softmax(context.stream(), scores, nullptr, false, scores);
  Tensor mask = *p.mask;
  void* all = nullptr;
  if (!shares_rows(mask.shape.dims(), scores.shape.dims(), scores.shape.rank() - 1)) {
    all = context.scratch(scores.bytes());
    expand(context.stream(), mask, scores.shape, all);
    mask.data = all, mask.shape = scores.shape;
  }
  masked_softmax(context.stream(), scores, &mask, p.zeros, scores);
  context.give_back(all);
}

}  // namespace

void attend_by_products(Context& context, const ProductAttention& p) {
  const Sizes of_y{p.batch, p.heads, p.queries, p.value_size};
  if (of_y.count() == 0) return;
  const Factor q = factor_of(context, p.q, {p.batch, p.heads, p.queries, p.head_size});
  const Factor k = factor_of(context, p.k, {p.batch, p.heads, p.keys, p.head_size, p.heads / p.kv_heads});
  const Shape shape{p.batch, p.heads, p.queries, p.keys};
  const Tensor scores{Type::f32, Where::device, shape, context.scratch(size_t(shape.count()) * kBytes)};

  ScratchWorkspace workspace(context);
  device::Gemm gemm{.m = p.queries, .batch = p.batch * p.heads, .tf32 = p.tf32};
  gemm.n = gemm.ldc = p.keys, gemm.k = p.head_size;
  gemm.transpose_a = q.is_turned, gemm.transpose_b = !k.is_turned;
  gemm.lda = q.leading, gemm.ldb = k.leading;
  gemm.stride_a = q.distance, gemm.stride_b = k.distance, gemm.stride_c = p.queries * p.keys;
  gemm.alpha = float(p.scale);
  context.blas().gemm(context.stream(), gemm, q.data, k.data, scores.data, nullptr, workspace);
  for (const Factor* const read : {&k, &q}) context.give_back(read->scratch);
  if (scores.count() > 0) take_softmax(context, p, scores);

  const Factor v = factor_of(context, p.v, {p.batch, p.heads, p.keys, p.value_size, p.heads / p.kv_heads});
  const bool in_place = holds_products(p.y, of_y);
  const HeadMatrices y = in_place ? p.y : of_y.dense(context.scratch(size_t(of_y.count()) * kBytes));
  gemm.n = p.value_size, gemm.k = p.keys;
  gemm.transpose_a = false, gemm.transpose_b = v.is_turned;
  gemm.lda = p.keys, gemm.ldb = v.leading, gemm.ldc = y.row;
  gemm.stride_a = gemm.stride_c, gemm.stride_b = v.distance, gemm.stride_c = *distance_of(y, of_y);
  gemm.alpha = 1;
  context.blas().gemm(context.stream(), gemm, scores.data, v.data, const_cast<void*>(y.data), nullptr, workspace);
  if (!in_place) copy(context, y, p.y, of_y);
}

}  // namespace encore::ops
