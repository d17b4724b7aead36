#include "ops/nn/resize.h"

#include <cmath>
#include <cstring>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/elementwise/truncate.h"
#include "ops/nn/resize_place.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

DEVICE_FN int clamped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

// As an int that neighbours can be counted from. NaN, from a region of NaN or infinity, is 0, as on the CPU.
template <class C>
DEVICE_FN int whole(C position) {
  constexpr int kMost = 0x7ffffff0;
  if (position < C(kMost)) return position > C(-kMost) ? int(position) : -kMost;
  return position >= C(kMost) ? kMost : 0;
}

DEVICE_FN int nearest_to(Nearest nearest, const ResizeAxis& axis, float position) {
  switch (nearest) {
    case Nearest::round_prefer_floor: return whole(std::ceil(position - 0.5f));
    case Nearest::round_prefer_ceil: return whole(std::round(position));
    case Nearest::floor: return whole(std::floor(position));
    case Nearest::ceil: return whole(std::ceil(position));
    default: return whole(axis.scale < 1 ? std::ceil(position) : position);
  }
}

// Dimensions that stay as they are, neighbours joined, and those that don't.
struct Dim {
  Divider out;
  int64_t stride;  // in the input
  bool resized;
  ResizeAxis axis;
};

template <class T>
struct ResizeNearest {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n;
  const T* x;
  T* y;
  T extrapolation;
  CoordinateMode coordinates;
  Nearest nearest;
  bool aligned;
  int rank;
  Dim dims[kMostResizeDims];

  DEVICE_FN void operator()(int64_t pack) const {
    const Dim& inner = dims[rank - 1];
    const int64_t first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    int64_t at, row = inner.out(first, at);
    bool row_outside;
    const T* from = locate(row, row_outside);
    device::Pack<T, kPack> values;
    UNROLL for (int i = 0; i < kPack; ++i) {
      if (at == inner.out.divisor()) {
        at = 0;
        from = i < count ? locate(++row, row_outside) : from;
      }
      bool outside = row_outside;
      const int64_t offset = source(inner, at, outside);
      values.at[i] = outside ? extrapolation : from[offset];
      ++at;
    }
    device::store_pack(y + first, values, aligned, count);
  }

 private:
  // The input's row for a row of the result.
  DEVICE_FN const T* locate(int64_t row, bool& outside) const {
    const T* from = x;
    outside = false;
    for (int d = rank - 2; d >= 0; --d) {
      int64_t at;
      row = dims[d].out(row, at);
      from += source(dims[d], at, outside);
    }
    return from;
  }
  DEVICE_FN int64_t source(const Dim& dim, int64_t at, bool& outside) const {
    if (!dim.resized) return at * dim.stride;
    const float position = original<float>(coordinates, dim.axis, at);
    outside |= is_outside(coordinates, dim.axis, position);
    return clamped(nearest_to(nearest, dim.axis, position), dim.axis.in) * dim.stride;
  }
};

// Linear (kTaps 2) or cubic (4) in kResized dimensions, each between two that stay as they are.
template <class T, int kTaps, int kResized>
struct Interpolate {
  using C = Compute<std::conditional_t<std::is_integral_v<T>, float, T>>;
  const T* x;
  T* y;
  T extrapolation;
  CoordinateMode coordinates;
  float a;
  bool exclude_outside;
  Dim resized[kResized], kept[kResized + 1];

  DEVICE_FN void operator()(int64_t i) const {
    int64_t offsets[kResized][kTaps], at;
    C weights[kResized][kTaps];
    bool outside = false;
    int64_t rest = kept[kResized].out(i, at);
    const T* from = x + at * kept[kResized].stride;
    UNROLL for (int d = kResized - 1; d >= 0; --d) {
      rest = resized[d].out(rest, at);
      const ResizeAxis& axis = resized[d].axis;
      const C position = original<C>(coordinates, axis, at);
      outside |= is_outside(coordinates, axis, position);
      if constexpr (kTaps == 2)
        linear(axis, position, offsets[d], weights[d]);
      else
        cubic(axis, position, offsets[d], weights[d]);
      UNROLL for (int t = 0; t < kTaps; ++t) offsets[d][t] *= resized[d].stride;
      rest = kept[d].out(rest, at);
      from += at * kept[d].stride;
    }
    y[i] = outside ? extrapolation : as_element(sum<0>(from, offsets, weights));
  }

 private:
  // An integer near the end of its type may be a float beyond it.
  DEVICE_FN static T as_element(C value) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return truncated<T>(value);
    else
      return T(value);
  }
  DEVICE_FN void linear(const ResizeAxis& axis, C position, int64_t (&offsets)[kTaps], C (&weights)[kTaps]) const {
    const C last = C(axis.in - 1);
    position = position > C(0) ? (position < last ? position : last) : C(0);
    const int low = int(position);
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
  template <int kDim>
  DEVICE_FN static C sum(const T* from, const int64_t (&offsets)[kResized][kTaps],
                         const C (&weights)[kResized][kTaps]) {
    if constexpr (kDim == kResized) {
      return C(*from);
    } else {
      C all = 0;
      UNROLL for (int t = 0; t < kTaps; ++t) all +=
          weights[kDim][t] * sum<kDim + 1>(from + offsets[kDim][t], offsets, weights);
      return all;
    }
  }
};

using AllTypes = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                          uint64_t, bool, device::Float8E4M3, device::Float8E5M2>;

std::vector<Dim> dims_of(const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x, int64_t n) {
  const auto strides = strides_of(x.shape);
  std::vector<Dim> dims;
  for (size_t i = 0; i < axes.size(); ++i) {
    const ResizeAxis& axis = axes[i];
    const bool resized =
        axis.in != axis.out || axis.scale != 1 ||
        (rule.coordinates == CoordinateMode::tf_crop_and_resize && (axis.roi_start != 0 || axis.roi_end != 1));
    if (!resized && !dims.empty() && !dims.back().resized) {
      dims.back().out = Divider(dims.back().out.divisor() * axis.out, n);
      dims.back().stride = strides[i];
    } else {
      dims.push_back({Divider(axis.out, n), strides[i], resized, axis});
    }
  }
  return dims;
}

template <class T>
void resize_nearest(StreamRef stream, const ResizeRule& rule, const std::vector<Dim>& dims, const void* x, void* y,
                    int64_t n, T extrapolation) {
  ResizeNearest<T> kernel{n,
                          static_cast<const T*>(x),
                          static_cast<T*>(y),
                          extrapolation,
                          rule.coordinates,
                          rule.nearest,
                          false,
                          int(dims.size()),
                          {}};
  kernel.aligned = device::is_pack_aligned<kernel.kPack>(kernel.y);
  std::copy(dims.begin(), dims.end(), kernel.dims);
  device::for_each_index(stream, (n + kernel.kPack - 1) / kernel.kPack, kernel);
}

template <class T, int kTaps, int kResized>
void interpolate(StreamRef stream, const ResizeRule& rule, const std::vector<Dim>& dims, const Tensor& x,
                 const Tensor& y) {
  const Dim single{Divider(1, y.count()), 0, false, {}};
  Interpolate<T, kTaps, kResized> kernel{x.as<const T>(),
                                         y.as<T>(),
                                         nearest_element<T>(rule.extrapolation),
                                         rule.coordinates,
                                         rule.cubic_coefficient,
                                         rule.exclude_outside,
                                         {},
                                         {}};
  for (Dim& dim : kernel.kept) dim = single;
  int seen = 0;
  for (const Dim& dim : dims) {
    if (dim.resized)
      kernel.resized[seen++] = dim;
    else
      kernel.kept[seen] = dim;
  }
  device::for_each_index(stream, y.count(), kernel);
}

}  // namespace

void resize(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
            const Tensor& y) {
  if (y.count() == 0) return;
  std::vector<Dim> dims = dims_of(rule, axes, x, y.count());
  if (dims.size() > size_t(kMostResizeDims))
    fail(Code::not_supported, "resizing across ", dims.size(), " dimensions; up to ", kMostResizeDims,
         " are supported");
  int resized = 0;
  for (const Dim& dim : dims) resized += dim.resized;
  if (rule.mode == ResizeMode::nearest || resized == 0) {
    if (dims.empty()) dims.push_back({Divider(1, 1), 0, false, {}});  // a scalar
    dispatch(AllTypes{}, x.type, [&]<class T>() {
      const T value = nearest_element<T>(rule.extrapolation);
      dispatch_size(sizeof(T), [&]<class Moved>() {
        if constexpr (sizeof(Moved) == sizeof(T)) {
          Moved bits;
          std::memcpy(&bits, &value, sizeof bits);
          resize_nearest(stream, rule, dims, x.data, y.data, y.count(), bits);
        }
      });
    });
    return;
  }
  if (rule.mode == ResizeMode::cubic) {
    if (resized > 2)
      fail(Code::not_supported, "cubic interpolation along ", resized, " dimensions; up to 2 are supported");
    dispatch(FloatList{}, x.type, [&]<class T>() {
      if (resized == 1)
        interpolate<T, 4, 1>(stream, rule, dims, x, y);
      else
        interpolate<T, 4, 2>(stream, rule, dims, x, y);
    });
    return;
  }
  if (resized > 3)
    fail(Code::not_supported, "linear interpolation along ", resized, " dimensions; up to 3 are supported");
  dispatch(TypeList<float, Half, BFloat16, double, int8_t, uint8_t, int32_t>{}, x.type, [&]<class T>() {
    if (resized == 1)
      interpolate<T, 2, 1>(stream, rule, dims, x, y);
    else if (resized == 2)
      interpolate<T, 2, 2>(stream, rule, dims, x, y);
    else
      interpolate<T, 2, 3>(stream, rule, dims, x, y);
  });
}

}  // namespace encore::ops
