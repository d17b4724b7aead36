// Batched products with broadcast batches, in as few library calls as the strides allow.
#pragma once
#include <optional>

#include "ops/matmul/tile_gemm.h"
#include "ops/op.h"
#include "ops/registry.h"

namespace encore::ops {

// The matrices of one side: the shape of their batch, and how many elements lie between one and the next.
struct Matrices {
  const void* data;
  Shape batch;
  int64_t distance;
};

inline constexpr Types kWholeNumbers{Type::i32, Type::i64, Type::u32, Type::u64};

// c = activation(alpha * a * b + beta * addend + bias), by tiles or by the library. With an activation, rows of c lie
// one after the other.
void product(Context& context, device::Gemm gemm, const ProductData& data, const Activation& activation = {});

// `gemm` describes one product; the batches of a and b broadcast to `batch`. Of kFloats or
// kWholeNumbers, which wrap around. To kFloats a row of `bias` is added, the same to all, and an `addend` that lies as
// the result does; all goes through the activation.
void batched_product(Context& context, device::Gemm gemm, const Matrices& a, const Matrices& b, void* out,
                     const Shape& batch, const void* bias = nullptr, const void* addend = nullptr,
                     const Activation& activation = {});

// Of a product that makes columns of wider rows: how many elements these have, and where its own begin.
inline constexpr const char *kRowWidth = "row_width", *kFirstColumn = "first_column";
class RowPart {
 public:
  explicit RowPart(const NodeInfo& node)
      : width_(node.find_int(kRowWidth)), first_column_(node.get_int(kFirstColumn, 0)) {}

  // Of rows in which so many columns are made. Error{invalid_input} if they have no room for these.
  int64_t width(int64_t columns) const;
  void* begin_in(const Tensor& rows) const {
    return static_cast<char*>(rows.data) + size_t(first_column_) * device::size_bytes(rows.type);
  }

 private:
  std::optional<int64_t> width_;
  int64_t first_column_;
};

// What Gemm and its kin multiply, but for types and factors: two matrices, each perhaps transposed, to whose product
// `c`, if there is one, can be broadcast. Error{invalid_input} if they do not fit.
device::Gemm product_of(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b, const Tensor* c);

}  // namespace encore::ops
