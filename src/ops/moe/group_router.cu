// MoEGroupRouter: sigmoids of the router's logits; with a bias they choose groups of experts, and experts of those.
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using HalvesAndFloat = TypeList<float, Half, BFloat16>;
constexpr Types kHalvesAndFloat = kHalves | Types{Type::f32};

DEVICE_FN float plain_sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }

// All scores, nothing chosen.
template <class T>
struct ScoreExperts {
  const T* logits;
  const float* bias;
  float *selection, *weights;
  device::Divider by_experts;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t expert;
    by_experts(i, expert);
    const float score = plain_sigmoid(float(logits[i]));
    if (weights) weights[i] = score;
    if (selection) selection[i] = bias ? score + bias[expert] : score;
  }
};

// A block routes a token. Of equals the first is better.
template <class T>
struct RouteByGroups {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kMostExperts = 1024;
  struct Shared {
    float scores[kMostExperts], biased[kMostExperts], of_groups[kMostExperts];
    bool chosen[kMostExperts];  // groups
  };
  const T* logits;
  const float* bias;
  T* probs;
  int experts, groups, chosen_groups, group_best, chosen_experts;
  float sentinel;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t first = b.index() * experts;
    const int each = experts / groups;
    b.threads([&](int t, Shared& s) {
      for (int e = t; e < experts; e += kThreads) {
        s.scores[e] = plain_sigmoid(float(logits[first + e]));
        s.biased[e] = bias ? s.scores[e] + bias[e] : s.scores[e];
      }
    });
    b.threads([&](int t, Shared& s) {
      for (int g = t; g < groups; g += kThreads) s.of_groups[g] = sum_of_best(s.biased + g * each, each);
    });
    b.threads([&](int t, Shared& s) {
      for (int g = t; g < groups; g += kThreads) {
        int better = 0;
        for (int other = 0; other < groups; ++other) better += is_better(s.of_groups, other, g);
        s.chosen[g] = better < chosen_groups;
      }
    });
    b.threads([&](int t, Shared& s) {
      for (int e = t; e < experts; e += kThreads) {
        bool taken = s.chosen[e / each];
        if (taken) {
          int better = 0;
          for (int other = 0; other < experts; ++other)
            better += s.chosen[other / each] && is_better(s.biased, other, e);
          taken = better < chosen_experts;
        }
        const float score = s.scores[e] > 1e-20f ? s.scores[e] : 1e-20f;
        probs[first + e] = T(taken ? std::log(score) : sentinel);
      }
    });
  }

 private:
  DEVICE_FN static bool is_better(const float* of, int one, int other) {
    return of[one] > of[other] || (of[one] == of[other] && one < other);
  }
  DEVICE_FN float sum_of_best(const float* of, int count) const {
    float sum = 0;
    int last = -1;
    for (int taken = 0; taken < group_best; ++taken) {
      int best = -1;
      for (int e = 0; e < count; ++e)
        if ((last < 0 || is_better(of, last, e)) && e != last && (best < 0 || is_better(of, e, best))) best = e;
      if (best < 0) break;
      sum += of[best];
      last = best;
    }
    return sum;
  }
};

class MoEGroupRouter : public Op {
 public:
  explicit MoEGroupRouter(const NodeInfo& node)
      : sentinel_(node.get_float("router_sentinel", -10000.f)),
        group_best_(node.get_int("group_topk", 2)),
        chosen_groups_(node.get_int("topk_group", 1)),
        groups_(node.get_int("n_group", 1)),
        chosen_experts_(node.get_int("top_k", 0)),
        full_(node.output_count() > 1 && (node.has_output(1) || node.has_output(2))),
        tf32_(node.settings.use_tf32) {
    require(group_best_ > 0 && groups_ > 0 && chosen_experts_ > 0, "group_topk is ", group_best_, ", n_group ", groups_,
            " and top_k ", chosen_experts_, "; they must be above zero");
    require(chosen_groups_ > 0 && chosen_groups_ <= groups_, "topk_group is ", chosen_groups_, " of ", groups_,
            " groups");
    if (full_)
      require(!node.has_output(0) && groups_ == 1, "router_probs of groups and all scores are wanted at once");
    else
      require(!node.has_input(2), "projection_weight wants all scores");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor *const bias = context.find_input(1), *const projection = context.find_input(2);
    const int rank = x.shape.rank();
    require(rank > 0, "the logits are a scalar");
    if (projection)
      require(rank == 2 && projection->shape.rank() == 2 && projection->shape[1] == x.shape[1],
              "projection_weight has ", "shape ", projection->shape.str(), ", the activations ", x.shape.str());
    const int64_t experts = projection ? projection->shape[0] : x.shape.back(), tokens = x.shape.count(0, rank - 1);
    require(!bias || bias->shape == Shape{experts}, "expert_bias has shape ", bias ? bias->shape.str() : "", "; [",
            experts, "] is wanted");
    const Shape shape{tokens, experts};
    const float* const biases = bias ? bias->as<const float>() : nullptr;
    if (full_) {
      const Tensor selection = context.wants_output(1) ? context.output(1, shape) : Tensor{},
                   weights = context.wants_output(2) ? context.output(2, shape) : Tensor{};
      if (shape.count() == 0) return;
      const void* logits = x.data;
      Type type = x.type;
      if (projection) {
        logits = project(context, x, *projection, tokens, experts);
        type = Type::f32;
      }
      dispatch(HalvesAndFloat{}, type, [&]<class T>() {
        device::for_each_index(context.stream(), shape.count(),
                               ScoreExperts<T>{static_cast<const T*>(logits), biases, selection.as<float>(),
                                               weights.as<float>(), device::Divider(experts, shape.count())});
      });
      return;
    }
    constexpr int64_t kMost = RouteByGroups<float>::kMostExperts;
    require(experts <= kMost && experts % groups_ == 0 && chosen_experts_ <= experts, "there are ", experts,
            " experts in ", groups_, " groups, of which ", chosen_experts_, " are chosen; ", kMost, " are the most");
    const Tensor probs = context.output(0, shape);
    if (shape.count() == 0) return;
    const int64_t each = experts / groups_;
    dispatch(HalvesAndFloat{}, x.type, [&]<class T>() {
      using Kernel = RouteByGroups<T>;
      device::block_kernel<typename Kernel::Shared>(
          context.stream(), {tokens, Kernel::kThreads},
          Kernel{x.as<const T>(), biases, probs.as<T>(), int(experts), int(groups_), int(chosen_groups_),
                 int(group_best_ < each ? group_best_ : each), int(chosen_experts_), sentinel_});
    });
  }

 private:
  // As floats.
  const void* project(Context& context, const Tensor& x, const Tensor& weights, int64_t tokens, int64_t experts) const {
    device::Gemm gemm;
    gemm.type = x.type;
    gemm.m = tokens, gemm.n = gemm.ldc = experts, gemm.k = x.shape[1];
    gemm.lda = gemm.ldb = gemm.k > 0 ? gemm.k : 1;
    gemm.transpose_b = true;
    gemm.tf32 = tf32_;
    void* const made = context.scratch(size_t(checked_product(tokens, experts)) * sizeof(float));
    ScratchWorkspace workspace(context);
    context.blas().gemm(context.stream(), gemm, x.data, weights.data, made, nullptr, workspace);
    return made;
  }

  float sentinel_;
  int64_t group_best_, chosen_groups_, groups_, chosen_experts_;
  bool full_, tf32_;
};

}  // namespace

std::vector<OpRow> group_router_rows() {
  return {{.domain = kMicrosoft,
           .name = "MoEGroupRouter",
           .since = 1,
           .until = 1,
           .types = {in(0, kHalvesAndFloat), in(1, Types{Type::f32}), in(2, kHalvesAndFloat)},
           .make = make<MoEGroupRouter>}};
}

}  // namespace encore::ops
