// Top-k of rows for a small k, a warp for each, whose lanes keep the row in registers. The k-th of the lanes' best is
// no better than the k-th of all, so that few elements need more than a comparison with it: those are listed, and each
// counts how many come before it. A row that hides more than there is room for, with all that is good in a few lanes,
// is searched for its k-th bit by bit.
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
  static constexpr int kMost = 16;  // of k
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kRoom = 64;
  struct alignas(16) List {
    Item items[kRoom];
    int taken;
  };
  struct Shared {
    List lists[kWarps];
  };
  int warps;  // of a block

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t own = uint32_t(b.index()) * uint32_t(warps) + uint32_t(warp.index());
      // There is always one; and it is the same for all lanes, which the compiler only knows of what they agreed on.
      const uint32_t row = warp.least([&](int) { return own < task.rows ? own : task.rows - 1; });
      find(warp, s.lists[warp.index()], row);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, List& list, uint32_t row) const {
    const Key* const from = this->row_at(row);
    const int start = -this->before(from);
    typename Base::Keeping kept;
    device::PerThread<T, 32> most;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, start, lane);
      if (lane == 0) list.taken = 0;
      this->arrange(kept[lane], start, lane);
      most[lane] = best_of(kept[lane]);
    });
    const Limit limit = this->limit_of(warp, most);
    int found = warp.sum([&](int lane) {
      mask[lane] = this->until(kept[lane], limit.number);
      return device::set_bits(mask[lane]);
    });
    if ((found > kRoom) | (limit.key >= this->last_key()))
      found = this->choose(warp, kept, mask, start, limit.key, kRoom);
    warp.lanes([&](int lane) {
      if (mask[lane] == 0) return;
      Item* to = list.items + device::atomic_add(&list.taken, device::set_bits(mask[lane]));
      NO_UNROLL for (uint32_t bits = mask[lane]; bits != 0; bits &= bits - 1) {
        *to++ = Item::of(Key(0), lane * 32 + device::lowest_bit(bits));
      }
    });
    device::PerThread<Item, 32> own[kRoom / 32];
    device::PerThread<Key, 32> value[kRoom / 32];
    const auto each = [&](auto f) {
      f(0);
      if (found > 32) f(1);
    };
    each([&](int n) {
      warp.lanes([&](int lane) {
        Item& item = list.items[32 * n + lane];
        own[n][lane] = Item::last();
        if (32 * n + lane < found) {
          const auto at = unsigned(item.place());
          const int place = this->place_of(at % 32, start, int(at / 32));
          value[n][lane] = from[unsigned(place)];
          own[n][lane] = Item::of(Key(this->key_of(value[n][lane])), place);
        }
        item = own[n][lane];
      });
    });
    each([&](int n) {
      warp.lanes([&](int lane) {
        const int rank = this->rank_of(own[n][lane], list.items, found);
        if ((rank >= task.k) | (32 * n + lane >= found)) return;
        const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(rank);
        task.values[to] = value[n][lane];
        task.indices[to] = own[n][lane].place();
      });
    });
  }
  DEVICE_FN T best_of(const Kept& kept) const {
    auto most = kept[0];
    UNROLL for (int u = 1; u < Base::kKeep; ++u) most = device::larger_or_nan(most, kept[u]);
    return device::largest_or_nan(most);
  }
};

template <class T>
void find_topk_of_each(StreamRef stream, const TopkOfEach<UnsignedOf<sizeof(T)>>& task) {
  using Kernel = TopkOfManyRows<T>;
  // Few are apart, for rows of a block wait for one another.
  const int warps = task.rows < 8 * uint32_t(device::multiprocessors(stream.device())) ? 1 : Kernel::kWarps;
  device::block_kernel<typename Kernel::Shared>(stream, {(int64_t(task.rows) + warps - 1) / warps, 32 * warps},
                                                Kernel{row_piece<T>(task), warps});
}

}  // namespace encore::ops
