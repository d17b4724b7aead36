// Unique: a stable sort of all slices brings the same ones together, the first of them in front. NaN is one value, the
// largest; so are zeros.
#include <algorithm>
#include <bit>

#include "device/divide.h"
#include "device/launch.h"
#include "device/sort.h"
#include "ops/dispatch.h"
#include "ops/index/prefix_sum.h"
#include "ops/index/sort_rows.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

template <class Key>
struct Slices {
  const Key* x;  // [count, width]
  int64_t width;
  Ordering order;
  DEVICE_FN Key key(int64_t slice, int64_t column) const { return order(x[slice * width + column]); }
};

struct Count {
  int32_t* places;
  DEVICE_FN void operator()(int64_t i) const { places[i] = int32_t(i); }
};

// The keys of a slice, the first one in front, as many in a word as it has room for; the last word has what is left in
// its lowest bits.
template <class Key>
struct PackKeys {
  static constexpr int kEach = sizeof(uint64_t) / sizeof(Key), kBits = 8 * sizeof(Key);
  Slices<Key> slices;
  device::Divider by_words;
  uint64_t* words;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t word;
    const int64_t slice = by_words(i, word);
    uint64_t packed = 0;
    UNROLL for (int k = 0; k < kEach; ++k) {
      const int64_t column = word * kEach + k;
      if (column < slices.width) packed = packed << kBits % 64 | slices.key(slice, column);
    }
    words[i] = packed;
  }
};

// A word of each slice, as they are sorted so far.
struct WordOfSlices {
  const uint64_t* words;  // [count, width]
  int64_t width, column;
  const int32_t* places;
  uint64_t* keys;
  DEVICE_FN void operator()(int64_t i) const { keys[i] = words[places[i] * width + column]; }
};

template <class Key>
struct MarkFirst {
  Slices<Key> slices;
  const int32_t* places;
  uint8_t* is_first;
  DEVICE_FN void operator()(int64_t i) const {
    bool differs = i == 0;
    for (int64_t column = 0; !differs && column < slices.width; ++column)
      differs = slices.key(places[i], column) != slices.key(places[i - 1], column);
    is_first[i] = differs;
  }
};

// Of each group of the same slices, the place of the first.
struct GroupKeys {
  const int32_t* places;
  const int64_t* begins;
  uint32_t* firsts;
  int32_t* groups;
  DEVICE_FN void operator()(int64_t group) const {
    firsts[group] = uint32_t(places[begins[group]]);
    groups[group] = int32_t(group);
  }
};

struct TellGroups {
  const int32_t* places;
  const int64_t* begins;
  const int32_t* groups;  // in the order of the output; null: as they are
  int64_t count, slices;
  int64_t *firsts, *counts;  // either may be null
  int32_t* ranks;            // of groups in the output; null if they are as they are
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t group = groups ? groups[i] : i;
    const int64_t begin = begins[group], end = group + 1 < count ? begins[group + 1] : slices;
    if (firsts) firsts[i] = places[begin];
    if (counts) counts[i] = end - begin;
    if (ranks) ranks[group] = int32_t(i);
  }
};

struct TellSlices {
  const int32_t* places;
  const int64_t* begins;
  const int32_t* ranks;
  int64_t count;
  int64_t* inverse;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t low = 0, high = count;  // the last group that begins at i or before is in [low, high)
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (begins[middle] <= i ? low : high) = middle;
    }
    inverse[places[i]] = ranks ? ranks[low] : low;
  }
};

class Unique : public Op {
 public:
  explicit Unique(const NodeInfo& node) : axis_(node.find_int("axis")), sorted_(node.get_int("sorted", 1) == 1) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank(), axis = axis_ ? checked_axis(*axis_, rank) : 0;
    const int64_t slices = axis_ ? x.shape[axis] : x.count(), outer = axis_ ? x.shape.count(0, axis) : 1;
    const size_t bytes = device::size_bytes(x.type);
    const int64_t width = slices > 0 ? x.count() / slices : 0;
    const void* rows = x.data;
    if (outer > 1 && x.count() > 0) rows = turned(context, x, outer, slices, width / outer, bytes);

    const int32_t* places = nullptr;
    auto* const is_first = static_cast<uint8_t*>(context.scratch(size_t(slices)));
    dispatch_size(bytes, [&]<class Key>() {
      if constexpr (sizeof(Key) <= 8) {
        const Slices<Key> all{static_cast<const Key*>(rows), width, ordering_of(x.type, false)};
        places = width == 1 ? sorted_places(context, all.order, rows, bytes, 1, slices)
                            : sorted_slices(context, packed(context, all, slices), 8 * int64_t(bytes) * width);
        device::for_each_index(context.stream(), slices, MarkFirst<Key>{all, places, is_first});
      }
    });
    const Selection selection(context, is_first, 1, 1, slices);
    const int64_t count = selection.count();
    const Tensor y = context.output(0, axis_ ? x.shape.with(axis, count) : Shape{count});
    const auto more = [&](int i, int64_t size) {
      return context.wants_output(i) ? context.output(i, Shape{size}).as<int64_t>() : nullptr;
    };
    int64_t *firsts = more(1, count), *const inverse = more(2, slices), *const counts = more(3, count);
    if (count == 0) return;
    if (!firsts) firsts = make<int64_t>(context, count);
    auto* const begins = make<int64_t>(context, count);
    selection.write_places(begins);
    int32_t *groups = nullptr, *ranks = nullptr;
    if (!sorted_) {  // in the order in which they appear
      Sorter sorter(context, count, sizeof(uint32_t));
      device::for_each_index(context.stream(), count,
                             GroupKeys{places, begins, static_cast<uint32_t*>(sorter.keys()), sorter.places()});
      sorter.sort(sizeof(uint32_t), int(std::bit_width(uint64_t(slices))));
      groups = sorter.places();
      ranks = make<int32_t>(context, count);
    }
    device::for_each_index(context.stream(), count,
                           TellGroups{places, begins, groups, count, slices, firsts, counts, ranks});
    if (inverse) device::for_each_index(context.stream(), slices, TellSlices{places, begins, ranks, count, inverse});
    take(context.stream(), x, outer, slices, firsts, count, y.data);
  }

 private:
  template <class T>
  static T* make(Context& context, int64_t count) {
    return static_cast<T*>(context.scratch(size_t(count) * sizeof(T)));
  }

  // [outer, slices, inner] with the slices in front.
  static const void* turned(Context& context, const Tensor& x, int64_t outer, int64_t slices, int64_t inner,
                            size_t bytes) {
    void* const to = context.scratch(x.bytes());
    StridedCopy copy;
    copy.add(slices, inner, outer * inner);
    copy.add(outer, slices * inner, inner);
    copy.add(inner, 1, 1);
    copy.run(context.stream(), x.data, to, bytes);
    return to;
  }

  template <class Key>
  static device::SortRows packed(Context& context, const Slices<Key>& all, int64_t slices) {
    using Kernel = PackKeys<Key>;
    const int64_t words = (all.width + Kernel::kEach - 1) / Kernel::kEach, n = slices * words;
    auto* const to = make<uint64_t>(context, n);
    device::for_each_index(context.stream(), n, Kernel{all, device::Divider(words, n), to});
    return {to, slices, words};
  }

  // A few words are sorted one by one, the last of them first, for each sort keeps the order of those before. `bits`:
  // of a slice.
  static const int32_t* sorted_slices(Context& context, const device::SortRows& all, int64_t bits) {
    constexpr int64_t kFew = 2;
    if (all.words > kFew) {
      require(all.count < int64_t(1) << 31, "sorting ", all.count, " slices; fewer than 2^31 are supported");
      auto* const places = make<int32_t>(context, all.count);
      device::for_each_index(context.stream(), all.count, Count{places});
      device::sort_rows(context.stream(), all, places, context.scratch(device::sort_scratch(all)));
      return places;
    }
    Sorter sorter(context, all.count, sizeof(uint64_t));
    device::for_each_index(context.stream(), all.count, Count{sorter.places()});
    for (int64_t column = all.words - 1; column >= 0; --column) {
      device::for_each_index(
          context.stream(), all.count,
          WordOfSlices{all.rows, all.words, column, sorter.places(), static_cast<uint64_t*>(sorter.keys())});
      sorter.sort(sizeof(uint64_t), int(std::min<int64_t>(bits - 64 * column, 64)));
    }
    return sorter.places();
  }

  std::optional<int64_t> axis_;
  bool sorted_;
};

}  // namespace

std::vector<OpRow> unique_rows() {
  return {
      {.name = "Unique", .since = 11, .types = {in(0, kNumbers | kBool)}, .make = make<Unique>, .reads_back = true}};
}

}  // namespace encore::ops
