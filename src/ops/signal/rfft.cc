// Rfft and Irfft of com.microsoft: transforms of real signals of one to three dimensions, the last ones, of whose
// spectra one half is kept.
#include "ops/choice.h"
#include "ops/registry.h"
#include "ops/signal/fourier.h"

namespace encore::ops {
namespace {

// One dimension of `shape`, whose elements are of one or two numbers.
FourierSide side(void* data, const Shape& shape, int axis, int numbers) {
  FourierSide side{};
  side.data = data;
  side.numbers = numbers;
  side.count = shape[axis];
  side.inner_stride = numbers;
  side.step = shape.count(axis + 1, shape.rank()) * numbers;
  side.outer_stride = side.count * side.step;
  return side;
}
void transform(Context& context, Type type, int64_t length, bool inverse, const FourierSide& in, const FourierSide& out,
               const Shape& shape, int axis) {
  Fourier f{};
  f.type = type;
  f.length = length;
  f.inverse = inverse;
  f.half_given = inverse && out.numbers == 1;
  f.in = in, f.out = out;
  f.inner_rows = shape.count(axis + 1, shape.rank());
  f.rows = shape.count(0, axis) * f.inner_rows;
  fourier(context, f);
}

template <bool kInverse>
class RealFourier : public Op {
 public:
  explicit RealFourier(const NodeInfo& node) : dims_(int(node.get_int("signal_ndim", 1))) {
    const int64_t dims = node.get_int("signal_ndim", 1);
    require(dims >= 1 && dims <= 3, "signal_ndim is ", dims, "; it must be from 1 to 3");
    read_choice<bool>(node, "onesided", 1, {{1, true}});
    read_choice<bool>(node, "normalized", 0, {{0, false}});
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank() - kInverse;  // without the pairs
    require(rank >= dims_ && (!kInverse || x.shape.back() == 2), "the input has shape ", x.shape.str(), "; ", dims_,
            " dimensions of the signal are wanted", kInverse ? ", and one of two numbers" : "");
    const Shape given = Shape(x.shape.dims().first(size_t(rank)));
    const int last = rank - 1;
    const int64_t length = kInverse ? checked_product(2, given[last] - 1) : given[last];
    require(length >= 1, "the input has shape ", x.shape.str(), ", of which there is no transform");
    for (int axis = rank - dims_; axis < rank; ++axis)
      require((axis == last ? length : given[axis]) <= kLongestTransform, "a signal has ", given[axis],
              " numbers; up to ", kLongestTransform, " are supported");
    const Shape made = given.with(last, kInverse ? length : length / 2 + 1);
    std::vector<int64_t> dims(made.dims().begin(), made.dims().end());
    if (!kInverse) dims.push_back(2);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    // Of the half with its pairs all other dimensions are transformed, after the last one or before it.
    const Shape& half = kInverse ? given : made;
    const size_t bytes = kInverse ? x.bytes() : y.bytes();
    void* blocks[2] = {dims_ > 1 ? context.scratch(bytes) : nullptr, dims_ > 2 ? context.scratch(bytes) : nullptr};
    void* at = x.data;
    const auto along_last = [&](void* to) {
      transform(context, x.type, length, kInverse, side(at, given, last, kInverse ? 2 : 1),
                side(to, made, last, kInverse ? 1 : 2), half, last);
      at = to;
    };
    if (!kInverse) along_last(dims_ == 1 ? y.data : blocks[0]);
    for (int axis = last - 1; axis >= rank - dims_; --axis) {
      void* const to = !kInverse && axis == rank - dims_ ? y.data : at == blocks[0] ? blocks[1] : blocks[0];
      transform(context, x.type, half[axis], kInverse, side(at, half, axis, 2), side(to, half, axis, 2), half, axis);
      at = to;
    }
    if (kInverse) along_last(y.data);
  }

 private:
  int dims_;
};

}  // namespace

std::vector<OpRow> rfft_rows() {
  constexpr Types kTypes{Type::f16, Type::f32, Type::f64};
  return {
      {.domain = kMicrosoft, .name = "Rfft", .since = 1, .types = {in(0, kTypes)}, .make = make<RealFourier<false>>},
      {.domain = kMicrosoft, .name = "Irfft", .since = 1, .types = {in(0, kTypes)}, .make = make<RealFourier<true>>}};
}

}  // namespace encore::ops
