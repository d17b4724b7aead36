// Elementwise operators of diffusion and of gated models: BiasAdd, BiasSplitGelu, GatedAdd, ScaledSiLU and
// LinearAttentionGate.
#include "device/divide.h"
#include "ops/elementwise/any_floats.h"
#include "ops/elementwise/digits.h"
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/unary.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;
using HalvesAndFloat = TypeList<float, Half, BFloat16>;

// y = f(x, more, vector): of the vector a value for each column, or for each row.
template <class T, int kPack, class F>
struct WithVector {
  const T *x, *more, *vector;
  T* y;
  Divider by_packs;  // of a row

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t row = by_packs(i, pack), first = i * kPack;
    auto a = device::load_pack<kPack>(x + first, true);
    const auto b = device::load_pack<kPack>(more + first, true);
    Pack<T, kPack> v;
    if constexpr (F::kOfRows)
      v.at[0] = vector[row];
    else
      v = device::load_pack<kPack>(vector + pack * kPack, true);
    UNROLL for (int j = 0; j < kPack; ++j) a.at[j] = F::of(a.at[j], b.at[j], v.at[F::kOfRows ? 0 : j]);
    device::store_pack(y + first, a, true);
  }
};

template <class F, class T>
void with_vector(Context& context, const Tensor& x, const Tensor& more, const Tensor& vector, const Tensor& y) {
  if (x.count() == 0) return;
  const auto launch = [&]<int kPack>() {
    const int64_t packs = x.count() / kPack;
    device::for_each_index(context.stream(), packs,
                           WithVector<T, kPack, F>{x.as<const T>(), more.as<const T>(), vector.as<const T>(), y.as<T>(),
                                                   Divider(x.shape.back() / kPack, packs)});
  };
  constexpr int kWide = device::pack_size<T>();
  bool wide = x.shape.back() % kWide == 0 && (F::kOfRows || device::is_pack_aligned<kWide>(vector.as<T>()));
  for (const Tensor* each : {&x, &more, &y}) wide &= device::is_pack_aligned<kWide>(each->as<T>());
  if (wide)
    launch.template operator()<kWide>();
  else
    launch.template operator()<1>();
}

struct AddBias {
  static constexpr bool kOfRows = false;
  template <class T>
  DEVICE_FN static T of(T x, T skip, T bias) {
    return T(float(x) + float(bias) + float(skip));
  }
};
// The product is rounded before it is added.
struct AddGated {
  static constexpr bool kOfRows = true;
  template <class T>
  DEVICE_FN static T of(T x, T y, T gate) {
    return T(float(x) + float(T(float(y) * float(gate))));
  }
};

class BiasAdd : public Op {
 public:
  explicit BiasAdd(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &bias = context.input(1), &skip = context.input(2);
    require(x.shape.rank() > 0 && bias.shape == Shape{x.shape.back()}, "bias has shape ", bias.shape.str(), "; X is ",
            x.shape.str());
    require(skip.shape == x.shape, "skip ", skip.shape.str(), " must have the shape of X ", x.shape.str());
    const Tensor y = context.output(0, x.shape);
    dispatch(TypeList<float, Half>{}, x.type, [&]<class T>() { with_vector<AddBias, T>(context, x, skip, bias, y); });
  }
};

class GatedAdd : public Op {
 public:
  explicit GatedAdd(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &y = context.input(1), &gate = context.input(2);
    const int rank = x.shape.rank();
    require(y.shape == x.shape, "Y ", y.shape.str(), " must have the shape of X ", x.shape.str());
    require(rank > 0 && gate.shape == x.shape.with(rank - 1, 1), "gate ", gate.shape.str(),
            " must have the shape of X ", x.shape.str(), " with a last dimension of 1");
    const Tensor out = context.output(0, x.shape);
    dispatch(HalvesAndFloat{}, x.type, [&]<class T>() { with_vector<AddGated, T>(context, x, y, gate, out); });
  }
};

// Each step is rounded.
struct SiluOfScaled {
  float alpha;
  AnyFloats scale;  // instead, if there is one
  template <class T>
  DEVICE_FN T operator()(T x) const {
    const T z = T((scale.data ? scale.at(0) : alpha) * float(x));
    return T(float(z) * float(T(sigmoid_for<T>(float(z)))));
  }
};

class ScaledSilu : public Op {
 public:
  explicit ScaledSilu(const NodeInfo& node) : alpha_(node.get_float("alpha", 1.f)) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* scale = context.find_input(1);
    if (scale) require(scale->shape.rank() == 0, "scale ", scale->shape.str(), " must be a scalar");
    const Tensor y = context.output(0, x.shape);
    SiluOfScaled f{alpha_, {}};
    if (scale) f.scale = {scale->data, scale->type};
    dispatch(HalvesAndFloat{}, x.type,
             [&]<class T>() { device::transform(context.stream(), x.count(), y.as<T>(), f, x.as<const T>()); });
  }

 private:
  float alpha_;
};

// Each row's first half, times Gelu of the second one.
template <class T, int kPack>
struct SplitGelu {
  const T *x, *bias;
  T* y;
  Divider by_packs;  // of a row of y

  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t row = by_packs(i, pack), first = pack * kPack, half = by_packs.divisor() * kPack;
    const T* left = x + row * 2 * half + first;
    const auto a = device::load_pack<kPack>(left, true), b = device::load_pack<kPack>(left + half, true);
    const auto to_a = device::load_pack<kPack>(bias + first, true),
               to_b = device::load_pack<kPack>(bias + half + first, true);
    Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) {
      const float gate = float(b.at[j]) + float(to_b.at[j]);
      out.at[j] = T((float(a.at[j]) + float(to_a.at[j])) * gelu(gate));
    }
    device::store_pack(y + row * half + first, out, true);
  }
  DEVICE_FN static float gelu(float v) {
    if constexpr (kIsHalf<T>)
      return GeluByErf().rough(v);
    else
      return GeluByErf()(v);
  }
};

class BiasSplitGelu : public Op {
 public:
  explicit BiasSplitGelu(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &bias = context.input(1);
    const int rank = x.shape.rank();
    require(rank > 0 && x.shape.back() % 2 == 0, "X ", x.shape.str(), " must have a last dimension that is even");
    require(bias.shape == Shape{x.shape.back()}, "bias has shape ", bias.shape.str(), "; X is ", x.shape.str());
    const int64_t half = x.shape.back() / 2;
    const Tensor y = context.output(0, x.shape.with(rank - 1, half));
    if (y.count() == 0) return;
    dispatch(TypeList<float, Half>{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kPack>() {
        const int64_t packs = y.count() / kPack;
        device::for_each_index(
            context.stream(), packs,
            SplitGelu<T, kPack>{x.as<const T>(), bias.as<const T>(), y.as<T>(), Divider(half / kPack, packs)});
      };
      constexpr int kWide = device::pack_size<T>();
      if (half % kWide == 0 && device::is_pack_aligned<kWide>(x.as<T>()) &&
          device::is_pack_aligned<kWide>(bias.as<T>()) && device::is_pack_aligned<kWide>(y.as<T>()))
        launch.template operator()<kWide>();
      else
        launch.template operator()<1>();
    });
  }
};

// decay = scale * softplus(a + bias), beta = sigmoid(b): a scale and a bias for each head, which are neighbours.
template <class T>
struct DecayAndBeta {
  static constexpr int kPack = device::pack_size<T>();
  int64_t n;
  const T *a, *b;
  T *decay, *beta;
  const float *bias, *scale;
  Divider by_heads;
  bool aligned;

  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const int count = n - first < kPack ? int(n - first) : kPack;
    Pack<T, kPack> of_a = device::load_pack<kPack>(a + first, aligned, count), of_b;
    if (beta) of_b = device::load_pack<kPack>(b + first, aligned, count);
    int64_t head;
    by_heads(first, head);
    UNROLL for (int j = 0; j < kPack; ++j) {
      of_a.at[j] = T(scale[head] * softplus(float(of_a.at[j]) + bias[head]));
      if (++head == by_heads.divisor()) head = 0;
    }
    device::store_pack(decay + first, of_a, aligned, count);
    if (!beta) return;
    UNROLL for (int j = 0; j < kPack; ++j) of_b.at[j] = T(sigmoid_for<T>(float(of_b.at[j])));
    device::store_pack(beta + first, of_b, aligned, count);
  }
};

class LinearAttentionGate : public Op {
 public:
  explicit LinearAttentionGate(const NodeInfo& node) {
    require(!node.has_output(1) || node.has_input(3), "output beta wants input b");
  }
  void run(Context& context) const override {
    const Tensor &a = context.input(0), &bias = context.input(1), &scale = context.input(2);
    const Tensor* b = context.find_input(3);
    require(a.shape.rank() > 0, "a is a scalar; it must have heads");
    const int64_t heads = a.shape.back();
    for (const Tensor* each : {&bias, &scale})
      require(each->count() == heads, each == &bias ? "dt_bias" : "decay_scale", " has shape ", each->shape.str(),
              "; a ", a.shape.str(), " wants [", heads, "]");
    if (b) require(b->shape == a.shape, "b ", b->shape.str(), " must have the shape of a ", a.shape.str());
    const Tensor decay = context.output(0, a.shape);
    const Tensor beta = b && context.wants_output(1) ? context.output(1, a.shape) : Tensor();
    if (a.count() == 0) return;
    dispatch(HalvesAndFloat{}, a.type, [&]<class T>() {
      using Kernel = DecayAndBeta<T>;
      bool aligned = true;
      for (const void* data :
           {static_cast<const void*>(a.data), static_cast<const void*>(beta.data ? b->data : nullptr),
            static_cast<const void*>(decay.data), static_cast<const void*>(beta.data)})
        aligned &= device::is_pack_aligned<Kernel::kPack>(static_cast<const T*>(data));
      device::for_each_index(
          context.stream(), (a.count() + Kernel::kPack - 1) / Kernel::kPack,
          Kernel{a.count(), a.as<const T>(), b ? b->as<const T>() : nullptr, decay.as<T>(), beta.as<T>(),
                 bias.as<const float>(), scale.as<const float>(), Divider(heads, a.count()), aligned});
    });
  }
};

}  // namespace

std::vector<OpRow> bias_and_gate_rows() {
  const Types two{Type::f32, Type::f16}, three = kHalves | Types{Type::f32};
  const auto row = [](const char* name, std::vector<TypeRule> types, MakeOp make_op,
                      std::vector<std::pair<int, int>> may_reuse) {
    return OpRow{.domain = kMicrosoft,
                 .name = name,
                 .since = 1,
                 .types = std::move(types),
                 .make = make_op,
                 .may_reuse = std::move(may_reuse)};
  };
  return {row("BiasAdd", {in_all(0, two)}, make<BiasAdd>, {{0, 0}, {2, 0}}),
          row("GatedAdd", {in_all(0, three)}, make<GatedAdd>, {{0, 0}, {1, 0}}),
          row("ScaledSiLU", {in_all(0, three)}, make<ScaledSilu>, {{0, 0}}),
          row("BiasSplitGelu", {in_all(0, two)}, make<BiasSplitGelu>, {}),
          row("LinearAttentionGate", {in(0, three), in(1, {Type::f32}), in(2, {Type::f32}), in(3, three)},
              make<LinearAttentionGate>, {{0, 0}, {3, 1}})};
}

}  // namespace encore::ops
