// DeformConv: a convolution whose taps lie where another input says. Columns of what is there, then a product.
#include <cmath>

#include "device/device.h"
#include "ops/dispatch.h"
#include "ops/nn/convolve.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;

// A thread finds the place of one tap at one position, for some channels of those that share offsets.
template <class T>
struct DeformableIm2Col {
  using C = Compute<T>;
  const T *x, *offsets, *mask;  // offsets[image, group, tap, 2, position], mask[image, group, tap, position] or null
  T* columns;
  Window w;
  int64_t image, first, count;
  int64_t channels, groups, of_group, shares;  // channels of all groups and of one; how many threads share these
  Divider by_count, by_taps, by_shares, by_groups;
  Positions positions;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t at, tap, share, group;
    const int64_t of = by_groups(by_shares(by_taps(by_count(i, at), tap), share), group);
    const int64_t taps = by_taps.divisor(), out = w.out_count(), source = ((image + of) * groups + group) * taps + tap;
    int place[kSpatial];
    positions(first + at, place);
    const T* offset = offsets + source * 2 * out + first + at;
    const int row = int(tap) / w.kernel[2], column = int(tap) - row * w.kernel[2];
    const C v = C(place[1] * w.stride[1] - w.before[1] + row * w.dilation[1]) + C(offset[0]);
    const C u = C(place[2] * w.stride[2] - w.before[2] + column * w.dilation[2]) + C(offset[out]);
    const C factor = mask ? C(mask[source * out + first + at]) : C(1);

    // The four pixels around; those outside count for nothing.
    const bool there = v > C(-1) && v < C(w.in[1]) && u > C(-1) && u < C(w.in[2]);
    const int top = there ? int(std::floor(v)) : 0, left = there ? int(std::floor(u)) : 0;
    const C below = v - C(top), beside = u - C(left);
    const C weights[4] = {(C(1) - below) * (C(1) - beside), (C(1) - below) * beside, below * (C(1) - beside),
                          below * beside};
    for (int64_t c = share; c < of_group; c += shares) {
      const int64_t channel = group * of_group + c;
      const T* plane = x + ((image + of) * channels + channel) * w.in_count();
      C sum = 0;
      UNROLL for (int corner = 0; corner < 4; ++corner) {
        const int y = top + corner / 2, z = left + corner % 2;
        if (there && unsigned(y) < unsigned(w.in[1]) && unsigned(z) < unsigned(w.in[2]))
          sum += weights[corner] * C(plane[int64_t(y) * w.in[2] + z]);
      }
      columns[((of * channels + channel) * taps + tap) * count + at] = T(sum * factor);
    }
  }
};

class DeformConv : public Op {
 public:
  explicit DeformConv(const NodeInfo& node)
      : attributes_(node),
        groups_(node.get_int("group", 1)),
        offset_groups_(node.get_int("offset_group", 1)),
        use_tf32_(node.settings.use_tf32) {
    require(groups_ >= 1, "group is ", groups_, "; it must be at least 1");
    require(offset_groups_ >= 1, "offset_group is ", offset_groups_, "; it must be at least 1");
    const auto x = node.input_dims(0);
    if (x && x->size() != 4)
      fail(Code::not_supported, "X has rank ", x->size(), "; two spatial dimensions are supported");
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &weights = context.input(1), &offset = context.input(2);
    const Tensor *bias = context.find_input(3), *mask = context.find_input(4);
    require(x.shape.rank() == 4 && weights.shape.rank() == 4, "X has shape ", x.shape.str(), " and W ",
            weights.shape.str(), "; two spatial dimensions are supported");
    const auto kernel = weights.shape.dims().subspan(2);
    if (const auto& given = attributes_.kernel_shape())
      require(std::equal(kernel.begin(), kernel.end(), given->begin(), given->end()), "kernel_shape is ",
              Shape(*given).str(), ", the weights have ", Shape(kernel).str());
    const int64_t channels = x.shape[1], out_channels = weights.shape[0];
    require(checked_product(weights.shape[1], groups_) == channels, "X has ", channels, " channels; W ",
            weights.shape.str(), " with group ", groups_, " wants ", weights.shape[1], " x ", groups_);
    require(out_channels % groups_ == 0, "the ", out_channels, " output channels cannot be divided by group ", groups_);
    require(channels % offset_groups_ == 0, "the ", channels, " channels of X cannot be divided by offset_group ",
            offset_groups_);
    const Window w = attributes_.slide(x.shape, kernel);
    const Shape shape = with_spatial(x.shape, out_channels, w.out);
    const int64_t moved = checked_product(offset_groups_, w.taps());
    const auto check = [&](const Tensor& given, const char* what, const Shape& wanted) {
      require(given.shape == wanted && given.type == x.type, what, " has shape ", given.shape.str(), " of ",
              device::name(given.type), "; ", wanted.str(), " of ", device::name(x.type), " is wanted");
    };
    check(weights, "W", weights.shape);
    check(offset, "offset", shape.with(1, checked_product(2, moved)));
    if (mask) check(*mask, "mask", shape.with(1, moved));
    if (bias) check(*bias, "B", Shape{out_channels});
    const Tensor y = context.output(0, shape);
    if (y.count() == 0) return;
    const ConvProblem problem{x.type,   Layout::channels_first, w,       x.shape[0],
                              channels, out_channels,           groups_, use_tf32_ && x.type == Type::f32};
    const ConvData data{x.data, weights.data, bias ? bias->data : nullptr, y.data};
    if (x.count() == 0) return set_bias(context, problem, y, data.bias);
    convolve_columns(context, problem, data, [&](const ColumnRange& range, void* columns) {
      im2col(context.stream(), problem, x, offset, mask, range, columns);
    });
  }

 private:
  void im2col(StreamRef stream, const ConvProblem& p, const Tensor& x, const Tensor& offset, const Tensor* mask,
              const ColumnRange& range, void* columns) const {
    const int64_t taps = p.window.taps(), of_group = p.in_channels / offset_groups_;
    const int64_t places = range.images * offset_groups_ * taps * range.count;
    const int64_t enough = int64_t(device::multiprocessors(stream.device())) * 2048;
    int64_t shares = of_group;
    while (shares > 1 && places * (shares / 2) >= enough) shares /= 2;
    const int64_t n = places * shares;
    dispatch(FloatList{}, p.type, [&]<class T>() {
      device::for_each_index(
          stream, n,
          DeformableIm2Col<T>{x.as<const T>(), offset.as<const T>(), mask ? mask->as<const T>() : nullptr,
                              static_cast<T*>(columns), p.window, range.image, range.first, range.count, p.in_channels,
                              offset_groups_, of_group, shares, Divider(range.count, n), Divider(taps, n),
                              Divider(shares, n), Divider(offset_groups_, n),
                              Positions(p.window.out, p.window.out_count())});
    });
  }

  WindowAttributes attributes_;
  int64_t groups_, offset_groups_;
  bool use_tf32_;
};

}  // namespace

std::vector<OpRow> deform_conv_rows() {
  return {{.name = "DeformConv", .since = 19, .types = {in(0, kFloats)}, .make = make<DeformConv>}};
}

}  // namespace encore::ops
