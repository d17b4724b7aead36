#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/memory.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/resize_dims.h"

namespace encore::ops {
namespace {

using device::Divider;

DEVICE_FN int nearest_to(Nearest nearest, const ResizeAxis& axis, float position) {
  switch (nearest) {
    case Nearest::round_prefer_floor: return whole(std::ceil(position - 0.5f));
    case Nearest::round_prefer_ceil: return whole(std::round(position));
    case Nearest::floor: return whole(std::floor(position));
    case Nearest::ceil: return whole(std::ceil(position));
    default: return whole(axis.scale < 1 ? std::ceil(position) : position);
  }
}

// Elements are bytes that stay together, and aligned if there are more of them than in one of the tensor's.
template <class T>
struct ResizeNearest {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n, planes, plane_stride;  // elements of y in each plane
  int64_t row_width, y_plane;       // from one row of y to the next, and from one plane
  int planes_each;
  const T* x;
  T* y;
  T extrapolation;
  CoordinateMode coordinates;
  Nearest nearest;
  bool aligned;
  Divider by_packs;
  int rank;
  ResizeDim dims[kMostResizeDims];

  DEVICE_FN void operator()(int64_t i) const {
    const ResizeDim& inner = dims[rank - 1];
    int64_t pack, at;
    int64_t plane = by_packs(i, pack) * planes_each;
    const int64_t end = plane + planes_each < planes ? plane + planes_each : planes, first = pack * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    int64_t row = inner.out(first, at);
    T* const to = y + row * row_width + at;
    const T* from[kPack];  // null where it is outside
    bool row_outside;
    const T* line = locate(row, row_outside);
    UNROLL for (int k = 0; k < kPack; ++k) {
      if (at == inner.out.divisor()) {
        at = 0;
        line = k < count ? locate(++row, row_outside) : line;
      }
      bool outside = row_outside;
      const int64_t offset = source(inner, at, outside);
      from[k] = outside ? nullptr : line + offset;
      ++at;
    }
    NO_UNROLL for (; plane < end; ++plane) {
      device::Pack<T, kPack> values;
      UNROLL for (int k = 0; k < kPack; ++k) values.at[k] = from[k] ? from[k][plane * plane_stride] : extrapolation;
      device::store_pack(to + plane * y_plane, values, aligned, count);
    }
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
  DEVICE_FN int64_t source(const ResizeDim& dim, int64_t at, bool& outside) const {
    if (!dim.resized) return at * dim.stride;
    const float position = original<float>(coordinates, dim.axis, at);
    outside |= is_outside(coordinates, dim.axis, position);
    return clamped(nearest_to(nearest, dim.axis, position), dim.axis.in) * dim.stride;
  }
};

using AllTypes = TypeList<float, Half, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                          uint64_t, bool, device::Float8E4M3, device::Float8E5M2>;

std::vector<ResizeDim> dims_of(const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
                               int64_t n) {
  const auto strides = strides_of(x.shape);
  std::vector<ResizeDim> dims;
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

// How many bytes may be moved as one: an element's, or more if the innermost dimension stays as it is.
size_t bytes_together(std::span<const ResizeDim> dims, const Tensor& x, const Tensor& y) {
  const size_t size = device::size_bytes(x.type);
  if (dims.back().resized) return size;
  size_t together = 16;
  const auto splits = [&](const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data) % together != 0; };
  while (together > size && (size_t(dims.back().out.divisor()) * size % together != 0 || splits(x) || splits(y)))
    together /= 2;
  return together;
}

template <class T>
void resize_nearest(StreamRef stream, const ResizeRule& rule, std::vector<ResizeDim> dims, const Tensor& x,
                    const Tensor& y, int64_t row_width, T extrapolation) {
  constexpr int kPack = device::pack_size<T>();
  const auto together = int64_t(sizeof(T) / device::size_bytes(x.type));
  int64_t n = y.count() / together, planes = 1, plane_stride = 0;
  row_width /= together;
  for (ResizeDim& dim : dims) dim.stride /= together;
  if (together > 1) dims.back() = {Divider(dims.back().out.divisor() / together, n), 1, false, {}};
  if (dims.size() > 1 && !dims[0].resized && n / dims[0].out.divisor() % kPack == 0) {
    planes = dims[0].out.divisor();
    plane_stride = dims[0].stride;
    n /= planes;
    dims.erase(dims.begin());
  }
  const int64_t packs = (n + kPack - 1) / kPack;
  const int each = planes_of_a_thread(stream, packs, planes);
  const int64_t threads = (planes + each - 1) / each * packs;
  ResizeNearest<T> kernel{n,
                          planes,
                          plane_stride,
                          row_width,
                          n / dims.back().out.divisor() * row_width,
                          each,
                          static_cast<const T*>(x.data),
                          static_cast<T*>(y.data),
                          extrapolation,
                          rule.coordinates,
                          rule.nearest,
                          device::is_pack_aligned<kPack>(static_cast<const T*>(y.data)),
                          Divider(packs, threads),
                          int(dims.size()),
                          {}};
  std::copy(dims.begin(), dims.end(), kernel.dims);
  device::for_each_index(stream, threads, kernel);
}

// Rows of y are `row_width` elements apart, if that is given.
void resize_to(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
               const Tensor& y, std::optional<int64_t> row_width) {
  if (y.count() == 0) return;
  const std::vector<ResizeDim> dims = dims_of(rule, axes, x, y.count());
  if (dims.size() > size_t(kMostResizeDims))
    fail(Code::not_supported, "resizing across ", dims.size(), " dimensions; up to ", kMostResizeDims,
         " are supported");
  if (std::ranges::none_of(dims, &ResizeDim::resized)) return device::copy(stream, y.data, x.data, y.bytes());
  const int64_t width = row_width.value_or(dims.back().out.divisor());
  if (rule.mode != ResizeMode::nearest) return interpolate(stream, rule, dims, x, y, width);
  dispatch(AllTypes{}, x.type, [&]<class T>() {
    const T value = nearest_element<T>(rule.extrapolation);
    dispatch_size(bytes_together(dims, x, y), [&]<class Moved>() {
      if constexpr (sizeof(Moved) >= sizeof(T)) {
        Moved bits;
        for (size_t i = 0; i < sizeof bits; i += sizeof value)
          std::memcpy(reinterpret_cast<char*>(&bits) + i, &value, sizeof value);
        resize_nearest(stream, rule, dims, x, y, width, bits);
      }
    });
  });
}

}  // namespace

void resize(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
            const Tensor& y) {
  resize_to(stream, rule, axes, x, y, std::nullopt);
}

bool makes_columns(const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x) {
  const std::vector<ResizeDim> dims = dims_of(rule, axes, x, x.count());
  const int64_t width = x.shape.back();
  return !rule.antialias && dims.size() > 1 && !dims.back().resized && dims.back().out.divisor() == width &&
         width * int64_t(device::size_bytes(x.type)) % 16 == 0;
}

void resize_into_columns(StreamRef stream, const ResizeRule& rule, const std::vector<ResizeAxis>& axes, const Tensor& x,
                         const Tensor& columns, int64_t row_width) {
  resize_to(stream, rule, axes, x, columns, row_width);
}

}  // namespace encore::ops
