#include "ops/shape/rolled_copy.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "device/divider_of.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::divider_of;
using device::DividerOf;

constexpr size_t kMostSteps = 12;

// Where each element of a dense tensor lies. Steps are innermost first; the usual ones, of which there may be none, are
// taken without a branch.
template <class Int>
struct Walk {
  static constexpr int kUsualSteps = std::is_same_v<Int, int> ? 4 : 0;
  DividerOf<Int> counts[kMostSteps];
  Int strides[kMostSteps] = {};
  int rank = 0;

  // Of packs of so many elements, of which the tensor has `count`.
  Walk(const StridedView::Row& steps, int64_t pack, int64_t count) {
    for (size_t i = steps.size(); i-- > 0;) {
      const bool is_last = rank == 0;
      counts[rank] = divider_of<Int>(is_last ? steps[i].count / pack : steps[i].count, count);
      strides[rank++] = is_last ? 1 : Int(steps[i].stride / pack);
    }
  }
  DEVICE_FN Int operator()(Int i) const {
    Int place = 0;
    const auto step = [&](int d) {
      Int at;
      i = counts[d](i, at);
      place += at * strides[d];
    };
    UNROLL for (int d = 0; d < kUsualSteps; ++d) step(d);
    NO_UNROLL for (int d = kUsualSteps; d < rank; ++d) step(d);
    return place;
  }
};

// From a place in the rolled tensor to the one before.
template <class Int>
struct Turn {
  DividerOf<Int> by_inner, by_size;
  Int shift = 0;
  DEVICE_FN Int operator()(Int place) const {
    Int inside, at;
    by_size(by_inner(place, inside), at);
    const Int size = Int(by_size.divisor()), ahead = at < size - shift ? shift : shift - size;
    return place + ahead * Int(by_inner.divisor());
  }
};

template <class T, class Int>
struct CopyRolled {
  const T* in;
  T* out;
  Walk<Int> order, from;
  Int first;  // of the order
  Turn<Int> turns[kMostRolledAxes];
  int count;
  DEVICE_FN void operator()(int64_t i) const {
    Int place = first + order(Int(i));
    NO_UNROLL for (int t = 0; t < count; ++t) place = turns[t](place);
    device::store_aligned(out + i, device::load_aligned<1>(in + from(place)));
  }
};

// The place of the last element, counted from the first or, where strides are negative, to it.
int64_t reach_of(const StridedView::Row& steps) {
  int64_t reach = 0;
  for (const auto& [count, stride] : steps) reach += (count - 1) * std::abs(stride);
  return reach;
}

bool keeps_packs(const StridedView::Row& steps, int64_t pack) {
  if (steps.empty() || steps.back().count % pack != 0) return false;
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    if (steps[i].stride % pack != 0) return false;
  return true;
}

}  // namespace

bool suits_rolled_copy(const StridedView& view) {
  const StridedView::Row steps = view.in_a_row();
  return steps.size() <= kMostSteps && (steps.empty() || steps.back().stride == 1);
}

void copy_rolled(device::StreamRef stream, const void* in, const StridedView& from, const std::vector<Roll>& rolls,
                 const StridedView& order, void* out, size_t bytes) {
  const Shape shape = from.shape();
  const StridedView::Row read = from.in_a_row(), taken = order.in_a_row();
  require(rolls.size() <= kMostRolledAxes && read.size() <= kMostSteps && taken.size() <= kMostSteps, shape.str(),
          " cannot be rolled in one copy");
  if (order.shape().count() == 0) return;
  struct Place {
    int64_t inner, size, shift;
  };
  std::vector<Place> places;
  for (const Roll& roll : rolls) {
    const int axis = checked_axis(roll.axis, shape.rank());
    const int64_t size = shape[axis];
    places.push_back({shape.count(axis + 1, shape.rank()), size, (roll.shift % size + size) % size});
  }
  int64_t pack = 1;
  const auto fits = [&](int64_t wide) {
    for (const Place& place : places)
      if (place.inner % wide != 0) return false;
    const auto address = reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out);
    return address % (size_t(wide) * bytes) == 0 && order.offset() % wide == 0 && keeps_packs(read, wide) &&
           keeps_packs(taken, wide);
  };
  while (size_t(2 * pack) * bytes <= 16 && fits(2 * pack)) pack *= 2;
  // The order may leave some of what there is, or take it several times.
  const int64_t there = shape.count() / pack, count = order.shape().count() / pack;
  const auto launch = [&]<class T, class Int>() {
    CopyRolled<T, Int> kernel{static_cast<const T*>(in),
                              static_cast<T*>(out),
                              {taken, pack, count},
                              {read, pack, there},
                              Int(order.offset() / pack),
                              {},
                              0};
    for (const Place& place : places)
      kernel.turns[kernel.count++] = {divider_of<Int>(place.inner / pack, there), divider_of<Int>(place.size, there),
                                      Int(place.shift)};
    device::for_each_index(stream, count, kernel);
  };
  const int64_t last = order.offset() + reach_of(taken);
  const bool is_small = std::max({count, there, reach_of(read) / pack, last / pack}) < INT32_MAX;
  dispatch_size(size_t(pack) * bytes, [&]<class T>() {
    if (is_small)
      launch.template operator()<T, int>();
    else
      launch.template operator()<T, int64_t>();
  });
}

}  // namespace encore::ops
