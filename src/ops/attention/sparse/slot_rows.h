// The rows of a batch that look at keys through slots (key_slots.h).
#pragma once
#include "ops/attention/dense/dense_rows.h"

namespace encore::ops {

// Base: DenseRows of T.
template <class T, class Base, class KeySlots>
struct SlotRows : Base {
  using typename Base::Tile;
  using Look = typename KeySlots::Tile;
  using Shared = typename KeySlots::Shared;

  KeySlots keys;

  int64_t likely_keys(const Attend&) const { return keys.keys(); }
  int64_t place(int64_t from, int64_t shares) { return keys.place(from, shares); }

  DEVICE_FN RowsOfBlock<T> rows_of(const Tile& tile) const {
    return {this->visible, this->fold, tile.batch, tile.kv_head, tile.first_row, tile.rows, tile.length};
  }
  template <class B, class S>
  DEVICE_FN Slots slots(B& b, const S& s, const Tile& tile, int first, int end) const {
    return keys.begin(b, s, rows_of(tile), first, end);
  }
  template <class B>
  DEVICE_FN void fetch(B& b, const Tile& tile, const Slots& slots, int end) const {
    keys.fetch(b, rows_of(tile), slots, end);
  }
  template <class B, class S>
  DEVICE_FN Look look(const B& b, const S& s, const Tile&, int slot, int end, const Slots& slots) const {
    return keys.tile(b, s, slot, end, slots);
  }
  template <bool kValues, class B, class S>
  DEVICE_FN Look walk(const B& b, const S& s, const Tile& tile, int slot, int end, const Slots& slots) const {
    return look(b, s, tile, slot, end, slots);
  }
  DEVICE_FN const T* key_row(const Tile& tile, const Look& look, int, int in_tile, bool) const {
    return look.there(in_tile) ? keys.key_at(look, tile.batch, tile.kv_head, in_tile) : nullptr;
  }
  DEVICE_FN const T* value_row(const Tile& tile, const Look& look, int, int in_tile, bool) const {
    return look.there(in_tile) ? keys.value_at(look, tile.batch, tile.kv_head, in_tile) : nullptr;
  }
  DEVICE_FN static bool there(const T* row) { return row != nullptr; }
  template <int kKeys>
  DEVICE_FN bool plain(const Look& look, int, int, KeyRange all, int rows) const {
    return keys.plain(look, kKeys, all, rows);
  }
  DEVICE_FN bool sees(const Look& look, int, int in_tile, int, int row, KeyRange range) const {
    return keys.sees(look, in_tile, row, range);
  }
};

template <class T, class KeySlots>
void launch_slots(Context& context, const Attend& p, const KeySlots& look) {
  launch_dense<T>(context, p, [&]<class Rows>(const Rows& rows) { return SlotRows<T, Rows, KeySlots>{rows, look}; });
}

}  // namespace encore::ops
