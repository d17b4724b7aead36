// Resizing with antialiasing: one dimension after the other, by tables of what counts for each place of the result.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/divide.h"
#include "device/launch.h"
#include "device/rounded.h"
#include "ops/dispatch.h"
#include "ops/elementwise/truncate.h"
#include "ops/nn/resize_place.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// Neighbours in the input that count for a place of the result; their weights are in a table.
struct ResizeTaps {
  int first, count;  // a count of -1: the place is outside
};

// Bytes are resized in fixed point, as image libraries do; weights then have so many bits behind the point.
constexpr int kFraction = 22;

template <class W>
struct MakeTable {
  using C = std::conditional_t<std::is_same_v<W, double>, double, float>;
  ResizeTaps* seen;
  W* weights;  // [place, window]
  int64_t window;
  ResizeAxis axis;
  CoordinateMode coordinates;
  bool is_cubic, exclude_outside;
  float a;

  DEVICE_FN void operator()(int64_t i) const {
    const C shrinks = axis.scale < 1 ? C(1) / C(axis.scale) : C(1);
    const C reach = (is_cubic ? C(2) : C(1)) * shrinks, narrow = C(1) / shrinks;
    const C position =
        axis.scale == 1 && coordinates != CoordinateMode::tf_crop_and_resize ? C(i) : original<C>(coordinates, axis, i);
    const C centre = position + C(0.5);
    if (is_outside(coordinates, axis, position) || !(std::abs(position) < C(1 << 30))) {
      seen[i] = {0, -1};
      return;
    }
    const int64_t low = int64_t(std::floor(centre - reach + C(0.5)));
    int64_t high = int64_t(std::floor(centre + reach + C(0.5)));
    if (high > low + window) high = low + window;
    const int64_t first = clamped(low), end = clamped(high);
    W* const row = weights + i * window;
    const auto weight = [&](int64_t at) { return filter((C(at) - centre + C(0.5)) * narrow); };
    C all = 0, before = 0, after = 0;  // what lies outside counts for the pixels at the ends, or not at all
    for (int64_t at = low; at < high; ++at) {
      const bool is_before = at < first, is_after = at >= end;
      if (exclude_outside && (is_before || is_after)) continue;
      const C w = weight(at);
      all += w;
      before += is_before ? w : C(0);
      after += is_after ? w : C(0);
    }
    const C share = all == C(0) ? C(1) : C(1) / all;
    for (int64_t at = first; at < end; ++at) {
      C w = weight(at);
      if (at == first) w += before;
      if (at == end - 1) w += after;
      row[at - first] = stored(w * share);
    }
    seen[i] = {int(first), int(end - first)};
  }

 private:
  DEVICE_FN int64_t clamped(int64_t at) const { return at < 0 ? 0 : at < axis.in ? at : axis.in; }
  DEVICE_FN C filter(C x) const {
    const C d = std::abs(x), k = C(a);
    if (!is_cubic) return d < C(1) ? C(1) - d : C(0);
    using device::rounded_product;
    if (d < C(1)) return rounded_product((rounded_product(k + C(2), d) - (k + C(3))) * d, d) + C(1);
    return d < C(2) ? (rounded_product(rounded_product(d - C(5), d) + C(8), d) - C(4)) * k : C(0);
  }
  DEVICE_FN static W stored(C weight) {
    if constexpr (std::is_integral_v<W>)
      return saturated<W>(std::round(weight * C(1 << kFraction)));
    else
      return weight;
  }
};

// y[outer, place, inner] is the sum of what it sees of x[outer, …, inner].
template <class In, class Out, class W>
struct ApplyTable {
  const In* x;
  Out* y;
  const ResizeTaps* seen;
  const W* weights;
  int64_t window, in, inner;
  Divider by_inner, by_places;
  Out extrapolation;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, place;
    const int64_t outer = by_places(by_inner(i, column), place);
    const ResizeTaps here = seen[place];
    if (here.count < 0) {
      y[i] = extrapolation;
      return;
    }
    const In* from = x + (outer * in + here.first) * inner + column;
    const W* weight = weights + place * window;
    using Sum = std::conditional_t<std::is_integral_v<W>, int64_t, W>;
    Sum sum = 0;
    // What is rounded to integers in the end is rounded on the way as everywhere.
    for (int k = 0; k < here.count; ++k)
      if constexpr (std::is_integral_v<Out> && !std::is_integral_v<Sum>)
        sum += device::rounded_product(Sum(weight[k]), Sum(from[k * inner]));
      else
        sum += Sum(weight[k]) * Sum(from[k * inner]);
    y[i] = finish(sum);
  }

 private:
  template <class Sum>
  DEVICE_FN static Out finish(Sum sum) {
    if constexpr (std::is_integral_v<Sum>) {
      constexpr int64_t kLeast = std::is_signed_v<Out> ? -128 : 0, kMost = kLeast + 255;
      const int64_t value = (sum + (int64_t(1) << (kFraction - 1))) >> kFraction;
      return Out(value < kLeast ? kLeast : value > kMost ? kMost : value);
    } else if constexpr (std::is_integral_v<Out>) {
      return saturated<Out>(std::round(sum));
    } else {
      return Out(sum);
    }
  }
};

// One dimension to be resized, between those before and those behind.
struct Pass {
  ResizeAxis axis;
  int64_t outer, inner;
};

template <class In, class Out, class W>
void run_pass(Context& context, const ResizeRule& rule, const Pass& pass, const In* x, Out* y) {
  const float shrinks = std::max(1.f, 1.f / pass.axis.scale);
  const float window = std::ceil((rule.mode == ResizeMode::cubic ? 2 : 1) * shrinks) * 2 + 1;
  require(window < (1 << 30), "a scale of ", pass.axis.scale, " is too small for antialiasing");
  const int64_t places = pass.axis.out, n = pass.outer * places * pass.inner;
  auto* const seen = static_cast<ResizeTaps*>(context.scratch(size_t(places) * sizeof(ResizeTaps)));
  auto* const weights = static_cast<W*>(context.scratch(size_t(checked_product(places, int64_t(window))) * sizeof(W)));
  device::for_each_index(context.stream(), places,
                         MakeTable<W>{seen, weights, int64_t(window), pass.axis, rule.coordinates,
                                      rule.mode == ResizeMode::cubic, rule.exclude_outside, rule.cubic_coefficient});
  const Out extrapolation = nearest_element<Out>(rule.extrapolation);
  device::for_each_index(context.stream(), n,
                         ApplyTable<In, Out, W>{x, y, seen, weights, int64_t(window), pass.axis.in, pass.inner,
                                                Divider(pass.inner, n), Divider(places, n), extrapolation});
}

// Halves are floats between the first pass and the last.
template <class T>
void run_passes(Context& context, const ResizeRule& rule, const std::vector<Pass>& passes, const T* x, T* y) {
  using Wide = std::conditional_t<std::is_integral_v<T>, T, Compute<T>>;
  using W = std::conditional_t<sizeof(T) == 1, int32_t, std::conditional_t<std::is_integral_v<T>, float, Compute<T>>>;
  if (passes.size() == 1) return run_pass<T, T, W>(context, rule, passes[0], x, y);
  const Wide* last = nullptr;
  for (size_t i = 0; i + 1 < passes.size(); ++i) {
    const Pass& pass = passes[i];
    const int64_t n = checked_product(checked_product(pass.outer, pass.axis.out), pass.inner);
    auto* const made = static_cast<Wide*>(context.scratch(size_t(n) * sizeof(Wide)));
    if (last)
      run_pass<Wide, Wide, W>(context, rule, pass, last, made);
    else
      run_pass<T, Wide, W>(context, rule, pass, x, made);
    last = made;
  }
  run_pass<Wide, T, W>(context, rule, passes.back(), last, y);
}

}  // namespace

void resize_antialiased(Context& context, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
                        const Tensor& y) {
  if (y.count() == 0) return;
  // The innermost first.
  std::vector<Pass> passes;
  int64_t inner = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    const ResizeAxis& axis = axes[i];
    const bool crops =
        rule.coordinates == CoordinateMode::tf_crop_and_resize && (axis.roi_start != 0 || axis.roi_end != 1);
    if (axis.in != axis.out || crops) passes.push_back({axis, x.shape.count(0, int(i)), inner});
    inner = checked_product(inner, axis.out);
  }
  if (passes.empty()) return copy_bytes(context.stream(), x.data, y.data, int64_t(x.bytes()));
  dispatch(TypeList<float, Half, BFloat16, double, int8_t, uint8_t, int32_t>{}, x.type,
           [&]<class T>() { run_passes(context, rule, passes, x.as<const T>(), y.as<T>()); });
}

}  // namespace encore::ops
