// Linear and cubic resizing. What a place of the result is made of is reckoned once for a pack of channels, if these
// are last, or else for neighbours in several planes.
#include <algorithm>
#include <cmath>

#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/elementwise/truncate.h"
#include "ops/nn/resize_dims.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::Pack;

// What an element of the result is made of: kTaps neighbours, linear (2) or cubic (4), in kResized dimensions.
template <class T, int kTaps, int kResized>
struct Interpolation {
  using C = Compute<std::conditional_t<std::is_integral_v<T>, float, T>>;
  static constexpr int kAll = kResized == 1 ? kTaps : kResized == 2 ? kTaps * kTaps : kTaps * kTaps * kTaps;
  struct Place {
    int64_t offsets[kResized][kTaps];
    C weights[kResized][kTaps];
    bool outside = false;
  };

  T extrapolation;
  CoordinateMode coordinates;
  float a;
  bool exclude_outside;
  ResizeDim dims[kResized];

  // At `at` along dimension d.
  DEVICE_FN void locate(int d, int64_t at, Place& place) const {
    locate(d, original<C>(coordinates, dims[d].axis, at), place);
  }
  // At `at` along all of them.
  DEVICE_FN void locate(const int64_t (&at)[kResized], Place& place) const {
    C positions[kResized];
    const auto find = [&](CoordinateMode mode) {
      UNROLL for (int d = 0; d < kResized; ++d) positions[d] = original<C>(mode, dims[d].axis, at[d]);
    };
    if (coordinates == CoordinateMode::half_pixel)  // what most models have is one piece of code
      find(CoordinateMode::half_pixel);
    else
      find(coordinates);
    UNROLL for (int d = 0; d < kResized; ++d) locate(d, positions[d], place);
  }
  // What kPack neighbours, all of that place, are made of.
  template <int kPack>
  DEVICE_FN void read(const T* from, const Place& place, Pack<T, kPack> (&taps)[kAll]) const {
    UNROLL for (int t = 0; t < kAll; ++t) {
      const T* at = from;
      UNROLL for (int d = kResized - 1, rest = t; d >= 0; --d, rest /= kTaps) at += place.offsets[d][rest % kTaps];
      taps[t] = device::load_pack<kPack>(at, true);
    }
  }
  template <int kPack>
  DEVICE_FN Pack<T, kPack> made_of(const Pack<T, kPack> (&taps)[kAll], const Place& place) const {
    const Sums<kPack> sums = sum<0, kAll>(taps, place);
    Pack<T, kPack> made;
    UNROLL for (int k = 0; k < kPack; ++k) made.at[k] = place.outside ? extrapolation : as_element(sums.at[k]);
    return made;
  }

 private:
  template <int kPack>
  struct Sums {
    C at[kPack];
  };

  DEVICE_FN void locate(int d, C position, Place& place) const {
    const ResizeAxis& axis = dims[d].axis;
    place.outside |= is_outside(coordinates, axis, position);
    if constexpr (kTaps == 2)
      linear(axis, position, place.offsets[d], place.weights[d]);
    else
      cubic(axis, position, place.offsets[d], place.weights[d]);
    UNROLL for (int t = 0; t < kTaps; ++t) place.offsets[d][t] *= dims[d].stride;
  }

  // An integer near the end of its type may be a float beyond it.
  DEVICE_FN static T as_element(C value) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return truncated<T>(value);
    else
      return T(value);
  }
  DEVICE_FN void linear(const ResizeAxis& axis, C position, int64_t (&offsets)[kTaps], C (&weights)[kTaps]) const {
    const C last = C(axis.in - 1);  // perhaps rounded up
    position = position > C(0) ? (position < last ? position : last) : C(0);
    const int low = position < last ? int(position) : axis.in - 1;
    offsets[0] = low;
    offsets[1] = low + 1 < axis.in ? low + 1 : low;
    weights[1] = position - C(low);
    weights[0] = C(1) - weights[1];
  }
  DEVICE_FN void cubic(const ResizeAxis& axis, C position, int64_t (&offsets)[kTaps], C (&weights)[kTaps]) const {
    const C floor = std::floor(position), r = position - floor, k = C(a);
    weights[0] = ((k * (r + C(1)) - C(5) * k) * (r + C(1)) + C(8) * k) * (r + C(1)) - C(4) * k;
    weights[1] = ((k + C(2)) * r - (k + C(3))) * r * r + C(1);
    const C s = C(1) - r;
    weights[2] = ((k + C(2)) * s - (k + C(3))) * s * s + C(1);
    weights[3] = ((k * (s + C(1)) - C(5) * k) * (s + C(1)) + C(8) * k) * (s + C(1)) - C(4) * k;
    C all = 0;
    UNROLL for (int t = 0; t < kTaps; ++t) {
      if (r != r) weights[t] = 0;  // nowhere, which the CPU counts for nothing
      const int at = whole(floor) - 1 + t;
      offsets[t] = clamped(at, axis.in);
      if (exclude_outside && at != int(offsets[t])) weights[t] = 0;
      all += weights[t];
    }
    if (exclude_outside) {
      UNROLL for (int t = 0; t < kTaps; ++t) weights[t] /= all;
    }
  }
  // Of kCount taps, which differ in dimensions from kDim on.
  template <int kDim, int kCount, int kPack>
  DEVICE_FN static Sums<kPack> sum(const Pack<T, kPack>* taps, const Place& place) {
    Sums<kPack> all = {};
    if constexpr (kCount == 1) {
      UNROLL for (int k = 0; k < kPack; ++k) all.at[k] = C(taps->at[k]);
    } else {
      constexpr int kEach = kCount / kTaps;
      UNROLL for (int t = 0; t < kTaps; ++t) {
        const auto part = sum<kDim + 1, kEach>(taps + t * kEach, place);
        UNROLL for (int k = 0; k < kPack; ++k) all.at[k] += place.weights[kDim][t] * part.at[k];
      }
    }
    return all;
  }
};

// A thread has kEach packs of the innermost dimension, which stays as it is.
template <class T, int kTaps, int kResized, int kPack, int kEach>
struct InterpolatePacks {
  using How = Interpolation<T, kTaps, kResized>;
  const T* x;
  T* y;
  How how;
  ResizeDim kept[kResized + 1];  // before, between and behind those that are resized; the last one's threads
  int64_t row_width;             // of y

  DEVICE_FN void operator()(int64_t i) const {
    typename How::Place place;
    int64_t first, kept_at, at[kResized], rest = kept[kResized].out(i, first);
    const T* from = x + first * kPack;
    T* const to = y + rest * row_width + first * kPack;
    UNROLL for (int d = kResized - 1; d >= 0; --d) {
      rest = how.dims[d].out(rest, at[d]);
      rest = kept[d].out(rest, kept_at);
      from += kept_at * kept[d].stride;
    }
    how.locate(at, place);
    const int64_t apart = kept[kResized].out.divisor() * kPack;
    Pack<T, kPack> taps[kEach][How::kAll];
    UNROLL for (int k = 0; k < kEach; ++k) how.read(from + k * apart, place, taps[k]);
    UNROLL for (int k = 0; k < kEach; ++k) device::store_whole(to + k * apart, how.made_of(taps[k], place));
  }
};

// The innermost dimension is resized. A thread has neighbours in a row, of several planes.
template <class T, int kTaps, int kResized>
struct InterpolatePlanes {
  static constexpr int kAcross = 2;
  using How = Interpolation<T, kTaps, kResized>;
  const T* x;
  T* y;
  How how;
  ResizeDim kept[kResized];  // before each of those that are resized: planes are the first one
  Divider by_across, by_rows;
  int64_t width, planes;
  int planes_each;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    typename How::Place places[kAcross];
    int64_t across, row, at;
    const int64_t first = by_rows(by_across(i, across), row) * planes_each;
    const int64_t column = across * kAcross;
    const int count = width - column < kAcross ? int(width - column) : kAcross;
    const T* from = x + first * kept[0].stride;
    T* to = y + (first * by_rows.divisor() + row) * width + column;
    UNROLL for (int d = kResized - 2; d >= 0; --d) {
      row = kept[d + 1].out(row, at);
      from += at * kept[d + 1].stride;
      row = how.dims[d].out(row, at);
      how.locate(d, at, places[0]);
    }
    UNROLL for (int j = 1; j < kAcross; ++j) places[j] = places[0];
    UNROLL for (int j = 0; j < kAcross; ++j) how.locate(kResized - 1, column + (j < count ? j : 0), places[j]);
    const int64_t end = first + planes_each < planes ? first + planes_each : planes;
    NO_UNROLL for (int64_t plane = first; plane < end; ++plane) {
      Pack<T, kAcross> values;
      Pack<T, 1> taps[kAcross][How::kAll];
      UNROLL for (int j = 0; j < kAcross; ++j) how.read(from, places[j], taps[j]);
      UNROLL for (int j = 0; j < kAcross; ++j) values.at[j] = how.made_of(taps[j], places[j]).at[0];
      device::store_pack(to, values, aligned, count);
      from += kept[0].stride;
      to += by_rows.divisor() * width;
    }
  }
};

template <class T, int kTaps, int kResized>
void interpolate_planes(StreamRef stream, const Interpolation<T, kTaps, kResized>& how, const ResizeDim* kept,
                        const Tensor& x, const Tensor& y) {
  using Kernel = InterpolatePlanes<T, kTaps, kResized>;
  const int64_t width = how.dims[kResized - 1].axis.out, across = (width + Kernel::kAcross - 1) / Kernel::kAcross;
  const int64_t planes = kept[0].out.divisor(), rows = y.count() / planes / width;
  const int each = planes_of_a_thread(stream, rows * across, planes);
  const int64_t n = (planes + each - 1) / each * rows * across;
  const bool aligned =
      width % Kernel::kAcross == 0 && device::is_pack_aligned<Kernel::kAcross>(static_cast<const T*>(y.data));
  Kernel kernel{x.as<const T>(),  y.as<T>(), how,    {},   Divider(across, n),
                Divider(rows, n), width,     planes, each, aligned};
  std::copy(kept, kept + kResized, kernel.kept);
  device::for_each_index(stream, n, kernel);
}

template <int kPack, int kEach, class T, int kTaps, int kResized>
void interpolate_packs(StreamRef stream, const Interpolation<T, kTaps, kResized>& how, const ResizeDim* kept,
                       const Tensor& x, const Tensor& y, int64_t row_width) {
  const int64_t n = y.count() / (kPack * kEach);
  InterpolatePacks<T, kTaps, kResized, kPack, kEach> kernel{x.as<const T>(), y.as<T>(), how, {}, row_width};
  std::copy(kept, kept + kResized + 1, kernel.kept);
  kernel.kept[kResized].out = Divider(kept[kResized].out.divisor() / (kPack * kEach), n);
  device::for_each_index(stream, n, kernel);
}

template <class T, int kTaps, int kResized>
void interpolate(StreamRef stream, const ResizeRule& rule, std::span<const ResizeDim> dims, const Tensor& x,
                 const Tensor& y, int64_t row_width) {
  CoordinateMode coordinates = rule.coordinates;
  const auto is_single = [](const ResizeDim& dim) { return dim.resized && dim.axis.out == 1; };
  if (coordinates == CoordinateMode::pytorch_half_pixel && std::ranges::none_of(dims, is_single))
    coordinates = CoordinateMode::half_pixel;
  Interpolation<T, kTaps, kResized> how{
      nearest_element<T>(rule.extrapolation), coordinates, rule.cubic_coefficient, rule.exclude_outside, {}};
  ResizeDim kept[kResized + 1];
  for (ResizeDim& dim : kept) dim = {Divider(1, y.count()), 0, false, {}};
  int seen = 0;
  for (const ResizeDim& dim : dims) (dim.resized ? how.dims[seen++] : kept[seen]) = dim;
  if (!dims.back().resized) {
    if constexpr (kResized <= 2) {
      constexpr int kPack = device::pack_size<T>(), kMany = kTaps == 2 ? 4 : 1;
      const int64_t packs = dims.back().out.divisor() / kPack;
      if (dims.back().out.divisor() % kPack == 0 && device::is_pack_aligned<kPack>(x.as<const T>()) &&
          device::is_pack_aligned<kPack>(y.as<T>())) {
        if (packs % kMany == 0 && planes_of_a_thread(stream, y.count() / kPack / packs, packs) >= kMany)
          return interpolate_packs<kPack, kMany>(stream, how, kept, x, y, row_width);
        return interpolate_packs<kPack, 1>(stream, how, kept, x, y, row_width);
      }
    }
    interpolate_packs<1, 1>(stream, how, kept, x, y, row_width);
  } else {
    interpolate_planes(stream, how, kept, x, y);
  }
}

}  // namespace

void interpolate(StreamRef stream, const ResizeRule& rule, std::span<const ResizeDim> dims, const Tensor& x,
                 const Tensor& y, int64_t row_width) {
  const auto resized = std::ranges::count_if(dims, &ResizeDim::resized);
  if (rule.mode == ResizeMode::cubic) {
    if (resized > 2)
      fail(Code::not_supported, "cubic interpolation along ", resized, " dimensions; up to 2 are supported");
    dispatch(FloatList{}, x.type, [&]<class T>() {
      if (resized == 1)
        interpolate<T, 4, 1>(stream, rule, dims, x, y, row_width);
      else
        interpolate<T, 4, 2>(stream, rule, dims, x, y, row_width);
    });
    return;
  }
  if (resized > 3)
    fail(Code::not_supported, "linear interpolation along ", resized, " dimensions; up to 3 are supported");
  dispatch(TypeList<float, Half, BFloat16, double, int8_t, uint8_t, int32_t>{}, x.type, [&]<class T>() {
    if (resized == 1)
      interpolate<T, 2, 1>(stream, rule, dims, x, y, row_width);
    else if (resized == 2)
      interpolate<T, 2, 2>(stream, rule, dims, x, y, row_width);
    else
      interpolate<T, 2, 3>(stream, rule, dims, x, y, row_width);
  });
}

}  // namespace encore::ops
