// Pow: the result has the type of the base; the exponent may have another.
#include <cmath>

#include "ops/elementwise/binary.h"
#include "ops/elementwise/convert.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

class Pow : public Op {
 public:
  explicit Pow(const NodeInfo& node) : early_(node) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &exponent = context.input(1);
    const Shape exponent_shape = early_.aligned(x.shape, exponent.shape);
    const Shape shape = broadcast(x.shape, exponent_shape);
    const Tensor y = context.output(0, shape);
    if (shape.count() == 0) return;
    const void* exponents = exponent.data;
    const Type type = exponent_type(x.type, exponent.type);
    if (type != exponent.type) {
      void* converted = context.scratch(size_t(exponent.count()) * device::size_bytes(type));
      convert(context.stream(), exponent.count(), exponent.type, exponent.data, type, converted);
      exponents = converted;
    }
    dispatch(TypeList<float, Half, BFloat16, double, int32_t, int64_t>{}, x.type, [&]<class T> {
      auto launch = [&]<class Exponent>(Exponent) {
        transform_broadcast<T, T, Exponent>(context.stream(), shape, y.data, scalar::Power{},
                                            {{x.shape, x.data}, {exponent_shape, exponents}});
      };
      if constexpr (std::is_integral_v<T>) {
        type == Type::i64 ? launch(int64_t()) : launch(double());
      } else if constexpr (std::is_same_v<T, double>) {
        launch(double());
      } else {
        type == x.type ? launch(T()) : launch(double());
      }
    });
  }

 private:
  // The type in which an exponent is read, which loses nothing that the result could show.
  static Type exponent_type(Type base, Type exponent) {
    if (base == exponent && kFloats.has(base)) return base;
    return kFloats.has(base) || kFloats.has(exponent) ? Type::f64 : Type::i64;
  }

  EarlyBroadcast early_;
};

}  // namespace

std::vector<OpRow> pow_rows() {
  constexpr Types kBases = kFloats | kIndices;
  return {
      {.name = "Pow", .since = 1, .types = {in(0, kBases), in(1, kNumbers)}, .make = make<Pow>, .may_reuse = {{0, 0}}}};
}

}  // namespace encore::ops
