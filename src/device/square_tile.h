// Tiles of 64 x 64 products of rows in shared memory, by a block of 16 x 16 threads. A thread has four by four of them,
// so that what it reads serves four times.
#pragma once
#include "device/dot.h"
#include "device/transform.h"

namespace encore::device {

inline constexpr int kTile = 64, kTileSide = 16, kTileThreads = kTileSide * kTileSide, kTileEach = kTile / kTileSide;

template <class C>
struct Four {
  C at[kTileEach];
};
template <class C>
struct Square {
  Four<C> row[kTileEach];
};

// Four neighbours in shared memory.
template <class C>
DEVICE_FN Four<C> four(const C* from) {
  constexpr int kPack = pack_size<C>();
  Four<C> all;
  UNROLL for (int i = 0; i < kTileEach; i += kPack) {
    const auto pack = *reinterpret_cast<const Pack<C, kPack>*>(from + i);
    UNROLL for (int j = 0; j < kPack; ++j) all.at[i + j] = pack.at[j];
  }
  return all;
}

template <class C>
DEVICE_FN C dot(const Four<C>& a, const Four<C>& b, C sum) {
  UNROLL for (int c = 0; c < kTileEach; ++c) sum += a.at[c] * b.at[c];
  return sum;
}

// Adds the products of the parts of a thread's rows and columns that row(i) and column(j) read.
template <class C, class Row, class Column>
DEVICE_FN void add_dots(Square<C>& square, Row row, Column column) {
  decltype(row(0)) one[kTileEach];
  UNROLL for (int i = 0; i < kTileEach; ++i) one[i] = row(i);
  UNROLL for (int j = 0; j < kTileEach; ++j) {
    const auto other = column(j);
    UNROLL for (int i = 0; i < kTileEach; ++i) square.row[i].at[j] = dot(one[i], other, square.row[i].at[j]);
  }
}

}  // namespace encore::device
