#include "ops/elementwise/gate.h"

#include <cmath>

#include "ops/elementwise/binary.h"

namespace encore::ops {
namespace {

struct SiluGate {
  template <class C>
  DEVICE_FN C operator()(C x, C y) const {
    return x / (C(1) + std::exp(-x)) * y;
  }
  DEVICE_FN float rough(float x, float y) const { return x * rough_sigmoid(x) * y; }
};

}  // namespace

std::unique_ptr<Op> make_gate(const NodeInfo& node) { return make<Binary<SiluGate, FloatList>>(node); }

}  // namespace encore::ops
