// The blocks of keys that any of some rows sees, as slots without gaps (key_slots.h).
#pragma once
#include "device/atomic.h"
#include "ops/attention/dense/key_slots.h"
#include "ops/attention/sparse/attend_block_sparse.h"

namespace encore::ops {

template <class T>
struct BlockSparseSlots {
  static constexpr bool kMasks = false, kOneRow = false;
  static constexpr int kMostRows = 32, kMostThreads = 256;  // of a block of threads
  static constexpr int64_t kMostBlocks = 16384;             // of keys
  struct Shared {
    int row[kMostRows];  // of all layouts' rows, that of the block's; below zero for none
    // Of rows of layouts, of which several may have the same: who they are, and the columns.
    uint32_t who[kMostRows];
    int begin[kMostRows], end[kMostRows];
  };
  struct Tile {
    int first, end;
    uint32_t who;  // sees the block
    DEVICE_FN int key(int i) const { return first + i; }
    DEVICE_FN bool there(int i) const { return first + i < end; }
  };

  HeadView<const T> k, v;
  const int32_t *begins, *columns;
  int layouts, rows_of_layout, columns_of_layout, bits, most_blocks;
  int64_t likely_keys;
  int64_t who_at = 0, list_at = 0;  // in dynamic shared memory: who sees each block, and the blocks that are seen

  BlockSparseSlots(const Attend& p, const BlockSparseLayout& blocks)
      : k(p.k),
        v(p.v),
        begins(blocks.begins),
        columns(blocks.columns),
        layouts(int(blocks.layouts)),
        rows_of_layout(int(blocks.rows)),
        columns_of_layout(int(blocks.most_columns)),
        bits(0) {
    while (int64_t(1) << bits < blocks.size) ++bits;
    const int64_t all = std::min((p.keys + blocks.size - 1) >> bits, blocks.rows);
    require(all <= kMostBlocks, "attention to ", all,
            " blocks of keys is more than there are kernels for; larger blocks", " or fewer keys are wanted");
    most_blocks = int(all);
    // The last rows have about twice as many columns as most.
    const int64_t row = 2 * blocks.most_columns / std::max<int64_t>(1, blocks.rows) + 1;
    likely_keys = std::min(p.keys, row * std::min(blocks.layouts, p.heads / p.kv_heads) * blocks.size);
  }

  int64_t keys() const { return likely_keys; }
  template <int kPack>
  bool fits() const {
    return true;
  }
  int64_t place(int64_t from, int64_t /*shares*/) {
    who_at = from;
    list_at = from + (int64_t(most_blocks) * 4 + 15) / 16 * 16;
    return list_at + (int64_t(most_blocks) * 2 + 15) / 16 * 16 - from;
  }

  template <class S>
  DEVICE_FN Slots begin(device::Block<S>& b, const S& shared, const RowsOfBlock<T>& rows, int, int keys) const {
    int blocks = keys > 0 ? ((keys - 1) >> bits) + 1 : 0;
    if (blocks > rows_of_layout) blocks = rows_of_layout;  // there are no columns for more
    b.threads([&](int t, S& s) {
      uint32_t* const who = b.template dynamic<uint32_t>(s, who_at);
      for (int i = t; i < blocks; i += b.size()) who[i] = 0;
      if (t < rows.count) s.look.row[t] = row_of(rows, t);
    });
    // Rows that have the same row of a layout go together.
    device::PerThread<int, kMostThreads> order;
    const int runs = b.scan(
        order, 0, [&](int t) { return t < rows.count && who_else(shared.look.row, rows.count, t) != 0 ? 1 : 0; },
        [](int a, int c) { return a + c; });
    b.threads([&](int t, S& s) {
      if (t >= rows.count) return;
      const uint32_t who = who_else(s.look.row, rows.count, t);
      if (who == 0) return;
      const int to = order[t], row = s.look.row[t];
      s.look.who[to] = who;
      // The layouts' begins have one more than rows, of each.
      const int layout = row / rows_of_layout, at = row + layout;
      int begin = begins[at], end = begins[at + 1];
      if (begin < 0 || end < begin || end > columns_of_layout) {
        rows.visible.fault.report(device::FaultKind::bad_value, begin < 0 ? begin : end, columns_of_layout);
        begin = end = 0;
      }
      s.look.begin[to] = layout * columns_of_layout + begin;
      s.look.end[to] = layout * columns_of_layout + end;
    });
    int lanes = b.size();
    while (lanes * runs > b.size()) lanes /= 2;
    b.threads([&](int t, S& s) {
      if (t / lanes < runs) mark(b, rows, s, t / lanes, t % lanes, lanes, blocks);
    });
    // What is seen, in order: a thread counts some neighbours.
    const int each = (blocks + b.size() - 1) / b.size();
    const int count = b.scan(
        order, 0,
        [&](int t) {
          int some = 0;
          for (int i = t * each; i < (t + 1) * each && i < blocks; ++i) some += who_sees(b, shared, i) != 0;
          return some;
        },
        [](int a, int c) { return a + c; });
    b.threads([&](int t, S& s) {
      uint16_t* const list = b.template dynamic<uint16_t>(s, list_at);
      int to = order[t];
      for (int i = t * each; i < (t + 1) * each && i < blocks; ++i)
        if (who_sees(b, s, i) != 0) list[to++] = uint16_t(i);
    });
    if (count == 0) return {0, 0, 0, 0};
    const int last = int(listed(b, shared, count - 1)) << bits;
    const int of_last = keys - last < 1 << bits ? keys - last : 1 << bits;
    return {0, ((count - 1) << bits) + of_last, keys, 0};
  }
  template <class B>
  DEVICE_FN void fetch(B&, const RowsOfBlock<T>&, const Slots&, int) const {}

  template <class B, class S>
  DEVICE_FN Tile tile(const B& b, const S& s, int slot, int end, const Slots& slots) const {
    if (slot >= end) return {0, 0, 0};
    const int block = listed(b, s, slot >> bits);
    return {(block << bits) + (slot & ((1 << bits) - 1)), slots.keys, who_sees(b, s, block)};
  }
  DEVICE_FN bool plain(const Tile& tile, int count, KeyRange all, int rows) const {
    return tile.who == ~uint32_t(0) >> (32 - rows) && tile.first + count <= all.end;
  }
  DEVICE_FN bool sees(const Tile& tile, int i, int row, KeyRange range) const {
    return tile.there(i) && (tile.who >> row & 1) != 0 && tile.key(i) < range.end;
  }
  DEVICE_FN const T* key_at(const Tile& tile, int batch, int kv_head, int i) const {
    return k.at(batch, kv_head, tile.key(i));
  }
  DEVICE_FN const T* value_at(const Tile& tile, int batch, int kv_head, int i) const {
    return v.at(batch, kv_head, tile.key(i));
  }

 private:
  template <class B, class S>
  DEVICE_FN uint32_t who_sees(const B& b, const S& s, int block) const {
    return b.template dynamic<uint32_t>(s, who_at)[block];
  }
  template <class B, class S>
  DEVICE_FN int listed(const B& b, const S& s, int i) const {
    return b.template dynamic<uint16_t>(s, list_at)[i];
  }
  DEVICE_FN int row_of(const RowsOfBlock<T>& rows, int t) const {
    int in_group;
    const int query = rows.fold.query(rows.first + t, in_group);
    const int at = rows.visible.position(rows.length, query);
    if (at < 0) return -1;
    const int head = int(rows.kv_head * rows.fold.group.divisor()) + in_group;
    if (at >> bits < rows_of_layout) return head % layouts * rows_of_layout + (at >> bits);
    rows.visible.fault.report(device::FaultKind::index_out_of_range, at >> bits, rows_of_layout);
    return -1;
  }
  // The rows with the same row of a layout, for the first of them; zero for others.
  DEVICE_FN static uint32_t who_else(const int* row, int count, int t) {
    if (row[t] < 0) return 0;
    uint32_t who = 0;
    for (int i = 0; i < count; ++i) {
      if (row[i] != row[t]) continue;
      if (i < t) return 0;
      who |= uint32_t(1) << i;
    }
    return who;
  }
  template <class S>
  DEVICE_FN void mark(const device::Block<S>& b, const RowsOfBlock<T>& rows, S& s, int run, int lane, int lanes,
                      int blocks) const {
    constexpr int kAtOnce = 4;
    uint32_t* const marked = b.template dynamic<uint32_t>(s, who_at);
    const uint32_t who = s.look.who[run];
    const int end = s.look.end[run];
    for (int first = s.look.begin[run] + lane; first < end; first += kAtOnce * lanes) {
      int column[kAtOnce];
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * lanes;
        column[i] = at < end ? columns[at] : 0;
      }
      UNROLL for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * lanes >= end) continue;
        if (column[i] < 0 || column[i] >= rows_of_layout)
          rows.visible.fault.report(device::FaultKind::index_out_of_range, column[i], rows_of_layout);
        else if (column[i] < blocks)
          device::atomic_update(marked + column[i], [who](uint32_t seen) { return seen | who; });
      }
    }
  }
};

}  // namespace encore::ops
