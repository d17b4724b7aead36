// Top-k of many rows for a small k that are wider than what a warp keeps at once: a block has a row, or each of its
// warps one, all of which is on its way at the same time, and keeps of each four elements the best. The k-th of the
// best of 32 parts of the row is no better than the k-th of all, so that few fours have something that is: those are
// listed and looked at again by one warp, for which each of the elements that are left counts how many come before it.
// Rows of which too much is as good as that, or all that is good lies in few parts, are searched for their k-th bit by
// bit.
#pragma once
#include "ops/index/row_piece.h"
#include "ops/reduce/team.h"

namespace encore::ops {

// T is a half or a float. A block has kRows, a warp for each if they are several.
template <class T, int kRows>
struct TopkOfWideRows : RowPiece<T> {
  using Base = RowPiece<T>;
  using Base::kPack;
  using Base::task;
  using typename Base::Item;
  using typename Base::Key;
  using typename Base::Limit;
  using typename Base::Wide;
  static constexpr int kMaxThreads = kRows > 1 ? 32 * kRows : 512;
  static constexpr int kKeep = kRows > 1 ? 6 : 8;           // granules of a thread
  static constexpr int kLeast = 3;                          // of them that all have
  static constexpr int kWays = device::kIsHalf<T> ? 2 : 1;  // halves are compared in pairs
  static constexpr int kFours = 64, kRoom = 4 * kFours;
  using Best = device::Pack<T, kWays>;
  struct Found {
    alignas(16) Item items[kRoom + Base::kOfLoad];
    int fours[kFours];  // columns of their first elements
    int listed, found;
    Wide limit;
  };
  struct Shared {
    Found of[kRows];
    Best best[kMaxThreads];
  };

  int threads_log;  // of a row

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& s) const {
    const int threads = kRows > 1 ? 32 : b.size();  // of a row
    const uint32_t first = uint32_t(b.index()) * kRows;
    const auto place_of = [&](int t) { return kRows > 1 ? t / 32 : 0; };
    device::PerThread<Bests, kMaxThreads> kept;
    b.threads([&](int t, Shared& s) {
      const int own = t % threads;
      s.best[t] = keep(kept[t], row_of(first + place_of(t)), own, threads);
      if (own == 0) s.of[place_of(t)].listed = 0;
    });
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const int place = place_of(32 * warp.index());
      const Row row = row_of(first + place);
      Found& found = s.of[place];
      device::PerThread<T, 32> best;
      warp.lanes([&](int lane) {
        Best most = s.best[32 * place + lane];
        NO_UNROLL for (int t = lane + 32; t < threads; t += 32) most = device::larger_or_nan(most, s.best[t]);
        best[lane] = most.at[0];
      });
      const Limit limit = this->limit_of(warp, best);
      warp.lanes([&](int lane) {
        const int t = warp.index() * 32 + lane, own = t % threads;
        if (own == 0) found.limit = limit.key;
        if (limit.key < this->last_key())
          list_fours(found, row, own, threads, until(kept[t], limit.number));
        else
          found.listed = kFours + 1;
      });
    });
    uint32_t all = 0;  // bits for the rows whose best are listed
    for (int place = 0; place < kRows; ++place) all |= uint32_t(s.of[place].listed <= kFours) << place;
    for (int place = 0; place < kRows; ++place) {
      if ((all >> place & 1) == 0) search(b, s, row_of(first + place), place);
    }
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      if (warp.index() >= kRows || first + warp.index() >= task.rows) return;
      const Row row = row_of(first + warp.index());
      Found& found = s.of[warp.index()];
      put(warp, found, row, (all >> warp.index() & 1) != 0 ? gather(warp, found, row.from) : task.k);
    });
  }

 private:
  struct Row {
    uint32_t index;
    const Key* from;
    int before, end;  // of the row's elements, counted from the first granule on
    int last;         // which of the granules of a thread some don't have: the last one
  };
  struct Bests {
    Best of[kKeep];
  };

  // The last one again where there are no more.
  DEVICE_FN Row row_of(uint32_t row) const {
    if (kRows > 1 && row >= task.rows) row = task.rows - 1;
    const Key* const from = this->row_at(row);
    const int before = this->before(from), end = before + task.columns;
    return {row, from, before, end, int(unsigned(end - 1) / kPack >> threads_log)};
  }
  DEVICE_FN static int first_of(const Row& row, int t, int threads, int granule) {
    return (t + threads * granule) * kPack - row.before;
  }

  // The best of each four, and of all. The last granule is kept behind those that there may be.
  DEVICE_FN Best keep(Bests& kept, const Row& row, int t, int threads) const {
    const char *const begin = reinterpret_cast<const char*>(row.from), *const end =
                                                                           begin + task.columns * int(sizeof(Key));
    const char* const at = begin + first_of(row, t, threads, 0) * int(sizeof(Key));
    const auto load = [&](int u) { return device::load_granule(at + unsigned(u * threads) * 16, begin, end); };
    device::Granule packs[kKeep];
    const int after = row.end - (t + threads * row.last) * kPack;  // elements that the last granule has, or more
    if (row.last == kKeep - 1 && row.end == kPack * kKeep * threads) {
      UNROLL for (int u = 0; u < kKeep; ++u) packs[u] = load(u);
    } else {
      UNROLL for (int u = 0; u < kLeast; ++u) packs[u] = load(u);
      UNROLL for (int u = kLeast; u < kKeep - 1; ++u) {
        packs[u] = this->nothing;
        if (u < row.last) packs[u] = load(u);
      }
      packs[kKeep - 1] = this->nothing;
      if (after > 0) packs[kKeep - 1] = load(row.last);
    }
    if (row.before != 0) clear<true>(packs[0], t == 0 ? row.before : 0);
    if (row.end % kPack != 0) clear<false>(packs[kKeep - 1], after);
    if (this->flip != 0) {
      UNROLL for (device::Granule& pack : packs) {
        for (uint32_t& word : pack.at) word ^= device::kIsHalf<T> ? this->flip * 0x10001u : uint32_t(this->flip);
      }
    }
    UNROLL for (int u = 0; u < kKeep; ++u) {
      auto words = std::bit_cast<device::Pack<Best, 4>>(packs[u]);
      UNROLL for (int i = 1; i < 4; ++i) words.at[0] = device::larger_or_nan(words.at[0], words.at[i]);
      kept.of[u] = words.at[0];
    }
    Best all = kept.of[0];
    UNROLL for (int u = 1; u < kKeep; ++u) all = device::larger_or_nan(all, kept.of[u]);
    if constexpr (kWays == 2) all = device::larger_or_nan(all, Best{all.at[1], all.at[0]});
    return all;
  }
  // Puts what no number comes after for the elements before one, or for that and all behind it.
  template <bool kBefore>
  DEVICE_FN void clear(device::Granule& granule, int element) const {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int bits = element * 8 * int(sizeof(Key)) - 32 * i;
      const uint32_t before = device::low_bits(bits < 0 ? 0 : bits), cleared = kBefore ? before : ~before;
      granule.at[i] = (granule.at[i] & ~cleared) | (this->nothing.at[i] & cleared);
    }
  }

  // Bits for the fours of which some are not below a number: for halves, those with an even place are the lower bits.
  DEVICE_FN static uint32_t until(const Bests& kept, T limit) {
    uint32_t bits = 0;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      if constexpr (kWays == 2)
        bits |= device::not_smaller(kept.of[u], {limit, limit}) & uint32_t(0x10001) << u;
      else
        bits |= kept.of[u].at[0] < limit ? 0 : uint32_t(1) << u;
    }
    return bits;
  }
  DEVICE_FN static void list_fours(Found& s, const Row& row, int t, int threads, uint32_t bits) {
    if (bits == 0) return;
    const int count = device::set_bits(bits);
    int to = device::atomic_add(&s.listed, count);
    if (to + count > kFours) return;
    NO_UNROLL for (; bits != 0; bits &= bits - 1) {
      const unsigned bit = unsigned(device::lowest_bit(bits)), u = bit % 16;
      s.fours[to++] = first_of(row, t, threads, u < kKeep - 1 ? int(u) : row.last) + int(bit / 16);
    }
  }

  // Lists the elements that do not come after the limit, in any order, and returns how many.
  DEVICE_FN int gather(const device::Warp& warp, Found& s, const Key* from) const {
    constexpr int kEach = 2;
    const int all = 4 * s.listed;
    const Wide limit = s.limit;
    int found = 0;
    NO_UNROLL for (int start = 0; start < all; start += 32 * kEach) {
      device::PerThread<Item, 32> own[kEach];
      warp.lanes([&](int lane) {
        UNROLL for (int n = 0; n < kEach; ++n) {
          const int i = start + 32 * n + lane, four = (i < all ? i : 0) / 4;
          const auto place = unsigned(s.fours[four] + lane % 4 * kWays);
          const bool in = (i < all) & (place < unsigned(task.columns));  // other rows' may be in its granule
          const Wide key = this->key_of(from[in ? place : 0]);
          own[n][lane] = in & (key <= limit) ? Item::of(Key(key), int(place)) : Item::last();
        }
      });
      UNROLL for (int n = 0; n < kEach; ++n) {
        const uint32_t which = warp.votes([&](int lane) { return own[n][lane] < Item::last(); });
        warp.lanes([&](int lane) {
          if (own[n][lane] < Item::last())
            s.items[found + device::set_bits(which & ((uint32_t(1) << lane) - 1))] = own[n][lane];
        });
        found += device::set_bits(which);
      }
    }
    return found;
  }
  DEVICE_FN void put(const device::Warp& warp, Found& s, const Row& row, int found) const {
    warp.lanes([&](int lane) {
      if (lane < Base::kOfLoad) s.items[found + lane] = Item::last();
    });
    warp.lanes([&](int lane) {
      NO_UNROLL for (int i = lane; i < found; i += 32) {
        const Item mine = s.items[i];
        const auto place = uint32_t(mine.place());
        const Key value = row.from[place];
        const int rank = this->rank_of(mine, s.items, found);
        if (rank >= task.k) continue;
        const uint64_t to = uint64_t(row.index) * uint32_t(task.k) + uint32_t(rank);
        task.values[to] = value;
        task.indices[to] = place;
      }
    });
  }

  // Lists the best k. Mostly many elements have the key of the limit, which is the k-th then.
  DEVICE_FN void search(device::Block<Shared>& b, const Shared& s, const Row& row, int place) const {
    const Key* const from = row.from;
    const auto before = [&](Wide key) {
      return b.reduce(
          0,
          [&](int t) {
            int count = 0;
            for (int i = t; i < task.columns; i += b.size()) count += this->key_of(from[i]) < key;
            return count;
          },
          Plus());
    };
    Wide key = 0, bit = 0;
    NO_UNROLL for (Wide tried = s.of[place].limit;; tried = key | bit) {
      const bool is_few = before(tried) < task.k;
      if (is_few) key = tried;
      if (bit == 0 ? is_few : bit == 1) break;
      bit = bit == 0 ? Wide(1) << (8 * sizeof(Key) - 1) : bit / 2;
    }
    b.threads([&](int t, Shared& s) {
      if (t == 0) s.of[place].found = 0;
    });
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < task.columns; i += b.size()) {
        const Wide own = this->key_of(from[i]);
        if (own < key) s.of[place].items[device::atomic_add(&s.of[place].found, 1)] = Item::of(Key(own), i);
      }
    });
    int found = s.of[place].found;
    NO_UNROLL for (int start = 0; found < task.k; start += b.size()) {
      device::PerThread<int, kMaxThreads> rank;
      const auto has_key = [&](int t) { return start + t < task.columns && this->key_of(from[start + t]) == key; };
      const int more = b.scan(
          rank, 0, [&](int t) { return int(has_key(t)); }, Plus());
      b.threads([&](int t, Shared& s) {
        if (has_key(t) && found + rank[t] < task.k) s.of[place].items[found + rank[t]] = Item::of(Key(key), start + t);
      });
      found += more;
    }
  }
};

// False if the rows are too narrow or too wide for it.
template <class T>
bool find_topk_of_wide_rows(StreamRef stream, const TopkOfEach<UnsignedOf<sizeof(T)>>& task) {
  constexpr int kRows = 4;
  using Alone = TopkOfWideRows<T, 1>;
  using Together = TopkOfWideRows<T, kRows>;
  constexpr int kPack = Alone::kPack;
  const int64_t reach =
      task.columns + (task.columns % kPack == 0 && device::is_pack_aligned<kPack>(task.x) ? 0 : kPack - 1);
  const bool few = task.rows < 8 * uint32_t(device::multiprocessors(stream.device()));
  const bool together = !few && reach <= 32 * Together::kKeep * kPack;
  int log = few || together ? 5 : 6;
  while (int64_t(Alone::kKeep * kPack) << log < reach) ++log;
  const int threads = 1 << log;
  if (threads > Alone::kMaxThreads || int64_t(task.columns) <= Alone::kLeast * kPack * threads) return false;
  if (!together) {
    device::block_kernel<typename Alone::Shared>(stream, {int64_t(task.rows), threads}, Alone{row_piece<T>(task), log});
    return true;
  }
  device::block_kernel<typename Together::Shared>(stream, {(int64_t(task.rows) + kRows - 1) / kRows, 32 * kRows},
                                                  Together{row_piece<T>(task), log});
  return true;
}

}  // namespace encore::ops
