// Products with rows of weights in whatever form: `Weights` has
//   kAtOnce                   how many a GEMV loads before it uses one
//   Eight load(row, at)       what there is to read for the weights at .. at + 7 of a row; `at` is a multiple of 8
//                             below the depth
//   float value(eight, i)     the i-th of them, of those that are there; others are any finite number
#pragma once
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/quantize/block_weights.h"

namespace encore::ops {

// A whole number below 2^23, as a float.
DEVICE_FN float whole(uint32_t value) { return std::bit_cast<float>(0x4b000000u | value) - 8388608.f; }

// Eight neighbours, as floats; zeros where there are none.
template <class T>
DEVICE_FN device::Pack<float, 8> eight_of(const T* from, bool aligned, int64_t left) {
  constexpr int kPack = device::pack_size<T>();
  device::Pack<float, 8> values;
  if (aligned && left >= 8) {
    UNROLL for (int i = 0; i < 8; i += kPack) {
      const auto pack = device::load_aligned<kPack>(from + i);
      UNROLL for (int j = 0; j < kPack; ++j) values.at[i + j] = float(pack.at[j]);
    }
  } else {
    UNROLL for (int i = 0; i < 8; ++i) values.at[i] = i < left ? float(from[i]) : 0.f;
  }
  return values;
}

// GEMV: a warp multiplies a few rows of a by a row of the weights.
template <class T, class Weights>
struct BlockGemv {
  static constexpr int kMaxThreads = 128, kColumns = kMaxThreads / 32, kRows = 4;
  static constexpr int kAtOnce = Weights::kAtOnce;
  struct Sums {
    float at[kRows];
  };
  struct Add {
    DEVICE_FN Sums operator()(const Sums& x, const Sums& y) const {
      Sums sums;
      UNROLL for (int i = 0; i < kRows; ++i) sums.at[i] = x.at[i] + y.at[i];
      return sums;
    }
  };
  const T* a;
  T* y;
  const T* bias;
  int64_t count, columns, depth;
  bool aligned;
  device::Divider by_row_tiles;
  Weights weights;

  DEVICE_FN void operator()(device::Block<device::NoShared>& b, const device::NoShared&) const {
    int64_t row_tile;
    const int64_t column0 = by_row_tiles(b.index(), row_tile) * kColumns, row0 = row_tile * kRows;
    device::PerThread<Sums, kMaxThreads> sums;
    b.template reduce_groups<32>(
        sums,
        [&](int t) {
          Sums mine = {};
          const int64_t column = column0 + t / 32;
          if (column >= columns) return mine;
          NO_UNROLL for (int64_t first = t % 32 * 8; first < depth; first += kAtOnce * 32 * 8) {
            typename Weights::Eight eights[kAtOnce];
            UNROLL for (int n = 0; n < kAtOnce; ++n) {
              const int64_t at = first + n * 32 * 8;
              if (at < depth) eights[n] = weights.load(column, at);
            }
            UNROLL for (int n = 0; n < kAtOnce; ++n) {
              const int64_t at = first + n * 32 * 8;
              if (at < depth) add(mine, row0, at, eights[n]);
            }
          }
          return mine;
        },
        Add{});
    b.threads([&](int t, device::NoShared&) {
      const int64_t column = column0 + t / 32;
      if (t % 32 != 0 || column >= columns) return;
      UNROLL for (int i = 0; i < kRows; ++i) {
        if (row0 + i < count) y[(row0 + i) * columns + column] = T(sums[t].at[i] + (bias ? float(bias[column]) : 0.f));
      }
    });
  }

 private:
  DEVICE_FN void add(Sums& to, int64_t row0, int64_t at, const typename Weights::Eight& eight) const {
    UNROLL for (int r = 0; r < kRows; ++r) {
      if (row0 + r >= count) continue;
      const auto values = eight_of(a + (row0 + r) * depth + at, aligned, depth - at);
      UNROLL for (int i = 0; i < 8; ++i) to.at[r] += values.at[i] * weights.value(eight, i);
    }
  }
};

// out[row, i], whose rows lie `pitch` apart, which is a multiple of 8.
template <class T, class Weights>
struct DequantizeRows {
  T* out;
  int64_t first_row, depth, pitch;
  device::Divider by_eights;  // of a row
  Weights weights;
  DEVICE_FN void operator()(int64_t i) const {
    constexpr int kPack = device::pack_size<T>();
    int64_t eight;
    const int64_t row = by_eights(i, eight), at = eight * 8;
    const auto from = weights.load(first_row + row, at);
    UNROLL for (int first = 0; first < 8; first += kPack) {
      device::Pack<T, kPack> pack;
      UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = T(weights.value(from, first + j));
      *reinterpret_cast<device::Pack<T, kPack>*>(out + row * pitch + at + first) = pack;
    }
  }
};

// Weights that are brought to T at once: they are to leave the rest of the memory to others.
inline constexpr int64_t kMostDequantizedBytes = int64_t(128) << 20;

template <class T, class Weights>
void multiply_by_library(Context& context, const BlockProduct& p, int64_t columns, int64_t depth,
                         const Weights& weights) {
  const int64_t eights = (depth + 7) / 8, pitch = eights * 8;
  const int64_t most =
      std::clamp<int64_t>(kMostDequantizedBytes / (pitch * int64_t(sizeof(T))) / 128 * 128, 128, columns);
  T* const wide = static_cast<T*>(context.scratch(size_t(checked_product(checked_product(most, pitch), sizeof(T)))));
  ScratchWorkspace workspace(context);
  for (int64_t first = 0; first < columns; first += most) {
    const int64_t rows = std::min(most, columns - first);
    device::for_each_index(
        context.stream(), rows * eights,
        DequantizeRows<T, Weights>{wide, first, depth, pitch, device::Divider(eights, rows * eights), weights});
    device::Gemm gemm;
    gemm.type = gemm.output = p.type;
    gemm.m = p.count, gemm.n = rows, gemm.k = depth;
    gemm.transpose_b = true;
    gemm.lda = depth, gemm.ldb = pitch, gemm.ldc = columns;
    gemm.has_bias = p.bias;
    gemm.tf32 = p.tf32;
    context.blas().gemm(context.stream(), gemm, p.a, wide, static_cast<T*>(p.y) + first,
                        p.bias ? static_cast<const T*>(p.bias) + first : nullptr, workspace);
  }
}

// y = a * weights, where a is [count, rows]: sums along the rows of the weights, which are brought to T as a whole.
template <class T, class Weights>
void multiply_columns(Context& context, const BlockProduct& p, int64_t rows, int64_t depth, const Weights& weights) {
  const int64_t eights = (depth + 7) / 8, pitch = eights * 8;
  T* const wide = static_cast<T*>(context.scratch(size_t(checked_product(checked_product(rows, pitch), sizeof(T)))));
  device::for_each_index(
      context.stream(), rows * eights,
      DequantizeRows<T, Weights>{wide, 0, depth, pitch, device::Divider(eights, rows * eights), weights});
  device::Gemm gemm;
  gemm.type = gemm.output = p.type;
  gemm.m = p.count, gemm.n = depth, gemm.k = rows;
  gemm.lda = rows, gemm.ldb = pitch, gemm.ldc = depth;
  gemm.has_bias = p.bias;
  gemm.tf32 = p.tf32;
  ScratchWorkspace workspace(context);
  context.blas().gemm(context.stream(), gemm, p.a, wide, p.y, p.bias, workspace);
}

template <class T, class Weights>
void multiply_rows(Context& context, const BlockProduct& p, int64_t columns, int64_t depth, const Weights& weights) {
  using Kernel = BlockGemv<T, Weights>;
  if (p.count > 2 * Kernel::kRows && depth > 0) return multiply_by_library<T>(context, p, columns, depth, weights);
  const bool aligned = reinterpret_cast<uintptr_t>(p.a) % 16 == 0 && depth % 8 == 0;
  const int64_t row_tiles = (p.count + Kernel::kRows - 1) / Kernel::kRows;
  const int64_t blocks = (columns + Kernel::kColumns - 1) / Kernel::kColumns * row_tiles;
  device::block_kernel<device::NoShared>(
      context.stream(), {blocks, Kernel::kMaxThreads},
      Kernel{static_cast<const T*>(p.a), static_cast<T*>(p.y), static_cast<const T*>(p.bias), p.count, columns, depth,
             aligned, device::Divider(row_tiles, blocks), weights});
}

}  // namespace encore::ops
