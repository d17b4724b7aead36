// What a reduction over some axes is once dimensions that are walked alike are one.
#pragma once
#include <optional>
#include <vector>

#include "device/divide.h"
#include "ops/op.h"

namespace encore::ops {

// Dimensions of the input, outermost first, with their strides.
struct Dims {
  static constexpr int kMost = 8;
  int rank = 0;
  int64_t count = 1;
  device::Divider sizes[kMost];
  int64_t strides[kMost];

  // Where the i-th element is.
  DEVICE_FN int64_t offset(int64_t i) const {
    int64_t at = 0;
    NO_UNROLL for (int d = rank - 1; d > 0; --d) {
      int64_t index;
      i = sizes[d](i, index);
      at += index * strides[d];
    }
    return rank ? at + i * strides[0] : 0;
  }
};

// Innermost is a run of neighbouring elements, either all reduced into one or each kept. `kept` and `reduced` are the
// other dimensions.
struct ReducePlan {
  Dims kept, reduced;
  int64_t run = 1;
  bool reduces_run = false;

  int64_t outputs() const { return kept.count * (reduces_run ? 1 : run); }
  int64_t reduced_count() const { return reduced.count * (reduces_run ? run : 1); }
};

using AxisSet = std::vector<bool>;  // one for each dimension
// Where kept and reduced dimensions alternate more often than a plan holds, x and its axes become those of a copy which
// has the reduced ones behind the others.
void gather_axes(Context& context, Tensor& x, AxisSet& reduced);
ReducePlan plan_reduction(const Shape& shape, const AxisSet& reduced);
Shape reduced_shape(const Shape& shape, const AxisSet& reduced, bool keep_dims);

// Attributes and inputs that all Reduce operators have.
class ReduceAxes {
 public:
  explicit ReduceAxes(const NodeInfo& node);
  AxisSet of(Context& context) const;
  bool keep_dims() const { return keep_dims_; }

 private:
  std::optional<std::vector<int64_t>> axes_;
  bool keep_dims_, nothing_if_empty_;
};

}  // namespace encore::ops
