// Weights that are quantized in blocks along their rows, and products with them.
#pragma once
#include "device/fault.h"
#include "device/transform.h"
#include "ops/norm/row_norm.h"
#include "ops/op.h"

namespace encore::ops {

// A matrix [rows, depth] of whole numbers: (code - zero point) * scale. Each block of `block` codes along a row has its
// scale and zero point; a row begins with a block.
struct BlockCodes {
  const uint8_t* codes = nullptr;   // the first in the lowest bits
  const void* scales = nullptr;     // [rows, blocks], of the type of the product
  const void* zeros = nullptr;      // null: in the middle
  const int32_t* groups = nullptr;  // null, or which block's scale and zero point each place along the depth has
  bool packed_zeros = false;        // as the codes are, each row from a byte on; else of the scales' type
  int bits = 4;
  int block_shift = 5;                      // log2 of `block`
  int64_t rows = 0, depth = 0, blocks = 0;  // blocks: of a row

  int64_t block() const { return int64_t(1) << block_shift; }
  int64_t row_bytes() const { return blocks * (block() / 8 * bits); }
  int64_t zero_bytes() const { return (blocks * bits + 7) / 8; }  // of a row, if they are packed
};

// Of codes that are packed in bytes, the first in the lowest bits.
DEVICE_FN uint32_t code_at(const uint8_t* packed, int64_t i, int bits) {
  return uint32_t(packed[i * bits / 8]) >> (i * bits % 8) & ((1u << bits) - 1);
}

// y = a * weights^T + bias, where a is [count, weights.depth].
struct BlockProduct {
  Type type = Type::f16;  // of a, y, scales and bias
  const void* a = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;  // may be null
  bool constant_bias = false;  // so that it may be read before earlier work is done
  int64_t count = 0;
  bool tf32 = false;
  bool gated = false;  // y is what elementwise/gate.h makes of both the columns that come in turns
};

void multiply(Context& context, const BlockProduct& product, const BlockCodes& weights);

// The same weights as tensor cores take them (weave.h), made once of constants.
struct WovenCodes {
  const uint8_t* codes = nullptr;
  const uint16_t* scales = nullptr;  // null if they are no constant
  const uint8_t* zeros = nullptr;    // null: in the middle, or they are no constant
};
// Whether the depth and the blocks are such; zero points must be packed or absent, and the product of 16 bits.
bool can_weave(const BlockCodes& weights);
// The code `order[k]` of a row stands at k, unless `order` is null.
const uint8_t* weave_codes(Prepack& prepack, const BlockCodes& weights, const void* codes, const int32_t* order);
const uint16_t* weave_scales(Prepack& prepack, const BlockCodes& weights, const void* scales);
const uint8_t* weave_zeros(Prepack& prepack, const BlockCodes& weights, const void* zeros);

// y[row][k] = a[row][order[k]]: rows of 16-bit values, of a length that four divides. y and `order` are aligned as
// packs of four are.
void order_columns(StreamRef stream, const void* a, void* y, int64_t rows, int64_t depth, const int32_t* order);

// `weights` without codes.
void multiply(Context& context, const BlockProduct& product, const BlockCodes& weights, const WovenCodes& woven);
// Whether blocks can norm so many rows on their way to the product, each for itself.
bool fits_normed(int device, int64_t count, const BlockCodes& weights, const WovenCodes& woven);
// a is what `norm` makes of x and a skip that has as many rows, or none; neither is it written, nor are mean and
// deviation. All that is read are halves and begins at a multiple of 16 bytes.
void multiply_normed(StreamRef stream, const RowNorm& norm, const BlockProduct& product, const BlockCodes& weights,
                     const WovenCodes& woven);
// For a few rows: tensor cores take the codes as they come out of memory. False if the problem is another one.
bool multiply_nbits_gemv(StreamRef stream, const BlockProduct& product, const BlockCodes& weights,
                         const WovenCodes& woven);
bool multiply_nbits_tiles(StreamRef stream, const BlockProduct& product, const BlockCodes& weights,
                          const WovenCodes& woven);

}  // namespace encore::ops
