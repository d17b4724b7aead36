// RoiAlign and MaxRoiPool: regions of images, each pooled to one size.
#include <cmath>
#include <limits>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::FaultKind;
using device::FaultRef;

struct Image {
  int64_t count, channels;
  int height, width;
};
// The index of an element of [region, channel, row, column].
struct PooledIndex {
  Divider columns, rows, channels;
  DEVICE_FN int64_t operator()(int64_t i, int64_t& channel, int64_t& row, int64_t& column) const {
    return channels(rows(columns(i, column), row), channel);
  }
};

DEVICE_FN int64_t checked_image(const FaultRef& fault, int64_t index, int64_t count) {
  if (index >= 0 && index < count) return index;
  fault.report(FaultKind::index_out_of_range, index, count);
  return 0;
}
// NaN is 0.
template <class C>
DEVICE_FN int as_int(C value) {
  constexpr C kMost = C(1 << 30);
  return value >= kMost ? 1 << 30 : value > -kMost ? int(value) : value != value ? 0 : -(1 << 30);
}

constexpr int kMostSamples = 1 << 12;  // along one dimension of a bin

template <class T>
struct AlignRegions {
  using C = Compute<T>;
  const T *x, *regions;  // of a region: left, top, right, bottom
  const int64_t* images;
  T* y;
  Image image;
  C scale;
  bool half_pixel, takes_most;
  int samples;  // along each dimension of a bin; zero: as many as it spans pixels
  PooledIndex split;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, row, column;
    const int64_t region = split(i, channel, row, column);
    const T* const corners = regions + region * 4;
    const Bins across = bins(C(corners[0]), C(corners[2]), split.columns.divisor());
    const Bins down = bins(C(corners[1]), C(corners[3]), split.rows.divisor());
    const int64_t which = checked_image(fault, images[region], image.count);
    const T* const plane = x + (which * image.channels + channel) * image.height * image.width;
    C all = 0;
    for (int v = 0; v < down.samples; ++v) {
      for (int u = 0; u < across.samples; ++u) {
        const C seen = sample(plane, down.at(row, v), across.at(column, u));
        all = !takes_most ? all + seen : u + v == 0 || seen > all || seen != seen ? seen : all;
      }
    }
    const int count = down.samples * across.samples;
    y[i] = T(takes_most || count == 0 ? all : all / C(count));
  }

 private:
  // The region along one dimension.
  struct Bins {
    C start, size;  // of a bin
    int samples;
    DEVICE_FN C at(int64_t bin, int sample) const {
      return start + C(bin) * size + (C(sample) + C(0.5)) * size / C(samples);
    }
  };
  DEVICE_FN Bins bins(C first, C last, int64_t count) const {
    const C shift = half_pixel ? C(0.5) : C(0);
    const C start = first * scale - shift;
    C span = last * scale - shift - start;
    if (!half_pixel && span < C(1)) span = C(1);
    const C size = span / C(count);
    int wanted = samples;
    if (wanted == 0) {
      wanted = as_int(std::ceil(size));
      if (wanted < 0) wanted = 0;
      if (wanted > kMostSamples) {
        fault.report(FaultKind::bad_value, wanted, kMostSamples);
        wanted = 1;
      }
    }
    return {start, size, wanted};
  }
  // Of the four pixels around; of the most it is the largest of their shares, as models know it.
  DEVICE_FN C sample(const T* plane, C v, C u) const {
    if (!(v >= C(-1) && v <= C(image.height) && u >= C(-1) && u <= C(image.width))) return C(0);
    int top, left, bottom, right;
    const C below = between(v, image.height, top, bottom), beside = between(u, image.width, left, right);
    const C above = C(1) - below, before = C(1) - beside;
    const T *const upper = plane + int64_t(top) * image.width, *const lower = plane + int64_t(bottom) * image.width;
    const C a = above * before * C(upper[left]), b = above * beside * C(upper[right]);
    const C c = below * before * C(lower[left]), d = below * beside * C(lower[right]);
    return takes_most ? larger_or_nan(larger_or_nan(a, b), larger_or_nan(c, d)) : a + b + c + d;
  }
  DEVICE_FN static C larger_or_nan(C a, C b) { return a > b || a != a ? a : b; }
  DEVICE_FN static C between(C at, int size, int& low, int& high) {
    if (!(at > C(0))) at = C(0);
    low = int(at);
    high = low + 1;
    if (low < size - 1) return at - C(low);
    low = high = size - 1;
    return C(0);
  }
};

template <class T>
struct PoolRegions {
  using C = Compute<T>;
  const T *x, *regions;  // of a region: its image, left, top, right, bottom
  T* y;
  Image image;
  C scale;
  PooledIndex split;
  FaultRef fault;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t channel, row, column;
    const int64_t region = split(i, channel, row, column);
    const T* const corners = regions + region * 5;
    int first_row, last_row, first_column, last_column;
    range(C(corners[2]), C(corners[4]), row, split.rows.divisor(), image.height, first_row, last_row);
    range(C(corners[1]), C(corners[3]), column, split.columns.divisor(), image.width, first_column, last_column);
    const int64_t which = checked_image(fault, as_int(C(corners[0])), image.count);
    const T* const plane = x + (which * image.channels + channel) * image.height * image.width;
    const bool is_empty = first_row >= last_row || first_column >= last_column;
    C most = is_empty ? C(0) : -std::numeric_limits<C>::infinity();
    for (int v = first_row; v < last_row; ++v) {
      for (int u = first_column; u < last_column; ++u) {
        const C value = C(plane[int64_t(v) * image.width + u]);
        if (value > most || value != value) most = value;
      }
    }
    y[i] = T(most);
  }

 private:
  // The pixels of a bin, some of which two bins may share.
  DEVICE_FN void range(C from, C to, int64_t bin, int64_t count, int size, int& first, int& last) const {
    const int start = as_int(std::round(from * scale)), end = as_int(std::round(to * scale));
    const int64_t span = int64_t(end) - start + 1;
    const C each = C(span > 1 ? span : 1) / C(count);
    first = clamped(int64_t(as_int(std::floor(C(bin) * each))) + start, size);
    last = clamped(int64_t(as_int(std::ceil(C(bin + 1) * each))) + start, size);
  }
  DEVICE_FN static int clamped(int64_t at, int size) { return at < 0 ? 0 : at < size ? int(at) : size; }
};

int64_t sized(int64_t value, const char* what) {
  constexpr int64_t kMost = 1 << 20;
  require(value >= 1 && value <= kMost, what, " is ", value, "; it must be from 1 to ", kMost);
  return value;
}

Image image_of(const Tensor& x) {
  constexpr int64_t kMost = 1 << 30;
  require(x.shape.rank() == 4, "X has shape ", x.shape.str(), "; it needs batch, channels, height and width");
  require(x.shape[2] <= kMost && x.shape[3] <= kMost, "X ", x.shape.str(), " is too large; up to ", kMost,
          " rows and columns are supported");
  return {x.shape[0], x.shape[1], int(x.shape[2]), int(x.shape[3])};
}

class RegionOp : public Op {
 public:
  explicit RegionOp(const NodeInfo& node) : scale_(node.get_float("spatial_scale", 1)) {
    const auto x = node.input_dims(0);
    require(!x || x->size() == 4, "X has rank ", x ? x->size() : 0, "; it needs batch, channels, height and width");
  }

 protected:
  const Tensor& regions(Context& context, int64_t columns) const {
    const Tensor &x = context.input(0), &given = context.input(1);
    require(given.shape.rank() == 2 && given.shape[1] == columns && given.type == x.type, "rois has shape ",
            given.shape.str(), " of ", device::name(given.type), "; [count,", columns, "] of ", device::name(x.type),
            " is wanted");
    return given;
  }
  Tensor pooled(Context& context, const Image& image, int64_t regions) const {
    const Tensor y = context.output(0, Shape{regions, image.channels, rows_, columns_});
    require(y.count() == 0 || context.input(0).count() > 0, "X ", context.input(0).shape.str(), " has nothing to pool");
    return y;
  }
  PooledIndex index(const Image& image, const Tensor& y) const {
    return {Divider(columns_, y.count()), Divider(rows_, y.count()), Divider(image.channels, y.count())};
  }
  float scale_;
  int64_t rows_, columns_;
};

class RoiAlign : public RegionOp {
 public:
  explicit RoiAlign(const NodeInfo& node) : RegionOp(node) {
    rows_ = sized(node.get_int("output_height", 1), "output_height");
    columns_ = sized(node.get_int("output_width", 1), "output_width");
    const int64_t samples = node.get_int("sampling_ratio", 0);
    require(samples >= 0 && samples <= kMostSamples, "sampling_ratio is ", samples, "; it must be from 0 to ",
            kMostSamples);
    samples_ = int(samples);
    takes_most_ = read_choice<bool>(node, "mode", "avg", {{"avg", false}, {"max", true}});
    const char* const first = node.since_version() < 16 ? "output_half_pixel" : "half_pixel";
    half_pixel_ = read_choice<bool>(node, "coordinate_transformation_mode", first,
                                    {{"half_pixel", true}, {"output_half_pixel", false}});
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &rois = regions(context, 4), &images = context.input(2);
    const int64_t count = rois.shape[0];
    require(images.shape == Shape{count} && images.type == Type::i64, "batch_indices has shape ", images.shape.str(),
            "; rois ", rois.shape.str(), " wants [", count, "] of int64");
    const Image image = image_of(x);
    const Tensor y = pooled(context, image, count);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      device::for_each_index(
          context.stream(), y.count(),
          AlignRegions<T>{x.as<const T>(), rois.as<const T>(), images.as<const int64_t>(), y.as<T>(), image,
                          Compute<T>(scale_), half_pixel_, takes_most_, samples_, index(image, y), context.fault()});
    });
  }

 private:
  int samples_;
  bool takes_most_, half_pixel_;
};

class MaxRoiPool : public RegionOp {
 public:
  explicit MaxRoiPool(const NodeInfo& node) : RegionOp(node) {
    const auto shape = node.find_ints("pooled_shape").value_or(std::vector<int64_t>());
    require(shape.size() == 2, "pooled_shape has ", shape.size(), " values; it needs two");
    rows_ = sized(shape[0], "pooled_shape");
    columns_ = sized(shape[1], "pooled_shape");
    require(scale_ > 0, "spatial_scale is ", scale_, "; it must be above 0");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &rois = regions(context, 5);
    const Image image = image_of(x);
    const Tensor y = pooled(context, image, rois.shape[0]);
    dispatch(FloatList{}, x.type, [&]<class T>() {
      device::for_each_index(context.stream(), y.count(),
                             PoolRegions<T>{x.as<const T>(), rois.as<const T>(), y.as<T>(), image, Compute<T>(scale_),
                                            index(image, y), context.fault()});
    });
  }
};

}  // namespace

std::vector<OpRow> roi_rows() {
  return {
      {.name = "RoiAlign", .since = 10, .types = {in(0, kFloats)}, .make = make<RoiAlign>},
      {.name = "MaxRoiPool", .since = 1, .types = {in(0, kFloats)}, .make = make<MaxRoiPool>},
  };
}

}  // namespace encore::ops
