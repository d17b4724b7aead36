// SkipLayerNormalization and SkipSimplifiedLayerNormalization: the residual is added and the sum normalised.
#include "ops/norm/row_norm.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

template <bool kCentred>
class SkipLayerNorm : public Op {
 public:
  explicit SkipLayerNorm(const NodeInfo& node)
      : epsilon_(node.get_float("epsilon", 1e-12f)),
        strict_(node.settings.strict_skip_layer_norm),
        any_rank_(node.get_int("any_rank", 0) != 0) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &skip = context.input(1), &gamma = context.input(2);
    const int rank = x.shape.rank();
    require(rank == 2 || rank == 3 || any_rank_, "input ", x.shape.str(), " must have two or three dimensions");
    const int64_t width = x.shape.back(), rows = x.shape.count(0, rank - 1);
    // The skip has the shape of the input, or lacks its batch, or has a batch of one.
    const int skip_rank = skip.shape.rank();
    bool fits = any_rank_ ? skip.shape == x.shape : skip_rank == 2 || skip_rank == 3;
    for (int i = 1; !any_rank_ && fits && i <= skip_rank; ++i) {
      const int64_t dim = skip.shape[skip_rank - i];
      fits = i <= rank ? dim == x.shape[rank - i] || (i == 3 && dim == 1) : dim == 1;
    }
    require(fits, "skip ", skip.shape.str(), " does not fit input ", x.shape.str());
    const auto vector = [&](int input, const char* what) -> const void* {
      const Tensor* tensor = context.find_input(input);
      if (!tensor) return nullptr;
      require(tensor->shape == Shape{width}, what, " has shape ", tensor->shape.str(), "; input ", x.shape.str(),
              " wants [", width, "]");
      return tensor->data;
    };
    RowNorm norm{rows, width, x.data, skip.data, width ? skip.count() / width : 0};
    norm.gamma.data = vector(2, "gamma");
    if (kCentred) norm.beta.data = vector(3, "beta");
    norm.bias = vector(kCentred ? 4 : 3, "bias");
    norm.y = context.output(0, x.shape).data;
    const auto wanted = [&](int output, const Shape& shape) -> void* {
      if (!context.wants_output(output)) return nullptr;
      return context.output(output, shape).data;
    };
    norm.mean = wanted(1, x.shape.with(rank - 1, 1));
    norm.inverse_deviation = wanted(2, x.shape.with(rank - 1, 1));
    require(width > 0 || rows == 0 || (!norm.mean && !norm.inverse_deviation), "input ", x.shape.str(),
            " has rows of no values, which have no mean and no deviation");
    norm.sum = wanted(3, x.shape);
    norm.centred = kCentred;
    norm.epsilon = epsilon_;
    norm.strict = strict_;
    normalize_rows(context.stream(), norm, {x.type, gamma.type, x.type});
  }

 private:
  float epsilon_;
  bool strict_;
  bool any_rank_;  // of an attribute that fusion sets and no model may
};

}  // namespace

std::vector<OpRow> skip_layer_norm_rows() {
  const Types types = kHalves | Types{Type::f32};
  const std::vector<TypeRule> rules = {in_all(0, types)};
  return {
      {.domain = kMicrosoft,
       .name = "SkipLayerNormalization",
       .since = 1,
       .types = rules,
       .make = make<SkipLayerNorm<true>>},
      {.domain = kMicrosoft,
       .name = "SkipSimplifiedLayerNormalization",
       .since = 1,
       .types = rules,
       .make = make<SkipLayerNorm<false>>},
  };
}

}  // namespace encore::ops
