// Tiles of 64 queries and 64 keys in a block of 16 x 16 threads, with the softmax kept up to date as keys go by.
//
// A thread has the scores of four queries, neighbours, and of four keys, 16 keys apart so that its neighbours read
// other banks; and sums for its four queries, of four neighbouring values in every 64. Rows in shared memory are four
// values longer than needed where neighbours are to begin in other banks.
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

inline constexpr int kPowerRow = kTile + kTileEach;  // of a query's powers in shared memory

// Which query, and which key, thread t's scores are of.
DEVICE_FN int tile_query(int t, int i) { return t / kTileSide * kTileEach + i; }
DEVICE_FN int tile_key(int t, int j) { return t % kTileSide + j * kTileSide; }
// Which values its sums are of.
DEVICE_FN int tile_value(int t, int c) { return t % kTileSide * kTileEach + c; }

struct LargerOfFour {
  template <class C>
  DEVICE_FN Four<C> operator()(Four<C> a, const Four<C>& b) const {
    UNROLL for (int i = 0; i < kTileEach; ++i) a.at[i] = larger_score(a.at[i], b.at[i]);
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
DEVICE_FN Four<C> tops_of(const Square<C>& scores) {
  Four<C> most;
  UNROLL for (int i = 0; i < kTileEach; ++i) {
    const Four<C>& row = scores.row[i];
    most.at[i] = larger_score(larger_score(row.at[0], row.at[1]), larger_score(row.at[2], row.at[3]));
  }
  return most;
}

// What a thread has of its queries: sums of 64 kFours values.
template <class C, int kFours>
struct TileSoftmax {
  Square<C> sums[kFours];
  Four<C> top, total;

  DEVICE_FN void clear() {
    UNROLL for (int f = 0; f < kFours; ++f) sums[f] = {};
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      top.at[i] = kUnseen<C>;
      total.at[i] = 0;
    }
  }
  // Has a query see a score; returns what scores are taken from before exponentials.
  DEVICE_FN C raise(int i, C score) {
    const C now = larger_score(top.at[i], score), base = base_of(now), shrink = exponential(top.at[i] - base);
    top.at[i] = now;
    total.at[i] *= shrink;
    UNROLL for (int f = 0; f < kFours; ++f) {
      UNROLL for (int c = 0; c < kTileEach; ++c) sums[f].row[i].at[c] *= shrink;
    }
    return base;
  }
  // Takes up the scores of a tile, of which `tops` are the largest of each query, and shows their powers.
  DEVICE_FN void take(int t, const Square<C>& scores, const Four<C>& tops, C* powers) {
    powers += tile_query(t, 0) * kPowerRow;
    UNROLL for (int i = 0; i < kTileEach; ++i) {
      const C base = raise(i, tops.at[i]);
      UNROLL for (int j = 0; j < kTileEach; ++j) {
        const C power = exponential(scores.row[i].at[j] - base);
        total.at[i] += power;
        powers[i * kPowerRow + tile_key(t, j)] = power;
      }
    }
  }
  // Then the values of the tile's keys.
  DEVICE_FN void add_values(int t, const C* powers, const C* values) {
    powers += tile_query(t, 0) * kPowerRow;
    values += tile_value(t, 0);
    NO_UNROLL for (int key = 0; key < kTile; key += kTileEach) {
      Four<C> power[kTileEach];
      UNROLL for (int i = 0; i < kTileEach; ++i) power[i] = device::four(powers + i * kPowerRow + key);
      UNROLL for (int n = 0; n < kTileEach; ++n) {
        UNROLL for (int f = 0; f < kFours; ++f) {
          const Four<C> value = device::four(values + (key + n) * kFours * kTile + f * kTile);
          UNROLL for (int i = 0; i < kTileEach; ++i) {
            UNROLL for (int c = 0; c < kTileEach; ++c) sums[f].row[i].at[c] += power[i].at[n] * value.at[c];
          }
        }
      }
    }
  }
};

}  // namespace encore::ops
