// Top-k of many rows for a small k, a warp for each, which goes through its row in pieces that its lanes keep in
// registers. The k-th of the lanes' best in the first piece is no better than the k-th of all, so that few elements
// need more than a comparison with it: those are listed, and each counts how many come before it. When the list is full
// all but the best leave it. A piece that hides more than there is room for, with all that is good in a few lanes, is
// searched for its k-th bit by bit.
#pragma once
#include "ops/index/row_piece.h"

namespace encore::ops {

template <class T>
struct TopkOfManyRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Limit;
  using typename Base::Wide;
  static constexpr int kMost = 16;  // of k
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kPiece = Base::kPiece;
  static constexpr int kRoom = 64, kOfLoad = Base::kOfLoad;
  struct alignas(16) List {
    Item items[kRoom + kOfLoad], best[kMost];
    int taken;
  };
  struct Shared {
    List lists[kWarps];
  };
  int warps;     // of a block
  bool at_once;  // rows: they are aligned, of whole packs, and a piece has all of one

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t own = uint32_t(b.index()) * uint32_t(warps) + uint32_t(warp.index());
      // There is always one; and it is the same for all lanes, which the compiler only knows of what they agreed on.
      const uint32_t row = warp.least([&](int) { return own < task.rows ? own : task.rows - 1; });
      List& list = s.lists[warp.index()];
      if constexpr (Base::kCommon) {
        if (at_once && find_at_once(warp, list, row)) return;
      }
      find(warp, list, row);
    });
  }

 private:
  // False if more than a lane has room for are as good as the lanes' k-th.
  DEVICE_FN bool find_at_once(const device::Warp& warp, List& list, uint32_t row) const {
    const Key* const from = this->row_at(row);
    typename Base::Keeping kept;
    device::PerThread<T, 32> most;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, 0, lane);
      if (lane == 0) list.taken = 0;
      if (this->flip != 0)
        UNROLL for (int u = 0; u < Base::kKeep; ++u) kept[lane].set(u, device::flipped(kept[lane][u], this->flip));
      most[lane] = best_of(kept[lane]);
    });
    const Limit limit = this->limit_of(warp, most);
    const int found = warp.sum([&](int lane) {
      mask[lane] = this->until(kept[lane], limit.number);
      return device::set_bits(mask[lane]);
    });
    if ((found > 32) | (limit.key >= this->last_key())) return false;
    warp.lanes([&](int lane) {
      if (mask[lane] == 0) return;
      Item* to = list.items + device::atomic_add(&list.taken, device::set_bits(mask[lane]));
      NO_UNROLL for (uint32_t bits = mask[lane]; bits != 0; bits &= bits - 1) {
        *to++ = Item::of(Key(0), lane * 32 + device::lowest_bit(bits));
      }
    });
    device::PerThread<Item, 32> own;
    device::PerThread<Key, 32> value;
    warp.lanes([&](int lane) {
      own[lane] = Item::last();
      if (lane < found) {
        const unsigned at = unsigned(list.items[lane].place());
        const int place = this->place_of(at % 32, 0, int(at / 32));
        value[lane] = from[unsigned(place)];
        own[lane] = Item::of(Key(this->key_of(value[lane])), place);
      }
      list.items[lane] = own[lane];
    });
    warp.lanes([&](int lane) {
      const int rank = this->rank_of(own[lane], list.items, found);
      if ((rank >= task.k) | (lane >= found)) return;
      const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(rank);
      task.values[to] = value[lane];
      task.indices[to] = own[lane].place();
    });
    return true;
  }

  DEVICE_FN void find(const device::Warp& warp, List& list, uint32_t row) const {
    const Key* const from = this->row_at(row);
    const int before = this->before(from);
    typename Base::Keeping kept;
    device::PerThread<T, 32> most;
    typename Base::Masks mask;
    warp.lanes([&](int lane) { kept[lane] = this->load(from, -before, lane); });
    Limit limit{};
    int found = 0;
    NO_UNROLL for (int start = -before; start < task.columns; start += kPiece) {
      warp.lanes([&](int lane) {
        this->arrange(kept[lane], start, lane);
        most[lane] = best_of(kept[lane]);
      });
      if (start <= 0) limit = this->limit_of(warp, most);
      int more = 0;
      // A NaN that comes last hides the lane's other elements.
      if (start <= 0 || warp.votes([&](int lane) { return !(most[lane] < limit.number); }) != 0) {
        warp.lanes([&](int lane) { mask[lane] = this->until(kept[lane], limit.number); });
        more = warp.sum([&](int lane) { return device::set_bits(mask[lane]); });
        if ((more > kRoom - found) | (limit.key >= this->last_key())) {
          NO_UNROLL for (;;) {
            more = this->choose(warp, kept, mask, start, limit.key, start <= 0 ? task.k : 0, kRoom - found,
                                found > task.k);
            if (more <= kRoom - found) break;
            limit = settle(warp, list, found, from);
            found = task.k;
          }
        }
      }
      if (start + kPiece < task.columns)
        warp.lanes([&](int lane) { kept[lane] = this->load(from, start + kPiece, lane); });
      list_few(warp, mask, list, found, more, start);
      found += more;
    }
    fill(warp, list, found, from);
    each_best(warp, list, found, [&](int rank, const Item& item) {
      const auto place = uint32_t(item.place());
      const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(rank);
      task.values[to] = from[place];
      task.indices[to] = place;
    });
  }

  DEVICE_FN T best_of(const Kept& kept) const {
    auto most = kept[0];
    UNROLL for (int u = 1; u < Base::kKeep; ++u) most = device::larger_or_nan(most, kept[u]);
    return device::largest_or_nan(most);
  }
  // Those that are chosen go to the list, in any order. It has `listed` before and so many more in the end.
  DEVICE_FN void list_few(const device::Warp& warp, typename Base::Masks& mask, List& list, int listed, int chosen,
                          int start) const {
    NO_UNROLL for (const int end = listed + chosen; listed < end;) {
      const uint32_t which = warp.votes([&](int lane) { return mask[lane] != 0; });
      warp.lanes([&](int lane) {
        if (mask[lane] == 0) return;
        const int slot = listed + device::set_bits(which & ((uint32_t(1) << lane) - 1));
        list.items[slot] = Item::of(Key(0), this->place_of(unsigned(device::lowest_bit(mask[lane])), start, lane));
        mask[lane] &= mask[lane] - 1;
      });
      listed += device::set_bits(which);
    }
  }
  // Gives the places that are listed their keys, and fills up whole packs.
  DEVICE_FN void fill(const device::Warp& warp, List& list, int found, const Key* from) const {
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < found + kOfLoad; i += 32) {
        Item item = Item::last();
        if (i < found) {
          const int place = list.items[i].place();
          item = Item::of(Key(this->key_of(from[unsigned(place)])), place);
        }
        list.items[i] = item;
      }
    });
  }
  // f(rank, item) for the best k of what is listed.
  template <class F>
  DEVICE_FN void each_best(const device::Warp& warp, const List& list, int found, F f) const {
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < found; i += 32) {
        const Item mine = list.items[i];
        const int rank = this->rank_of(mine, list.items, found);
        if (rank < task.k) f(rank, mine);
      }
    });
  }
  // Leaves the list its best k. Returns where the last of them is.
  DEVICE_FN Limit settle(const device::Warp& warp, List& list, int found, const Key* from) const {
    fill(warp, list, found, from);
    each_best(warp, list, found, [&](int rank, const Item& item) { list.best[rank] = item; });
    warp.lanes([&](int lane) {
      if (lane < task.k) list.items[lane] = list.best[lane];
    });
    return this->limit_at(list.best[task.k - 1].key());
  }
};

template <class T>
void find_topk_of_each(StreamRef stream, const TopkOfEach<UnsignedOf<sizeof(T)>>& task, int warps) {
  using Kernel = TopkOfManyRows<T>;
  const bool at_once = task.columns <= Kernel::kPiece && task.columns % Kernel::kPack == 0 &&
                       device::is_pack_aligned<Kernel::kPack>(task.x);
  device::block_kernel<typename Kernel::Shared>(stream, {(int64_t(task.rows) + warps - 1) / warps, 32 * warps},
                                                Kernel{row_piece<T>(task), warps, at_once});
}

}  // namespace encore::ops
