// A block has 64 queries, which meet 64 keys at a time, twice: a probability is rounded once the sum of its row is
// known, so that is found first. Nothing but products of bytes is made twice.
//
// Of 16 x 16 threads each has four queries, four neighbouring keys, whose probabilities are a word, and every 16th of
// 64 values of a head. Larger heads are shared out to more blocks. Rows in shared memory are an odd number of chunks
// apart, so that neighbours begin in other banks.
#include "ops/attention/dense/attend_int8.h"

#include <cmath>

#include "device/launch.h"
#include "device/square_tile.h"
#include "device/words.h"
#include "ops/quantize/tile_order.h"

namespace encore::ops {
namespace {

using device::Block;
using device::kTile;
using device::kTileEach;
using device::kTileSide;
using device::kTileThreads;
using device::Pack;
using device::PerThread;

constexpr int kChunk = 16, kWords = kChunk / 4, kTileChunks = kTile / kChunk, kTileRow = kTileChunks + 1;
constexpr int64_t kMostSize = 512;  // of a head, as shared memory has it

using Chunk = Pack<uint32_t, kWords>;
using Bytes = Pack<int8_t, kChunk>;
using Square = device::Square<int32_t>;

// Of a thread's four queries: the largest score, and the sum of exponentials over it.
struct RowSums {
  int row_max[kTileEach];
  float row_sum[kTileEach];
};
constexpr int kNoScore = -1 << 20;  // further below every score than any power reaches, or added to nothing

DEVICE_FN float power_of(float logarithm) { return std::exp2(logarithm); }

struct MergeRowSums {
  float by;  // the binary logarithm of the factor from a score to the next one
  DEVICE_FN RowSums operator()(RowSums a, const RowSums& c) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      const int row_max = a.row_max[i] > c.row_max[i] ? a.row_max[i] : c.row_max[i];
      a.row_sum[i] = part(a.row_max[i], a.row_sum[i], row_max) + part(c.row_max[i], c.row_sum[i], row_max);
      a.row_max[i] = row_max;
    }
    return a;
  }
  DEVICE_FN float part(int from, float row_sum, int row_max) const {
    return from == kNoScore ? 0.f : row_sum * power_of(by * float(from - row_max));
  }
};

struct AttendInt8Tiles {
  static constexpr int kMaxThreads = 2 * kTileThreads;  // so that two blocks find registers in a multiprocessor
  struct Shared {
    Chunk probs[kTile][kTileRow];   // of a query's keys
    Chunk values[kTile][kTileRow];  // of a value's keys
  };

  AttendInt8 p;
  int heads, rows, size, tiles, parts, chunks, row_chunks;
  float by;  // as MergeRowSums has it
  bool aligned, words_aligned;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    int64_t at = b.index();
    const int part = int(at % parts), tile = tiles - 1 - int(at / parts % tiles);
    at /= int64_t(parts) * tiles;
    const int64_t head = at % heads, batch = at / heads;
    const int first_row = tile * kTile, end = p.mask.causal && first_row + kTile < rows ? first_row + kTile : rows;
    const int64_t base = (batch * rows * heads + head) * size;

    PerThread<Square, kTileThreads> score;
    PerThread<RowSums, kTileThreads> row_sums;
    b.threads([&](int t, Shared& s) {
      load_rows(t, b.template dynamic<Chunk>(s), p.q + base, first_row, rows, false);
      UNROLL for (int i = 0; i < kTileEach; ++i) {
        row_sums[t].row_max[i] = kNoScore;
        row_sums[t].row_sum[i] = 0;
      }
    });
    for (int key = 0; key < end; key += kTile) {
      meet(b, score, base, batch, first_row, key);
      b.threads([&](int t, Shared&) {
        UNROLL for (int i = 0; i < kTileEach; ++i) {
          int& row_max = row_sums[t].row_max[i];
          float& row_sum = row_sums[t].row_sum[i];
          UNROLL for (int j = 0; j < kTileEach; ++j) {
            const int one = score[t].row[i].at[j];
            if (one <= row_max) {
              if (one != kNoScore) row_sum += power_of(by * float(one - row_max));
            } else {
              row_sum = (row_max == kNoScore ? 0.f : row_sum * power_of(by * float(row_max - one))) + 1;
              row_max = one;
            }
          }
        }
      });
    }
    b.template reduce_groups<kTileSide>(
        row_sums, [&](int t) { return row_sums[t]; }, MergeRowSums{by});

    PerThread<Square, kTileThreads> acc;
    b.threads([&](int t, Shared&) {
      acc[t] = Square{};
      UNROLL for (int i = 0; i < kTileEach; ++i) {
        float& row_sum = row_sums[t].row_sum[i];
        row_sum = row_sum > 0 ? 1.f / (row_sum * p.probability) : 0.f;
      }
    });
    for (int key = 0; key < end; key += kTile) {
      meet(b, score, base, batch, first_row, key);
      b.threads([&](int t, Shared& s) {
        UNROLL for (int i = 0; i < kTileEach; ++i) {
          uint32_t word = 0;
          UNROLL for (int j = 0; j < kTileEach; ++j) {
            const int one = score[t].row[i].at[j];
            const float power = one == kNoScore ? 0.f : power_of(by * float(one - row_sums[t].row_max[i]));
            word |= uint32_t(uint8_t(to_int8(power * row_sums[t].row_sum[i]))) << 8 * j;
          }
          word_of(s.probs[t / kTileSide * kTileEach + i], t % kTileSide) = word;
        }
        load_values(t, s, p.v + base + part * kTile, key, size - part * kTile);
      });
      b.threads([&](int t, Shared& s) {
        UNROLL for (int c = 0; c < kTileChunks; ++c) {
          device::add_dots(
              acc[t], [&](int i) { return s.probs[t / kTileSide * kTileEach + i][c]; },
              [&](int j) { return s.values[t % kTileSide + j * kTileSide][c]; });
        }
      });
    }
    b.threads([&](int t, Shared&) {
      UNROLL for (int i = 0; i < kTileEach; ++i) {
        const int row = first_row + t / kTileSide * kTileEach + i;
        if (row >= rows) return;
        UNROLL for (int j = 0; j < kTileEach; ++j) {
          const int column = part * kTile + t % kTileSide + j * kTileSide;
          if (column < size)
            p.y[base + int64_t(row) * heads * size + column] = to_int8(float(acc[t].row[i].at[j]) * p.to_y);
        }
      }
    });
  }

 private:
  // A word of a row of chunks.
  DEVICE_FN static uint32_t& word_of(Chunk* row, int word) { return reinterpret_cast<uint32_t*>(row)[word]; }

  // 64 rows from `first` on, with zeros where there is nothing. Of keys, every fourth one is next to each other: so
  // neighbouring threads have neighbouring rows, and yet each has four neighbours.
  DEVICE_FN void load_rows(int t, Chunk* to, const int8_t* from, int first, int end, bool keys) const {
    for (int i = t; i < kTile * chunks; i += kTileThreads) {
      const int row = i / chunks, chunk = i % chunks;
      const int there = first + row < end ? (size - chunk * kChunk < kChunk ? size - chunk * kChunk : kChunk) : 0;
      Bytes bytes{};
      if (there > 0) {
        bytes = device::load_pack<kChunk>(from + int64_t(first + row) * heads * size + chunk * kChunk, aligned, there);
        UNROLL for (int c = 0; c < kChunk; ++c) bytes.at[c] = c < there ? bytes.at[c] : int8_t(0);
      }
      to[(keys ? row % kTileEach * kTileSide + row / kTileEach : row) * row_chunks + chunk] = device::words_of(bytes);
    }
  }
  // Of 64 keys up to `left` values, transposed: four keys of a value are a word.
  DEVICE_FN void load_values(int t, Shared& s, const int8_t* from, int first, int left) const {
    using Four = Pack<int8_t, kTileEach>;
    const int column = t % kTileSide * kTileEach, key = t / kTileSide * kTileEach;
    Four four[kTileEach];
    UNROLL for (int n = 0; n < kTileEach; ++n) {
      const int there = first + key + n < rows ? left - column : 0;
      four[n] = Four{};
      if (there > 0) {
        four[n] = device::load_pack<kTileEach>(from + int64_t(first + key + n) * heads * size + column, words_aligned,
                                               there < kTileEach ? there : kTileEach);
      }
    }
    UNROLL for (int c = 0; c < kTileEach; ++c) {
      uint32_t word = 0;
      UNROLL for (int n = 0; n < kTileEach; ++n) word |= uint32_t(uint8_t(four[n].at[c])) << 8 * n;
      word_of(s.values[column + c], t / kTileSide) = word;
    }
  }

  // Scores of the queries and of 64 keys from `key` on, as bytes, or kNoScore.
  DEVICE_FN void meet(Block<Shared>& b, PerThread<Square, kTileThreads>& score, int64_t base, int64_t batch,
                      int first_row, int key) const {
    const int64_t keys_at = int64_t(kTile) * row_chunks * int64_t(sizeof(Chunk));
    b.threads(
        [&](int t, Shared& s) { load_rows(t, b.template dynamic<Chunk>(s, keys_at), p.k + base, key, rows, true); });
    b.threads([&](int t, Shared& s) {
      Square square{};
      const Chunk* const queries = b.template dynamic<Chunk>(s) + t / kTileSide * kTileEach * row_chunks;
      const Chunk* const keys = b.template dynamic<Chunk>(s, keys_at) + t % kTileSide * row_chunks;
      NO_UNROLL for (int c = 0; c < chunks; ++c) device::add_dots(
          square, [&](int i) { return queries[i * row_chunks + c]; },
          [&](int j) { return keys[j * kTileSide * row_chunks + c]; });
      UNROLL for (int i = 0; i < kTileEach; ++i) {
        UNROLL for (int j = 0; j < kTileEach; ++j) {
          const bool seen = sees(batch, first_row + t / kTileSide * kTileEach + i, key + t % kTileSide * kTileEach + j);
          square.row[i].at[j] = seen ? int(to_int8(float(square.row[i].at[j]) * p.to_score)) : kNoScore;
        }
      }
      score[t] = square;
    });
  }
  DEVICE_FN bool sees(int64_t batch, int row, int key) const {
    const Int8Mask& mask = p.mask;
    if (row >= rows || key >= rows || (mask.causal && key > row)) return false;
    if (mask.ends && key >= mask.ends[batch]) return false;
    if (mask.starts && key < mask.starts[batch]) return false;
    return !mask.flags || mask.flags[batch * mask.batch + row * mask.query + key] != 0;
  }
};

}  // namespace

void attend_int8(Context& context, const AttendInt8& problem) {
  constexpr int64_t kMostRows = int64_t(1) << 24, kMostHeads = int64_t(1) << 20;
  require(problem.size <= kMostSize, "heads of ", problem.size, " values are larger than the ", kMostSize,
          " that there are kernels for");
  require(problem.rows < kMostRows && problem.heads < kMostHeads, "attention of ", problem.rows, " rows and ",
          problem.heads, " heads is more than there are kernels for");
  if (problem.batch == 0 || problem.rows == 0 || problem.size == 0) return;
  const int64_t tiles = (problem.rows + kTile - 1) / kTile, parts = (problem.size + kTile - 1) / kTile;
  const int chunks = int((problem.size + kChunk - 1) / kChunk), row_chunks = chunks | 1;
  const auto all_aligned = [&]<int kPack>(std::initializer_list<const int8_t*> addresses) {
    bool all = problem.size % kPack == 0;
    for (const int8_t* address : addresses) all = all && device::is_pack_aligned<kPack>(address);
    return all;
  };
  const AttendInt8Tiles kernel{problem,
                               int(problem.heads),
                               int(problem.rows),
                               int(problem.size),
                               int(tiles),
                               int(parts),
                               chunks,
                               row_chunks,
                               problem.power * 1.4426950408889634f,
                               all_aligned.template operator()<kChunk>({problem.q, problem.k}),
                               all_aligned.template operator()<kTileEach>({problem.v})};
  const int64_t blocks = checked_product(checked_product(problem.batch, problem.heads), tiles * parts);
  device::block_kernel<AttendInt8Tiles::Shared>(
      context.stream(), {blocks, kTileThreads, 2 * int64_t(kTile) * row_chunks * int64_t(sizeof(Chunk))}, kernel);
}

}  // namespace encore::ops
