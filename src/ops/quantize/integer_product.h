// Products of matrices of 8-bit integers, exact in 32 bits, with zero points on either side.
#pragma once
#include <cmath>

#include "device/rounded.h"
#include "ops/elementwise/any_type.h"
#include "ops/op.h"

namespace encore::ops {

// Both sides are brought to one form first: signed bytes, rows along the depth, each padded with zeros to a multiple of
// kDepthStep. Unsigned values, and their zero points, are lowered by 128, which changes no difference.
inline constexpr int64_t kDepthStep = 16;
inline uint32_t flip_of(Type type) { return type == Type::u8 ? 0x80 : 0; }  // what lowers a byte of the type
constexpr int64_t padded_depth(int64_t depth) { return (depth + kDepthStep - 1) / kDepthStep * kDepthStep; }

struct IntegerRows {
  const int8_t* values = nullptr;
  const int32_t* sums = nullptr;  // of each row: [matrices, stored]
  Shape batch;                    // of the matrices
  int64_t rows = 0, depth = 0;
  int64_t stored = 0;  // rows that there is room for in each matrix

  int64_t padded() const { return padded_depth(depth); }
  int64_t distance() const { return stored * padded(); }  // between matrices
};

// Values that all rows share, or each matrix's row has its own.
struct PerRow {
  AnyInput values{nullptr, Type::u8};  // null: all are zero
  int64_t matrix_step = 0, row_step = 0;

  DEVICE_FN int64_t index(int64_t matrix, int64_t row) const { return matrix * matrix_step + row * row_step; }
  DEVICE_FN float at(int64_t matrix, int64_t row) const { return values.floats<1>(index(matrix, row)).at[0]; }
};
// Of a node's input, for `matrices` of `rows` each; Error{invalid_input} if its shape fits neither.
PerRow per_row(const Tensor& values, int64_t matrices, int64_t rows, const char* what);

// Whether an input is a constant of zeros.
bool is_constant_zero(const NodeInfo& node, int input);

// A zero point as it belongs to lowered values.
struct ZeroPoint {
  PerRow point;
  bool is_unsigned = false;  // the values are

  // `zero` null: zero. `known`: it is zero.
  static ZeroPoint of(const Tensor* zero, Type values, int64_t matrices, int64_t rows, bool known);
  bool known_zero() const { return !point.values.data && !is_unsigned; }
  DEVICE_FN int32_t at(int64_t matrix, int64_t row) const {
    const int32_t lowered = is_unsigned ? 128 : 0;
    return point.values.data ? point.values.integers<int32_t, 1>(point.index(matrix, row)).at[0] - lowered : -lowered;
  }
};

// What becomes of the sums: as they are (y is int32), or with a bias scaled, to floats, to which others are added, or
// to 8 bits.
struct IntegerFinish {
  void* y = nullptr;
  Type type = Type::i32;
  PerRow a_scale, b_scale;
  AnyInput y_scale{nullptr, Type::f32}, y_zero{nullptr, Type::u8};
  float alpha = 1.f;
  const int32_t* bias = nullptr;  // one for each row of all matrices of a, unless these steps say otherwise
  int64_t bias_row_step = 1, bias_column_step = 0;
  const float* addend = nullptr;  // one for each column, of floats

  // `a_row`: of all matrices of a.
  DEVICE_FN void store(int64_t at, int64_t in_a, int64_t row, int64_t a_row, int64_t in_b, int64_t column,
                       uint32_t sum) const {
    if (type == Type::i32) {
      static_cast<int32_t*>(y)[at] = int32_t(sum);
      return;
    }
    if (bias) sum += uint32_t(bias[a_row * bias_row_step + column * bias_column_step]);
    float scale = alpha * a_scale.at(in_a, row) * b_scale.at(in_b, column);
    if (y_scale.data) scale /= y_scale.floats<1>(0).at[0];
    if (type == Type::f32) {
      const float product = device::rounded_product(float(int32_t(sum)), scale);
      static_cast<float*>(y)[at] = addend ? product + addend[column] : product;
      return;
    }
    const float zero = float(y_zero.integers<int32_t, 1>(0).at[0]);
    const float low = (type == Type::i8 ? -128.f : 0.f) - zero, high = (type == Type::i8 ? 127.f : 255.f) - zero;
    float rounded = rint(float(int32_t(sum)) * scale);
    rounded = rounded > low ? rounded : low;
    rounded = rounded < high ? rounded : high;
    static_cast<uint8_t*>(y)[at] = uint8_t(int(rounded) + int(zero));
  }
};

struct IntegerProduct {
  IntegerRows a, b;
  ZeroPoint a_zero, b_zero;
  IntegerFinish finish;
  int64_t row_step = 0, matrix_step = 0;  // between rows and matrices of y, in elements
};

// y = (a - its zero point) (b - its zero point)^T, for all matrices of the broadcast batch.
void multiply(Context& context, const IntegerProduct& product);

// ---- bringing matrices to that form

// Rows that are stored for these on the right, so that the library can make them columns of a result.
constexpr int64_t stored_rows(int64_t rows) { return (rows + 3) / 4 * 4; }
// Bytes that `matrices` of as many stored rows take.
size_t integer_rows_bytes(int64_t matrices, int64_t stored, int64_t depth);

// `from`: [batch, rows, depth]. Nothing is copied where the form is right already. `into` may be null then.
bool has_form(const Tensor& from, int64_t depth);
IntegerRows pack_rows(StreamRef stream, const Tensor& from, const Shape& batch, int64_t rows, int64_t depth, void* into,
                      int32_t* sums);
// `from`: [batch, depth, rows]. stored_rows() of them are stored.
IntegerRows pack_columns(StreamRef stream, const Tensor& from, const Shape& batch, int64_t rows, int64_t depth,
                         void* into, int32_t* sums);
// A side of products that is a constant of the model: in that form from before the first run on.
struct ConstantSide {
  IntegerRows rows;
  Tensor like;  // the constant, without its data

  explicit operator bool() const { return rows.values; }
  // As pack_rows() and pack_columns() have it.
  void keep_rows(Prepack& prepack, const Tensor& constant, const Shape& batch, int64_t count, int64_t depth);
  void keep_columns(Prepack& prepack, const Tensor& constant, const Shape& batch, int64_t count, int64_t depth);
};
// MatMulInteger's inputs, and behind them the scales of a and b, and perhaps a row of floats: what it makes times the
// scales, plus the row.
std::unique_ptr<Op> make_scaled_integer_matmul(const NodeInfo& node);

// Sums of rows that have the form.
void sum_rows(StreamRef stream, const int8_t* rows, int64_t count, int64_t padded, int32_t* sums);

}  // namespace encore::ops
