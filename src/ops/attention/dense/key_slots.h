// Which keys the rows of a block look at, as kernels of few rows see them: slots in a row, each of which is a key or is
// not there. Every key is one way; lists are others.
#pragma once
#include "device/launch.h"
#include "ops/attention/dense/attend_view.h"

namespace encore::ops {

// Rows that a block of threads has, of queries and of heads that share keys.
template <class T>
struct RowsOfBlock {
  const VisibleKeysView<T>& visible;
  const FoldedRows& fold;
  int batch, kv_head, first, count, length;
};

struct Slots {
  int first, end;
  int keys;   // keys from here on no row sees
  int share;  // the block's share of the slots begins here
};

// Keys in their order, a slot for each.
template <class T>
struct EveryKey {
  static constexpr bool kMasks = true;   // there may be a mask
  static constexpr bool kOneRow = true;  // it is often a single row that looks
  struct Shared {};
  // Of some slots that are neighbours, the keys.
  struct Tile {
    int first, end;
    DEVICE_FN int key(int i) const { return first + i; }
    DEVICE_FN bool there(int i) const { return first + i < end; }
  };

  HeadView<const T> k, v;
  int64_t most;

  explicit EveryKey(const Attend& p) : k(p.k), v(p.v), most(p.keys) {}

  // For launches: how many keys may be looked at, and the dynamic shared memory that is wanted behind `from`.
  int64_t keys() const { return most; }
  // Whether keys and values beside the problem's own may be read in packs.
  template <int kPack>
  bool fits() const {
    return true;
  }
  int64_t place(int64_t /*from*/, int64_t /*shares*/) { return 0; }

  // What any of the rows sees are keys `first` to end - 1.
  template <class Block, class S>
  DEVICE_FN Slots begin(Block&, const S&, const RowsOfBlock<T>&, int first, int end) const {
    return {first, end, end, first};
  }
  // Before the slots from slots.share to end - 1 are looked at.
  template <class Block>
  DEVICE_FN void fetch(Block&, const RowsOfBlock<T>&, const Slots&, int) const {}

  template <class Block, class S>
  DEVICE_FN Tile tile(const Block&, const S&, int slot, int end, const Slots&) const {
    return {slot, end};
  }
  // Whether every row sees all `count` of them, if each sees the keys of `all`.
  DEVICE_FN bool plain(const Tile& tile, int count, KeyRange all, int) const {
    return tile.first >= all.first && tile.first + count <= (all.end < tile.end ? all.end : tile.end);
  }
  DEVICE_FN bool sees(const Tile& tile, int i, int, KeyRange range) const {
    return tile.there(i) && tile.key(i) >= range.first && tile.key(i) < range.end;
  }
  DEVICE_FN const T* key_at(const Tile& tile, int batch, int kv_head, int i) const {
    return k.at(batch, kv_head, tile.key(i));
  }
  DEVICE_FN const T* value_at(const Tile& tile, int batch, int kv_head, int i) const {
    return v.at(batch, kv_head, tile.key(i));
  }
};

}  // namespace encore::ops
