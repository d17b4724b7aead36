#include "ops/elementwise/gate.h"

#include "ops/dispatch.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/silu_gate.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

template <class T, int kPack>
DEVICE_FN device::Pack<T, kPack> gated(SiluGate gate, const device::Pack<T, kPack>& x,
                                       const device::Pack<T, kPack>& y) {
  device::Pack<T, kPack> made;
  UNROLL for (int n = 0; n < kPack; ++n) made.at[n] = T(gate(x.at[n], y.at[n]));
  return made;
}

// Of packs that are whole and aligned, as in all models: nothing stands between the two reads.
template <class T>
struct GatePacks {
  static constexpr int kPack = device::pack_size<T>();
  const T *x, *y;
  T* out;
  SiluGate gate;
  DEVICE_FN void operator()(int64_t i) const {
    const auto left = device::load_pack<kPack>(x + i * kPack, true),
               right = device::load_pack<kPack>(y + i * kPack, true);
    device::store_pack(out + i * kPack, gated(gate, left, right), true);
  }
  bool fits(int64_t count) const {
    return count % kPack == 0 && device::is_pack_aligned<kPack>(x) && device::is_pack_aligned<kPack>(y) &&
           device::is_pack_aligned<kPack>(out);
  }
};

template <class T>
struct GateOfBoth {
  static constexpr int kPack = device::pack_size<T>();
  static_assert(kGateColumns % kPack == 0);
  const T* both;
  T* out;
  bool aligned;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t first = i * kPack;
    const T* const x = both + first / kGateColumns * (2 * kGateColumns) + first % kGateColumns;
    const auto left = device::load_pack<kPack>(x, true), right = device::load_pack<kPack>(x + kGateColumns, true);
    device::store_pack(out + first, gated({}, left, right), aligned);
  }
};

class Gate : public Op {
 public:
  explicit Gate(const NodeInfo& node) : gate_{node.get_float("alpha", 1.f)} {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &y = context.input(1);
    require(x.type == y.type, "inputs have types ", device::name(x.type), " and ", device::name(y.type));
    const Shape shape = broadcast(x.shape, y.shape);
    const Tensor out = context.output(0, shape);
    dispatch(FloatList{}, x.type, [&]<class T> {
      const GatePacks<T> packs{x.as<const T>(), y.as<const T>(), out.as<T>(), gate_};
      if (x.shape == y.shape && packs.fits(x.count()))
        device::for_each_index(context.stream(), x.count() / GatePacks<T>::kPack, packs);
      else
        transform_broadcast<T, T, T>(context.stream(), shape, out.data, gate_, {{x.shape, x.data}, {y.shape, y.data}});
    });
  }

 private:
  SiluGate gate_;
};

// ONNX's own, which does not broadcast.
class SwiGLU : public Gate {
 public:
  using Gate::Gate;
  void run(Context& context) const override {
    const Shape &x = context.input(0).shape, &y = context.input(1).shape;
    require(x == y, "the gate has shape ", x.str(), ", what it multiplies ", y.str(), "; they must have the same");
    Gate::run(context);
  }
};

}  // namespace

std::vector<OpRow> gate_rows() {
  return {
      {.name = "SwiGLU", .since = 28, .types = {in(0, kFloats)}, .make = make<SwiGLU>, .may_reuse = {{0, 0}, {1, 0}}}};
}

void gate_of_both(StreamRef stream, Type type, const void* both, void* out, int64_t count) {
  dispatch(FloatList{}, type, [&]<class T> {
    constexpr int kPack = GateOfBoth<T>::kPack;
    T* const to = static_cast<T*>(out);
    device::for_each_index(stream, count / kPack,
                           GateOfBoth<T>{static_cast<const T*>(both), to, device::is_pack_aligned<kPack>(to)});
  });
}

std::unique_ptr<Op> make_gate(const NodeInfo& node) { return make<Gate>(node); }

}  // namespace encore::ops
