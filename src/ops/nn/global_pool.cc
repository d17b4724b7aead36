// GlobalAveragePool, GlobalMaxPool and GlobalLpPool: one number for each plane.
#include "ops/nn/window.h"
#include "ops/reduce/length.h"
#include "ops/reduce/reductions.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using Reduction = void (*)(Context& context, const Tensor& x, const AxisSet& reduced, const Tensor& y);

template <Reduction kReduce>
class GlobalPool : public Op {
 public:
  explicit GlobalPool(const NodeInfo& node) : layout_(layout_of(node)) {
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
    const Shape shape = reduced_shape(x.shape, plane, true);
    require(x.count() > 0 || shape.count() == 0, "the input ", x.shape.str(), " has nothing to pool");
    kReduce(context, x, plane, context.output(0, shape));
  }

 private:
  Layout layout_;
};

class GlobalLpPool : public Op {
 public:
  explicit GlobalLpPool(const NodeInfo& node) : p_(power_of(node)) {
    const auto x = node.input_dims(0);
    require(!x || x->size() >= 2, "the input has rank ", x ? x->size() : 0, "; it needs batch and channels");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it needs batch and channels");
    AxisSet reduced(size_t(rank), true);
    reduced[0] = reduced[1] = false;
    reduce_length(context, x, reduced, p_, context.output(0, reduced_shape(x.shape, reduced, true)));
  }

 private:
  float p_;
};

}  // namespace

std::vector<OpRow> global_pool_rows() {
  return {
      {.name = "GlobalLpPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalLpPool>},
      {.name = "GlobalAveragePool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<reduce_mean>>},
      {.name = "GlobalMaxPool", .since = 1, .types = {in(0, kFloats)}, .make = make<GlobalPool<reduce_max>>},
      {.domain = kChannelsLast,
       .name = "GlobalAveragePool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<reduce_mean>>},
      {.domain = kChannelsLast,
       .name = "GlobalMaxPool",
       .since = 1,
       .types = {in(0, kChannelsLastFloats)},
       .make = make<GlobalPool<reduce_max>>},
  };
}

}  // namespace encore::ops
