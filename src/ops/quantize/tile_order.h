// cuBLASLt's tile orders, in which com.microsoft's QOrdered operators store matrices of 8-bit integers.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

#include "ops/op.h"

namespace encore::ops {

enum class TileOrder : int {
  columns = 0,       // column after column
  rows = 1,          // row after row
  col32 = 2,         // stripes of 32 columns, row after row
  col4_4r2_8c = 3,   // such stripes in tiles of 8 rows, the even ones first, in pieces of 4 columns
  col32_2r_4r4 = 4,  // such stripes in tiles of 32 rows, dealt in pairs
};

// An attribute; Error{not_supported} if there is no such order.
TileOrder tile_order_of(const NodeInfo& node, const char* attribute, TileOrder otherwise);
// Error{invalid_input} if matrices of that size have no such order.
void check_tile_order(TileOrder order, int64_t rows, int64_t columns, const char* what);

// Where an element of a matrix is.
struct TileOrderPlace {
  TileOrder order;
  int64_t rows, columns;

  DEVICE_FN int64_t operator()(int64_t row, int64_t column) const {
    if (order == TileOrder::rows) return row * columns + column;
    if (order == TileOrder::columns) return column * rows + row;
    const int64_t stripe = (column >> 5) * rows * 32;
    const int c = int(column & 31);
    if (order == TileOrder::col32) return stripe + row * 32 + c;
    if (order == TileOrder::col4_4r2_8c) {
      const int r = int(row & 7);
      return stripe + (row >> 3) * 256 + ((r & 1) * 4 + (c >> 3)) * 32 + ((c >> 2 & 1) * 4 + (r >> 1)) * 4 + (c & 3);
    }
    const int r = int(row & 31);
    return stripe + (row >> 5) * 1024 + (((r % 8 / 2) * 4 + r / 8) * 2 + r % 2) * 32 + c;
  }
};

// A tensor as matrices: those of a vector are one row.
struct TileOrderShape {
  int64_t batch, rows, columns;
  explicit TileOrderShape(const Shape& shape);
};

// The matrices row after row.
void to_rows(StreamRef stream, TileOrder order, int64_t batch, int64_t rows, int64_t columns, const int8_t* from,
             int8_t* to);

// To the nearest integer, an even one between two; what is no number as the largest.
DEVICE_FN int8_t to_int8(float value) {
  value = value < 127.f ? value : 127.f;
  value = value > -128.f ? value : -128.f;
  return int8_t(int(rintf(value)));
}

}  // namespace encore::ops
