#include "ops/index/prefix_sum.h"

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/index/indices.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;

struct Plus {
  DEVICE_FN int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

// One block walks over all, of which each thread has some neighbours at a time.
struct ExclusiveSum {
  static constexpr int kThreads = 1024, kMaxThreads = kThreads, kEach = 8;
  int64_t* sums;
  int64_t count;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    int64_t total = 0;
    NO_UNROLL for (int64_t first = 0; first < count; first += kThreads * kEach) {
      device::PerThread<Values, kThreads> values;
      device::PerThread<int64_t, kThreads> before;
      const int64_t sum = b.scan(
          before, int64_t(0),
          [&](int t) {
            Values& own = values[t];
            const int64_t from = first + t * kEach;
            UNROLL for (int k = 0; k < kEach; ++k) own.at[k] = from + k < count ? sums[from + k] : 0;
            int64_t sum = 0;
            UNROLL for (int k = 0; k < kEach; ++k) sum += own.at[k];
            return sum;
          },
          Plus());
      b.threads([&](int t, NoShared&) {
        const int64_t from = first + t * kEach;
        int64_t running = total + before[t];
        UNROLL for (int k = 0; k < kEach; ++k) {
          if (from + k < count) sums[from + k] = running;
          running += values[t].at[k];
        }
      });
      total += sum;
    }
    b.threads([&](int t, NoShared&) {
      if (t == 0) sums[count] = total;
    });
  }

 private:
  struct Values {
    int64_t at[kEach];
  };
};

constexpr int kThreads = 256, kEach = 8, kTile = kThreads * kEach;

template <class T>
struct Flags {
  const T* data;
  T mask;
  int64_t size;
  DEVICE_FN bool operator()(int64_t i) const { return i < size && (data[i] & mask) != 0; }
};

template <class T>
struct CountTiles {
  static constexpr int kMaxThreads = kThreads;
  Flags<T> flags;
  int64_t* counts;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t first = b.index() * kTile;
    const int count = b.reduce(
        0,
        [&](int t) {
          int count = 0;
          UNROLL for (int k = 0; k < kEach; ++k) count += flags(first + k * kThreads + t);
          return count;
        },
        [](int u, int v) { return u + v; });
    b.threads([&](int t, NoShared&) {
      if (t == 0) counts[b.index()] = count;
    });
  }
};

template <class T>
struct WritePlaces {
  static constexpr int kMaxThreads = kThreads;
  Flags<T> flags;
  const int64_t* sums;
  int64_t* places;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t first = b.index() * kTile;
    device::PerThread<int, kThreads> before;
    b.scan(
        before, 0,
        [&](int t) {
          int count = 0;
          UNROLL for (int k = 0; k < kEach; ++k) count += flags(first + t * kEach + k);
          return count;
        },
        [](int u, int v) { return u + v; });
    b.threads([&](int t, NoShared&) {
      int64_t to = sums[b.index()] + before[t];
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + t * kEach + k;
        if (flags(i)) places[to++] = i;
      }
    });
  }
};

template <class T>
struct TakePlaces {
  const T* in;
  T* out;
  const int64_t* places;
  int64_t dim, inner;
  device::Divider by_inner, by_count;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, j;
    const int64_t outer = by_count(by_inner(i, column), j);
    out[i] = in[(outer * dim + places[j]) * inner + column];
  }
};

template <class F>
void with_flags(size_t bytes, const void* data, uint64_t mask, int64_t size, F f) {
  dispatch_size(bytes, [&]<class T>() {
    if constexpr (sizeof(T) <= 8) f(Flags<T>{static_cast<const T*>(data), T(mask), size});
  });
}

}  // namespace

void exclusive_sum(StreamRef stream, int64_t* sums, int64_t count) {
  device::block_kernel<NoShared>(stream, {1, ExclusiveSum::kThreads}, ExclusiveSum{sums, count});
}

void take(StreamRef stream, const Tensor& in, int64_t outer, int64_t dim, const int64_t* places, int64_t count,
          void* out) {
  if (in.count() == 0 || count == 0) return;
  int64_t inner = in.count() / (outer * dim);
  size_t bytes = device::size_bytes(in.type);
  widen(inner, bytes, {in.data, out});
  const int64_t all = outer * count * inner;
  dispatch_size(bytes, [&]<class T>() {
    device::for_each_index(stream, all,
                           TakePlaces<T>{in.as<const T>(), static_cast<T*>(out), places, dim, inner,
                                         device::Divider(inner, all), device::Divider(count, all)});
  });
}

Selection::Selection(Context& context, const void* data, size_t bytes, uint64_t mask, int64_t size)
    : context_(context), data_(data), bytes_(bytes), mask_(mask), size_(size), tiles_((size + kTile - 1) / kTile) {
  sums_ = static_cast<int64_t*>(context.scratch(size_t(tiles_ + 1) * sizeof(int64_t)));
  if (size == 0) return;
  with_flags(bytes, data, mask, size, [&]<class T>(Flags<T> flags) {
    device::block_kernel<NoShared>(context.stream(), {tiles_, kThreads}, CountTiles<T>{flags, sums_});
  });
  exclusive_sum(context.stream(), sums_, tiles_);
  context.read_back(&count_, sums_ + tiles_, sizeof count_);
}

void Selection::write_places(int64_t* to) const {
  if (count_ == 0) return;
  with_flags(bytes_, data_, mask_, size_, [&]<class T>(Flags<T> flags) {
    device::block_kernel<NoShared>(context_.stream(), {tiles_, kThreads}, WritePlaces<T>{flags, sums_, to});
  });
}

}  // namespace encore::ops
