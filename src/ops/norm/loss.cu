// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: minus the log-probability of the class that a label names,
// times the weight of that class.
#include "device/divide.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/norm/softmax.h"
#include "ops/reduce/log_sum_exp.h"
#include "ops/reduce/reduce.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::FaultRef;

template <class C>
struct Weighed {
  C loss, weight;
};

// What makes log-probabilities of scores: their greatest, and the logarithm of the sum of e^(score - greatest). Apart,
// since their sum would lose what is small beside a large score.
template <class T>
struct Normaliser : LogSumExp<T> {
  using Acc = Powers<Compute<T>>;
  using Out = Acc;
  DEVICE_FN Out finish(Acc acc) const { return {acc.top, std::log(acc.sum)}; }
};

// What the labels of [outer, inner] cost; log-probabilities are [outer, classes, inner], or are made of scores.
template <class T, class Label>
struct Cost {
  using C = Compute<T>;
  const T *x, *weights;         // weights: null if all are 1
  const Powers<C>* normaliser;  // of each label's scores; null if x has log-probabilities
  int64_t classes, inner;
  device::Divider by_inner;
  bool ignores;
  int64_t ignored;
  FaultRef fault;

  DEVICE_FN Weighed<C> of(Label label, int64_t i) const {
    if (ignores && label == ignored) return {C(0), C(0)};
    const int64_t chosen = fault.checked_index(label, classes);
    int64_t in_row;
    const int64_t outer = by_inner(i, in_row);
    const C weight = weights ? C(weights[chosen]) : C(1);
    C logarithm = C(x[(outer * classes + chosen) * inner + in_row]);
    if (normaliser) logarithm = logarithm - normaliser[i].top - normaliser[i].sum;
    return {-logarithm * weight, weight};
  }
};

template <class T, class Label>
struct EachCost {
  const Label* labels;
  T* y;
  Cost<T, Label> cost;
  DEVICE_FN void operator()(int64_t i) const { y[i] = T(cost.of(labels[i], i).loss); }
};

// The labels are what is reduced; the cost of each is looked up on the way.
template <class T, class Label>
struct TotalCost {
  using C = Compute<T>;
  static constexpr int kBatch = 1;
  using In = Label;
  using Out = T;
  using Acc = Weighed<C>;
  Cost<T, Label> cost;
  bool mean;

  DEVICE_FN Acc zero() const { return {C(0), C(0)}; }
  DEVICE_FN void take(Acc& acc, Label label, int64_t i) const { acc = merge(acc, cost.of(label, i)); }
  DEVICE_FN Acc merge(Acc a, Acc b) const { return {a.loss + b.loss, a.weight + b.weight}; }
  DEVICE_FN Out finish(Acc acc) const { return T(mean ? acc.loss / acc.weight : acc.loss); }
};

class Loss : public Op {
 public:
  explicit Loss(const NodeInfo& node)
      : takes_scores_(node.op_type() == "SoftmaxCrossEntropyLoss"), ignored_(node.find_int("ignore_index")) {
    enum class Reduction { none, sum, mean };
    const Reduction reduction = read_choice<Reduction>(
        node, "reduction", "mean", {{"none", Reduction::none}, {"sum", Reduction::sum}, {"mean", Reduction::mean}});
    reduces_ = reduction != Reduction::none;
    mean_ = reduction == Reduction::mean;
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &labels = context.input(1);
    const Tensor* weights = context.find_input(2);
    const int rank = x.shape.rank();
    require(rank >= 2, "the input has shape ", x.shape.str(), "; it must have a batch and classes");
    std::vector<int64_t> dims(x.shape.dims().begin(), x.shape.dims().end());
    dims.erase(dims.begin() + 1);
    require(labels.shape == Shape(dims), "labels of shape ", labels.shape.str(), " do not fit an input of ",
            x.shape.str());
    const int64_t classes = x.shape[1], inner = x.shape.count(2, rank);
    if (weights) {
      require(weights->shape == Shape{classes}, "weights have shape ", weights->shape.str(), " for ", classes,
              " classes");
      require(weights->type == x.type, "weights have type ", device::name(weights->type), ", the input ",
              device::name(x.type));
    }
    require(classes > 0 || labels.count() == 0, "there are labels, and no classes");

    Tensor log_probabilities = x;
    const Tensor y = context.output(0, reduces_ ? Shape{} : labels.shape);
    const bool writes_them = takes_scores_ && context.wants_output(1);
    if (writes_them) {
      log_probabilities = context.output(1, x.shape);
      log_softmax(context.stream(), x, 1, log_probabilities);
    }
    const auto with_label = [&]<class T, class Label>(const Powers<Compute<T>>* normaliser) {
      const Cost<T, Label> cost{log_probabilities.as<const T>(),
                                weights ? weights->as<const T>() : nullptr,
                                normaliser,
                                classes,
                                inner,
                                device::Divider(inner, labels.count()),
                                ignored_.has_value(),
                                ignored_.value_or(0),
                                context.fault()};
      if (reduces_)
        reduce_all(context, labels.count(), labels.as<const Label>(), y.as<T>(), TotalCost<T, Label>{cost, mean_});
      else
        device::for_each_index(context.stream(), labels.count(),
                               EachCost<T, Label>{labels.as<const Label>(), y.as<T>(), cost});
    };
    dispatch(FloatList{}, x.type, [&]<class T> {
      Powers<Compute<T>>* normaliser = nullptr;
      if (takes_scores_ && !writes_them && labels.count() > 0) {
        normaliser =
            static_cast<Powers<Compute<T>>*>(context.scratch(size_t(labels.count()) * sizeof(Powers<Compute<T>>)));
        const ReducePlan plan = plan_reduction(Shape{x.shape[0], classes, inner}, {false, true, false});
        reduce(context, plan, x.as<const T>(), normaliser, Normaliser<T>{});
      }
      if (labels.type == Type::i32)
        with_label.template operator()<T, int32_t>(normaliser);
      else
        with_label.template operator()<T, int64_t>(normaliser);
    });
  }

 private:
  bool takes_scores_, reduces_, mean_;
  std::optional<int64_t> ignored_;
};

}  // namespace

std::vector<OpRow> loss_rows() {
  return {
      {.name = "NegativeLogLikelihoodLoss",
       .since = 12,
       .types = {in(0, kFloats), in(1, kIndices)},
       .make = make<Loss>},
      {.name = "SoftmaxCrossEntropyLoss", .since = 12, .types = {in(0, kFloats), in(1, kIndices)}, .make = make<Loss>},
  };
}

}  // namespace encore::ops
