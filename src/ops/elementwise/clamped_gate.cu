// com.microsoft's SwiGLU, whose halves may be limited and lie in one input, and RouterGateUpProj, a product of which it
// is the end.
#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using HalvesAndFloat = TypeList<float, Half, BFloat16>;
constexpr Types kHalvesAndFloat = kHalves | Types{Type::f32};

// g * sigmoid(alpha g) * (u + beta), of g at most the limit and u within it on both sides.
struct ClampedGate {
  float alpha, beta, limit;  // of zero or less: none
  bool rounds;               // the first product, too

  explicit ClampedGate(const NodeInfo& node)
      : alpha(node.get_float("activation_alpha", 1.f)),
        beta(node.get_float("activation_beta", 0.f)),
        limit(node.get_float("limit", 0.f)),
        rounds(node.get_int("round_activation", 0) != 0) {}
  template <class T>
  DEVICE_FN T operator()(T gate, T up) const {
    float g = float(gate), u = float(up);
    if (limit > 0) {
      g = g > limit ? limit : g;
      u = u > limit ? limit : u < -limit ? -limit : u;
    }
    if (beta != 0) u += beta;
    const float x = alpha * g;
    // There a float's exponential overflows, though the product with a large number would be one.
    if (x < -87.f) {
      const double product = double(g) / (1 + std::exp(-double(x)));
      return T(float((rounds ? double(float(T(float(product)))) : product) * double(u)));
    }
    const float product = g / (1.f + std::exp(-x));
    return T((rounds ? float(T(product)) : product) * u);
  }
};

// Both lie in rows of `width`, the gate's columns from `first` on and then as many of the other.
template <class T>
struct GateRows {
  const T* rows;
  T* y;
  ClampedGate gate;
  int64_t width, first;
  Divider by_columns;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const T* const row = rows + by_columns(i, column) * width + first;
    y[i] = gate(row[column], row[by_columns.divisor() + column]);
  }
};

template <class T>
void gate_columns(StreamRef stream, const ClampedGate& gate, const void* rows, int64_t width, int64_t first,
                  const Tensor& y) {
  if (y.count() == 0) return;
  device::for_each_index(
      stream, y.count(),
      GateRows<T>{static_cast<const T*>(rows), y.as<T>(), gate, width, first, Divider(y.shape.back(), y.count())});
}

class ClampedSwiGlu : public Op {
 public:
  explicit ClampedSwiGlu(const NodeInfo& node) : gate_(node) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* const up = context.find_input(1);
    if (up) {
      require(up->shape == x.shape && up->type == x.type, "gate has shape ", x.shape.str(), ", up ", up->shape.str(),
              "; they must have the same");
      const Tensor y = context.output(0, x.shape);
      dispatch(HalvesAndFloat{}, x.type, [&]<class T>() {
        device::transform(context.stream(), x.count(), y.as<T>(), gate_, x.as<const T>(), up->as<const T>());
      });
      return;
    }
    const int last = x.shape.rank() - 1;
    require(last >= 0 && x.shape.back() % 2 == 0, "gate has shape ", x.shape.str(), "; two halves of rows are wanted");
    const int64_t width = x.shape.back();
    const Tensor y = context.output(0, x.shape.with(last, width / 2));
    dispatch(HalvesAndFloat{}, x.type,
             [&]<class T>() { gate_columns<T>(context.stream(), gate_, x.data, width, 0, y); });
  }

 private:
  ClampedGate gate_;
};

template <class T>
struct TakeColumns {
  const T* rows;
  T* y;
  int64_t width;
  Divider by_columns;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t row = by_columns(i, column);
    y[i] = rows[row * width + column];
  }
};

class RouterGateUpProj : public Op {
 public:
  explicit RouterGateUpProj(const NodeInfo& node)
      : gate_(node), router_(node.get_int("router_size", 0)), tf32_(node.settings.use_tf32) {
    read_choice<bool>(node, "activation", "swiglu", {{"swiglu", true}});
    require(router_ > 0, "router_size is ", router_, "; it must be more than 0");
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &w = context.input(1);
    const int last = x.shape.rank() - 1;
    require(last >= 0 && w.shape.rank() == 2 && w.shape[0] == x.shape.back() && w.type == x.type, "X has shape ",
            x.shape.str(), " and W ", w.shape.str(), "; W must be a matrix of as many rows as X has columns");
    const int64_t width = w.shape[1], both = width - router_, depth = x.shape.back();
    require(both >= 0 && both % 2 == 0, "W has ", width, " columns; ", router_,
            " for the router and two halves are wanted");
    const Tensor router = context.output(0, x.shape.with(last, router_)),
                 y = context.output(1, x.shape.with(last, both / 2));
    const int64_t rows = x.shape.count(0, last);
    if (rows == 0) return;
    device::Gemm gemm;
    gemm.type = gemm.output = x.type;
    gemm.m = rows, gemm.n = gemm.ldb = gemm.ldc = width, gemm.k = depth;
    gemm.lda = depth > 0 ? depth : 1;
    gemm.tf32 = tf32_;
    const auto bytes = int64_t(device::size_bytes(x.type));
    void* const made = context.scratch(size_t(checked_product(checked_product(rows, width), bytes)));
    ScratchWorkspace workspace(context);
    context.blas().gemm(context.stream(), gemm, x.data, w.data, made, nullptr, workspace);
    dispatch(TypeList<Half, BFloat16>{}, x.type, [&]<class T>() {
      device::for_each_index(
          context.stream(), router.count(),
          TakeColumns<T>{static_cast<const T*>(made), router.as<T>(), width, Divider(router_, router.count())});
      gate_columns<T>(context.stream(), gate_, made, width, router_, y);
    });
  }

 private:
  ClampedGate gate_;
  int64_t router_;
  bool tf32_;
};

}  // namespace

std::vector<OpRow> clamped_gate_rows() {
  return {{.domain = kMicrosoft,
           .name = "SwiGLU",
           .since = 1,
           .until = 1,
           .types = {in_all(0, kHalvesAndFloat)},
           .make = make<ClampedSwiGlu>},
          {.domain = kMicrosoft,
           .name = "RouterGateUpProj",
           .since = 1,
           .until = 1,
           .types = {in_all(0, kHalves)},
           .make = make<RouterGateUpProj>}};
}

}  // namespace encore::ops
