// Addition, subtraction, multiplication, PRelu. Integers wrap around.
#include <type_traits>

#include "ops/elementwise/binary.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

// Add, Sub and Mul of integers share their kernels.
struct IntegerArithmetic {
  bool multiplies;
  int sign;  // of what is added
  explicit IntegerArithmetic(const NodeInfo& node)
      : multiplies(node.op_type() == "Mul"), sign(node.op_type() == "Sub" ? -1 : 1) {}
  template <class T>
  DEVICE_FN T operator()(T a, T b) const {
    using Wide = std::conditional_t<(sizeof(T) < 4), uint32_t, T>;  // not int, which might overflow
    return T(multiplies ? Wide(a) * Wide(b) : Wide(a) + Wide(b) * Wide(sign));
  }
};
template <class F>
struct Arithmetic {
  IntegerArithmetic of_integers;
  explicit Arithmetic(const NodeInfo& node) : of_integers(node) {}
  template <class T>
  auto of() const {
    if constexpr (std::is_integral_v<T>)
      return of_integers;
    else
      return F{};
  }
};

struct Slope {
  bool is_signed;  // of integers, which are given without a sign
  template <class T>
  DEVICE_FN T operator()(T x, T slope) const {
    if constexpr (std::is_integral_v<T>)
      return is_signed && std::make_signed_t<T>(x) < 0 ? T(x * slope) : x;
    else
      return x < T(0) ? x * slope : x;
  }
};
using SlopeList = TypeList<float, Half, BFloat16, double, uint32_t, uint64_t>;

class PRelu : public Op {
 public:
  explicit PRelu(const NodeInfo& node) : by_channel_(node.since_version() < 7) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &slope = context.input(1);
    require(x.type == slope.type, "inputs have types ", device::name(x.type), " and ", device::name(slope.type));
    const Shape shape = aligned(x.shape, slope.shape);
    require(broadcasts_to(shape, x.shape), "the slope, of shape ", slope.shape.str(), ", cannot be broadcast to ",
            x.shape.str());
    const Tensor y = context.output(0, x.shape);
    dispatch(SlopeList{}, as_unsigned(x.type), [&]<class T> {
      transform_broadcast<T, T, T>(context.stream(), x.shape, y.data, Slope{kSigned.has(x.type)},
                                   {{x.shape, x.data}, {shape, slope.data}});
    });
  }

 private:
  // Before opset 7 a vector of slopes was one for each channel.
  Shape aligned(const Shape& x, const Shape& slope) const {
    if (!by_channel_ || slope.rank() != 1 || slope.count() == 1 || x.rank() < 2) return slope;
    require(slope[0] == x[1], "there are ", slope[0], " slopes for the channels of ", x.str());
    std::vector<int64_t> dims(size_t(x.rank() - 1), 1);
    dims[0] = slope[0];
    return Shape(dims);
  }
  bool by_channel_;
};

}  // namespace

std::vector<OpRow> arithmetic_rows() {
  return {
      binary_row<Arithmetic<scalar::Add>, WordList>("Add", 1, kNumbers),
      binary_row<Arithmetic<scalar::Sub>, WordList>("Sub", 1, kNumbers),
      binary_row<Arithmetic<scalar::Mul>, WordList>("Mul", 1, kNumbers),
      {.name = "PRelu",
       .since = 1,
       .types = {in(0, kFloats | Types{Type::i32, Type::i64, Type::u32, Type::u64})},
       .make = make<PRelu>,
       .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
