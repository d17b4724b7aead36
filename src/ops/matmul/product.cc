#include "ops/matmul/product.h"

#include <algorithm>
#include <vector>

#include "ops/matmul/contract.h"

namespace encore::ops {
namespace {

struct Axis {
  int64_t size, a_stride, b_stride;  // strides in matrices; zero where the side is repeated
};

// The batch axes, neighbours merged where both sides allow; outermost first.
std::vector<Axis> batch_axes(const Shape& a, const Shape& b, const Shape& batch) {
  std::vector<Axis> axes;
  int64_t a_step = 1, b_step = 1;
  for (int i = batch.rank() - 1; i >= 0; --i) {
    const int ia = i - (batch.rank() - a.rank()), ib = i - (batch.rank() - b.rank());
    const int64_t da = ia < 0 ? 1 : a[ia], db = ib < 0 ? 1 : b[ib];
    if (batch[i] != 1) axes.insert(axes.begin(), Axis{batch[i], da == 1 ? 0 : a_step, db == 1 ? 0 : b_step});
    a_step *= da;
    b_step *= db;
  }
  for (size_t i = 1; i < axes.size();) {
    Axis &outer = axes[i - 1], &inner = axes[i];
    if (outer.a_stride == inner.a_stride * inner.size && outer.b_stride == inner.b_stride * inner.size) {
      outer = {outer.size * inner.size, inner.a_stride, inner.b_stride};
      axes.erase(axes.begin() + ptrdiff_t(i));
    } else {
      ++i;
    }
  }
  return axes;
}

// Integers, which the library has no products of.
void integer_product(Context& context, const device::Gemm& gemm, const Matrices& a, const Matrices& b, void* out,
                     const std::vector<Axis>& axes) {
  std::vector<ContractDim> kept;
  for (const Axis& axis : axes) kept.push_back({axis.size, axis.a_stride * a.distance, axis.b_stride * b.distance});
  kept.push_back({gemm.m, gemm.transpose_a ? 1 : gemm.lda, 0});
  kept.push_back({gemm.n, 0, gemm.transpose_b ? gemm.ldb : 1});
  const ContractDim summed{gemm.k, gemm.transpose_a ? gemm.lda : 1, gemm.transpose_b ? 1 : gemm.ldb};
  contract(context.stream(), gemm.type, a.data, b.data, out, kept, {&summed, 1});
}

}  // namespace

void product(Context& context, device::Gemm gemm, const ProductData& data, const Activation& activation) {
  gemm.has_bias = data.bias != nullptr;
  const TileGemmWay way = tile_gemm_way(gemm, data, activation, context.stream().device());
  if (way.parts > 0) return tile_gemm(context.stream(), gemm, data, activation, way);
  const bool is_relu = activation.kind == Activation::Kind::relu && gemm.type != Type::f64;
  if (is_relu) gemm.epilogue = device::Epilogue::relu;
  ScratchWorkspace workspace(context);
  context.blas().gemm(context.stream(), gemm, data.a, data.b, data.c, data.bias, workspace, data.addend);
  if (!is_relu) activate(context.stream(), gemm.output, gemm.batch * gemm.m * gemm.n, activation, data.c);
}

void batched_product(Context& context, device::Gemm gemm, const Matrices& a, const Matrices& b, void* out,
                     const Shape& batch, const void* bias, const void* addend, const Activation& activation) {
  std::vector<Axis> axes = batch_axes(a.batch, b.batch, batch);
  if (gemm.type == gemm.output && kWholeNumbers.has(gemm.type)) return integer_product(context, gemm, a, b, out, axes);
  const int64_t c_matrix = gemm.m * gemm.ldc;
  Axis inner{1, 0, 0};
  if (!axes.empty()) {
    inner = axes.back();
    axes.pop_back();
  }
  // Many matrices times one: the rows of all of them make one tall matrix.
  if (inner.b_stride == 0 && inner.a_stride == 1 && !gemm.transpose_a && a.distance == gemm.m * gemm.lda) {
    gemm.m *= inner.size;
    inner = {1, 0, 0};
  }
  if (addend) gemm.beta = 1;
  gemm.batch = inner.size;
  gemm.stride_a = inner.a_stride * a.distance;
  gemm.stride_b = inner.b_stride * b.distance;
  gemm.stride_c = c_matrix;
  const int64_t done = gemm.m * gemm.ldc * gemm.batch;  // elements of one call

  const auto bytes = int64_t(device::size_bytes(gemm.type)), out_bytes = int64_t(device::size_bytes(gemm.output));
  int64_t calls = 1;
  for (const Axis& axis : axes) calls *= axis.size;
  for (int64_t call = 0; call < calls; ++call) {
    int64_t rest = call, a_at = 0, b_at = 0;
    for (size_t i = axes.size(); i-- > 0;) {
      a_at += rest % axes[i].size * axes[i].a_stride;
      b_at += rest % axes[i].size * axes[i].b_stride;
      rest /= axes[i].size;
    }
    product(context, gemm,
            {static_cast<const char*>(a.data) + a_at * a.distance * bytes,
             static_cast<const char*>(b.data) + b_at * b.distance * bytes, bias,
             static_cast<char*>(out) + call * done * out_bytes,
             addend ? static_cast<const char*>(addend) + call * done * out_bytes : nullptr},
            activation);
  }
}

int64_t RowPart::width(int64_t columns) const {
  const int64_t width = width_.value_or(columns);
  require(first_column_ >= 0 && columns <= width - first_column_, columns, " columns from ", first_column_,
          " on are not in rows of ", width);
  return width;
}

device::Gemm product_of(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b, const Tensor* c) {
  if (a.shape.rank() != 2 || b.shape.rank() != 2)
    fail(Code::invalid_input, "A and B must be matrices: ", a.shape.str(), " and ", b.shape.str());
  device::Gemm gemm;
  gemm.transpose_a = transpose_a, gemm.transpose_b = transpose_b;
  gemm.m = a.shape[transpose_a ? 1 : 0], gemm.k = a.shape[transpose_a ? 0 : 1];
  gemm.n = b.shape[transpose_b ? 0 : 1];
  if (gemm.k != b.shape[transpose_b ? 1 : 0])
    fail(Code::invalid_input, "inner dimensions differ: ", a.shape.str(), transpose_a ? " transposed" : "", " and ",
         b.shape.str(), transpose_b ? " transposed" : "");
  gemm.lda = std::max<int64_t>(a.shape[1], 1), gemm.ldb = std::max<int64_t>(b.shape[1], 1), gemm.ldc = gemm.n;
  const Shape shape{gemm.m, gemm.n};
  if (c && !broadcasts_to(c->shape, shape))
    fail(Code::invalid_input, "C of shape ", c->shape.str(), " cannot be broadcast to ", shape.str());
  return gemm;
}

}  // namespace encore::ops
