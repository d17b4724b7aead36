// The rows of a batch whose lengths are alike, and their keys and values.
#pragma once
#include <algorithm>
#include <utility>

#include "ops/attention/dense/attend_grouped_decode.h"

namespace encore::ops {

// Keys and values are read in Units.
template <class T, int kMost, class Unit = T>
struct DenseRows : KeysAsSlots {
  static constexpr bool kHoles = false, kFindsNone = false;
  struct Tile {
    int batch, kv_head, first_row, rows, length;
  };
  struct Walk {};
  using Raw = Words;

  VisibleKeysView<T> visible;
  FoldedRows fold;
  HeadView<const T> q_rows;
  HeadView<const Unit> k, v;
  HeadView<T> y_rows;
  int heads;
  device::SmallDivider by_row_parts, by_kv_heads;

  template <class B>
  DEVICE_FN Tile find(B&, int part) const {
    int of_head, kv_head;
    const int batch = by_kv_heads(by_row_parts(part, of_head), kv_head), first_row = of_head * kMost;
    return {batch, kv_head, first_row, fold.rows - first_row < kMost ? fold.rows - first_row : kMost,
            visible.length(batch)};
  }
  DEVICE_FN KeyRange range(const Tile& tile, int row) const {
    int head;
    return visible.range(tile.length, fold.query(tile.first_row + row, head));
  }
  template <bool kValues, class B, class S>
  DEVICE_FN static Walk walk(const B&, const S&, const Tile&, int, int, const Slots&) {
    return {};
  }
  DEVICE_FN const Unit* key_row(const Tile& tile, Walk, int key, int, bool) const {
    return k.at(tile.batch, tile.kv_head, key);
  }
  DEVICE_FN const Unit* value_row(const Tile& tile, Walk, int key, int, bool) const {
    return v.at(tile.batch, tile.kv_head, key);
  }
  DEVICE_FN static bool there(const Unit*) { return true; }
  DEVICE_FN static Raw load(const T* row, int column) { return device::load_words<8>(row + column); }
  DEVICE_FN static const Words& words(const Raw& raw) { return raw; }
  DEVICE_FN int64_t query(const Tile& tile, int row, int64_t& head) const {
    int in_group;
    const int query = fold.query(tile.first_row + row, in_group);
    head = tile.kv_head * fold.group.divisor() + in_group;
    return query;
  }
  DEVICE_FN Words q(const Tile& tile, int row, int column) const {
    int64_t head;
    const int64_t at = query(tile, row, head);
    return device::load_words<8>(q_rows.at(tile.batch, head, at) + column);
  }
  DEVICE_FN T* y(const Tile& tile, int row) const {
    int64_t head;
    const int64_t at = query(tile, row, head);
    return y_rows.at(tile.batch, head, at);
  }
  DEVICE_FN int64_t head(const Tile& tile, int row) const {
    int64_t head;
    query(tile, row, head);
    return head;
  }
  DEVICE_FN int64_t partial_row(const Tile& tile, int row) const {
    int64_t head;
    const int64_t at = query(tile, row, head);
    return (int64_t(tile.batch) * heads + head) * visible.queries + at;
  }
  DEVICE_FN static float score_scale(float scale) { return scale; }
  DEVICE_FN static float finished(const Tile&, float value, int) { return value; }
  DEVICE_FN bool has_mask() const { return visible.mask; }
  DEVICE_FN int64_t mask_row(const Tile& tile, int row) const {
    int64_t head;
    const int64_t at = query(tile, row, head);
    return visible.mask_row(tile.batch, head, int(at));
  }
  DEVICE_FN float masked(float score, int64_t row, int key) const { return visible.masked(score, row, key); }
};

// The source is what `make` makes of such rows.
template <class T, int kChunks, int kTiles, class Unit = T>
void launch_dense(Context& context, const Attend& p, const auto& make) {
  using Rows = DenseRows<T, 8 * kTiles, Unit>;
  using Source = decltype(make(std::declval<Rows>()));
  using Kernel = AttendGroupedDecode<T, kChunks, kTiles, Source>;
  const FoldedRows fold(p);
  const int row_parts = (fold.rows + Kernel::kRows - 1) / Kernel::kRows;
  const int64_t blocks = checked_product(checked_product(p.batch, p.kv_heads), row_parts);
  Source source = make(Rows{{},
                            VisibleKeysView<T>(p, context.fault()),
                            fold,
                            p.q,
                            p.k,
                            p.v,
                            p.y,
                            int(p.heads),
                            device::SmallDivider(row_parts),
                            device::SmallDivider(int(p.kv_heads))});
  Attend likely = p;
  likely.keys = source.likely_keys(p);
  const SplitPartials partial =
      make_partials(context, p, splits_for(context, likely, blocks, Kernel::kRoom, 2 * Kernel::kWarps * Kernel::kKeys));
  const int64_t own_bytes = source.place(Kernel::kAccBytes, partial.shares);
  launch_grouped_decode<T, kChunks, kTiles>(context, p, source, blocks, partial, own_bytes);
}
template <class T, int kChunks>
void launch_dense(Context& context, const Attend& p, const auto& make) {
  const int64_t rows = p.queries * (p.heads / p.kv_heads);
  if (rows <= 8 || kChunks > 4)
    launch_dense<T, kChunks, 1>(context, p, make);
  else if constexpr (kChunks <= 4) {
    if (rows <= 16)
      launch_dense<T, kChunks, 2>(context, p, make);
    else
      launch_dense<T, kChunks, 4>(context, p, make);
  }
}
template <class T>
void launch_dense(Context& context, const Attend& p, const auto& make) {
  const int64_t size = std::max(p.head_size, p.value_size);
  if (size <= 64)
    launch_dense<T, 2>(context, p, make);
  else if (size <= 128)
    launch_dense<T, 4>(context, p, make);
  else
    launch_dense<T, 8>(context, p, make);
}

// Whether queries and heads that share keys are as few as the kernel wants them, and whether it takes all but the keys
// and values.
inline bool has_few_rows(const Attend& p) { return p.queries <= 8 || p.queries * (p.heads / p.kv_heads) <= 32; }
inline bool fits_grouped_decode_but_keys(const Attend& p) {
  constexpr int64_t kMostSize = 256, kMostRows = int64_t(1) << 24;  // so that blocks are counted in 32 bits
  return (p.type == Type::f16 || p.type == Type::bf16) && !p.scores.data && p.keys > 0 && p.value_size > 0 &&
         std::max(p.head_size, p.value_size) <= kMostSize && p.batch <= kMostRows &&
         p.batch * p.heads <= kMostRows / p.queries && packs_fit<8, device::Half>(p.q, p.head_size);
}

}  // namespace encore::ops
