// Keys of a token's window, and then those that were chosen for it, as slots (key_slots.h).
#pragma once
#include "device/divide.h"
#include "ops/attention/dense/key_slots.h"
#include "ops/attention/sparse/attend_topk.h"

namespace encore::ops {

template <class T>
struct TopkSlots {
  static constexpr bool kMasks = false, kOneRow = false;
  static constexpr int kStep = 128;  // shares are whole steps of kernels, which are no more than this
  static constexpr int kNone = -1;   // keys below it are other ones, from kNone - 1 downwards
  struct Shared {};
  struct Tile {
    const int* keys;
    int count;
    DEVICE_FN bool there(int i) const { return i < count && keys[i] != kNone; }
    DEVICE_FN int key(int i) const { return i < count ? keys[i] : kNone; }
  };

  HeadView<const T> k, v, other_k, other_v;
  const int32_t *last_keys, *indices, *counts;
  device::Divider by_rows;
  int rows, room, window, most, others;
  bool of_others;
  int64_t slots, likely;
  int64_t list_at = 0;

  TopkSlots(const Attend& p, const TopkKeys& c)
      : k(p.k),
        v(p.v),
        other_k(HeadRows{c.other_keys, p.kv_heads * c.others * p.head_size, c.others * p.head_size, p.head_size}),
        other_v(HeadRows{c.other_values, p.kv_heads * c.others * p.value_size, c.others * p.value_size, p.value_size}),
        last_keys(c.last_keys),
        indices(c.indices),
        counts(c.counts),
        by_rows(c.rows, p.batch),
        rows(int(c.rows)),
        room(int(p.keys)),
        window(int(std::min(c.window, p.keys))),
        most(int(c.most)),
        others(int(c.others)),
        of_others(c.of_others),
        slots(window + c.most),
        likely(std::min(slots, p.keys + c.others)) {
    // Heads that large are not shared out.
    if (std::max(p.head_size, p.value_size) > 256) likely = 1;
  }

  int64_t keys() const { return likely; }
  template <int kPack>
  bool fits() const {
    return device::is_pack_aligned<kPack>(other_k.data) && device::is_pack_aligned<kPack>(other_v.data);
  }
  int64_t place(int64_t from, int64_t shares) {
    list_at = from;
    const int64_t own = ((slots + kStep - 1) / kStep + shares - 1) / shares * kStep;
    constexpr int64_t kMostSlots = 24 * 1024;
    require(own <= kMostSlots, "a window of ", window, " keys and ", most,
            " chosen ones are more than there are kernels for");
    return own * int64_t(sizeof(int));
  }

  // Where the token is among the keys, or below zero.
  DEVICE_FN int position(int token) const {
    int64_t row;
    const int64_t batch = by_rows(token, row), at = int64_t(last_keys[batch]) + 1 - rows + row;
    return at >= row && last_keys[batch] < room ? int(at) : -1;
  }
  DEVICE_FN int of_window(int at) const { return at + 1 < window ? at + 1 : window; }

  template <class B, class S>
  DEVICE_FN Slots begin(B&, const S&, const RowsOfBlock<T>& block, int, int) const {
    const int given = counts[block.batch], count = given < 0 ? 0 : given < most ? given : most;
    if (given != count) block.visible.fault.report(device::FaultKind::bad_value, given, most);
    return {0, of_window(position(block.batch)) + count, 0, 0};
  }
  template <class S>
  DEVICE_FN void fetch(device::Block<S>& b, const RowsOfBlock<T>& block, const Slots& share, int end) const {
    const int at = position(block.batch), near = of_window(at);
    b.threads([&](int t, S& s) {
      int* const list = b.template dynamic<int>(s, list_at);
      for (int slot = share.share + t; slot < end; slot += b.size()) {
        int key = at - near + 1 + slot;
        if (slot >= near) key = chosen(block, slot - near, at);
        list[slot - share.share] = key;
      }
    });
  }
  template <class B, class S>
  DEVICE_FN Tile tile(const B& b, const S& s, int slot, int end, const Slots& share) const {
    return {b.template dynamic<int>(s, list_at) + (slot - share.share), end - slot};
  }
  DEVICE_FN bool plain(const Tile&, int, KeyRange, int) const { return false; }
  DEVICE_FN bool sees(const Tile& tile, int i, int, KeyRange) const { return tile.there(i); }
  DEVICE_FN const T* key_at(const Tile& tile, int token, int kv_head, int i) const {
    return row_of(k, other_k, tile.key(i), token, kv_head);
  }
  DEVICE_FN const T* value_at(const Tile& tile, int token, int kv_head, int i) const {
    return row_of(v, other_v, tile.key(i), token, kv_head);
  }

 private:
  DEVICE_FN int chosen(const RowsOfBlock<T>& block, int i, int at) const {
    const int index = indices[int64_t(block.batch) * most + i], end = of_others ? others : room;
    if (index < 0 || index >= end) {
      block.visible.fault.report(device::FaultKind::index_out_of_range, index, end);
      return kNone;
    }
    if (of_others) return kNone - 1 - index;
    // What the window has is not seen twice.
    return index <= at && (window == 0 || index <= at - of_window(at)) ? index : kNone;
  }
  DEVICE_FN const T* row_of(const HeadView<const T>& same, const HeadView<const T>& other, int key, int token,
                            int kv_head) const {
    int64_t row;
    const int64_t batch = by_rows(token, row);
    return key < kNone ? other.at(batch, kv_head, kNone - 1 - key) : same.at(batch, kv_head, key < 0 ? 0 : key);
  }
};

}  // namespace encore::ops
