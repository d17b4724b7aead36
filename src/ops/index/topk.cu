// TopK. Short rows: each element counts those that come before it. Few of rows that lanes keep, or a small block:
// topk_of_narrow_rows.h, topk_of_many_rows.h and topk_of_wide_rows.h, at the speed of memory; some more of halves:
// sorted_topk_of_rows.h. All else, a single long row above all: topk_of_rows.h. Thousands: a sort.
#include <algorithm>
#include <bit>

#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/index/ordering.h"
#include "ops/index/sort_rows.h"
#include "ops/index/sorted_topk_of_rows.h"
#include "ops/index/topk.h"
#include "ops/index/topk_of_many_rows.h"
#include "ops/index/topk_of_narrow_rows.h"
#include "ops/index/topk_of_rows.h"
#include "ops/index/topk_of_wide_rows.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Block;

// `width` threads for each row, of which each has an element.
template <class Key>
struct RankRows {
  static constexpr int kThreads = 256, kMaxThreads = kThreads;
  struct Shared {
    Key keys[kThreads];
  };
  const Key* x;
  Key* values;
  int64_t* indices;
  Ordering order;
  int64_t rows;
  int columns, k, width;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t first = b.index() * (kThreads / width);
    b.threads([&](int t, Shared& s) {
      const int64_t row = first + t / width;
      const int column = t % width;
      if (row < rows && column < columns) s.keys[t] = order(x[row * columns + column]);
    });
    b.threads([&](int t, Shared& s) {
      const int64_t row = first + t / width;
      const int column = t % width;
      if (row >= rows || column >= columns) return;
      const Key* const keys = s.keys + (t - column);
      const Key mine = keys[column];
      int rank = 0;
      for (int i = 0; i < columns; ++i) rank += keys[i] < mine || (keys[i] == mine && i < column);
      if (rank >= k) return;
      values[row * k + rank] = x[row * columns + column];
      indices[row * k + rank] = column;
    });
  }
};

// The first k of each sorted row.
template <class Key>
struct TakeFirst {
  const Key* x;
  const int32_t* places;  // in all of x
  Key* values;
  int64_t* indices;
  int64_t columns;
  device::Divider by_k;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t rank;
    const int64_t row = by_k(i, rank);
    const int64_t at = places[row * columns + rank];
    values[i] = x[at];
    indices[i] = at - row * columns;
  }
};

template <class Key>
struct TopkProblem {
  const Key* x;
  int64_t rows, columns, k;
  Ordering order;
  Key* values;
  int64_t* indices;
};

template <class Key>
bool suits_ranks(const TopkProblem<Key>& p) {
  return p.columns <= RankRows<Key>::kThreads && (p.columns <= 32 || p.k > 16);
}
template <class Key>
void rank_rows(Context& context, const TopkProblem<Key>& p) {
  const int width = int(std::max<uint64_t>(8, std::bit_ceil(uint64_t(p.columns))));
  const int64_t rows_a_block = RankRows<Key>::kThreads / width;
  device::block_kernel<typename RankRows<Key>::Shared>(
      context.stream(), {(p.rows + rows_a_block - 1) / rows_a_block, RankRows<Key>::kThreads},
      RankRows<Key>{p.x, p.values, p.indices, p.order, p.rows, int(p.columns), int(p.k), width});
}

// The type by which numbers are compared: the float itself, or integers of a size as one.
template <class Key, class F>
void with_number(Type type, F f) {
  if constexpr (sizeof(Key) == 2) {
    if (type == Type::f16) return f.template operator()<Half>();
    if (type == Type::bf16) return f.template operator()<BFloat16>();
  } else if constexpr (sizeof(Key) == 4) {
    if (type == Type::f32) return f.template operator()<float>();
  } else if constexpr (sizeof(Key) == 8) {
    if (type == Type::f64) return f.template operator()<double>();
  }
  return f.template operator()<Key>();
}

// False if it is not for these rows.
template <class T, class Key>
bool topk_of_many_rows(Context& context, const TopkProblem<Key>& p) {
  using Kernel = TopkOfManyRows<T>;
  constexpr int kPack = Kernel::kPack, kMostColumns = 1 << 16;
  if (p.columns > kMostColumns || p.rows > INT32_MAX) return false;
  const TopkOfEach<Key> task{p.x, p.values, p.indices, p.order, uint32_t(p.rows), int(p.columns), int(p.k)};
  const StreamRef stream = context.stream();
  const int64_t reach = p.columns + (p.columns % kPack == 0 && device::is_pack_aligned<kPack>(p.x) ? 0 : kPack - 1);
  if constexpr (sizeof(Key) == 2) {
    using Narrow = TopkOfNarrowRows<T>;
    if (p.k <= Narrow::kMost && reach <= Narrow::kReach) {
      const int64_t rows_a_block = Narrow::kMaxThreads / Narrow::kLanes;
      device::block_kernel<device::NoShared>(stream, {(p.rows + rows_a_block - 1) / rows_a_block, Narrow::kMaxThreads},
                                             Narrow::of(task));
      return true;
    }
  }
  if constexpr (device::kIsHalf<T>) {
    if (p.k > Kernel::kMost && p.k <= kMostSorted && reach <= Kernel::kPiece) {
      sort_topk_of_each<T>(stream, task);
      return true;
    }
  }
  if (p.k > Kernel::kMost) return false;
  if constexpr (Kernel::kCommon) {
    const bool in_a_warp = reach == p.columns && p.columns <= Kernel::kPiece;
    if (!in_a_warp && find_topk_of_wide_rows<T>(stream, task)) return true;
  }
  if (reach > Kernel::kPiece) return false;
  find_topk_of_each<T>(stream, task);
  return true;
}

template <class T, class Key>
void topk_of_rows(Context& context, const TopkProblem<Key>& p) {
  using Word = WordOf<Key>;
  constexpr int kRoom = sizeof(Word) == 8 ? 4096 : 2048;
  const int multiprocessors = device::multiprocessors(context.stream().device()), k = int(p.k);
  const auto find = [&]<class From, bool kFloating>(const From* from, int64_t width, const TopkRound& round) {
    using Kernel = TopkOfRows<Key, From, kFloating>;
    const int64_t blocks = p.rows * round.parts;
    Word* const best =
        round.parts == 1 ? nullptr : static_cast<Word*>(context.scratch(size_t(blocks * round.left) * sizeof(Word)));
    device::block_kernel<typename Kernel::Shared>(
        context.stream(), {blocks, round.threads, 2 * round.room * int64_t(sizeof(Word))},
        Kernel{from, p.order, width, round.length, device::Divider(round.parts, blocks), k, round.groups, round.room,
               round.left, best, p.x, p.columns, p.values, p.indices});
    return best;
  };
  TopkRound round = TopkRound::of(p.rows, p.columns, k, sizeof(Key), kRoom, multiprocessors);
  const Word* words = find.template operator()<Key, !std::is_integral_v<T>>(p.x, p.columns, round);
  while (words) {
    const int64_t width = int64_t(round.parts) * round.left;
    round = TopkRound::of(p.rows, width, k, sizeof(Word), kRoom, multiprocessors);
    words = find.template operator()<Word, false>(words, width, round);
  }
}

template <class Key>
void sort_rows(Context& context, const TopkProblem<Key>& p) {
  // As many rows at once as a sort takes.
  const int64_t most = std::max<int64_t>(1, ((int64_t(1) << 31) - 1) / p.columns);
  for (int64_t row = 0; row < p.rows; row += most) {
    const int64_t some = std::min(most, p.rows - row);
    const Key* const from = p.x + row * p.columns;
    const int32_t* const places = sorted_places(context, p.order, from, sizeof(Key), some, p.columns);
    device::for_each_index(context.stream(), some * p.k,
                           TakeFirst<Key>{from, places, p.values + row * p.k, p.indices + row * p.k, p.columns,
                                          device::Divider(p.k, some * p.k)});
  }
}

}  // namespace

void topk(Context& context, Type type, bool largest, const void* x, int64_t rows, int64_t columns, int64_t k,
          void* values, void* indices) {
  dispatch_size(device::size_bytes(type), [&]<class Key>() {
    if constexpr (sizeof(Key) <= 8) {
      const TopkProblem<Key> p{
          static_cast<const Key*>(x),    rows, columns, k, ordering_of(type, largest), static_cast<Key*>(values),
          static_cast<int64_t*>(indices)};
      if (suits_ranks(p)) return rank_rows(context, p);
      with_number<Key>(type, [&]<class T>() {
        if (topk_of_many_rows<T>(context, p)) return;
        if (p.k <= TopkRound::kMost) return topk_of_rows<T>(context, p);
        sort_rows(context, p);
      });
    }
  });
}

namespace {

class TopK : public Op {
 public:
  explicit TopK(const NodeInfo& node)
      : axis_(node.get_int("axis", -1)),
        largest_(node.get_int("largest", 1) != 0),
        k_(node.since_version() < 10 ? node.find_int("k") : std::nullopt) {
    require(node.since_version() >= 10 || k_, "k is missing");
  }

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    const int64_t columns = x.shape[axis], k = k_ ? *k_ : told_k(context.input(1));
    require(k >= 0 && k <= columns, "k is ", k, "; axis ", axis, " of ", x.shape.str(), " has ", columns, " elements");
    require(columns < (int64_t(1) << 31), "axis ", axis, " has ", columns, " elements; fewer than 2^31 are supported");
    const Shape shape = x.shape.with(axis, k);
    const Tensor values = context.output(0, shape), indices = context.output(1, shape);
    if (shape.count() == 0) return;
    const size_t bytes = device::size_bytes(x.type);
    const int64_t outer = x.shape.count(0, axis), inner = x.shape.count(axis + 1, rank), rows = outer * inner;
    if (inner == 1) {
      topk(context, x.type, largest_, x.data, rows, columns, k, or_scratch(context, values, bytes),
           or_scratch(context, indices, sizeof(int64_t)));
      return;
    }
    // Rows side by side would be read with gaps: they are turned, and so is what comes of them.
    void* const turned = context.scratch(x.bytes());
    turn(context.stream(), x.data, turned, outer, columns, inner, bytes);
    void* const best = context.scratch(size_t(rows * k) * bytes);
    void* const places = context.scratch(size_t(rows * k) * sizeof(int64_t));
    topk(context, x.type, largest_, turned, rows, columns, k, best, places);
    if (values.data) turn(context.stream(), best, values.data, outer, inner, k, bytes);
    if (indices.data) turn(context.stream(), places, indices.data, outer, inner, k, sizeof(int64_t));
  }

 private:
  static int64_t told_k(const Tensor& given) {
    require(given.count() == 1, "K has ", given.count(), " values; it must have one");
    return host_ints(given, "K")[0];
  }
  static void* or_scratch(Context& context, const Tensor& output, size_t bytes) {
    return output.data ? output.data : context.scratch(size_t(output.count()) * bytes);
  }
  // [outer, rows, columns] to [outer, columns, rows]
  static void turn(StreamRef stream, const void* from, void* to, int64_t outer, int64_t rows, int64_t columns,
                   size_t bytes) {
    StridedCopy copy;
    copy.add(outer, rows * columns, rows * columns);
    copy.add(columns, 1, rows);
    copy.add(rows, columns, 1);
    copy.run(stream, from, to, bytes);
  }

  int64_t axis_;
  bool largest_;
  std::optional<int64_t> k_;
};

}  // namespace

std::vector<OpRow> topk_rows() {
  return {
      {.name = "TopK", .since = 1, .until = 9, .types = {in(0, kNumbers)}, .make = make<TopK>},
      {.name = "TopK", .since = 10, .types = {in(0, kNumbers)}, .make = make<TopK>, .host_inputs = {1}},
  };
}

}  // namespace encore::ops
