#include "ops/shape/rolled_copy.h"

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Divider;

constexpr size_t kMostSteps = 12;

// Where each element of a dense tensor lies.
struct Walk {
  Divider counts[kMostSteps];  // outermost first
  int64_t strides[kMostSteps] = {};
  int rank = 0;

  // Of packs of so many elements, of which the tensor has `count`.
  Walk(const StridedView::Axis& steps, int64_t pack, int64_t count) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool is_last = i + 1 == steps.size();
      counts[rank] = Divider(is_last ? steps[i].count / pack : steps[i].count, count);
      strides[rank++] = is_last ? 1 : steps[i].stride / pack;
    }
  }
  DEVICE_FN int64_t operator()(int64_t i) const {
    int64_t place = 0;
    NO_UNROLL for (int d = rank - 1; d >= 0; --d) {
      int64_t at = i;
      if (d > 0) i = counts[d](i, at);
      place += at * strides[d];
    }
    return place;
  }
};

// From a place in the rolled tensor to the one before.
struct Turn {
  Divider by_inner, by_size;
  int64_t shift = 0;
  DEVICE_FN int64_t operator()(int64_t place) const {
    int64_t inside, at;
    by_size(by_inner(place, inside), at);
    const int64_t size = by_size.divisor(), ahead = at + shift < size ? shift : shift - size;
    return place + ahead * by_inner.divisor();
  }
};

template <class T>
struct CopyRolled {
  const T* in;
  T* out;
  Walk order, from;
  Turn turns[kMostRolledAxes];
  int count;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t place = order(i);
    NO_UNROLL for (int t = 0; t < count; ++t) place = turns[t](place);
    out[i] = in[from(place)];
  }
};

bool keeps_packs(const StridedView::Axis& steps, int64_t pack) {
  if (steps.empty() || steps.back().count % pack != 0) return false;
  for (size_t i = 0; i + 1 < steps.size(); ++i)
    if (steps[i].stride % pack != 0) return false;
  return true;
}

}  // namespace

bool suits_rolled_copy(const StridedView& view) {
  const StridedView::Axis steps = view.in_a_row();
  return steps.size() <= kMostSteps && (steps.empty() || steps.back().stride == 1);
}

void copy_rolled(device::StreamRef stream, const void* in, const StridedView& from, const std::vector<Roll>& rolls,
                 const StridedView& order, void* out, size_t bytes) {
  const Shape shape = from.shape();
  const StridedView::Axis read = from.in_a_row(), taken = order.in_a_row();
  require(rolls.size() <= kMostRolledAxes && read.size() <= kMostSteps && taken.size() <= kMostSteps, shape.str(),
          " cannot be rolled in one copy");
  if (shape.count() == 0) return;
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
    return address % (size_t(wide) * bytes) == 0 && keeps_packs(read, wide) && keeps_packs(taken, wide);
  };
  while (size_t(2 * pack) * bytes <= 16 && fits(2 * pack)) pack *= 2;
  const int64_t count = shape.count() / pack;
  dispatch_size(size_t(pack) * bytes, [&]<class T>() {
    CopyRolled<T> kernel{
        static_cast<const T*>(in), static_cast<T*>(out), Walk(taken, pack, count), Walk(read, pack, count), {}, 0};
    for (const Place& place : places)
      kernel.turns[kernel.count++] = {Divider(place.inner / pack, count), Divider(place.size, count), place.shift};
    device::for_each_index(stream, count, kernel);
  });
}

}  // namespace encore::ops
