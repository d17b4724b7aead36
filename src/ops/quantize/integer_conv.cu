// ConvInteger and QLinearConv: windows become rows of bytes that are multiplied with the weights'. Where a group has
// too few channels for that, a thread goes through the window of its own.
#include <algorithm>

#include "device/launch.h"
#include "ops/nn/window.h"
#include "ops/quantize/integer_product.h"
#include "ops/registry.h"
#include "ops/shape/strided.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;

constexpr int kChunk = int(kDepthStep);

// rows[plane, position - first, channel and tap] = x, lowered, at that tap of the window at that position; a plane is a
// group of an image. An index makes a chunk of a row, neighbours the same of neighbouring positions.
struct IntegerIm2Row {
  const uint8_t* x;
  int8_t* rows;
  Window w;
  ZeroPoint zero;  // what is in the padding
  int64_t first, stored, depth, padded, plane;
  uint32_t flip;
  Divider by_count, by_chunks;
  Positions positions, taps;

  DEVICE_FN void operator()(int64_t i) const {
    int64_t rest, chunk;
    const int64_t of_plane = by_chunks(by_count(i, rest), chunk);
    int at[kSpatial], tap[kSpatial];
    positions(first + rest, at);
    int64_t d = chunk * kChunk;
    const uint8_t* from = x + of_plane * plane + taps(d, tap) * w.in_count();
    const uint8_t outside = uint8_t(zero.at(0, 0));
    int origin[kSpatial];
    UNROLL for (int s = 0; s < kSpatial; ++s) origin[s] = at[s] * w.stride[s] - w.before[s];
    Pack<uint8_t, kChunk> out;
    UNROLL for (int e = 0; e < kChunk; ++e, ++d) {
      const int z = origin[0] + tap[0] * w.dilation[0], y = origin[1] + tap[1] * w.dilation[1];
      const int c = origin[2] + tap[2] * w.dilation[2];
      const bool inside =
          unsigned(z) < unsigned(w.in[0]) && unsigned(y) < unsigned(w.in[1]) && unsigned(c) < unsigned(w.in[2]);
      if (d >= depth)
        out.at[e] = 0;
      else
        out.at[e] = inside ? uint8_t(from[(int64_t(z) * w.in[1] + y) * w.in[2] + c] ^ flip) : outside;
      if (++tap[2] < w.kernel[2]) continue;
      tap[2] = 0;
      if (++tap[1] < w.kernel[1]) continue;
      tap[1] = 0;
      if (++tap[0] < w.kernel[0]) continue;
      tap[0] = 0;
      from += w.in_count();
    }
    *reinterpret_cast<Pack<uint8_t, kChunk>*>(rows + (of_plane * stored + rest) * padded + chunk * kChunk) = out;
  }
};

// An index makes one output of a convolution with few channels in a group.
struct ConvolveFew {
  const uint8_t* x;
  const int8_t* weights;  // packed rows
  IntegerFinish finish;
  Window w;
  ZeroPoint x_zero, w_zero;
  int64_t padded, plane;  // of x's group
  int channels;           // of it
  uint32_t flip;
  Positions positions;
  Divider by_rows, by_groups;

  DEVICE_FN void operator()(int64_t i) const {
    int at[kSpatial];
    int64_t row, group;
    const int64_t places = by_rows(positions(i, at), row), image = by_groups(places, group);
    const int64_t a_row = group * by_rows.divisor() + row;
    const int8_t* weight = weights + a_row * padded;
    const uint8_t* from = x + (image * by_groups.divisor() + group) * plane;
    const int32_t zx = x_zero.at(0, 0), zw = w_zero.at(group, row);
    uint32_t sum = 0;
    for (int channel = 0; channel < channels; ++channel, from += w.in_count()) {
      for (int a = 0; a < w.kernel[0]; ++a) {
        const int z = at[0] * w.stride[0] - w.before[0] + a * w.dilation[0];
        for (int b = 0; b < w.kernel[1]; ++b) {
          const int y = at[1] * w.stride[1] - w.before[1] + b * w.dilation[1];
          const bool inside = unsigned(z) < unsigned(w.in[0]) && unsigned(y) < unsigned(w.in[1]);
          const uint8_t* line = from + (int64_t(z) * w.in[1] + y) * w.in[2];
          for (int c = 0; c < w.kernel[2]; ++c) {
            const int column = at[2] * w.stride[2] - w.before[2] + c * w.dilation[2];
            const int32_t factor = *weight++ - zw;
            if (inside && unsigned(column) < unsigned(w.in[2]))
              sum += uint32_t((int8_t(line[column] ^ flip) - zx) * factor);
          }
        }
      }
    }
    finish.store(i, group, row, a_row, 0, 0, sum);
  }
};

// The inputs that both operators have, by their numbers.
struct Inputs {
  int x, w, x_zero, w_zero;
};

class IntegerConv : public Op {
 public:
  IntegerConv(const NodeInfo& node, Inputs inputs)
      : inputs_(inputs),
        attributes_(node),
        groups_(node.get_int("group", 1)),
        w_zero_known_(is_constant_zero(node, inputs.w_zero)),
        x_zero_known_(is_constant_zero(node, inputs.x_zero)) {
    require(groups_ >= 1, "group is ", groups_, "; it must be at least 1");
  }

  bool prepack(int input, const Tensor& constant, Prepack& prepack) override {
    if (input != inputs_.w || constant.shape.rank() < 3 || constant.count() == 0 || constant.shape[0] % groups_ != 0)
      return false;
    const int64_t rows = constant.shape[0], depth = constant.count() / rows;
    constant_.keep_rows(prepack, constant, Shape{groups_}, rows / groups_, depth);
    return true;
  }

 protected:
  // `set_finish` completes what becomes of the sums, of which it gets the number of output channels.
  template <class F>
  void run(Context& context, F set_finish) const {
    const Tensor& x = context.input(inputs_.x);
    const Tensor& w = constant_ ? constant_.like : context.input(inputs_.w);
    require(x.shape.rank() >= 3 && w.shape.rank() == x.shape.rank(), "X has shape ", x.shape.str(), " and W ",
            w.shape.str(), "; batch, channels and as many spatial dimensions are wanted of both");
    const auto kernel = w.shape.dims().subspan(2);
    if (const auto& given = attributes_.kernel_shape())
      require(std::ranges::equal(kernel, *given), "kernel_shape is ", Shape(*given).str(), ", the weights have ",
              Shape(kernel).str());
    const int64_t outputs = w.shape[0], group_channels = w.shape[1];
    require(checked_product(group_channels, groups_) == x.shape[1], "X has ", x.shape[1], " channels; W ",
            w.shape.str(), " with group ", groups_, " wants ", group_channels, " x ", groups_);
    require(outputs % groups_ == 0, "the ", outputs, " output channels cannot be divided by group ", groups_);
    const Window window = attributes_.slide(x.shape, kernel);
    const Tensor y = context.output(0, with_spatial(x.shape, outputs, window.out));
    if (y.count() == 0) return;

    IntegerProduct product;
    product.finish.y = y.data;
    product.finish.type = y.type;
    product.a_zero = channels_zero(context.find_input(inputs_.w_zero), w.type, outputs);
    product.b_zero = ZeroPoint::of(context.find_input(inputs_.x_zero), x.type, 1, 1, x_zero_known_);
    set_finish(product.finish, outputs);
    product.a = constant_ ? constant_.rows : pack_weights(context, w, product.b_zero);
    const int64_t rows = outputs / groups_, depth = product.a.depth;
    if (groups_ > 1 && (rows < 16 || depth <= kChunk)) {
      const int64_t n = y.count();
      device::for_each_index(
          context.stream(), n,
          ConvolveFew{x.as<const uint8_t>(), product.a.values, product.finish, window, product.b_zero, product.a_zero,
                      product.a.padded(), group_channels * window.in_count(), int(group_channels), flip_of(x.type),
                      Positions(window.out, n), Divider(rows, n), Divider(groups_, n)});
      return;
    }
    convolve(context, x, window, y, product);
  }

  // One value for each output channel, or for all.
  PerRow of_channels(const Tensor& values, int64_t outputs, const char* what) const {
    require(values.count() == 1 || values.shape == Shape{outputs}, what, " has shape ", values.shape.str(),
            "; one value or ", outputs, " are wanted");
    const AnyInput all(values.data, values.type);
    return values.count() == 1 ? PerRow{all, 0, 0} : PerRow{all, outputs / groups_, 1};
  }

 private:
  ZeroPoint channels_zero(const Tensor* zero, Type type, int64_t outputs) const {
    ZeroPoint made;
    made.is_unsigned = type == Type::u8;
    if (!zero) return made;
    require(zero->type == type, "W's zero point is ", device::name(zero->type), ", W is ", device::name(type));
    const PerRow point = of_channels(*zero, outputs, "W's zero point");
    if (!w_zero_known_) made.point = point;
    return made;
  }
  IntegerRows pack_weights(Context& context, const Tensor& w, const ZeroPoint& x_zero) const {
    const int64_t rows = w.shape[0], depth = w.shape.count(1, w.shape.rank());
    void* into = has_form(w, depth) ? nullptr : context.scratch(integer_rows_bytes(1, rows, depth));
    auto* sums = x_zero.known_zero() ? nullptr : static_cast<int32_t*>(context.scratch(size_t(rows) * sizeof(int32_t)));
    return pack_rows(context.stream(), w, Shape{groups_}, rows / groups_, depth, into, sums);
  }

  // As many images at once as memory for rows allows; of a very large image, a part.
  void convolve(Context& context, const Tensor& x, const Window& window, const Tensor& y,
                IntegerProduct& product) const {
    const int64_t images = x.shape[0], outputs = y.shape[1], positions = window.out_count();
    const int64_t padded = product.a.padded(), plane = x.count() / std::max<int64_t>(images * groups_, 1);
    const int64_t most = int64_t(std::min(context.dnn().settings().most_workspace_bytes, size_t{256} << 20));
    // A row of each group, and the sums that the library may make of them.
    const int64_t position_bytes = checked_product(groups_, padded) + outputs * int64_t(sizeof(int32_t));
    const int64_t image_bytes = checked_product(position_bytes, positions);
    const int64_t at_once = std::clamp<int64_t>(most / image_bytes, 1, images);
    const int64_t part = image_bytes <= most ? positions : std::clamp<int64_t>(most / position_bytes, 1, positions);
    const int64_t row_count = at_once * groups_ * stored_rows(part);
    auto* const rows = static_cast<int8_t*>(context.scratch(size_t(checked_product(row_count, padded))));
    auto* const sums = product.a_zero.known_zero()
                           ? nullptr
                           : static_cast<int32_t*>(context.scratch(size_t(row_count) * sizeof(int32_t)));
    product.row_step = positions;
    product.matrix_step = outputs / groups_ * positions;
    const auto y_bytes = int64_t(device::size_bytes(y.type));
    for (int64_t image = 0; image < images; image += at_once) {
      const int64_t now = std::min(at_once, images - image);
      const Shape batch{now, groups_};
      for (int64_t first = 0; first < positions; first += part) {
        const int64_t count = std::min(part, positions - first);
        const uint8_t* const from = x.as<const uint8_t>() + image * groups_ * plane;
        if (window.is_pointwise() && part == positions) {
          const Tensor columns{x.type, x.where, Shape{now * groups_, plane}, const_cast<uint8_t*>(from)};
          product.b = pack_columns(context.stream(), columns, batch, count, product.a.depth, rows, sums);
        } else {
          take_rows(context.stream(), from, x.type, window, product, now * groups_, plane, first, count, rows);
          if (sums) sum_rows(context.stream(), rows, now * groups_ * stored_rows(count), padded, sums);
          product.b = {rows, sums, batch, count, product.a.depth, stored_rows(count)};
        }
        product.finish.y = y.as<char>() + (image * outputs * positions + first) * y_bytes;
        multiply(context, product);
      }
    }
  }
  static void take_rows(StreamRef stream, const uint8_t* x, Type type, const Window& window,
                        const IntegerProduct& product, int64_t planes, int64_t plane, int64_t first, int64_t count,
                        int8_t* rows) {
    const int64_t padded = product.a.padded(), chunks = padded / kChunk, n = planes * chunks * count;
    device::for_each_index(stream, n,
                           IntegerIm2Row{x, rows, window, product.b_zero, first, stored_rows(count), product.a.depth,
                                         padded, plane, flip_of(type), Divider(count, n), Divider(chunks, n),
                                         Positions(window.out, window.out_count()), Positions(window.kernel, padded)});
  }

  Inputs inputs_;
  WindowAttributes attributes_;
  int64_t groups_;
  bool w_zero_known_, x_zero_known_;
  ConstantSide constant_;  // the weights, if they are one
};

class ConvInteger : public IntegerConv {
 public:
  explicit ConvInteger(const NodeInfo& node) : IntegerConv(node, {0, 1, 2, 3}) {}
  void run(Context& context) const override {
    IntegerConv::run(context, [](IntegerFinish&, int64_t) {});
  }
};

class QLinearConv : public IntegerConv {
 public:
  explicit QLinearConv(const NodeInfo& node) : IntegerConv(node, {0, 3, 2, 5}) {}
  void run(Context& context) const override {
    IntegerConv::run(context, [&](IntegerFinish& finish, int64_t outputs) {
      for (const auto& [input, what] : {std::pair(1, "x_scale"), {6, "y_scale"}, {7, "y_zero_point"}})
        require(context.input(input).count() == 1, what, " has shape ", context.input(input).shape.str(),
                "; one value is wanted");
      finish.a_scale = of_channels(context.input(4), outputs, "w_scale");
      finish.b_scale = per_row(context.input(1), 1, 1, "x_scale");
      finish.y_scale = AnyInput(context.input(6).data, context.input(6).type);
      finish.y_zero = AnyInput(context.input(7).data, context.input(7).type);
      if (const Tensor* bias = context.find_input(8)) {
        require(bias->shape == Shape{outputs}, "B has shape ", bias->shape.str(), "; [", outputs, "] is wanted");
        finish.bias = bias->as<const int32_t>();
      }
    });
  }
};

}  // namespace

std::vector<OpRow> integer_conv_rows() {
  const Types bytes{Type::i8, Type::u8};
  return {
      {.name = "ConvInteger", .since = 10, .types = {in(0, bytes), in(1, bytes)}, .make = make<ConvInteger>},
      {.name = "QLinearConv",
       .since = 10,
       .types = {in(0, bytes), in(3, bytes), out(0, bytes)},
       .make = make<QLinearConv>},
  };
}

}  // namespace encore::ops
