// Tiles of 64 queries and 64 keys in a block of 16 x 16 threads, with an online softmax.
//
// A thread has the scores of four queries, neighbours, and of four keys, 16 keys apart so that its neighbours read
// other banks; and accumulators for its four queries, of four neighbouring values in every 64. Rows in shared memory
// are four values longer than needed where neighbours are to begin in other banks.
#pragma once
#include "device/square_tile.h"
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

using device::Four;
using device::kTile;
using device::kTileEach;
using device::kTileSide;
using device::kTileThreads;
using device::Square;

inline constexpr int kProbRow = kTile + kTileEach;  // of a query's probabilities in shared memory

// Which query, and which key, thread t's scores are of.
DEVICE_FN int tile_query(int t, int i) { return t / kTileSide * kTileEach + i; }
DEVICE_FN int tile_key(int t, int j) { return t % kTileSide + j * kTileSide; }
// Which values its accumulators are of.
DEVICE_FN int tile_value(int t, int c) { return t % kTileSide * kTileEach + c; }

struct MaxOfFour {
  template <class C>
  DEVICE_FN Four<C> operator()(Four<C> a, const Four<C>& b) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) a.at[i] = max_score(a.at[i], b.at[i]);
    return a;
  }
};
struct SumOfFour {
  template <class C>
  DEVICE_FN Four<C> operator()(Four<C> a, const Four<C>& b) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) a.at[i] += b.at[i];
    return a;
  }
};

// Puts `count` values from the address, if there are any, into shared memory as kPack ones, zeros after them.
template <int kPack, class C, class T>
DEVICE_FN void put_wide(C* to, const T* from, int count, bool aligned) {
  constexpr int kStep = device::pack_size<C>();
  device::Pack<T, kPack> pack{};
  if (count > 0) pack = device::load_pack<kPack>(from, aligned, count < kPack ? count : kPack);
  UNROLL for (int i = 0; i < kPack; i += kStep) {
    device::Pack<C, kStep> wide;
    UNROLL for (int j = 0; j < kStep; ++j) wide.at[j] = i + j < count ? C(pack.at[i + j]) : C(0);
    *reinterpret_cast<device::Pack<C, kStep>*>(to + i) = wide;
  }
}

// Adds products of `depth` values of thread t's queries and keys, whose rows are so far apart.
template <class C>
DEVICE_FN void add_products(Square<C>& scores, int t, const C* queries, const C* keys, int row, int depth) {
  queries += tile_query(t, 0) * row;
  keys += tile_key(t, 0) * row;
  NO_UNROLL for (int d = 0; d < depth; d += kTileEach) device::add_dots(
      scores, [&](int i) { return device::four(queries + i * row + d); },
      [&](int j) { return device::four(keys + j * kTileSide * row + d); });
}

// A thread's largest score of each query.
template <class C>
DEVICE_FN Four<C> max_of(const Square<C>& scores) {
  Four<C> most;
  UNROLL for (int i = 0; i < kTileEach; ++i) {
    const Four<C>& row = scores.row[i];
    most.at[i] = max_score(max_score(row.at[0], row.at[1]), max_score(row.at[2], row.at[3]));
  }
  return most;
}

// What a thread has of its queries: accumulators of 64 kFours values.
template <class C, int kFours>
struct TileSoftmax {
  Square<C> acc[kFours];
  Four<C> row_max, row_sum;

  DEVICE_FN void clear() {
    UNROLL for (int f = 0; f < kFours; ++f) acc[f] = {};
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      row_max.at[i] = kMaskedScore<C>;
      row_sum.at[i] = 0;
    }
  }
  // Corrects what was added up if this score is a new maximum; returns what scores are taken from before exponentials.
  DEVICE_FN C raise_max(int i, C score) {
    const C now = max_score(row_max.at[i], score), base = finite_max(now),
            correction = exponential(row_max.at[i] - base);
    row_max.at[i] = now;
    row_sum.at[i] *= correction;
    UNROLL for (int f = 0; f < kFours; ++f) {
      UNROLL for (int c = 0; c < kTileEach; ++c) acc[f].row[i].at[c] *= correction;
    }
    return base;
  }
  // Adds the scores of a tile, of which `tile_max` has the largest of each query, and writes their unnormalised
  // probabilities.
  DEVICE_FN void accumulate(int t, const Square<C>& scores, const Four<C>& tile_max, C* probs) {
    probs += tile_query(t, 0) * kProbRow;
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      const C base = raise_max(i, tile_max.at[i]);
      UNROLL for (int j = 0; j < kTileEach; ++j) {
        const C prob = exponential(scores.row[i].at[j] - base);
        row_sum.at[i] += prob;
        probs[i * kProbRow + tile_key(t, j)] = prob;
      }
    }
  }
  // Then the values of the tile's keys.
  DEVICE_FN void add_values(int t, const C* probs, const C* values) {
    probs += tile_query(t, 0) * kProbRow;
    values += tile_value(t, 0);
    NO_UNROLL for (int key = 0; key < kTile; key += kTileEach) {
      Four<C> prob[kTileEach];
      UNROLL for (int i = 0; i < kTileEach; ++i) prob[i] = device::four(probs + i * kProbRow + key);
      UNROLL for (int n = 0; n < kTileEach; ++n) {
        UNROLL for (int f = 0; f < kFours; ++f) {
          const Four<C> value = device::four(values + (key + n) * kFours * kTile + f * kTile);
          UNROLL for (int i = 0; i < kTileEach; ++i) {
            UNROLL for (int c = 0; c < kTileEach; ++c) acc[f].row[i].at[c] += prob[i].at[n] * value.at[c];
          }
        }
      }
    }
  }
};

}  // namespace encore::ops
