// GridSample: an image seen at the places that a grid names.
#include <cmath>
#include <limits>

#include "device/device.h"
#include "device/divide.h"
#include "device/rounded.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/nn/batch_statistics.h"
#include "ops/nn/window.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

enum class Padding { zeros, border, reflection };

// How far each of a sample's neighbours is from the plane's beginning, and how much it counts; -1: not there.
template <class C, int kTaps>
struct SampleTaps {
  int64_t offset[kTaps];
  C weight[kTaps];
};

// One dimension of the image.
struct SampledAxis {
  int size;
  int64_t stride;
  Padding padding;
  bool align_corners;

  template <class C, int kTaps>
  DEVICE_FN SampleTaps<C, kTaps> look(C named) const {
    const C at = align_corners ? (named + C(1)) / C(2) * C(size - 1)
                               : (device::rounded_product(named + C(1), C(size)) - C(1)) / C(2);
    SampleTaps<C, kTaps> found;
    const C low = kTaps == 1 ? std::rint(at) : std::floor(at), r = at - low;
    if constexpr (kTaps == 1) {
      found.weight[0] = 1;
    } else if constexpr (kTaps == 2) {
      found.weight[0] = C(1) - r;
      found.weight[1] = r;
    } else {
      const C s = C(1) - r;
      found.weight[0] = beyond(r + C(1));
      found.weight[1] = within(r);
      found.weight[2] = within(s);
      found.weight[3] = beyond(s + C(1));
    }
    const int first = whole(low) - (kTaps == 4);
    UNROLL for (int t = 0; t < kTaps; ++t) found.offset[t] = inside(first + t);
    return found;
  }

 private:
  static constexpr int kFar = 0x7ffffff0;  // neighbours can still be counted from it
  template <class C>
  DEVICE_FN static int whole(C at) {
    if (at < C(kFar)) return at > C(-kFar) ? int(at) : -kFar;
    return at >= C(kFar) ? kFar : -kFar;  // NaN is nowhere
  }
  // Cubic convolution with a = -3/4, at a distance of up to one, and of one to two.
  template <class C>
  DEVICE_FN static C within(C d) {
    return (C(1.25) * d - C(2.25)) * d * d + C(1);
  }
  template <class C>
  DEVICE_FN static C beyond(C d) {
    return ((C(-0.75) * d + C(3.75)) * d - C(6)) * d + C(3);
  }
  DEVICE_FN int64_t inside(int at) const {
    if (unsigned(at) >= unsigned(size)) {
      if (padding == Padding::zeros) return -1;
      if (padding == Padding::border) {
        at = at < 0 ? 0 : size - 1;
      } else {
        // Up and down again; with corners aligned the pixels at the ends are not seen twice.
        const int up = align_corners ? size - 1 : size;
        if (up == 0) return 0;
        at %= 2 * up;
        if (at < 0) at += 2 * up;
        if (at >= size) at = 2 * up - (align_corners ? 0 : 1) - at;
      }
    }
    return at * stride;
  }
};

// A thread takes one place in one of `groups` of channels; they are dealt, so that neighbours in memory stay so.
template <class T, int kTaps, int kDims>
struct SampleGrid {
  using C = Compute<T>;
  const T* x;
  PerChannel grid;  // of any float type
  T* y;
  bool last;  // channels
  int64_t channels, groups, places;
  SampledAxis axes[kDims];
  Planes from, to;
  Divider by_groups, by_places;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t group, place, image;
    if (last)
      image = by_places(by_groups(i, group), place);
    else
      image = by_groups(by_places(i, place), group);
    SampleTaps<C, kTaps> found[kDims];
    UNROLL for (int d = 0; d < kDims; ++d)  // the grid names the innermost dimension first
        found[d] = axes[d].template look<C, kTaps>(grid.at<C>((image * places + place) * kDims + kDims - 1 - d));
    for (int64_t channel = group; channel < channels; channel += groups)
      y[to(image, channel) + place * to.step] = T(sum<0>(x + from(image, channel), found));
  }

 private:
  template <int kDim>
  DEVICE_FN static C sum(const T* at, const SampleTaps<C, kTaps> (&found)[kDims]) {
    if constexpr (kDim == kDims) {
      return C(*at);
    } else {
      C all = 0;
      UNROLL for (int t = 0; t < kTaps; ++t) {
        if (found[kDim].offset[t] < 0) continue;
        all += found[kDim].weight[t] * sum<kDim + 1>(at + found[kDim].offset[t], found);
      }
      return all;
    }
  }
};

class GridSample : public Op {
 public:
  explicit GridSample(const NodeInfo& node)
      : layout_(layout_of(node)), align_corners_(node.get_int("align_corners", 0) != 0) {
    // The last names are of before opset 20.
    taps_ = read_choice<int>(node, "mode", "linear",
                             {{"linear", 2}, {"nearest", 1}, {"cubic", 4}, {"bilinear", 2}, {"bicubic", 4}});
    padding_ = read_choice<Padding>(
        node, "padding_mode", "zeros",
        {{"zeros", Padding::zeros}, {"border", Padding::border}, {"reflection", Padding::reflection}});
    if (const auto x = node.input_dims(0))
      require(x->size() == 4 || x->size() == 5, "X has rank ", x->size(), "; it needs two or three spatial dimensions");
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &grid = context.input(1);
    const Shape seen = channels_first(x.shape, layout_);
    const int dims = seen.rank() - 2;
    require(dims == 2 || dims == 3, "X has shape ", x.shape.str(), "; it needs two or three spatial dimensions");
    require(grid.shape.rank() == dims + 2 && grid.shape[0] == seen[0] && grid.shape.back() == dims, "grid has shape ",
            grid.shape.str(), "; X ", x.shape.str(), " wants [", seen[0], ",...,", dims, "] of rank ", dims + 2);
    Shape shape = seen;
    for (int d = 0; d < dims; ++d) shape = shape.with(2 + d, grid.shape[1 + d]);
    const Tensor y = context.output(0, stored(shape, layout_));
    if (y.count() == 0) return;
    require(x.count() > 0, "X ", x.shape.str(), " has nothing to sample");
    dispatch(FloatList{}, x.type, [&]<class T>() {
      const auto with_taps = [&]<int kDims>() {
        if (taps_ == 1) return sample<T, 1, kDims>(context.stream(), x, grid, y, seen, shape);
        if (taps_ == 2) return sample<T, 2, kDims>(context.stream(), x, grid, y, seen, shape);
        sample<T, 4, kDims>(context.stream(), x, grid, y, seen, shape);
      };
      if (dims == 2)
        with_taps.template operator()<2>();
      else
        with_taps.template operator()<3>();
    });
  }

 private:
  template <class T, int kTaps, int kDims>
  void sample(StreamRef stream, const Tensor& x, const Tensor& grid, const Tensor& y, const Shape& from,
              const Shape& to) const {
    const bool last = layout_ == Layout::channels_last;
    const int64_t images = from[0], channels = from[1], places = to.count(2, to.rank());
    // Where there are places enough, a thread uses what it has found for several channels.
    const int64_t enough = int64_t(device::multiprocessors(stream.device())) * 2048, least = last ? 32 : 1;
    int64_t groups = channels;
    while (groups / 2 >= least && images * places * (groups / 2) >= enough) groups /= 2;
    const Planes from_planes(layout_, channels, from.count(2, from.rank())), to_planes(layout_, channels, places);
    const int64_t n = images * places * groups;
    SampleGrid<T, kTaps, kDims> kernel{
        x.as<const T>(), {grid.data, grid.type}, y.as<T>(),         last, channels, groups, places, {}, from_planes,
        to_planes,       Divider(groups, n),     Divider(places, n)};
    int64_t stride = from_planes.step;
    for (int d = kDims - 1; d >= 0; --d) {
      constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;
      require(from[2 + d] <= kMost, "a spatial dimension of X is ", from[2 + d], "; up to ", kMost, " are supported");
      kernel.axes[d] = {int(from[2 + d]), stride, padding_, align_corners_};
      stride *= from[2 + d];
    }
    device::for_each_index(stream, n, kernel);
  }

  Layout layout_;
  bool align_corners_;
  int taps_;  // along each dimension
  Padding padding_;
};

}  // namespace

std::vector<OpRow> grid_sample_rows() {
  const std::vector<TypeRule> types = {in(0, kFloats), in(1, kFloats)};
  const auto row = [&](const char* domain, int since) {
    return OpRow{.domain = domain, .name = "GridSample", .since = since, .types = types, .make = make<GridSample>};
  };
  std::vector<OpRow> rows{row(kOnnx, 16), row(kMicrosoft, 1), row(kChannelsLast, 16)};
  rows.back().types = {in(0, kChannelsLastFloats), in(1, kChannelsLastFloats)};
  return rows;
}

}  // namespace encore::ops
