// TopK of long rows: a block, or several that leave the best of their parts to the next round, find the last one that
// is wanted digit by digit.
#pragma once
#include "device/atomic.h"
#include "device/launch.h"
#include "ops/index/ordering.h"

namespace encore::ops {

// The best k of each of `parts` of each row, by key and then by place, so that no two are the same.
template <class Key>
struct SelectTopk {
  static constexpr int kMost = 2048;  // of k
  static constexpr int kMaxThreads = 1024, kLeastThreads = 256;
  static constexpr int kCopies = 8;  // of the counts, since floats have few first digits
  static constexpr int kKeyDigits = int(sizeof(Key));
  struct Shared {
    int counts[256 * kCopies];
    int digit, before, found, taken;
    Key keys[kMost];
    int32_t places[kMost];
  };
  const Key* from;             // [rows, width]: numbers, or keys
  const int32_t* from_places;  // null: the columns
  Ordering order;              // of what is in `from`
  int64_t width;
  int parts, k, place_digits;
  Key* best;  // [rows, parts, k], unless this is the last round
  int32_t* best_places;
  const Key* x;  // [rows, columns]
  int64_t columns;
  Key* values;  // [rows, k], of the last round
  int64_t* indices;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& s) const {
    const int64_t row = b.index() / parts;
    const int part = int(b.index() - row * parts);
    const int64_t first = width * part / parts, count = width * (part + 1) / parts - first;
    const Part of{from + row * width + first, from_places ? from_places + row * width + first : nullptr, int32_t(first),
                  order};
    Limit limit{};
    int wanted = k;
    for (int round = 0; round < kKeyDigits + place_digits; ++round) {
      // Leading digits of places that are zero for all are skipped.
      const int digit = round < kKeyDigits ? round : round + (4 - place_digits);
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < 256 * kCopies; i += b.size()) s.counts[i] = 0;
        if (t == 0) s.taken = 0;
      });
      b.threads([&](int t, Shared& s) {
        for (int64_t i = t; i < count; i += b.size()) {
          const Key key = of.key(i);
          const int32_t place = of.place(i);
          if (limit.compare(key, place) == 0)
            device::atomic_add(&s.counts[Limit::digit(key, place, digit) * kCopies + t % kCopies], 1);
        }
      });
      device::PerThread<int, kMaxThreads> before;
      b.scan(
          before, 0, [&](int t) { return t < 256 ? counted(s, t) : 0; }, [](int u, int v) { return u + v; });
      b.threads([&](int t, Shared& s) {
        if (t >= 256) return;
        const int here = counted(s, t);
        if (before[t] < wanted && wanted <= before[t] + here) {
          s.digit = t;
          s.before = before[t];
          s.found = here;
        }
      });
      limit.append(s.digit, digit);
      wanted -= s.before;
      if (s.found == wanted) break;  // all that begin so
    }
    b.threads([&](int t, Shared& s) {
      for (int64_t i = t; i < count; i += b.size()) {
        const Key key = of.key(i);
        const int32_t place = of.place(i);
        if (limit.compare(key, place) > 0) continue;
        const int slot = device::atomic_add(&s.taken, 1);
        s.keys[slot] = key;
        s.places[slot] = place;
      }
    });
    if (best) {
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < k; i += b.size()) {
          best[b.index() * k + i] = s.keys[i];
          best_places[b.index() * k + i] = s.places[i];
        }
      });
      return;
    }
    sort(b);
    b.threads([&](int t, Shared& s) {
      for (int i = t; i < k; i += b.size()) {
        values[row * k + i] = x[row * columns + s.places[i]];
        indices[row * k + i] = s.places[i];
      }
    });
  }

 private:
  struct Part {
    const Key* from;
    const int32_t* places;
    int32_t first;
    Ordering order;
    DEVICE_FN Key key(int64_t i) const { return order(from[i]); }
    DEVICE_FN int32_t place(int64_t i) const { return places ? places[i] : first + int32_t(i); }
  };
  // The first digits, of the key and then of the place, of the last one that is wanted.
  struct Limit {
    Key key, key_mask;
    uint32_t place, place_mask;
    DEVICE_FN static int digit(Key key, int32_t place, int digit) {
      return digit < kKeyDigits ? int(key >> (8 * (kKeyDigits - 1 - digit)) & 0xff)
                                : int(uint32_t(place) >> (8 * (kKeyDigits + 3 - digit)) & 0xff);
    }
    DEVICE_FN void append(int value, int digit) {
      if (digit < kKeyDigits) {
        const int shift = 8 * (kKeyDigits - 1 - digit);
        key = Key(key | Key(Key(value) << shift));
        key_mask = Key(key_mask | Key(Key(0xff) << shift));
      } else {
        const int shift = 8 * (kKeyDigits + 3 - digit);
        place |= uint32_t(value) << shift;
        place_mask |= uint32_t(0xff) << shift;
      }
    }
    // Below zero: certainly wanted; zero: as far as known the last one.
    DEVICE_FN int compare(Key other, int32_t other_place) const {
      const Key a = Key(other & key_mask);
      if (a != key) return a < key ? -1 : 1;
      const uint32_t at = uint32_t(other_place) & place_mask;
      return at < place ? -1 : int(at > place);
    }
  };

  DEVICE_FN static int counted(const Shared& s, int digit) {
    int sum = 0;
    for (int i = 0; i < kCopies; ++i) sum += s.counts[digit * kCopies + i];
    return sum;
  }

  // Bitonic, of the next power of two.
  DEVICE_FN void sort(device::Block<Shared>& b) const {
    int size = 1;
    while (size < k) size *= 2;
    b.threads([&](int t, Shared& s) {
      for (int i = k + t; i < size; i += b.size()) {
        s.keys[i] = Key(~Key(0));
        s.places[i] = INT32_MAX;
      }
    });
    for (int run = 2; run <= size; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
        b.threads([&](int t, Shared& s) {
          for (int pair = t; pair < size / 2; pair += b.size()) {
            const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
            const bool ascending = (low & run) == 0;
            const bool after =
                s.keys[high] < s.keys[low] || (s.keys[high] == s.keys[low] && s.places[high] < s.places[low]);
            if (after != ascending) continue;
            const Key key = s.keys[low];
            const int32_t place = s.places[low];
            s.keys[low] = s.keys[high];
            s.places[low] = s.places[high];
            s.keys[high] = key;
            s.places[high] = place;
          }
        });
      }
    }
  }
};

}  // namespace encore::ops
