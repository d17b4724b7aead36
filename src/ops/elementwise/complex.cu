// ComplexMul and ComplexMulConj of com.microsoft: numbers in pairs, which the last dimension holds.
#include "device/memory.h"
#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T re, im;
};

struct Multiply {
  bool conjugate;  // the right one
  template <class T>
  DEVICE_FN Pair<T> operator()(const Pair<T>& a, const Pair<T>& b) const {
    using C = Compute<T>;
    const C re = C(a.re), im = C(a.im), b_re = C(b.re), b_im = conjugate ? -C(b.im) : C(b.im);
    return {T(re * b_re - im * b_im), T(re * b_im + im * b_re)};
  }
};

Shape without_pairs(const Tensor& x) {
  const int rank = x.shape.rank();
  require(rank >= 1 && x.shape.back() == 2, "an input has shape ", x.shape.str(), "; its last dimension must be 2");
  return Shape(x.shape.dims().first(size_t(rank - 1)));
}

template <bool kConjugate>
class ComplexMul : public Op {
 public:
  explicit ComplexMul(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &b = context.input(1);
    const Shape left = without_pairs(a), right = without_pairs(b), shape = broadcast(left, right);
    require(a.type == b.type, "inputs have types ", device::name(a.type), " and ", device::name(b.type));
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    dims.push_back(2);
    const Tensor y = context.output(0, Shape(dims));
    if (y.count() == 0) return;
    // Pairs are moved as one, so what does not lie as pairs do is copied.
    const size_t pair = 2 * device::size_bytes(a.type, 1);
    const auto is_aligned = [&](const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data) % pair == 0; };
    const auto aligned = [&](const Tensor& x) -> const void* {
      if (is_aligned(x)) return x.data;
      void* const copy = context.scratch(x.bytes());
      device::copy(context.stream(), copy, x.data, x.bytes());
      return copy;
    };
    const void *const from = aligned(a), *const with = aligned(b);
    void* const to = is_aligned(y) ? y.data : context.scratch(y.bytes());
    dispatch(TypeList<float, double, Half>{}, a.type, [&]<class T> {
      transform_broadcast<Pair<T>, Pair<T>, Pair<T>>(context.stream(), shape, to, Multiply{kConjugate},
                                                     {{left, from}, {right, with}});
    });
    if (to != y.data) device::copy(context.stream(), y.data, to, y.bytes());
  }
};

}  // namespace

std::vector<OpRow> complex_rows() {
  constexpr Types kTypes{Type::f16, Type::f32, Type::f64};
  return {{.domain = kMicrosoft,
           .name = "ComplexMul",
           .since = 1,
           .types = {in(0, kTypes)},
           .make = make<ComplexMul<false>>},
          {.domain = kMicrosoft,
           .name = "ComplexMulConj",
           .since = 1,
           .types = {in(0, kTypes)},
           .make = make<ComplexMul<true>>}};
}

}  // namespace encore::ops
