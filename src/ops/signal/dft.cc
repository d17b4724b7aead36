// DFT and STFT.
#include <algorithm>

#include "ops/registry.h"
#include "ops/signal/fourier.h"

namespace encore::ops {
namespace {

int64_t host_int(const Tensor& tensor, const char* what) {
  require(tensor.count() == 1, what, " has ", tensor.count(), " values; it must have one");
  return host_ints(tensor, what)[0];
}

int numbers_of(const Shape& shape, const char* what) {
  require(shape.back() == 1 || shape.back() == 2, what, " has shape ", shape.str(),
          "; its last dimension must be 1, of real numbers, or 2, of complex ones");
  return int(shape.back());
}

class Dft : public Op {
 public:
  explicit Dft(const NodeInfo& node)
      : inverse_(node.get_int("inverse", 0) != 0),
        onesided_(node.get_int("onesided", 0) != 0),
        axis_(node.since_version() >= 20 ? -2 : node.get_int("axis", 1)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it needs a signal's dimension, and one of numbers");
    Fourier f{};
    f.type = x.type;
    f.in.numbers = numbers_of(x.shape, "the input");
    const Tensor *const given_length = context.find_input(1), *const given_axis = context.find_input(2);
    const int axis = checked_axis(given_axis ? host_int(*given_axis, "axis") : axis_, rank);
    require(axis < rank - 1, "axis ", axis, " of the input ", x.shape.str(), " is that of the numbers");
    const bool to_real = inverse_ && onesided_;
    require(!to_real || f.in.numbers == 2, "a real signal is made of complex numbers; the input has shape ",
            x.shape.str());
    f.in.count = x.shape[axis];
    f.length = given_length ? host_int(*given_length, "dft_length") : to_real ? 2 * (f.in.count - 1) : f.in.count;
    require(f.length >= 1 && f.length <= kLongestTransform, "the transform's length is ", f.length,
            "; it must be from 1 to ", kLongestTransform);
    f.out.count = onesided_ && !inverse_ ? f.length / 2 + 1 : f.length;
    f.out.numbers = to_real ? 1 : 2;
    f.in.count = std::min(f.in.count, to_real ? f.length / 2 + 1 : f.length);
    f.inverse = inverse_;
    f.half_given = to_real;
    const Tensor y = context.output(0, x.shape.with(axis, f.out.count).with(rank - 1, f.out.numbers));
    f.inner_rows = x.shape.count(axis + 1, rank - 1);
    f.rows = x.shape.count(0, axis) * f.inner_rows;
    if (y.count() == 0) return;
    const auto lay = [&](FourierSide& side, const Tensor& tensor) {
      side.data = tensor.data;
      side.inner_stride = side.numbers;
      side.step = f.inner_rows * side.numbers;
      side.outer_stride = tensor.shape[axis] * side.step;
    };
    lay(f.in, x);
    lay(f.out, y);
    fourier(context, f);
  }

 private:
  bool inverse_, onesided_;
  int64_t axis_;
};

class Stft : public Op {
 public:
  explicit Stft(const NodeInfo& node) : onesided_(node.get_int("onesided", 1) != 0) {}
  void run(Context& context) const override {
    const Tensor& signal = context.input(0);
    const Shape& shape = signal.shape;
    require(shape.rank() == 2 || shape.rank() == 3, "the signal has shape ", shape.str(),
            "; [batch, length, numbers] is wanted, or [batch, length] of real ones");
    const int64_t step = host_int(context.input(1), "frame_step");
    require(step >= 1, "frame_step is ", step, "; it must be at least 1");
    const Tensor *const window = context.find_input(2), *const given_length = context.find_input(3);
    Fourier f{};
    f.type = signal.type;
    f.in.numbers = shape.rank() == 2 ? 1 : numbers_of(shape, "the signal");
    f.length = given_length ? host_int(*given_length, "frame_length") : window ? window->count() : shape[1];
    require(f.length >= 1 && f.length <= std::min(shape[1], kLongestTransform), "frames of length ", f.length,
            " of a signal of length ", shape[1]);
    if (window) {
      require(window->shape == Shape{f.length} && window->type == signal.type, "the window has shape ",
              window->shape.str(), " of ", device::name(window->type), "; [", f.length, "] of ",
              device::name(signal.type), " is wanted");
      f.window = window->data;
    }
    const int64_t batch = shape[0], frames = (shape[1] - f.length) / step + 1;
    f.inner_rows = frames;
    f.rows = checked_product(batch, frames);
    f.out.count = onesided_ ? f.length / 2 + 1 : f.length;
    f.out.numbers = 2;
    const Tensor y = context.output(0, Shape{batch, frames, f.out.count, 2});
    if (y.count() == 0) return;
    f.in.data = signal.data;
    f.in.count = f.length;
    f.in.step = f.in.numbers;
    f.in.inner_stride = step * f.in.numbers;
    f.in.outer_stride = shape[1] * f.in.numbers;
    f.out.data = y.data;
    f.out.step = 2;
    f.out.inner_stride = f.out.count * 2;
    f.out.outer_stride = frames * f.out.inner_stride;
    fourier(context, f);
  }

 private:
  bool onesided_;
};

}  // namespace

std::vector<OpRow> dft_rows() {
  return {
      {.name = "DFT",
       .since = 17,
       .until = 19,
       .types = {in(0, kFloats), in(1, kIndices)},
       .make = make<Dft>,
       .host_inputs = {1}},
      {.name = "DFT",
       .since = 20,
       .types = {in(0, kFloats), in(1, kIndices), in(2, Types{Type::i64})},
       .make = make<Dft>,
       .host_inputs = {1, 2}},
      {.name = "STFT",
       .since = 17,
       .types = {in(0, kFloats), in(1, kIndices), in(2, kFloats), in(3, kIndices)},
       .make = make<Stft>,
       .host_inputs = {1, 3}},
  };
}

}  // namespace encore::ops
