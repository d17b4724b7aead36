// The best few of many rows, a warp for each, which goes through its row in pieces that its lanes keep in registers.
// The k-th of the lanes' best in the first piece is no better than the k-th of all, so that few elements need more than
// a comparison with it: those are listed, and each counts how many come before it. When the list is full all but the
// best leave it. A piece that hides more than there is room for, with all that is good in a few lanes, is searched for
// its k-th bit by bit.
#pragma once
#include "ops/index/row_piece.h"

namespace encore::ops {

template <class T>
struct BestOfManyRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::task;
  using typename Base::Item;
  using typename Base::Kept;
  using typename Base::Key;
  using typename Base::Wide;
  static constexpr int kMost = 16;  // of k
  static constexpr int kMaxThreads = 64, kWarps = kMaxThreads / 32;
  static constexpr int kPiece = Base::kPiece;
  static constexpr int kRoom = 64, kAtOnce = 16 / int(sizeof(Item));
  struct alignas(16) List {
    Item items[kRoom], best[kMost];
    int taken;
  };
  struct Shared {
    List lists[kWarps];
  };
  int warps;  // of a block

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const uint32_t row = uint32_t(b.index()) * uint32_t(warps) + uint32_t(warp.index());
      if (row < task.rows) find(warp, s.lists[warp.index()], row);
    });
  }

 private:
  DEVICE_FN void find(const device::Warp& warp, List& list, uint32_t row) const {
    const Key* const from = this->row_at(row);
    const int before = this->before(from);
    typename Base::Keeping kept;
    device::PerThread<Wide, 32> most;
    typename Base::Masks mask;
    warp.lanes([&](int lane) {
      kept[lane] = this->load(from, -before, lane);
      if (lane == 0) list.taken = 0;
    });
    Wide limit{};
    int found = 0;
    NO_UNROLL for (int start = -before; start < task.columns; start += kPiece) {
      warp.lanes([&](int lane) {
        this->arrange(kept[lane], start, lane);
        most[lane] = best_of(kept[lane]);
      });
      if (start <= 0) limit = limit_of(warp, most);
      int more = 0;
      // A NaN that comes last hides the lane's other elements.
      const auto may_have = [&](int lane) { return most[lane] <= limit || most[lane] > this->last_key(); };
      if (start <= 0 || warp.sum(may_have) != 0) {
        NO_UNROLL for (;;) {
          more = this->choose(warp, kept, mask, start, limit, start <= 0 ? task.k : 0, kRoom - found, found > task.k);
          if (more <= kRoom - found) break;
          limit = settle(warp, list, found);
          warp.lanes([&](int lane) {
            if (lane < task.k) list.items[lane] = list.best[lane];
            if (lane == 0) list.taken = task.k;
          });
          found = task.k;
        }
      }
      if (start + kPiece < task.columns)
        warp.lanes([&](int lane) { kept[lane] = this->load(from, start + kPiece, lane); });
      if (more != 0) this->list_chosen(warp, mask, list.items, &list.taken, found, more, from, start);
      found += more;
    }
    settle(warp, list, found);
    warp.lanes([&](int lane) {
      if (lane >= task.k) return;
      const auto place = uint32_t(list.best[lane].place());
      const uint64_t to = uint64_t(row) * uint32_t(task.k) + uint32_t(lane);
      task.values[to] = from[place];
      task.indices[to] = place;
    });
  }

  DEVICE_FN Wide best_of(const Kept& kept) const {
    auto most = kept[0];
    UNROLL for (int u = 1; u < Base::kKeep; ++u) most = device::larger_of_each(most, kept[u]);
    return this->key_of(Key(std::bit_cast<Key>(device::largest(most)) ^ this->flip));
  }
  // The k-th of the lanes' best. Forgets those before.
  DEVICE_FN Wide limit_of(const device::Warp& warp, device::PerThread<Wide, 32>& best) const {
    const auto least = [&] { return warp.least([&](int lane) { return best[lane]; }); };
    const auto forget = [&](Wide key) {
      warp.lanes([&](int lane) {
        if (best[lane] == key) best[lane] = Wide(~Wide(0));
      });
    };
    if constexpr (sizeof(Key) <= 2) {  // there is room for the lane, so that no two are the same
      warp.lanes([&](int lane) { best[lane] = best[lane] << 16 | Wide(lane); });
      Wide limit = least();
      for (int i = 1; i < task.k; ++i) {
        forget(limit);
        limit = least();
      }
      return limit >> 16;
    } else {
      NO_UNROLL for (int before = 0;;) {
        const Wide limit = least();
        before += warp.sum([&](int lane) { return best[lane] == limit; });
        if (before >= task.k) return limit;
        forget(limit);
      }
    }
  }

  // The best k of what is listed, in order. Returns the last of their keys.
  DEVICE_FN Wide settle(const device::Warp& warp, List& list, int found) const {
    warp.lanes([&](int lane) {  // up to whole packs
      if (lane < kAtOnce && found + lane < kRoom) list.items[found + lane] = Item::last();
    });
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < found; i += 32) {
        const Item mine = list.items[i];
        int rank = 0;
        NO_UNROLL for (int j = 0; j < found; j += kAtOnce) {
          const auto some = device::load_pack<kAtOnce>(list.items + j, true);
          UNROLL for (int n = 0; n < kAtOnce; ++n) rank += some.at[n] < mine;
        }
        if (rank < task.k) list.best[rank] = mine;
      }
    });
    return list.best[task.k - 1].key();
  }
};

template <class T>
void find_best_of_each(StreamRef stream, const BestOfEach<UnsignedOf<sizeof(T)>>& task, int warps) {
  using Kernel = BestOfManyRows<T>;
  device::block_kernel<typename Kernel::Shared>(stream, {(int64_t(task.rows) + warps - 1) / warps, 32 * warps},
                                                Kernel{row_piece<T>(task), warps});
}

}  // namespace encore::ops
