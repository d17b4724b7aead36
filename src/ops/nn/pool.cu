// MaxPool, AveragePool, LpPool and QLinearAveragePool.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/divide_small.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/window.h"
#include "ops/quantize/linear_bytes.h"
#include "ops/reduce/length.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Pack;
using device::SmallDivider;

// A window of which a kernel finds taps.
struct PoolWindow : Window {
  SmallDivider by_dilation[kSpatial];
  PoolWindow(const Window& w) : Window(w) {
    for (int d = 0; d < kSpatial; ++d) by_dilation[d] = SmallDivider(dilation[d]);
  }
};

// The taps of a window along one dimension that lie in [-before, in + after).
struct Taps {
  int first, last;
  DEVICE_FN Taps(const PoolWindow& w, int d, int at, int before, int after) {
    const int start = at * w.stride[d] - w.before[d], room = w.in[d] + after - start;
    first = start < -before ? up(-before - start, w.by_dilation[d]) : 0;
    last = room <= 0 ? 0 : up(room, w.by_dilation[d]);
    if (last > w.kernel[d]) last = w.kernel[d];
  }
  DEVICE_FN int count() const { return last > first ? last - first : 0; }

 private:
  // Of a distance that is not zero.
  DEVICE_FN static int up(int distance, const SmallDivider& by_step) {
    int rest;
    return by_step(distance - 1, rest) + 1;
  }
};

// Where the window of a place in the result is.
struct Place {
  int64_t image, channel;
  int at[kSpatial];
};

// What is pooled: every element of the result has a window.
template <class T>
struct Pooled {
  static constexpr int kAhead = 4;  // taps that are asked for before the first is needed
  const T* x;
  PoolWindow w;
  Elements elements;
  Planes planes;

  Pooled(const Tensor& x, const Window& w, Layout layout, int64_t channels, int64_t results)
      : x(x.as<const T>()), w(w), elements(layout, channels, w.out, results), planes(layout, channels, w.in_count()) {}

  DEVICE_FN Place place(int64_t i) const {
    Place p;
    p.image = elements(i, p.channel, p.at);
    return p;
  }
  // Calls f(row's offset in the plane, column, value) for every place under the window.
  template <class F>
  DEVICE_FN void for_each_tap(const Place& p, F f) const {
    const T* const plane = x + planes(p.image, p.channel);
    const Taps a(w, 0, p.at[0], 0, 0), b(w, 1, p.at[1], 0, 0), c(w, 2, p.at[2], 0, 0);
    const int left = p.at[2] * w.stride[2] - w.before[2];
    for (int i = a.first; i < a.last; ++i) {
      const int64_t z = p.at[0] * w.stride[0] - w.before[0] + i * w.dilation[0];
      for (int j = b.first; j < b.last; ++j) {
        const int64_t row = (z * w.in[1] + p.at[1] * w.stride[1] - w.before[1] + j * w.dilation[1]) * w.in[2];
        const T* const values = plane + row * planes.step;
        for (int first = c.first; first < c.last; first += kAhead) {
          Pack<T, 1> taps[kAhead];
          const auto each = [&](auto of) {
            UNROLL for (int k = 0; k < kAhead; ++k) {
              if (first + k < c.last) of(taps[k], left + (first + k) * w.dilation[2]);
            }
          };
          each([&](Pack<T, 1>& tap, int column) { tap.at[0] = values[column * planes.step]; });
          each([&](const Pack<T, 1>& tap, int column) { f(row, column, tap); });
        }
      }
    }
  }
};

// The same for packs of channels, which are neighbours. There are less than 2^31 of them, in x as in the result, and
// the window is not larger than the input.
template <class T, int kPack>
struct PooledPacks {
  static constexpr int kAcross = 3;  // what of a window is asked for at once, which is all of a usual one
  const T* x;
  PoolWindow w;
  SmallDivider by_channels, by_places[kSpatial];  // packs of channels

  PooledPacks(const Tensor& x, const Window& w, Layout, int64_t channels, int64_t)
      : x(x.as<const T>()), w(w), by_channels(int(channels / kPack)) {
    for (int d = 0; d < kSpatial; ++d) by_places[d] = SmallDivider(w.out[d]);
  }

  DEVICE_FN Place place(int64_t i) const {
    Place p;
    int channel, image = by_channels(int(i), channel);
    UNROLL for (int d = kSpatial - 1; d >= 0; --d) image = by_places[d](image, p.at[d]);
    p.image = image;
    p.channel = channel;
    return p;
  }
  template <class F>
  DEVICE_FN void for_each_tap(const Place& p, F f) const {
    NO_UNROLL for (int i = 0; i < w.kernel[0]; ++i) {
      const int z = place_of(p, 0, i);
      if (z < 0) continue;
      NO_UNROLL for (int first_j = 0; first_j < w.kernel[1]; first_j += kAcross)
          NO_UNROLL for (int first_k = 0; first_k < w.kernel[2]; first_k += kAcross) {
        int rows[kAcross], columns[kAcross];
        UNROLL for (int j = 0; j < kAcross; ++j) {
          rows[j] = place_of(p, 1, first_j + j);
          columns[j] = place_of(p, 2, first_k + j);
        }
        Pack<T, kPack> taps[kAcross][kAcross];
        const auto each = [&](auto of) {
          UNROLL for (int j = 0; j < kAcross; ++j) UNROLL for (int k = 0; k < kAcross; ++k) {
            if ((rows[j] | columns[k]) >= 0) of(taps[j][k], rows[j], columns[k]);
          }
        };
        const int plane = int(p.image) * w.in[0] + z, channels = by_channels.divisor();
        each([&](Pack<T, kPack>& tap, int row, int column) {
          const int at = ((plane * w.in[1] + row) * w.in[2] + column) * channels + int(p.channel);
          tap = device::load_aligned<kPack>(x + int64_t(at) * kPack);
        });
        each([&](const Pack<T, kPack>& tap, int row, int column) {
          f((int64_t(z) * w.in[1] + row) * w.in[2], column, tap);
        });
      }
    }
  }

 private:
  // Where a tap is in a dimension; negative if it is outside.
  DEVICE_FN int place_of(const Place& p, int d, int tap) const {
    if (tap >= w.kernel[d]) return -1;
    const int at = p.at[d] * w.stride[d] - w.before[d] + tap * w.dilation[d];
    return at < w.in[d] ? at : -1;
  }
};

template <class T, int kPack>
using PooledBy = std::conditional_t<kPack == 1, Pooled<T>, PooledPacks<T, kPack>>;

template <class C>
DEVICE_FN C lowest() {
  if constexpr (std::is_integral_v<C>)
    return std::numeric_limits<C>::lowest();
  else
    return -std::numeric_limits<C>::infinity();
}

// NaN wins, as in a reduction.
template <class T, int kPack>
struct MaxWindow {
  PooledBy<T, kPack> pooled;
  T* y;
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    C best[kPack];
    UNROLL for (int j = 0; j < kPack; ++j) best[j] = lowest<C>();
    pooled.for_each_tap(pooled.place(i), [&](int64_t, int, const Pack<T, kPack>& values) {
      UNROLL for (int j = 0; j < kPack; ++j) {
        const C v = C(values.at[j]);
        if (v > best[j] || v != v) best[j] = v;
      }
    });
    Pack<T, kPack> made;
    UNROLL for (int j = 0; j < kPack; ++j) made.at[j] = T(best[j]);
    device::store_aligned(y + i * kPack, made);
  }
};

// The first of the greatest, or of what is NaN, and where it is.
template <class T>
struct PlaceOfMax {
  Pooled<T> pooled;
  T* y;
  int64_t* indices;
  bool by_columns;  // indices count the first spatial dimension fastest
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    const Place p = pooled.place(i);
    C best = lowest<C>();
    int64_t where = -1;
    pooled.for_each_tap(p, [&](int64_t row, int column, Pack<T, 1> value) {
      const C v = C(value.at[0]);
      if (!(v > best || (v != v && best == best) || where < 0)) return;
      best = v;
      where = row + column;
    });
    y[i] = T(best);
    // Channels first in any layout, since this output keeps its layout.
    const Window& w = pooled.w;
    const int64_t plane = p.image * pooled.elements.channels.divisor() + p.channel;
    const int64_t position = (int64_t(p.at[0]) * w.out[1] + p.at[1]) * w.out[2] + p.at[2];
    indices[plane * w.out_count() + position] = plane * w.in_count() + (by_columns ? transposed(where) : where);
  }

 private:
  DEVICE_FN int64_t transposed(int64_t offset) const {
    const Window& w = pooled.w;
    const int64_t c = offset % w.in[2], b = offset / w.in[2] % w.in[1], a = offset / w.in[2] / w.in[1];
    return a + w.in[0] * (b + w.in[1] * c);
  }
};

template <class T, int kPack>
struct MeanWindow {
  PooledBy<T, kPack> pooled;
  T* y;
  bool count_padding;
  DEVICE_FN void operator()(int64_t i) const {
    using C = Compute<T>;
    const Place p = pooled.place(i);
    C sums[kPack] = {};
    int64_t count = 0;
    pooled.for_each_tap(p, [&](int64_t, int, const Pack<T, kPack>& values) {
      ++count;
      UNROLL for (int j = 0; j < kPack; ++j) sums[j] += C(values.at[j]);
    });
    if (count_padding) {
      count = 1;
      const PoolWindow& w = pooled.w;
      UNROLL for (int d = 0; d < kSpatial; ++d) count *= Taps(w, d, p.at[d], w.before[d], w.after[d]).count();
    }
    const C divisor = C(count ? count : 1);  // of nothing the sum is zero
    Pack<T, kPack> means;
    if constexpr (sizeof(T) == 2) {
      const C reciprocal = C(1) / divisor;
      UNROLL for (int j = 0; j < kPack; ++j) means.at[j] = T(quotient(sums[j], divisor, reciprocal));
    } else {
      UNROLL for (int j = 0; j < kPack; ++j) means.at[j] = T(sums[j] / divisor);
    }
    device::store_aligned(y + i * kPack, means);
  }

 private:
  // sum / divisor, rounded as the division is unless it is below the normal numbers: what the product lacks is in the
  // remainder.
  DEVICE_FN static float quotient(float sum, float divisor, float reciprocal) {
    const float near = sum * reciprocal;
    const float mean = std::fma(std::fma(-near, divisor, sum), reciprocal, near);
    return mean == mean ? mean : near;  // infinity has no remainder
  }
};

// All of a window counts, if padding does.
struct MeanOfByteWindow {
  Pooled<uint8_t> pooled;
  uint8_t* y;
  LinearBytes from, to;
  bool count_padding;
  DEVICE_FN void operator()(int64_t i) const {
    const Place p = pooled.place(i);
    float sum = 0;
    pooled.for_each_tap(p, [&](int64_t, int, Pack<uint8_t, 1> bits) { sum += from.value(bits.at[0]); });
    const PoolWindow& w = pooled.w;
    int64_t count = count_padding ? w.taps() : 1;
    UNROLL for (int d = 0; d < kSpatial; ++d) {
      if (!count_padding) count *= Taps(w, d, p.at[d], 0, 0).count();
    }
    const float mean = count ? sum / float(count) : 0.f;
    y[i] = to.kept_in_range(rint(mean / *to.scale + float(to.zero_point())));
  }
};

template <class T>
struct LengthOfWindow {
  Pooled<T> pooled;
  T* y;
  Norm<Compute<T>> norm;
  DEVICE_FN void operator()(int64_t i) const {
    Compute<T> sum = 0;
    pooled.for_each_tap(pooled.place(i),
                        [&](int64_t, int, Pack<T, 1> value) { sum += norm.term(Compute<T>(value.at[0])); });
    y[i] = T(norm.length(sum));
  }
};

class PoolBase : public Op {
 public:
  explicit PoolBase(const NodeInfo& node) : attributes_(node), layout_(layout_of(node)) {
    const auto& kernel = attributes_.kernel_shape();
    require(kernel.has_value(), "kernel_shape is missing");
    int64_t taps = 1;
    for (const int64_t size : *kernel)
      require(!__builtin_mul_overflow(taps, size, &taps), "kernel_shape holds ", size,
              ", with which a window has more than 2^63 places");
  }

 protected:
  Window window(const Shape& x) const {
    const bool may_be_empty = x.rank() > 0 && x[0] == 0;  // without pictures, as the CPU provider has it
    const Window w = attributes_.slide(x, *attributes_.kernel_shape(), may_be_empty);
    require(w.in_count() > 0 || may_be_empty, "the input ", x.str(), " has nothing to pool");
    return w;
  }
  // Calls launch<kPack>(): channels that are neighbours are pooled together.
  template <class T, class F>
  void launch_by_packs(int64_t channels, const Window& w, const Tensor& x, const Tensor& y, F launch) const {
    constexpr int kWide = device::pack_size<T>();
    bool suits = layout_ == Layout::channels_last && channels % kWide == 0 &&
                 std::max(x.count(), y.count()) / kWide < INT32_MAX &&
                 device::is_pack_aligned<kWide>(x.as<const T>()) && device::is_pack_aligned<kWide>(y.as<const T>());
    for (int d = 0; d < kSpatial; ++d) suits &= w.kernel[d] <= w.in[d];
    if (suits)
      launch.template operator()<kWide>();
    else
      launch.template operator()<1>();
  }

  WindowAttributes attributes_;
  Layout layout_;
};

class MaxPool : public PoolBase {
 public:
  explicit MaxPool(const NodeInfo& node) : PoolBase(node), by_columns_(node.get_int("storage_order", 0) != 0) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Shape from = channels_first(x.shape, layout_);
    const Window w = window(from);
    const Shape shape = with_spatial(from, from[1], w.out);
    const Tensor y = context.output(0, stored(shape, layout_));
    const bool indexed = context.wants_output(1);
    int64_t* indices = indexed ? context.output(1, shape).as<int64_t>() : nullptr;
    dispatch(TypeList<float, Half, BFloat16, double, int8_t, uint8_t>{}, x.type, [&]<class T>() {
      if (indexed)
        return device::for_each_index(
            context.stream(), y.count(),
            PlaceOfMax<T>{{x, w, layout_, from[1], y.count()}, y.as<T>(), indices, by_columns_});
      launch_by_packs<T>(from[1], w, x, y, [&]<int kPack>() {
        device::for_each_index(context.stream(), y.count() / kPack,
                               MaxWindow<T, kPack>{{x, w, layout_, from[1], y.count()}, y.as<T>()});
      });
    });
  }

 private:
  bool by_columns_;
};

class AveragePool : public PoolBase {
 public:
  explicit AveragePool(const NodeInfo& node)
      : PoolBase(node), count_padding_(node.get_int("count_include_pad", 0) != 0) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Shape from = channels_first(x.shape, layout_);
    const Window w = window(from);
    const Tensor y = context.output(0, stored(with_spatial(from, from[1], w.out), layout_));
    dispatch(FloatList{}, x.type, [&]<class T>() {
      launch_by_packs<T>(from[1], w, x, y, [&]<int kPack>() {
        device::for_each_index(context.stream(), y.count() / kPack,
                               MeanWindow<T, kPack>{{x, w, layout_, from[1], y.count()}, y.as<T>(), count_padding_});
      });
    });
  }

 private:
  bool count_padding_;
};

class QLinearAveragePool : public PoolBase {
 public:
  explicit QLinearAveragePool(const NodeInfo& node)
      : PoolBase(node), count_padding_(node.get_int("count_include_pad", 0) != 0) {
    layout_ = node.get_int("channels_last", 0) != 0 ? Layout::channels_last : Layout::channels_first;
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    require(x.shape.rank() >= 3, "the input has shape ", x.shape.str(), "; it needs batch, channels and a plane");
    const LinearBytes of = LinearBytes::of(context, x.type, 1, 2, "X"),
                      to = LinearBytes::of(context, x.type, 3, 4, "Y");
    const Shape from = channels_first(x.shape, layout_);
    const Window w = window(from);
    const Tensor y = context.output(0, stored(with_spatial(from, from[1], w.out), layout_));
    // As the CPU EP has it, a mean of exact sums.
    if (w.taps() == w.in_count() && w.is_disjoint() && w.out_count() == 1)
      return average_planes(context.stream(), x, of, from[0], from[1], w.in_count(), layout_ == Layout::channels_last,
                            y, to);
    device::for_each_index(
        context.stream(), y.count(),
        MeanOfByteWindow{{x, w, layout_, from[1], y.count()}, y.as<uint8_t>(), of, to, count_padding_});
  }

 private:
  bool count_padding_;
};

class LpPool : public PoolBase {
 public:
  explicit LpPool(const NodeInfo& node) : PoolBase(node), p_(power_of(node)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Window w = window(x.shape);
    const Tensor y = context.output(0, with_spatial(x.shape, x.shape[1], w.out));
    dispatch(FloatList{}, x.type, [&]<class T>() {
      device::for_each_index(
          context.stream(), y.count(),
          LengthOfWindow<T>{{x, w, layout_, x.shape[1], y.count()}, y.as<T>(), Norm<Compute<T>>(p_)});
    });
  }

 private:
  float p_;
};

}  // namespace

std::vector<OpRow> pool_rows() {
  const Types bytes{Type::i8, Type::u8};
  return {
      {.name = "MaxPool", .since = 1, .types = {in(0, kFloats | bytes)}, .make = make<MaxPool>},
      {.name = "AveragePool", .since = 1, .types = {in(0, kFloats)}, .make = make<AveragePool>},
      {.name = "LpPool", .since = 1, .types = {in(0, kFloats)}, .make = make<LpPool>},
      {.domain = kMicrosoft,
       .name = "QLinearAveragePool",
       .since = 1,
       .until = 1,
       .types = {in(0, bytes), in(1, Types{Type::f32}), in(3, Types{Type::f32}), out(0, bytes)},
       .make = make<QLinearAveragePool>},
      {.domain = kChannelsLast,
       .name = "MaxPool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats | bytes)},
       .make = make<MaxPool>},
      {.domain = kChannelsLast,
       .name = "AveragePool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<AveragePool>},
  };
}

}  // namespace encore::ops
