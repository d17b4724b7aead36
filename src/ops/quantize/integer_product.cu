// Products of packed 8-bit integers: a group of threads for each column if there are few rows, tiles in shared memory,
// and the library's tensor cores where the problem is large enough to pay for a second pass over the sums.
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "device/square_tile.h"
#include "ops/matmul/product.h"
#include "ops/quantize/integer_product.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::Pack;
using device::PerThread;

constexpr int kChunk = int(kDepthStep);
using Chunk = Pack<uint32_t, kChunk / 4>;

// Which matrices a place in the batch multiplies.
struct Batch {
  static constexpr int kMostAxes = 8;
  Divider sizes[kMostAxes];  // outermost first
  int64_t a_steps[kMostAxes], b_steps[kMostAxes];
  int rank = 0;
  int64_t count = 1;

  Batch(const Shape& a, const Shape& b) {
    const Shape all = broadcast(a, b);
    count = all.count();
    int64_t sizes_of[kMostAxes], a_step = 1, b_step = 1;
    int axes = 0;  // innermost first
    for (int i = 1; i <= all.rank(); ++i) {
      const int64_t size = all[all.rank() - i];
      const int64_t in_a = i <= a.rank() ? a[a.rank() - i] : 1, in_b = i <= b.rank() ? b[b.rank() - i] : 1;
      const int64_t to_a = in_a == 1 ? 0 : a_step, to_b = in_b == 1 ? 0 : b_step;
      a_step *= in_a, b_step *= in_b;
      if (size == 1) continue;
      if (axes && to_a == a_steps[axes - 1] * sizes_of[axes - 1] && to_b == b_steps[axes - 1] * sizes_of[axes - 1]) {
        sizes_of[axes - 1] *= size;
        continue;
      }
      if (axes == kMostAxes)
        fail(Code::not_supported, "batches ", a.str(), " and ", b.str(), " alternate along more than ", kMostAxes,
             " axes");
      sizes_of[axes] = size, a_steps[axes] = to_a, b_steps[axes++] = to_b;
    }
    std::reverse(a_steps, a_steps + axes);
    std::reverse(b_steps, b_steps + axes);
    for (int i = 0; i < axes; ++i) sizes[i] = Divider(sizes_of[axes - 1 - i], count);
    rank = axes;
  }
  DEVICE_FN void locate(int64_t place, int64_t& a, int64_t& b) const {
    a = b = 0;
    for (int i = rank - 1; i >= 0; --i) {
      int64_t at = place;
      if (i > 0) place = sizes[i](place, at);
      a += at * a_steps[i];
      b += at * b_steps[i];
    }
  }
};

// What kernels know of a product.
struct Product {
  IntegerFinish out;
  ZeroPoint a_zero, b_zero;
  const int8_t *a, *b;
  const int32_t *a_sums, *b_sums;
  int64_t m, n, a_stored, b_stored, depth, padded, row_step, matrix_step;
  bool corrected;  // a zero point may not be zero
  Batch batch;

  // `sum`: of the products of lowered values.
  DEVICE_FN void finish(int64_t place, int64_t in_a, int64_t in_b, int64_t row, int64_t column, int32_t sum) const {
    uint32_t total = uint32_t(sum);
    if (corrected) {
      const uint32_t za = uint32_t(a_zero.at(in_a, row)), zb = uint32_t(b_zero.at(in_b, column));
      if (b_sums) total -= za * uint32_t(b_sums[in_b * b_stored + column]);
      if (a_sums) total -= zb * uint32_t(a_sums[in_a * a_stored + row]);
      total += uint32_t(depth) * za * zb;
    }
    out.store(place * matrix_step + row * row_step + column, in_a, row, in_a * m + row, in_b, column, total);
  }
};

DEVICE_FN Chunk chunk_of(const int8_t* at) { return *reinterpret_cast<const Chunk*>(at); }

// A group of threads multiplies a few rows of a by a row of b, which is read once.
struct IntegerGemv {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kColumns = kThreads / kGroup, kRows = 4;
  struct Sums {
    int32_t at[kRows];
  };
  struct Add {
    DEVICE_FN Sums operator()(const Sums& x, const Sums& y) const {
      Sums sums;
      UNROLL for (int i = 0; i < kRows; ++i) sums.at[i] = int32_t(uint32_t(x.at[i]) + uint32_t(y.at[i]));
      return sums;
    }
  };
  Product p;
  Divider column_tiles, row_tiles;

  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    int64_t column_tile, row_tile, in_a, in_b;
    const int64_t place = row_tiles(column_tiles(b.index(), column_tile), row_tile);
    p.batch.locate(place, in_a, in_b);
    const int64_t row0 = row_tile * kRows;
    PerThread<Sums, kThreads> sums;
    b.reduce_groups<kGroup>(
        sums,
        [&](int t) {
          const int64_t column = column_tile * kColumns + t / kGroup;
          Sums mine{};
          if (column >= p.n) return mine;
          const int8_t* left = p.a + (in_a * p.a_stored + row0) * p.padded;
          const int8_t* right = p.b + (in_b * p.b_stored + column) * p.padded;
          for (int64_t at = t % kGroup * kChunk; at < p.padded; at += kGroup * kChunk) {
            const Chunk y = chunk_of(right + at);
            UNROLL for (int i = 0; i < kRows; ++i) {
              if (row0 + i < p.m) mine.at[i] = device::dot(chunk_of(left + i * p.padded + at), y, mine.at[i]);
            }
          }
          return mine;
        },
        Add{});
    b.threads([&](int t, device::NoShared&) {
      const int64_t column = column_tile * kColumns + t / kGroup;
      if (t % kGroup != 0 || column >= p.n) return;
      UNROLL for (int i = 0; i < kRows; ++i) {
        if (row0 + i < p.m) p.finish(place, in_a, in_b, row0 + i, column, sums[t].at[i]);
      }
    });
  }
};

// A block makes a tile of sums from steps of 64 along the depth.
struct IntegerTiles {
  static constexpr int kThreads = device::kTileThreads, kMaxThreads = kThreads, kStep = 64, kChunks = kStep / kChunk;
  static constexpr int kTile = device::kTile, kEach = device::kTileEach, kAcross = device::kTileSide;
  using Sums = device::Square<int32_t>;
  struct Shared {
    Chunk a[kTile][kChunks + 1], b[kTile][kChunks + 1];  // one more: neighbours are then in other banks
  };
  Product p;
  Divider column_tiles, row_tiles;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int64_t column_tile, row_tile, in_a, in_b;
    const int64_t place = row_tiles(column_tiles(b.index(), column_tile), row_tile);
    p.batch.locate(place, in_a, in_b);
    const int64_t row0 = row_tile * kTile, column0 = column_tile * kTile;
    const int8_t* left = p.a + in_a * p.a_stored * p.padded;
    const int8_t* right = p.b + in_b * p.b_stored * p.padded;
    PerThread<Sums, kThreads> sums;
    b.threads([&](int t, Shared&) { sums[t] = Sums{}; });
    for (int64_t at = 0; at < p.padded; at += kStep) {
      b.threads([&](int t, Shared& s) {
        const int r = t / kChunks, c = t % kChunks;
        const bool inside = at + c * kChunk < p.padded;
        s.a[r][c] = inside && row0 + r < p.m ? chunk_of(left + (row0 + r) * p.padded + at + c * kChunk) : Chunk{};
        s.b[r][c] =
            inside && column0 + r < p.n ? chunk_of(right + (column0 + r) * p.padded + at + c * kChunk) : Chunk{};
      });
      b.threads([&](int t, Shared& s) {
        const int x = t % kAcross, y = t / kAcross;
        UNROLL for (int c = 0; c < kChunks; ++c) device::add_dots(
            sums[t], [&](int i) { return s.a[y + i * kAcross][c]; }, [&](int j) { return s.b[x + j * kAcross][c]; });
      });
    }
    b.threads([&](int t, Shared&) {
      const int x = t % kAcross, y = t / kAcross;
      UNROLL for (int i = 0; i < kEach; ++i) {
        UNROLL for (int j = 0; j < kEach; ++j) {
          const int64_t row = row0 + y + i * kAcross, column = column0 + x + j * kAcross;
          if (row < p.m && column < p.n) p.finish(place, in_a, in_b, row, column, sums[t].row[i].at[j]);
        }
      }
    });
  }
};

// What the library summed, [batch, m, stored columns], goes to its place.
struct FinishSums {
  Product p;
  const int32_t* sums;
  Divider columns, rows;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t row, column, in_a, in_b;
    const int64_t place = rows(columns(i, column), row);
    if (column >= p.n) return;
    p.batch.locate(place, in_a, in_b);
    p.finish(place, in_a, in_b, row, column, sums[i]);
  }
};

template <class Kernel, class Shared>
void launch_tiles(StreamRef stream, const Product& p, int64_t tile_rows, int64_t tile_columns) {
  const int64_t rows = (p.m + tile_rows - 1) / tile_rows, columns = (p.n + tile_columns - 1) / tile_columns;
  const int64_t blocks = p.batch.count * rows * columns;
  device::block_kernel<Shared>(stream, {blocks, Kernel::kThreads},
                               Kernel{p, Divider(columns, blocks), Divider(rows, blocks)});
}

// Tensor cores want aligned rows of the result, and a problem that is worth it.
bool suits_library(const Product& p) {
  return p.b_stored % 4 == 0 && p.m >= 32 && p.n >= 32 && p.depth >= 32 && p.m * p.n >= (int64_t(1) << 22) / p.depth;
}

// False if the library has no kernel for it.
bool multiply_by_library(Context& context, const Product& p, const IntegerRows& a, const IntegerRows& b) {
  const bool in_place = p.out.type == Type::i32 && p.n == p.b_stored && p.row_step == p.n &&
                        p.matrix_step == p.m * p.n && reinterpret_cast<uintptr_t>(p.out.y) % 16 == 0;
  const int64_t count = checked_product(p.batch.count, checked_product(p.m, p.b_stored));
  void* sums = in_place ? p.out.y : context.scratch(size_t(checked_product(count, sizeof(int32_t))));
  device::Gemm gemm;
  gemm.type = Type::i8;
  gemm.output = Type::i32;
  gemm.m = p.m, gemm.n = gemm.ldc = p.b_stored, gemm.k = p.padded;
  gemm.transpose_b = true;
  gemm.lda = gemm.ldb = p.padded;
  try {
    batched_product(context, gemm, {a.values, a.batch, a.distance()}, {b.values, b.batch, b.distance()}, sums,
                    broadcast(a.batch, b.batch));
  } catch (const Error& error) {
    if (error.code() == Code::not_supported) return false;
    throw;
  }
  if (!in_place || p.corrected)
    device::for_each_index(
        context.stream(), count,
        FinishSums{p, static_cast<const int32_t*>(sums), Divider(p.b_stored, count), Divider(p.m, count)});
  return true;
}

}  // namespace

void multiply(Context& context, const IntegerProduct& product) {
  const IntegerRows &a = product.a, &b = product.b;
  require(a.depth == b.depth, "rows of ", a.depth, " and of ", b.depth, " cannot be multiplied");
  const Product p{.out = product.finish,
                  .a_zero = product.a_zero,
                  .b_zero = product.b_zero,
                  .a = a.values,
                  .b = b.values,
                  .a_sums = a.sums,
                  .b_sums = b.sums,
                  .m = a.rows,
                  .n = b.rows,
                  .a_stored = a.stored,
                  .b_stored = b.stored,
                  .depth = a.depth,
                  .padded = a.padded(),
                  .row_step = product.row_step,
                  .matrix_step = product.matrix_step,
                  .corrected = !product.a_zero.known_zero() || !product.b_zero.known_zero(),
                  .batch = Batch(a.batch, b.batch)};
  if (p.batch.count * p.m * p.n == 0) return;
  if (suits_library(p) && multiply_by_library(context, p, a, b)) return;
  if (p.m <= 2 * IntegerGemv::kRows)
    return launch_tiles<IntegerGemv, device::NoShared>(context.stream(), p, IntegerGemv::kRows, IntegerGemv::kColumns);
  launch_tiles<IntegerTiles, IntegerTiles::Shared>(context.stream(), p, IntegerTiles::kTile, IntegerTiles::kTile);
}

}  // namespace encore::ops
