// Matrices of 8-bit integers brought to the form that products want.
#include <algorithm>

#include "device/divide.h"
#include "device/dot.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/quantize/integer_product.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::Pack;
using device::PerThread;

constexpr int kChunk = int(kDepthStep);
using Chunk = Pack<uint32_t, kChunk / 4>;

// A group of threads takes a row: copies it if there is somewhere to, and adds it up.
struct PackRows {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kRows = kThreads / kGroup;
  const uint8_t* from;
  uint8_t* to;    // null: `from` has the form
  int32_t* sums;  // may be null
  int64_t rows, depth, padded;
  uint32_t flip;  // 0x80 lowers unsigned values by 128
  bool aligned;

  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    PerThread<int32_t, kThreads> sum;
    b.reduce_groups<kGroup>(
        sum,
        [&](int t) {
          const int64_t row = b.index() * kRows + t / kGroup;
          int32_t mine = 0;
          if (row >= rows) return mine;
          for (int64_t at = t % kGroup * kChunk; at < padded; at += kGroup * kChunk) {
            const Chunk chunk = load(row, at);
            UNROLL for (int w = 0; w < kChunk / 4; ++w) mine = device::dot4(chunk.at[w], 0x01010101u, mine);
            if (to) *reinterpret_cast<Chunk*>(to + row * padded + at) = chunk;
          }
          return mine;
        },
        [](int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); });
    b.threads([&](int t, device::NoShared&) {
      const int64_t row = b.index() * kRows + t / kGroup;
      if (sums && t % kGroup == 0 && row < rows) sums[row] = sum[t];
    });
  }

 private:
  DEVICE_FN Chunk load(int64_t row, int64_t at) const {
    const uint8_t* source = from + row * depth + at;
    Chunk chunk;
    if (aligned && depth - at >= kChunk) {
      chunk = *reinterpret_cast<const Chunk*>(source);
      UNROLL for (int w = 0; w < kChunk / 4; ++w) chunk.at[w] ^= flip * 0x01010101u;
      return chunk;
    }
    UNROLL for (int w = 0; w < kChunk / 4; ++w) {
      chunk.at[w] = 0;
      UNROLL for (int i = 0; i < 4; ++i) {
        if (at + w * 4 + i < depth) chunk.at[w] |= (source[w * 4 + i] ^ flip) << (8 * i);
      }
    }
    return chunk;
  }
};

// Through a tile in shared memory, so that both sides are coalesced.
struct PackColumns {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kTile = 64, kChunks = kTile / kChunk;
  struct Shared {
    uint8_t tile[kTile][kTile + 4];
  };
  const uint8_t* from;
  uint8_t* to;
  int64_t rows, stored, depth, padded;
  uint32_t flip;
  bool aligned;  // rows of `from`
  Divider row_tiles, depth_tiles;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int64_t row_tile, depth_tile;
    const int64_t matrix = depth_tiles(row_tiles(b.index(), row_tile), depth_tile);
    const int64_t row0 = row_tile * kTile, depth0 = depth_tile * kTile;
    b.threads([&](int t, Shared& s) {
      const int64_t d = depth0 + t / kChunks, r = row0 + t % kChunks * kChunk;
      if (d >= depth) {
        UNROLL for (int i = 0; i < kChunk; ++i) s.tile[t / kChunks][t % kChunks * kChunk + i] = 0;
      } else if (r < rows) {
        const int count = rows - r < kChunk ? int(rows - r) : kChunk;
        const auto in = device::load_pack<kChunk>(from + (matrix * depth + d) * rows + r, aligned, count);
        UNROLL for (int i = 0; i < kChunk; ++i) {
          s.tile[t / kChunks][t % kChunks * kChunk + i] = uint8_t(in.at[i] ^ flip);
        }
      }
    });
    b.threads([&](int t, Shared& s) {
      const int64_t r = row0 + t / kChunks, d = depth0 + t % kChunks * kChunk;
      if (r >= rows || d >= padded) return;
      Pack<uint8_t, kChunk> out;
      UNROLL for (int i = 0; i < kChunk; ++i) out.at[i] = s.tile[t % kChunks * kChunk + i][t / kChunks];
      *reinterpret_cast<Pack<uint8_t, kChunk>*>(to + (matrix * stored + r) * padded + d) = out;
    });
  }
};

bool is_chunk_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kChunk == 0; }

void run_rows(StreamRef stream, const void* from, void* to, int32_t* sums, int64_t rows, int64_t depth, uint32_t flip) {
  const bool aligned = depth % kChunk == 0 && is_chunk_aligned(from);
  device::block_kernel<device::NoShared>(stream, {(rows + PackRows::kRows - 1) / PackRows::kRows, PackRows::kThreads},
                                         PackRows{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to), sums,
                                                  rows, depth, padded_depth(depth), flip, aligned});
}

}  // namespace

size_t integer_rows_bytes(int64_t matrices, int64_t stored, int64_t depth) {
  return size_t(checked_product(checked_product(matrices, stored), padded_depth(depth)));
}

bool has_form(const Tensor& from, int64_t depth) {
  return from.type == Type::i8 && depth % kDepthStep == 0 && is_chunk_aligned(from.data);
}

IntegerRows pack_rows(StreamRef stream, const Tensor& from, const Shape& batch, int64_t rows, int64_t depth, void* into,
                      int32_t* sums) {
  const bool as_it_is = has_form(from, depth);
  if (!as_it_is || sums)
    run_rows(stream, from.data, as_it_is ? nullptr : into, sums, batch.count() * rows, depth, flip_of(from.type));
  return {static_cast<const int8_t*>(as_it_is ? from.data : into), sums, batch, rows, depth, rows};
}

IntegerRows pack_columns(StreamRef stream, const Tensor& from, const Shape& batch, int64_t rows, int64_t depth,
                         void* into, int32_t* sums) {
  constexpr int kTile = PackColumns::kTile;
  const int64_t padded = padded_depth(depth), matrices = batch.count(), stored = stored_rows(rows);
  const int64_t row_tiles = (rows + kTile - 1) / kTile, depth_tiles = (padded + kTile - 1) / kTile;
  const int64_t blocks = matrices * row_tiles * depth_tiles;
  device::block_kernel<PackColumns::Shared>(
      stream, {blocks, PackColumns::kThreads},
      PackColumns{from.as<const uint8_t>(), static_cast<uint8_t*>(into), rows, stored, depth, padded,
                  flip_of(from.type), rows % kChunk == 0 && is_chunk_aligned(from.data), Divider(row_tiles, blocks),
                  Divider(depth_tiles, blocks)});
  const auto* values = static_cast<const int8_t*>(into);
  if (sums) sum_rows(stream, values, matrices * stored, padded, sums);
  return {values, sums, batch, rows, depth, stored};
}

namespace {

struct Kept {
  void* values;
  int32_t* sums;
};
Kept keep(Prepack& prepack, int64_t matrices, int64_t stored, int64_t depth) {
  return {prepack.keep(integer_rows_bytes(matrices, stored, depth)),
          static_cast<int32_t*>(prepack.keep(size_t(matrices * stored) * sizeof(int32_t)))};
}
Tensor without_data(const Tensor& tensor) { return {tensor.type, tensor.where, tensor.shape, nullptr}; }

}  // namespace

void ConstantSide::keep_rows(Prepack& prepack, const Tensor& constant, const Shape& batch, int64_t count,
                             int64_t depth) {
  const Kept kept = keep(prepack, batch.count(), count, depth);
  rows = pack_rows(prepack.stream(), constant, batch, count, depth, kept.values, kept.sums);
  copy_bytes(prepack.stream(), rows.values, kept.values, int64_t(constant.bytes()));  // if it had the form
  rows.values = static_cast<const int8_t*>(kept.values);
  like = without_data(constant);
}

void ConstantSide::keep_columns(Prepack& prepack, const Tensor& constant, const Shape& batch, int64_t count,
                                int64_t depth) {
  const Kept kept = keep(prepack, batch.count(), stored_rows(count), depth);
  rows = pack_columns(prepack.stream(), constant, batch, count, depth, kept.values, kept.sums);
  like = without_data(constant);
}

void sum_rows(StreamRef stream, const int8_t* rows, int64_t count, int64_t padded, int32_t* sums) {
  run_rows(stream, rows, nullptr, sums, count, padded, 0);
}

PerRow per_row(const Tensor& values, int64_t matrices, int64_t rows, const char* what) {
  const AnyInput all(values.data, values.type);
  if (values.count() == 1) return {all, 0, 0};
  if (values.shape.rank() <= 1) {
    require(values.count() == rows, what, " has shape ", values.shape.str(), "; one value or ", rows, " are wanted");
    return {all, 0, 1};
  }
  require(values.count() == checked_product(matrices, rows), what, " has shape ", values.shape.str(), "; one value, ",
          rows, " or ", rows, " for each of ", matrices, " matrices are wanted");
  return {all, rows, 1};
}

bool is_constant_zero(const NodeInfo& node, int input) {
  const Tensor* constant = node.constant_input(input);
  if (!constant || device::size_bytes(constant->type) != 1) return false;
  const auto* bytes = constant->as<const uint8_t>();
  return std::all_of(bytes, bytes + constant->count(), [](uint8_t byte) { return byte == 0; });
}

ZeroPoint ZeroPoint::of(const Tensor* zero, Type values, int64_t matrices, int64_t rows, bool known) {
  ZeroPoint made;
  made.is_unsigned = values == Type::u8;
  if (!zero) return made;
  require(zero->type == values, "a zero point is ", device::name(zero->type), ", its values are ",
          device::name(values));
  const PerRow point = per_row(*zero, matrices, rows, "the zero point");
  if (!known) made.point = point;
  return made;
}

}  // namespace encore::ops
