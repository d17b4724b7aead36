// TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble: every tree of every row ends at a leaf; a group of
// threads adds up the leaves' weights for a target; a thread finishes a row.
#include "device/divide.h"
#include "device/launch.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/keep_list.h"
#include "ops/ml/features.h"
#include "ops/ml/scores.h"
#include "ops/ml/trees.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;

enum class Aggregate { average, sum, min, max };

// What kernels see. T is what thresholds and scores are computed in.
template <class T>
struct Forest {
  const TreeNode* nodes;
  const T *thresholds, *members;
  const int32_t* targets;  // of the weights
  const T* weights;
  const int32_t* roots;
};

template <class T>
struct FindLeaves {
  Features x;
  Forest<T> forest;
  int32_t* leaves;  // [row, tree]
  int64_t width;
  Divider by_trees;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t tree;
    const int64_t row = by_trees(i, tree);
    int32_t at = forest.roots[tree];
    for (TreeNode node = forest.nodes[at]; node.branch != Branch::leaf; node = forest.nodes[at])
      at = answer(node, x.at<T>(row * width + node.feature), forest.thresholds[at]) ? node.first : node.second;
    leaves[i] = at;
  }

 private:
  DEVICE_FN bool answer(const TreeNode& node, T value, T threshold) const {
    if (value != value && node.missing_is_yes) return true;
    switch (node.branch) {
      case Branch::leq: return value <= threshold;
      case Branch::lt: return value < threshold;
      case Branch::gte: return value >= threshold;
      case Branch::gt: return value > threshold;
      case Branch::eq: return value == threshold;
      case Branch::neq: return value != threshold;
      default:
        for (int32_t m = node.member; m < node.member + node.members; ++m)
          if (value == forest.members[m]) return true;
        return false;
    }
  }
};

template <class T>
struct Score {
  T value;
  bool is_there;
};

template <class T>
struct JoinScores {
  Aggregate aggregate;
  DEVICE_FN Score<T> operator()(Score<T> a, Score<T> b) const {
    if (!a.is_there) return b;
    if (!b.is_there) return a;
    if (aggregate == Aggregate::min) return {b.value < a.value ? b.value : a.value, true};
    if (aggregate == Aggregate::max) return {b.value > a.value ? b.value : a.value, true};
    return {a.value + b.value, true};
  }
};

template <class T>
struct AddLeaves {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kEach = kThreads / kGroup;
  Forest<T> forest;
  const int32_t* leaves;
  Score<T>* scores;  // [row, target]
  JoinScores<T> join;
  int64_t count, trees;
  bool single;  // target: a leaf's first weight counts
  Divider by_targets;
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    device::PerThread<Score<T>, kMaxThreads> score;
    b.reduce_groups<kGroup>(
        score,
        [&](int t) {
          Score<T> mine{T(0), false};
          const int64_t at = b.index() * kEach + t / kGroup;
          if (at >= count) return mine;
          int64_t target;
          const int64_t row = by_targets(at, target);
          for (int64_t tree = t % kGroup; tree < trees; tree += kGroup)
            add(forest.nodes[leaves[row * trees + tree]], int32_t(target), mine);
          return mine;
        },
        join);
    b.threads([&](int t, device::NoShared&) {
      const int64_t at = b.index() * kEach + t / kGroup;
      if (t % kGroup == 0 && at < count) scores[at] = score[t];
    });
  }

 private:
  DEVICE_FN void add(const TreeNode& leaf, int32_t target, Score<T>& mine) const {
    int32_t low = leaf.first;
    const int32_t end = leaf.first + (single ? 1 : leaf.second);
    if (!single)
      for (int32_t high = end; low < high;) {
        const int32_t middle = low + (high - low) / 2;
        if (forest.targets[middle] < target)
          low = middle + 1;
        else
          high = middle;
      }
    for (; low < end && (single || forest.targets[low] == target); ++low)
      mine = join(mine, {forest.weights[low], true});
  }
};

// A thread makes a row. Out is what z is of.
template <class T, class Out>
struct FinishRow {
  Score<T>* scores;  // of all rows
  Out* z;
  const T* base;
  int64_t base_count, targets, trees;
  Aggregate aggregate;
  ScoreTransform transform;
  // Of classifiers alone.
  int64_t* labels;  // null: nobody asks
  const int64_t* names;
  bool classifies, one_class, no_negative;

  DEVICE_FN void operator()(int64_t row) const {
    Score<T>* const of = scores + row * targets;
    Out* const to = z + row * targets;
    if (classifies) {
      const int64_t label = targets > 2 ? classify_many(of, to) : classify_two(of, to);
      if (labels) labels[row] = label;
      return;
    }
    for (int64_t i = 0; i < targets; ++i) {
      T value = of[i].is_there ? of[i].value : T(0);
      if (aggregate == Aggregate::average) value /= T(trees);
      if (base_count == targets) value += base[i];
      to[i] = Out(targets == 1 || of[i].is_there ? value : T(0));
    }
    if (targets > 1 || transform == ScoreTransform::probit) transform_scores(transform, to, targets);
  }

 private:
  DEVICE_FN int64_t classify_many(Score<T>* of, Out* to) const {
    for (int64_t i = 0; i < base_count; ++i) of[i] = {of[i].is_there ? of[i].value + base[i] : base[i], true};
    int64_t best = -1;
    for (int64_t i = 0; i < targets; ++i)
      if (of[i].is_there && (best < 0 || of[i].value > of[best].value)) best = i;
    for (int64_t i = 0; i < targets; ++i) to[i] = Out(of[i].is_there ? of[i].value : T(0));
    transform_scores(transform, to, targets);
    return names[best < 0 ? 0 : best];
  }
  // One class or two. Where only the first one has weights, it is the second's score that they make.
  DEVICE_FN int64_t classify_two(Score<T>* of, Out* to) const {
    Score<T> first = of[0], second = targets == 2 ? of[1] : Score<T>{T(0), false};
    bool pair = targets == 2 && (second.is_there || base_count == 2);
    if (base_count == 2) {
      if (second.is_there) {
        second.value = base[1] + first.value;
        first.value = -second.value;
      } else {
        second.value += base[1];
        first.value += base[0];
      }
    } else if (base_count == 1) {
      first.value += base[0];
    }
    const T decides = second.is_there ? second.value : first.is_there ? first.value : T(0);
    const bool binary = targets == 2 && one_class, positive = decides > (binary && no_negative ? T(0.5) : T(0));
    const int64_t label = binary ? names[positive] : int64_t(positive);
    if (pair) {
      to[0] = Out(first.is_there ? first.value : T(0));
      to[1] = Out(second.is_there ? second.value : T(0));
      transform_scores(transform, to, 2);
      return label;
    }
    const float score = float(first.is_there ? first.value : T(0));
    const bool mirrored = binary ? !no_negative : base_count == 0 && targets == 2;
    if (transform == ScoreTransform::probit || targets == 1 || (!binary && !mirrored)) {
      to[0] = Out(transform == ScoreTransform::probit ? probit_score(score) : score);
      if (targets == 2) to[1] = Out(0);
    } else {
      score_both_classes(transform, mirrored, score, to);
    }
    return label;
  }
};

class TreeEnsemble : public Op {
 public:
  explicit TreeEnsemble(const NodeInfo& node) : wide_(node.input_type(0) == Type::f64) {
    const std::string& type = node.op_type();
    classifies_ = type == "TreeEnsembleClassifier";
    if (type == "TreeEnsemble") {
      trees_ = Trees::of_ensemble(node);
      aggregate_ = read_choice<Aggregate>(
          node, "aggregate_function", 1,
          {{0, Aggregate::average}, {1, Aggregate::sum}, {2, Aggregate::min}, {3, Aggregate::max}});
      transform_ = read_choice<ScoreTransform>(node, "post_transform", 0,
                                               {{0, ScoreTransform::none},
                                                {1, ScoreTransform::softmax},
                                                {2, ScoreTransform::logistic},
                                                {3, ScoreTransform::softmax_zero},
                                                {4, ScoreTransform::probit}});
    } else {
      transform_ = score_transform_of(node);
      if (classifies_) names_ = number_labels(node, "classlabels_int64s");
      trees_ = Trees::of_lists(node, classifies_ ? "class" : "target",
                               classifies_ ? int64_t(names_.size()) : node.get_int("n_targets", 0));
      aggregate_ = classifies_ ? Aggregate::sum : named_aggregate_of(node);
      base_ = tree_numbers(node, "base_values");
      const auto bases = int64_t(base_.size());
      if (classifies_)
        require(bases == 0 || bases == trees_.targets || (bases == 1 && trees_.targets == 2), "there are ", bases,
                " base values for ", trees_.targets, " classes");
      else if (bases != trees_.targets)
        base_.clear();  // as the CPU EP has it
    }
    for (const TreeWeight& weight : trees_.weights) targets_.push_back(weight.target);
  }
  void prepare(Prepack& prepack) override {
    nodes_ = keep_list(prepack, trees_.nodes);
    kept_targets_ = keep_list(prepack, targets_);
    roots_ = keep_list(prepack, trees_.roots);
    kept_names_ = keep_list(prepack, names_);
    std::vector<double> weights;
    for (const TreeWeight& weight : trees_.weights) weights.push_back(weight.value);
    numbers_ = trees_.thresholds;
    for (const std::vector<double>* more : {&weights, &base_, &trees_.members})
      numbers_.insert(numbers_.end(), more->begin(), more->end());
    narrow_.assign(numbers_.begin(), numbers_.end());
    kept_numbers_ = wide_ ? static_cast<const void*>(keep_list(prepack, numbers_)) : keep_list(prepack, narrow_);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const FeatureRows all(x.shape);
    require(all.width >= trees_.features, "rows have ", all.width, " features; a tree asks for feature ",
            trees_.features - 1);
    const Tensor labels = classifies_ && context.wants_output(0) ? context.output(0, Shape{all.rows}) : Tensor{};
    const Shape shape{all.rows, trees_.targets};
    const int place = classifies_ ? 1 : 0;
    const Tensor z = context.wants_output(place) ? context.output(place, shape) : Tensor{};
    if (all.rows == 0) return;
    dispatch(TypeList<float, double>{}, wide_ ? Type::f64 : Type::f32, [&]<class T>() {
      const auto trees = int64_t(trees_.roots.size());
      const T* const numbers = static_cast<const T*>(kept_numbers_);
      const T *const weights = numbers + trees_.thresholds.size(), *const base = weights + trees_.weights.size();
      const Forest<T> forest{nodes_, numbers, base + base_.size(), kept_targets_, weights, roots_};
      const int64_t ways = checked_product(all.rows, trees), count = checked_product(all.rows, trees_.targets);
      auto* const leaves = static_cast<int32_t*>(context.scratch(size_t(ways) * sizeof(int32_t)));
      auto* const scores = static_cast<Score<T>*>(context.scratch(size_t(checked_product(count, sizeof(Score<T>)))));
      device::for_each_index(context.stream(), ways,
                             FindLeaves<T>{Features(x), forest, leaves, all.width, Divider(trees, ways)});
      using Add = AddLeaves<T>;
      device::block_kernel<device::NoShared>(
          context.stream(), {(count + Add::kEach - 1) / Add::kEach, Add::kThreads},
          Add{forest, leaves, scores, {aggregate_}, count, trees, trees_.targets == 1, Divider(trees_.targets, count)});
      const auto finish = [&]<class Out>(Out* to) {
        device::for_each_index(context.stream(), all.rows,
                               FinishRow<T, Out>{.scores = scores,
                                                 .z = to,
                                                 .base = base,
                                                 .base_count = int64_t(base_.size()),
                                                 .targets = trees_.targets,
                                                 .trees = trees,
                                                 .aggregate = aggregate_,
                                                 .transform = transform_,
                                                 .labels = labels.as<int64_t>(),
                                                 .names = kept_names_,
                                                 .classifies = classifies_,
                                                 .one_class = trees_.one_target,
                                                 .no_negative = trees_.no_negative});
      };
      const size_t bytes = size_t(checked_product(count, sizeof(double)));
      if constexpr (std::is_same_v<T, double>)
        if (z.type == Type::f64) return finish(z.as<double>());
      finish(z.data ? z.as<float>() : static_cast<float*>(context.scratch(bytes)));
    });
  }

 private:
  static Aggregate named_aggregate_of(const NodeInfo& node) {
    return read_choice<Aggregate>(
        node, "aggregate_function", "SUM",
        {{"AVERAGE", Aggregate::average}, {"SUM", Aggregate::sum}, {"MIN", Aggregate::min}, {"MAX", Aggregate::max}});
  }

  bool wide_, classifies_;
  Trees trees_;
  std::vector<double> base_;
  std::vector<int64_t> names_;
  std::vector<int32_t> targets_;
  std::vector<double> numbers_;  // thresholds, weights, base values and members
  std::vector<float> narrow_;
  Aggregate aggregate_;
  ScoreTransform transform_;
  const TreeNode* nodes_ = nullptr;
  const int32_t *kept_targets_ = nullptr, *roots_ = nullptr;
  const int64_t* kept_names_ = nullptr;
  const void* kept_numbers_ = nullptr;
};

}  // namespace

std::vector<OpRow> tree_ensemble_rows() {
  const Types floats{Type::f32, Type::f64};
  const auto row = [](const char* name, int since, std::vector<TypeRule> types) {
    return OpRow{.domain = kMl, .name = name, .since = since, .types = std::move(types), .make = make<TreeEnsemble>};
  };
  return {row("TreeEnsembleRegressor", 1, {in(0, floats)}),
          row("TreeEnsembleClassifier", 1, {in(0, kFeatures), out(0, Types{Type::i64})}),
          row("TreeEnsemble", 5, {in(0, floats)})};
}

}  // namespace encore::ops
