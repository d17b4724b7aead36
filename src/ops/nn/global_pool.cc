// GlobalAveragePool, GlobalMaxPool and GlobalLpPool: one number for each plane.
#include "ops/nn/window.h"
#include "ops/reduce/length.h"
#include "ops/reduce/reductions.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// What makes one number of a plane; there are some planes.
template <void (*kReduce)(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y)>
struct Whole {
  explicit Whole(const NodeInfo&) {}
  void operator()(Context& context, const Tensor& x, const AxisSet& plane, const Tensor& y) const {
    require(x.count() > 0, "the input ", x.shape.str(), " has nothing to pool");
    kReduce(context, x, plane, y);
  }
};
struct Length {
  float p;
  explicit Length(const NodeInfo& node) : p(power_of(node)) {}
  void operator()(Context& context, const Tensor& x, const AxisSet& plane, const Tensor& y) const {
    reduce_length(context, x, plane, p, y);
  }
};

template <class Reduction>
class GlobalPool : public Op {
 public:
  explicit GlobalPool(const NodeInfo& node) : layout_(layout_of(node)), reduce_(node) {
    const auto x = node.input_dims(0);
    require(!x || x->size() >= 2, "the input has rank ", x ? x->size() : 0, "; it needs batch and channels");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it needs batch and channels");
    const int first = layout_ == Layout::channels_last ? 1 : 2;
    AxisSet plane(static_cast<size_t>(rank));
    for (int i = 0; i < rank - 2; ++i) plane[size_t(first + i)] = true;
    const Tensor y = context.output(0, reduced_shape(x.shape, plane, true));
    if (y.count() > 0) reduce_(context, x, plane, y);
  }

 private:
  Layout layout_;
  Reduction reduce_;
};

}  // namespace

std::vector<OpRow> global_pool_rows() {
  return {
      {.name = "GlobalLpPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<Length>>},
      {.name = "GlobalAveragePool",
       .since = 1,
       .types = {in(0, kFloats)},
       .make = make<GlobalPool<Whole<reduce_mean>>>},
      {.name = "GlobalMaxPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<Whole<reduce_max>>>},
      {.domain = kChannelsLast,
       .name = "GlobalAveragePool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<Whole<reduce_mean>>>},
      {.domain = kChannelsLast,
       .name = "GlobalMaxPool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<Whole<reduce_max>>>},
  };
}

}  // namespace encore::ops
