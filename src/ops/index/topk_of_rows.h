// Top-k of each row for a small k, from one look at it: a block keeps a row, or a part of one, in registers. The k-th
// of the threads' own best is no better than the k-th of all, so that few elements need more than a comparison with it:
// those are listed, and each counts how many come before it. Rows that hide more than there is room for, with all that
// is good in a few threads, are searched for their k-th bit by bit.
#pragma once
#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "device/bits.h"
#include "device/device.h"
#include "device/divide.h"
#include "device/larger.h"
#include "device/words.h"
#include "ops/index/ordering.h"
#include "ops/op.h"
#include "ops/reduce/team.h"

namespace encore::ops {

// What is looked at, and where the best of it go.
template <class Key>
struct TopkTask {
  const Key* from;             // [rows, width]: numbers, or keys, which are in the order of their places if the same
  const int32_t* from_places;  // null: the columns
  Ordering order;              // of what is in `from`
  int64_t rows, width;
  int parts, k;  // of each row
  Key* best;     // [rows, parts, k], in order, unless this is the last round
  int32_t* best_places;
  const Key* x;  // [rows, columns]
  int64_t columns;
  Key* values;  // [rows, k], of the last round
  int64_t* indices;

  DEVICE_FN void put(int64_t row, int part, int rank, Key key, int64_t place) const {
    if (from_places) place = from_places[row * width + place];
    if (best) {
      best[(row * parts + part) * k + rank] = key;
      best_places[(row * parts + part) * k + rank] = int32_t(place);
    } else {
      values[row * k + rank] = x[row * columns + place];
      indices[row * k + rank] = place;
    }
  }
};

// A block for each part of a row; kEach elements a thread. T is a float, or an unsigned integer for all integers and
// for keys.
template <class T, int kEach>
struct TopkOfRows {
  using Key = UnsignedOf<sizeof(T)>;
  using C = device::Compute<T>;
  using Item = Placed<Key>;
  static constexpr int kMaxThreads = 1024;
  static constexpr int kPack = std::min(device::pack_size<T>(), kEach), kKeep = kEach / kPack;
  static constexpr int kCounted = 256;  // items that are compared with one another; more are sorted
  struct Shared {
    Item limit;
    int found, too_many;
  };
  using Values = device::Pack<T, kPack>;
  // Flipped, so that the best is the largest.
  struct Kept {
    using Words = device::WordsOf<T, kPack>;
    Words packs[kKeep];
    DEVICE_FN Values operator[](int u) const { return device::pack_of<T>(packs[u]); }
    DEVICE_FN void set(int u, const Values& values) { packs[u] = device::words_of(values); }
    DEVICE_FN void load(int u, const T* from) { packs[u] = device::load_words<kPack>(from); }
  };

  TopkTask<Key> task;
  device::Divider by_parts;
  int groups;    // a power of two, not more than threads
  int capacity;  // items in dynamic memory: a power of two
  Key flip;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& s) const {
    device::PerThread<Kept, kMaxThreads> kept;
    b.threads([&](int t, Shared& s) {
      const Part part = locate(b);
      items(b, s)[t] = keep(kept[t], b, t, part);
      if (t == 0) {
        s.limit = Item::last();
        s.found = s.too_many = 0;
      }
    });
    find_limit(b);
    b.threads([&](int t, Shared& s) {
      const Part part = locate(b);
      const Item limit = s.limit;
      for (uint32_t mask = not_after(kept[t], b, t, part, limit.key()); mask != 0; mask &= mask - 1) {
        const int element = element_of(device::lowest_bit(mask));
        offer(b, s, part, first_of(b, t, part, element / kPack) + element % kPack, limit);
      }
    });
    if (s.too_many) search(b);
    if (s.found > kCounted) {
      sort(b, s.found);
      b.threads([&](int t, Shared& s) {
        const Part part = locate(b);
        for (int rank = t; rank < task.k; rank += b.size()) put(part, rank, items(b, s)[rank]);
      });
      return;
    }
    b.threads([&](int t, Shared& s) {
      const Part part = locate(b);
      const Item* const all = items(b, s);
      const int found = s.found;
      for (int i = t; i < found; i += b.size()) {
        const Item mine = all[i];
        int rank = 0;
        for (int j = 0; j < found; ++j) rank += all[j] < mine;
        if (rank < task.k) put(part, rank, mine);
      }
    });
  }

 private:
  struct Part {
    const Key* from;
    int64_t row, start;
    int part, count, before;  // packs lie at aligned addresses; the first begins `before` elements before the part
  };
  DEVICE_FN Part locate(const device::Block<Shared>& b) const {
    int64_t part = 0;
    const int64_t row = by_parts(b.index(), part);
    const int64_t start = task.width * part / task.parts, end = task.width * (part + 1) / task.parts;
    const Key* const from = task.from + row * task.width + start;
    return {
        from, row, start, int(part), int(end - start), int(reinterpret_cast<uintptr_t>(from) / sizeof(Key) % kPack)};
  }
  DEVICE_FN static Item* items(device::Block<Shared>& b, Shared& s) { return b.template dynamic<Item>(s); }
  DEVICE_FN static int first_of(const device::Block<Shared>& b, int t, const Part& part, int pack) {
    return (t + pack * b.size()) * kPack - part.before;
  }
  // What is known of it when this is compiled spares branches.
  DEVICE_FN Ordering ordering() const {
    Ordering order = task.order;
    if constexpr (!std::is_integral_v<T>) order.kind = Ordering::Kind::floating;
    return order;
  }
  DEVICE_FN Key order(Key bits) const { return ordering()(bits); }
  // Whether all packs of a thread are, from first to last.
  DEVICE_FN static bool has_all(const device::Block<Shared>& b, int t, const Part& part) {
    return (part.before == 0) & (first_of(b, t, part, kKeep - 1) + kPack <= part.count);
  }
  // Keeps the packs of a thread and tells the best of them. Its place is that of the last in its pack.
  DEVICE_FN Item keep(Kept& kept, const device::Block<Shared>& b, int t, const Part& part) const {
    const T* const from = reinterpret_cast<const T*>(part.from);
    const bool all = has_all(b, t, part);
    if (all) {
      UNROLL for (int u = 0; u < kKeep; ++u) kept.load(u, from + first_of(b, t, part, u));
    } else {
      UNROLL for (int u = 0; u < kKeep; ++u) {
        const int first = first_of(b, t, part, u);
        if (first >= 0 && first + kPack <= part.count)
          kept.load(u, from + first);
        else
          kept.set(u, load_some(part, first));
      }
    }
    C most{};
    int in = part.count;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      kept.set(u, device::flipped(kept[u], flip));
      const C value = C(device::largest_or_nan(kept[u]));
      const int first = first_of(b, t, part, u);
      const bool taken = (all | (first < part.count)) & (u == 0 || !(value <= most));
      most = taken ? value : most;
      in = taken ? first : in;
    }
    if (in == part.count) return Item::last();
    const int end = in + kPack < part.count ? in + kPack : part.count;
    return Item::of(order(Key(std::bit_cast<Key>(T(most)) ^ flip)), end - 1);
  }
  // Where there is nothing the pack repeats the nearest.
  DEVICE_FN static Values load_some(const Part& part, int first) {
    const T* const from = reinterpret_cast<const T*>(part.from);
    Values values;
    UNROLL for (int j = 0; j < kPack; ++j) {
      const int i = first + j < part.count ? first + j : part.count - 1;
      values.at[j] = from[i < 0 ? 0 : i];
    }
    return values;
  }

  // Which bit stands for the j-th element of a pack: halves are compared in pairs.
  DEVICE_FN static constexpr int bit_of(int pack, int j) {
    const int element = pack * kPack + j;
    return device::kIsHalf<T> ? element / 2 + element % 2 * 16 : element;
  }
  DEVICE_FN static int element_of(int bit) { return device::kIsHalf<T> ? bit % 16 * 2 + bit / 16 : bit; }
  // Bits for the elements that do not come after a key, and for some others: NaN may be among them.
  DEVICE_FN uint32_t not_after(const Kept& kept, const device::Block<Shared>& b, int t, const Part& part,
                               Key key) const {
    const T limit = std::bit_cast<T>(Key(ordering().number(key) ^ flip));
    uint32_t mask = 0;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      if constexpr (device::kIsHalf<T>) {
        const auto pairs = std::bit_cast<device::Pack<device::Pack<T, 2>, kPack / 2>>(kept[u]);
        UNROLL for (int j = 0; j < kPack / 2; ++j) mask |=
            device::not_smaller(pairs.at[j], {limit, limit}) & (uint32_t(0x10001) << bit_of(u, 2 * j));
      } else {
        UNROLL for (int j = 0; j < kPack; ++j) mask |= kept[u].at[j] < limit ? 0 : uint32_t(1) << bit_of(u, j);
      }
    }
    if (has_all(b, t, part)) return mask;
    UNROLL for (int u = 0; u < kKeep; ++u) {
      UNROLL for (int j = 0; j < kPack; ++j) {
        const int column = first_of(b, t, part, u) + j;
        if (column < 0 || column >= part.count) mask &= ~(uint32_t(1) << bit_of(u, j));
      }
    }
    return mask;
  }
  DEVICE_FN void offer(device::Block<Shared>& b, Shared& s, const Part& part, int column, const Item& limit) const {
    const Item item = Item::of(order(part.from[column]), column);
    if (limit < item) return;
    const int slot = device::atomic_add(&s.found, 1);
    if (slot < capacity)
      items(b, s)[slot] = item;
    else
      s.too_many = 1;
  }
  DEVICE_FN void put(const Part& part, int rank, const Item& item) const {
    task.put(part.row, part.part, rank, item.key(), part.start + item.place());
  }

  // The k-th of the groups' best. A group is a thread, or several.
  DEVICE_FN void find_limit(device::Block<Shared>& b) const {
    if (groups > kCounted / 2) {
      sort(b, b.size());
      b.threads([&](int t, Shared& s) {
        if (t == 0 && task.k <= b.size()) s.limit = items(b, s)[task.k - 1];
      });
      return;
    }
    b.threads([&](int t, Shared& s) {
      if (t >= groups) return;
      Item* const all = items(b, s);
      Item best = all[t];
      for (int i = t + groups; i < b.size(); i += groups) best = all[i] < best ? all[i] : best;
      all[t] = best;
    });
    b.threads([&](int t, Shared& s) {
      if (t >= groups) return;
      constexpr int kAtOnce = 16 / sizeof(Item);
      const Item* const all = items(b, s);
      const Item mine = all[t];
      int rank = 0;
      for (int i = 0; i < groups; i += kAtOnce) {
        const auto some = device::load_pack<kAtOnce>(all + i, true);
        UNROLL for (int j = 0; j < kAtOnce; ++j) rank += some.at[j] < mine;
      }
      if (rank == task.k - 1) s.limit = mine;
    });
  }

  // The limit exactly, and what is not after it.
  DEVICE_FN void search(device::Block<Shared>& b) const {
    const auto enough = [&](const Item& limit) {
      return b.reduce(
                 0,
                 [&](int t) {
                   const Part part = locate(b);
                   int count = 0;
                   for (int i = t; i < part.count; i += b.size()) count += !(limit < Item::of(order(part.from[i]), i));
                   return count;
                 },
                 Plus()) >= task.k;
    };
    Key key = 0;
    for (int bit = 8 * int(sizeof(Key)) - 1; bit >= 0; --bit) {
      const Key own = Key(Key(1) << bit);
      if (!enough(Item::of(Key(key | Key(own - 1)), 0xffff))) key = Key(key | own);
    }
    int place = 0;
    for (int own = 1 << 15; own > 0; own /= 2)
      if (!enough(Item::of(key, place | (own - 1)))) place |= own;
    b.threads([&](int t, Shared& s) {
      if (t == 0) s.found = 0;
    });
    b.threads([&](int t, Shared& s) {
      const Part part = locate(b);
      for (int i = t; i < part.count; i += b.size()) offer(b, s, part, i, Item::of(key, place));
    });
  }

  // Bitonic, of the next power of two.
  DEVICE_FN void sort(device::Block<Shared>& b, int count) const {
    int size = 1;
    while (size < count) size *= 2;
    b.threads([&](int t, Shared& s) {
      for (int i = count + t; i < size; i += b.size()) items(b, s)[i] = Item::last();
    });
    for (int run = 2; run <= size; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
        b.threads([&](int t, Shared& s) {
          Item* const all = items(b, s);
          for (int pair = t; pair < size / 2; pair += b.size()) {
            const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
            const Item a = all[low], c = all[high];
            if ((c < a) != ((low & run) == 0)) continue;
            all[low] = c;
            all[high] = a;
          }
        });
      }
    }
  }
};

template <class T, int kEach>
void find_topk(StreamRef stream, const TopkTask<UnsignedOf<sizeof(T)>>& task, int threads, int groups, int capacity) {
  using Kernel = TopkOfRows<T, kEach>;
  const int64_t blocks = task.rows * task.parts;
  const int64_t items = std::max(capacity, int(std::bit_ceil(unsigned(threads))));
  device::block_kernel<typename Kernel::Shared>(stream,
                                                {blocks, threads, items * int64_t(sizeof(typename Kernel::Item))},
                                                Kernel{task, device::Divider(task.parts, blocks), groups, capacity,
                                                       task.order.template flip<typename Kernel::Key>()});
}

// How a block for each part goes about it.
struct TopkPlan {
  int parts, threads, groups, capacity;
  bool few;  // elements a thread: eight at most

  // Of rows of `width` elements of `bytes` bytes. Nothing if so many are wanted that there is a better way.
  static std::optional<TopkPlan> of(int64_t rows, int64_t width, int64_t k, int bytes, int multiprocessors) {
    constexpr int64_t kFew = 8, kMostThreads = 1024, kMostItems = 4096;
    const int64_t pack = std::clamp(16 / bytes, 1, 8), many = bytes == 8 ? 16 : 32;
    const int64_t most = std::min<int64_t>(many * kMostThreads, 1 << 15) - pack;
    int64_t parts = 1;
    if (width > most)
      parts = std::max((width + most - 1) / most,
                       std::min(2 * multiprocessors / rows, width / std::max<int64_t>(8192, 8 * k)));
    const int64_t length = (width + parts - 1) / parts, reach = length + pack;
    if (parts > 1 && parts * k > width / 2) return {};
    const int64_t wanted = std::min(int64_t(std::bit_ceil(uint64_t(2 * k))), length / pack);
    const int64_t each = reach <= kFew * kMostThreads && rows * parts <= 4 * multiprocessors ? kFew : many;
    int64_t threads = (reach + each - 1) / each;
    threads = std::min((std::max<int64_t>({threads, wanted, 64}) + 31) / 32 * 32, kMostThreads);
    const bool all = 2 * k > std::min(threads, length / pack);
    if (all && length > kMostItems) return {};
    const int64_t capacity = std::clamp<int64_t>(all ? length : 8 * k, 256, kMostItems);
    const int64_t groups =
        std::min(std::bit_floor(uint64_t(threads)), std::bit_ceil(uint64_t(std::max<int64_t>(2 * k, 128))));
    return TopkPlan{int(parts), int(threads), int(groups), int(std::bit_ceil(uint64_t(capacity))),
                    threads * kFew >= reach};
  }
};

}  // namespace encore::ops
