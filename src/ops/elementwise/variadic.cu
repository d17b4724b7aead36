// Min, Max, Sum and Mean of any number of tensors: up to four a launch.
#include "ops/elementwise/binary.h"
#include "ops/elementwise/scalar_functions.h"

namespace encore::ops {
namespace {

struct Total {
  template <class T>
  using Partial = Compute<T>;  // halves are rounded once, at the end
  bool is_mean;
  float divisor;
  static Total of(const NodeInfo& node) { return {node.op_type() == "Mean", 1}; }
  static Total at_end(Total f, int inputs) { return {f.is_mean, f.is_mean ? float(inputs) : 1}; }
  template <class T>
  DEVICE_FN T combine(T a, T b) const {
    return a + b;
  }
  template <class T>
  DEVICE_FN T finish(T all) const {
    return all / T(divisor);
  }
};

// Integers as their bits: they are compared with the bit of their sign, if they have one, flipped.
struct ExtremeOfWords : scalar::Extreme {
  bool is_signed;
  static ExtremeOfWords of(const NodeInfo& node) {
    return {scalar::Extreme::of(node), kSigned.has(node.input_type(0))};
  }
  static ExtremeOfWords at_end(ExtremeOfWords f, int) { return f; }
  template <class T>
  DEVICE_FN T combine(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      const T flip = sign_bit<T>(is_signed);
      return T(Extreme::combine(T(a ^ flip), T(b ^ flip)) ^ flip);
    } else {
      return Extreme::combine(a, b);
    }
  }
};

template <class F>
struct Combined {
  F f;
  int inputs;
  template <class T>
  DEVICE_FN T operator()(T a, T b, T c, T d) const {
    T all = a;
    if (inputs > 1) all = f.combine(all, b);
    if (inputs > 2) all = f.combine(all, c);
    if (inputs > 3) all = f.combine(all, d);
    return f.finish(all);
  }
};

template <class F, class List>
class Variadic : public Op {
 public:
  explicit Variadic(const NodeInfo& node) : f_(F::of(node)) {}
  void run(Context& context) const override {
    const int count = context.input_count();
    const Type type = context.input(0).type;
    Shape shape = context.input(0).shape;
    for (int i = 1; i < count; ++i) {
      require(context.input(i).type == type, "inputs have different types");
      shape = broadcast(shape, context.input(i).shape);
    }
    const Tensor y = context.output(0, shape);
    dispatch(List{}, kIsSignless<List> ? as_unsigned(type) : type, [&]<class T> {
      // What has been combined so far; in the output, if that holds it.
      using Partial = typename F::template Partial<T>;
      constexpr bool kInPlace = std::is_same_v<Partial, T>;
      void* partial = kInPlace || count <= 4 ? y.data : context.scratch(size_t(y.count()) * sizeof(Partial));
      for (int next = 0; next < count;) {
        const bool is_first = next == 0;
        std::pair<Shape, const void*> x[4];
        int used = 0;
        if (!is_first) x[used++] = {shape, partial};
        while (used < 4 && next < count) {
          const Tensor& input = context.input(next++);
          x[used++] = {input.shape, input.data};
        }
        for (int k = used; k < 4; ++k) x[k] = {Shape{}, x[0].second};  // not looked at
        const F f = next == count ? F::at_end(f_, count) : f_;
        const auto launch = [&]<class Out, class First>(Out, First, void* out) {
          transform_broadcast<Out, First, T, T, T>(context.stream(), shape, out, Combined<F>{f, used}, x);
        };
        if (next < count)
          is_first ? launch(Partial(), T(), partial) : launch(Partial(), Partial(), partial);
        else
          is_first ? launch(T(), T(), y.data) : launch(T(), Partial(), y.data);
      }
    });
  }

 private:
  F f_;
};

template <class F, class List>
OpRow variadic_row(const char* name, Types types) {
  return {
      .name = name, .since = 1, .types = {in_all(0, types)}, .make = make<Variadic<F, List>>, .may_reuse = {{0, 0}}};
}

}  // namespace

std::vector<OpRow> variadic_rows() {
  return {
      variadic_row<ExtremeOfWords, WordList>("Max", kNumbers),
      variadic_row<ExtremeOfWords, WordList>("Min", kNumbers),
      variadic_row<Total, FloatList>("Sum", kFloats),
      variadic_row<Total, FloatList>("Mean", kFloats),
  };
}

}  // namespace encore::ops
