// Top-k of rows, or of parts of them, by a block each, which looks at its elements twice. The k-th of what groups of
// them have for their best is no better than the k-th of all: so that is a limit which few elements do not come after.
// Those are listed, and sorted. If they are too many, as all that is good lies in few groups, the limit is sought among
// all elements. Parts of a long row leave the best of theirs, and hardly more, to the next round.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>

#include "device/bits.h"
#include "device/device.h"
#include "device/divide.h"
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "ops/index/ordering.h"
#include "ops/op.h"

namespace encore::ops {

// A key and behind it its place, as one number: no two are the same.
template <class Key>
using WordOf = std::conditional_t<sizeof(Key) == 8, unsigned __int128, uint64_t>;

// From is Key, or the words that an earlier round has left. kFloating: whether numbers are.
template <class Key, class From, bool kFloating>
struct TopkOfRows {
  using Word = WordOf<Key>;
  static constexpr int kMaxThreads = 1024;
  static constexpr int kPack = 16 / int(sizeof(From)), kAtOnce = std::clamp(16 / kPack, 1, 4);
  static constexpr int kGroups = 4;  // of a thread, at most
  static constexpr Word kNone = ~Word(0);
  static constexpr Word kLast = (Word(Key(~Key(0))) << 32 | ~uint32_t(0)) - 1;  // places are less than that
  // Which bin has the last of the words that are wanted, how many of its words are, and how many it has.
  struct Found {
    int bin, wanted, here;
  };
  struct Shared {
    int bins[kMaxThreads], sums[kMaxThreads / 32];
    Found found;
    int listed, taken;
  };

  const From* from;  // [rows, width]
  Ordering order;
  int64_t width, length;  // of a row, and of a part of it: the last one may be shorter
  device::Divider by_parts;
  int k, groups;
  int room;      // of the list, which is there twice in dynamic memory: a power of two, from 32 up
  int left;      // by each part: more than k
  Word* best;    // [rows, parts, left], unless this is the last round
  const Key* x;  // [rows, columns]
  int64_t columns;
  Key* values;  // [rows, k], of the last round
  int64_t* indices;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& s) const {
    const Part part = locate(b.index());
    device::PerThread<Bests, kMaxThreads> bests;
    b.threads([&](int t, Shared&) { bests[t] = best_of_groups(part, t, b.size()); });
    Word limit = find(b, s, k / 8 + 4, [&](int t, auto f) { UNROLL for (const Word& word : bests[t].of) f(word); });
    NO_UNROLL for (;;) {
      list(b, part, limit);
      if (s.listed <= room) break;
      limit = find(b, s, room - k, [&](int t, auto f) {
        NO_UNROLL for (int i = t; i < part.count; i += b.size()) f(word_at(part, i));
      });
    }
    const int listed = s.listed;
    if (best)
      leave(b, s, listed);
    else
      put(b, part.row, sort(b, listed));
  }

 private:
  struct Part {
    const From* from;
    int64_t row;
    int start, count, before;  // packs lie at aligned addresses, the first so many elements before the part
  };
  struct Bests {
    Word of[kGroups];
  };

  DEVICE_FN Part locate(int64_t block) const {
    int64_t part = 0;
    const int64_t row = by_parts(block, part);
    const int64_t start = part * length;
    const From* const at = from + row * width + start;
    return {at, row, int(start), int(std::min(width - start, length)),
            int(reinterpret_cast<uintptr_t>(at) / sizeof(From) % kPack)};
  }
  DEVICE_FN Word word_of(From number, int place) const {
    if constexpr (sizeof(From) == sizeof(Word)) {
      return number;
    } else {
      Ordering own = order;
      if constexpr (kFloating) own.kind = Ordering::Kind::floating;
      return Word(own(number)) << 32 | uint32_t(place);
    }
  }
  DEVICE_FN Word word_at(const Part& part, int i) const { return word_of(part.from[i], part.start + i); }
  // f(element, word) for what a thread has of a part and for some that are none. After some packs then(first) hears
  // that element i of these is the one at first + place_of(i).
  template <class F, class Then>
  DEVICE_FN void each_pack(const Part& part, int t, int threads, F f, Then then) const {
    const char *const begin = reinterpret_cast<const char*>(part.from), *const end = begin + int64_t(part.count) *
                                                                                                 int64_t(sizeof(From));
    const int last = part.count - 1;
    NO_UNROLL for (int first = t * kPack - part.before; first < part.count; first += kAtOnce * kPack * threads) {
      device::Granule packs[kAtOnce]{};
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        const int64_t at = int64_t(first) + place_of(u * kPack, threads);
        if (at < part.count) packs[u] = device::load_granule(begin + at * int64_t(sizeof(From)), begin, end);
      }
      UNROLL for (int u = 0; u < kAtOnce; ++u) {
        // A branch: else ptxas would ask for a pack once the one before it is done with, and so take fewer registers.
        if (int(unsigned(first) + unsigned(place_of(u * kPack, threads))) > last) break;
        const auto numbers = std::bit_cast<device::Pack<From, kPack>>(packs[u]);
        UNROLL for (int j = 0; j < kPack; ++j) {
          const int i = int(unsigned(first) + unsigned(place_of(u * kPack + j, threads)));
          const Word word = word_of(numbers.at[j], part.start + i);
          f(u * kPack + j, unsigned(i) < unsigned(part.count) ? word : kNone);
        }
      }
      then(first);
    }
  }
  DEVICE_FN static int place_of(int element, int threads) {
    return element / kPack * kPack * threads + element % kPack;
  }
  DEVICE_FN Bests best_of_groups(const Part& part, int t, int threads) const {
    Bests best;
    UNROLL for (Word& word : best.of) word = kNone;
    each_pack(
        part, t, threads,
        [&](int element, Word word) {
          Word& own = best.of[element % kGroups];
          if (word < own) own = word;
        },
        [](int) {});
    if (groups == 1) {
      UNROLL for (int i = 1; i < kGroups; ++i) {
        if (best.of[i] < best.of[0]) best.of[0] = best.of[i];
        best.of[i] = kNone;
      }
    }
    return best;
  }

  // The k-th of words, or one that comes up to so many words later; each(t, f) calls f for those of a thread, of which
  // some may be none. All words that there may be share the block's bins, and then those of a bin. The last one if
  // there are less than k.
  template <class Each>
  DEVICE_FN Word find(device::Block<Shared>& b, const Shared& s, int later, Each each) const {
    Word low = 0, high = kLast;
    NO_UNROLL for (int wanted = k;;) {
      const int shift = std::max(bits_of(high - low) - device::highest_bit(unsigned(b.size())), 0);
      b.threads([&](int t, Shared& s) { s.bins[t] = 0; });
      b.threads([&](int t, Shared& s) {
        each(t, [&](Word word) {
          if (word >= low && word <= high) device::atomic_add(&s.bins[unsigned((word - low) >> shift)], 1);
        });
      });
      device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
        const int sum = warp.sum([&](int lane) { return s.bins[32 * warp.index() + lane]; });
        warp.lanes([&](int lane) {
          if (lane == 0) s.sums[warp.index()] = sum;
        });
      });
      device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
        if (warp.index() > 0) return;
        Found found{0, wanted, 0};
        found = found_in(warp, found, [&](int lane) { return 32 * lane < b.size() ? s.sums[lane] : 0; });
        if (found.bin >= 0) found = found_in(warp, found, [&](int lane) { return s.bins[32 * found.bin + lane]; });
        warp.lanes([&](int lane) {
          if (lane == 0) s.found = found;
        });
      });
      const Found found = s.found;
      if (found.bin < 0) return kLast;
      low += Word(unsigned(found.bin)) << shift;
      high = std::min(high - low, (Word(1) << shift) - 1) + low;
      if (found.here <= found.wanted + later) return high;
      wanted = found.wanted;
    }
  }
  // Goes on to one of 32 bins, in as many of which each of those before were divided. Its number is negative if there
  // are too few words.
  template <class Count>
  DEVICE_FN static Found found_in(const device::Warp& warp, const Found& found, Count count_of) {
    device::PerThread<int, 32> count, before;
    warp.apart([&](int lane) { count[lane] = before[lane] = count_of(lane); });
    warp.sums_before([&](int lane) -> int& { return before[lane]; });
    const uint32_t has =
        warp.votes([&](int lane) { return before[lane] < found.wanted && found.wanted <= before[lane] + count[lane]; });
    if (has == 0) return {-1, 0, 0};
    const int bin = device::lowest_bit(has);
    return {32 * found.bin + bin, found.wanted - warp.from(bin, [&](int lane) { return before[lane]; }),
            warp.from(bin, [&](int lane) { return count[lane]; })};
  }
  // From the lowest one up to the highest that is set.
  DEVICE_FN static int bits_of(Word word) {
    NO_UNROLL for (int from = 8 * int(sizeof(Word)) - 32; from >= 0; from -= 32) {
      if (const auto some = uint32_t(word >> from); some != 0) return from + device::highest_bit(some) + 1;
    }
    return 0;
  }

  DEVICE_FN Word* list_at(device::Block<Shared>& b, Shared& s, int which) const {
    return b.template dynamic<Word>(s, int64_t(which) * room * int64_t(sizeof(Word)));
  }
  // Lists those that do not come after the limit, in any order, as far as there is room.
  DEVICE_FN void list(device::Block<Shared>& b, const Part& part, Word limit) const {
    b.threads([&](int t, Shared& s) {
      if (t == 0) s.listed = s.taken = 0;
    });
    b.threads([&](int t, Shared& s) {
      Word* const words = list_at(b, s, 0);
      uint32_t bits = 0;
      each_pack(
          part, t, b.size(), [&](int element, Word word) { bits |= word <= limit ? uint32_t(1) << element : 0; },
          [&](int first) {
            if (bits == 0) return;
            int slot = device::atomic_add(&s.listed, device::set_bits(bits));
            NO_UNROLL for (; bits != 0; bits &= bits - 1, ++slot) {
              const int i = first + place_of(device::lowest_bit(bits), b.size());
              if (slot < room) words[slot] = word_at(part, i);
            }
          });
    });
  }

  // The first list in order. Returns which one has it. Runs of 32, in which each counts those before it, become longer
  // by what each finds before it in the neighbouring run. Behind the last run there are words that are none.
  DEVICE_FN int sort(device::Block<Shared>& b, int listed) const {
    constexpr int kRun = 32, kOfLoad = 16 / int(sizeof(Word));
    int end = kRun;
    while (end < listed) end *= 2;
    b.threads([&](int t, Shared& s) {
      NO_UNROLL for (int i = listed + t; i < end; i += b.size()) list_at(b, s, 0)[i] = list_at(b, s, 1)[i] = kNone;
    });
    b.threads([&](int t, Shared& s) {
      const Word* const words = list_at(b, s, 0);
      NO_UNROLL for (int i = t; i < listed; i += b.size()) {
        const Word own = words[i];
        int to = i / kRun * kRun;
        const Word* const run = words + to;
        UNROLL for (int j = 0; j < kRun; j += kOfLoad) {
          const auto some = device::load_pack<kOfLoad>(run + j, true);
          UNROLL for (const Word& word : some.at) to += word < own;
        }
        list_at(b, s, 1)[to] = own;
      }
    });
    int which = 1;
    NO_UNROLL for (int run = kRun; run < end; run *= 2, which ^= 1) {
      b.threads([&](int t, Shared& s) {
        const Word* const words = list_at(b, s, which);
        NO_UNROLL for (int i = t; i < listed; i += b.size()) {
          const Word own = words[i];
          const int first = (i & -run) ^ run;
          int at = first;
          NO_UNROLL for (unsigned step = unsigned(run) / 2; step > 0; step /= 2) {
            const int next = at + int(step);
            if (words[next - 1] < own) at = next;
          }
          if (words[at] < own) ++at;
          list_at(b, s, which ^ 1)[(i & ~run) + (at - first)] = own;
        }
      });
    }
    return which;
  }

  DEVICE_FN void put(device::Block<Shared>& b, int64_t row, int which) const {
    b.threads([&](int t, Shared& s) {
      const Word* const words = list_at(b, s, which);
      const Key* const numbers = x + row * columns;
      NO_UNROLL for (int rank = t; rank < k; rank += b.size()) {
        const auto place = uint32_t(words[rank]);
        values[row * k + rank] = numbers[place];
        indices[row * k + rank] = place;
      }
    });
  }
  DEVICE_FN void leave(device::Block<Shared>& b, const Shared& s, int listed) const {
    Word limit = kLast;
    if (listed > left)
      limit = find(b, s, left - k,
                   [&](int t, auto f) { NO_UNROLL for (int i = t; i < listed; i += b.size()) f(listed_at(b, s, i)); });
    Word* const to = best + b.index() * left;
    b.threads([&](int t, Shared& s) {
      NO_UNROLL for (int i = t; i < listed; i += b.size()) {
        const Word word = listed_at(b, s, i);
        if (word <= limit) to[device::atomic_add(&s.taken, 1)] = word;
      }
    });
    b.threads([&](int t, Shared& s) { NO_UNROLL for (int i = s.taken + t; i < left; i += b.size()) to[i] = kNone; });
  }
  DEVICE_FN Word listed_at(const device::Block<Shared>& b, const Shared& s, int i) const {
    return b.template dynamic<Word>(s)[i];
  }
};

// Rounds of TopkOfRows: how many parts the rows of the next one have, and threads its blocks.
struct TopkRound {
  static constexpr int kMost = 2048;  // of k
  int parts, threads, groups, room, left;
  int64_t length;  // of a part

  // Of rows of `width` numbers or words of `bytes` bytes each. There may be room for so many in a list.
  static TopkRound of(int64_t rows, int64_t width, int k, int bytes, int room, int multiprocessors) {
    constexpr int64_t kAlone = 16384, kLeast = 2048;
    TopkRound round{};
    round.left = (k + k / 2 + 9) / 2 * 2;  // mostly no less than what the limit of groups lets through
    // As many parts as leave about as much as each of them has.
    int64_t parts = 1;
    if (width > kAlone)
      parts = std::min({2 * multiprocessors / rows, width / kLeast, int64_t(std::sqrt(width / (2.0 * k)))});
    round.length = parts > 1 ? ((width + parts - 1) / parts + 15) / 16 * 16 : width;
    round.parts = int((width + round.length - 1) / round.length);
    const int64_t length = round.length, granules = length * bytes / 16;
    // Two granules for each thread, if there are multiprocessors for all.
    const bool few = rows * round.parts <= 2 * multiprocessors;
    const int64_t threads = std::max<int64_t>({granules / (few ? 2 : 4), k / 2, 64});
    round.threads = int(std::min<int64_t>((threads + 31) / 32 * 32, 1024));
    round.groups = k > round.threads / 2 ? 4 : 1;
    round.room = int(std::bit_ceil(uint64_t(std::clamp<int64_t>(8 * int64_t(k), 256, room))));
    return round;
  }
};

}  // namespace encore::ops
