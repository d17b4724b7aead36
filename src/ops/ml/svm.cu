// SVMClassifier and SVMRegressor: kernels of rows with support vectors, or of rows with coefficients alone.
#include <algorithm>

#include "device/divide.h"
#include "device/launch.h"
#include "ops/choice.h"
#include "ops/keep_list.h"
#include "ops/ml/features.h"
#include "ops/ml/scores.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;

enum class SvmKernel { linear, poly, rbf, sigmoid };

struct KernelFunction {
  SvmKernel kind = SvmKernel::linear;
  float gamma = 0, shift = 0, degree = 0;
  DEVICE_FN float term(float x, float v) const { return kind == SvmKernel::rbf ? (x - v) * (x - v) : x * v; }
  DEVICE_FN float operator()(float sum) const {
    switch (kind) {
      case SvmKernel::rbf: return std::exp(-gamma * sum);
      case SvmKernel::sigmoid: return std::tanh(gamma * sum + shift);
      case SvmKernel::poly: {
        const float base = gamma * sum + shift;
        if (degree == 2.f) return base * base;
        if (degree == 3.f) return base * base * base;
        return std::pow(base, degree);
      }
      default: return sum;
    }
  }
};

// out[row, vector] = kernel(x[row], vectors[vector]) + shift. A group of threads makes one.
struct Kernels {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kEach = kThreads / kGroup;
  Features x;
  const float* vectors;
  float* out;
  KernelFunction kernel;
  float shift;
  int64_t count, width;
  Divider by_vectors;
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    device::PerThread<float, kMaxThreads> sum;
    b.reduce_groups<kGroup>(
        sum,
        [&](int t) {
          float mine = 0;
          const int64_t at = b.index() * kEach + t / kGroup;
          if (at >= count) return mine;
          int64_t vector;
          const int64_t row = by_vectors(at, vector);
          for (int64_t i = t % kGroup; i < width; i += kGroup)
            mine += kernel.term(x.at<float>(row * width + i), vectors[vector * width + i]);
          return mine;
        },
        [](float v, float w) { return v + w; });
    b.threads([&](int t, device::NoShared&) {
      const int64_t at = b.index() * kEach + t / kGroup;
      if (t % kGroup == 0 && at < count) out[at] = kernel(sum[t]) + shift;
    });
  }
};

// What both operators have: `count` vectors, the coefficients themselves if there are no support vectors.
class Svm : public Op {
 public:
  explicit Svm(const NodeInfo& node)
      : coefficients_(list(node, "coefficients")), rho_(list(node, "rho")), vectors_(list(node, "support_vectors")) {
    kernel_.kind = read_choice<SvmKernel>(node, "kernel_type", "LINEAR",
                                          {{"LINEAR", SvmKernel::linear},
                                           {"POLY", SvmKernel::poly},
                                           {"RBF", SvmKernel::rbf},
                                           {"SIGMOID", SvmKernel::sigmoid}});
    const std::vector<float> params = list(node, "kernel_params");
    require(params.empty() || params.size() >= 3, "there are ", params.size(), " kernel_params; three are wanted");
    if (!params.empty()) kernel_.gamma = params[0], kernel_.shift = params[1], kernel_.degree = params[2];
    require(!coefficients_.empty(), "coefficients are missing");
    require(!rho_.empty(), "rho is missing");
  }
  void prepare(Prepack& prepack) override {
    kept_coefficients_ = keep_list(prepack, coefficients_);
    kept_vectors_ = count_ ? keep_list(prepack, vectors_) : kept_coefficients_;
    kept_rho_ = keep_list(prepack, rho_);
  }

 protected:
  static std::vector<float> list(const NodeInfo& node, const char* name) {
    return node.find_floats(name).value_or(std::vector<float>{});
  }
  // `count` support vectors, or none and `rows` of coefficients.
  void settle(int64_t count, int64_t rows) {
    require(count >= 0, "there are ", count, " support vectors");
    count_ = count;
    const std::vector<float>& of = count ? vectors_ : coefficients_;
    const int64_t each = count ? count : rows;
    require(!of.empty() && int64_t(of.size()) % each == 0, "there are ", of.size(), " numbers for ", each, " vectors");
    width_ = int64_t(of.size()) / each;
    if (!count) kernel_ = {};
  }
  FeatureRows rows_of(const Tensor& x) const {
    const FeatureRows all(x.shape);
    require(all.width == width_, "rows have ", all.width, " features; the vectors have ", width_);
    return all;
  }
  static float* floats(Context& context, int64_t rows, int64_t width) {
    return static_cast<float*>(context.scratch(size_t(checked_product(rows, width)) * sizeof(float)));
  }
  void run_kernels(Context& context, const Tensor& x, int64_t rows, int64_t vectors, float shift, float* out) const {
    const int64_t count = checked_product(rows, vectors);
    device::block_kernel<device::NoShared>(
        context.stream(), {(count + Kernels::kEach - 1) / Kernels::kEach, Kernels::kThreads},
        Kernels{Features(x), kept_vectors_, out, kernel_, shift, count, width_, Divider(vectors, count)});
  }

  std::vector<float> coefficients_, rho_, vectors_;
  KernelFunction kernel_;
  int64_t count_ = 0, width_ = 0;
  const float *kept_coefficients_ = nullptr, *kept_vectors_ = nullptr, *kept_rho_ = nullptr;
};

// ---- regression

struct SignOfOne {
  float* y;
  DEVICE_FN void operator()(int64_t i) const { y[i] = y[i] > 0 ? 1.f : -1.f; }
};

class SvmRegressor : public Svm {
 public:
  explicit SvmRegressor(const NodeInfo& node) : Svm(node), one_class_(node.get_int("one_class", 0) != 0) {
    const int64_t count = node.get_int("n_supports", 0);
    settle(count, 1);
    require(count == 0 || int64_t(coefficients_.size()) >= count, "there are ", coefficients_.size(),
            " coefficients for ", count, " support vectors");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int64_t rows = rows_of(x).rows;
    const Tensor y = context.output(0, Shape{rows, 1});
    if (rows == 0) return;
    if (!count_) {
      run_kernels(context, x, rows, 1, rho_[0], y.as<float>());
    } else {
      float* const kernels = floats(context, rows, count_);
      run_kernels(context, x, rows, count_, 0.f, kernels);
      const Tensor made{Type::f32, Where::device, Shape{rows, count_}, kernels};
      const Kernels sum{Features(made), kept_coefficients_, y.as<float>(), {}, rho_[0], rows, count_, Divider(1, rows)};
      device::block_kernel<device::NoShared>(context.stream(),
                                             {(rows + Kernels::kEach - 1) / Kernels::kEach, Kernels::kThreads}, sum);
    }
    if (one_class_) device::for_each_index(context.stream(), rows, SignOfOne{y.as<float>()});
  }

 private:
  bool one_class_;
};

// ---- classification

// Two classes, and where their support vectors are.
struct ClassPair {
  int32_t first, second;
  int64_t first_start, first_count, second_start, second_count;
};

// scores[row, pair]: which of two classes it is, above zero the first one.
struct ScorePairs {
  const float *kernels, *coefficients, *rho;
  const ClassPair* pairs;
  float* scores;
  int64_t vectors;
  Divider by_pairs;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t at;
    const int64_t row = by_pairs(i, at);
    const ClassPair pair = pairs[at];
    const float* const of_row = kernels + row * vectors;
    double sum = 0;
    const float* const with_second = coefficients + (pair.second - 1) * vectors;
    for (int64_t v = pair.first_start; v < pair.first_start + pair.first_count; ++v) sum += with_second[v] * of_row[v];
    const float* const with_first = coefficients + pair.first * vectors;
    for (int64_t v = pair.second_start; v < pair.second_start + pair.second_count; ++v)
      sum += with_first[v] * of_row[v];
    scores[i] = float(sum + rho[at]);
  }
};

// A thread makes a row.
struct FinishClasses {
  const float* scores;  // of classes, or of pairs
  const ClassPair* pairs;
  const float *prob_a, *prob_b;
  float* work;   // of each row: votes, and for probabilities products and pairs
  int64_t each;  // floats of that
  const int64_t* names;
  int64_t* labels;
  float* z;
  int64_t classes, pair_count, columns;
  ScoreTransform transform;
  bool weights_are_positive;

  DEVICE_FN void operator()(int64_t row) const {
    float* const to = z + row * columns;
    float* const votes = work + row * each;
    int64_t best;
    if (pairs) {
      const float* const from = scores + row * pair_count;
      for (int64_t c = 0; c < classes; ++c) votes[c] = 0;
      for (int64_t p = 0; p < pair_count; ++p) votes[from[p] > 0 ? pairs[p].first : pairs[p].second] += 1;
      best = largest(votes);
      if (prob_a)
        probabilities(from, votes + classes, to);
      else
        copy(from, to, pair_count);
    } else {
      const float* const from = scores + row * classes;
      best = largest(from);
      const float weight = from[best];
      if (classes == 2 && !prob_a && (weights_are_positive ? weight >= 0.5f : weight > 0)) best = 1;
      copy(from, to, classes);
    }
    if (labels) labels[row] = names[best];
    if (pairs && !prob_a && classes == 2) {
      score_both_classes(transform, transform == ScoreTransform::none, to[0], to);
    } else if (columns > 1 || transform == ScoreTransform::probit) {
      transform_scores(transform, to, columns);
    }
  }

 private:
  DEVICE_FN int64_t largest(const float* of) const {
    int64_t best = 0;
    for (int64_t c = 1; c < classes; ++c)
      if (of[c] > of[best]) best = c;
    return best;
  }
  DEVICE_FN static void copy(const float* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
  // Of each class, from those of pairs: Wu, Lin and Weng, "Probability estimates for multi-class classification by
  // pairwise coupling", the second method.
  DEVICE_FN void probabilities(const float* from, float* room, float* p) const {
    float* const r = room;  // r[i, j]: that it is i, of i and j
    float* const q = r + classes * classes;
    float* const qp = q + classes * classes;
    for (int64_t at = 0; at < pair_count; ++at) {
      const int64_t i = pairs[at].first, j = pairs[at].second;
      float one = 1.f - logistic_score(from[at] * prob_a[at] + prob_b[at]);
      one = one < 1.0e-7f ? 1.0e-7f : one;
      one = one > 1.f - 1.0e-7f ? 1.f - 1.0e-7f : one;
      r[i * classes + j] = one;
      r[j * classes + i] = 1.f - one;
    }
    for (int64_t i = 0; i < classes; ++i) {
      p[i] = 1.f / float(classes);
      float diagonal = 0;
      for (int64_t j = 0; j < classes; ++j) {
        if (j == i) continue;
        diagonal += r[j * classes + i] * r[j * classes + i];
        q[i * classes + j] = -r[j * classes + i] * r[i * classes + j];
      }
      q[i * classes + i] = diagonal;
    }
    const float near = 0.005f / float(classes);
    for (int round = 0; round < 100; ++round) {
      float pqp = 0;
      for (int64_t i = 0; i < classes; ++i) {
        qp[i] = 0;
        for (int64_t j = 0; j < classes; ++j) qp[i] += q[i * classes + j] * p[j];
        pqp += p[i] * qp[i];
      }
      float error = 0;
      for (int64_t i = 0; i < classes; ++i) {
        const float apart = std::fabs(qp[i] - pqp);
        error = apart > error ? apart : error;
      }
      if (error < near) break;
      for (int64_t i = 0; i < classes; ++i) {
        const float change = (-qp[i] + pqp) / q[i * classes + i];
        p[i] += change;
        pqp = (pqp + change * (change * q[i * classes + i] + 2 * qp[i])) / (1 + change) / (1 + change);
        for (int64_t j = 0; j < classes; ++j) {
          qp[j] = (qp[j] + change * q[i * classes + j]) / (1 + change);
          p[j] /= 1 + change;
        }
      }
    }
  }
};

class SvmClassifier : public Svm {
 public:
  explicit SvmClassifier(const NodeInfo& node)
      : Svm(node),
        prob_a_(list(node, "prob_a")),
        prob_b_(list(node, "prob_b")),
        names_(number_labels(node, "classlabels_ints")),
        transform_(score_transform_of(node)) {
    classes_ = int64_t(names_.size());
    require(classes_ > 0, "classlabels_ints are missing");
    require(prob_a_.size() == prob_b_.size(), "there are ", prob_a_.size(), " of prob_a and ", prob_b_.size(),
            " of prob_b");
    const auto each = node.find_ints("vectors_per_class").value_or(std::vector<int64_t>{});
    int64_t count = 0;
    for (const int64_t vectors : each) {
      require(vectors >= 0, "a class has ", vectors, " support vectors");
      require(!__builtin_add_overflow(count, vectors, &count), "there are too many support vectors");
    }
    settle(count, classes_);
    columns_ = classes_;
    weights_are_positive_ = std::ranges::all_of(coefficients_, [](float value) { return value >= 0.f; });
    if (!count) return;
    require(classes_ >= 2 && int64_t(each.size()) == classes_, "there are ", each.size(),
            " numbers of support vectors for ", classes_, " classes");
    require(int64_t(coefficients_.size()) >= checked_product(classes_ - 1, count), "there are ", coefficients_.size(),
            " coefficients for ", count, " support vectors of ", classes_, " classes");
    const int64_t pairs = checked_product(classes_, classes_ - 1) / 2;
    require(int64_t(rho_.size()) >= pairs && (prob_a_.empty() || int64_t(prob_a_.size()) >= pairs), "there are ",
            rho_.size(), " of rho and ", prob_a_.size(), " of prob_a for ", pairs, " pairs of classes");
    if (prob_a_.empty()) {
      columns_ = classes_ == 2 ? 2 : pairs;
      require(classes_ > 2 || transform_ != ScoreTransform::probit,
              "post_transform PROBIT of a single score is not defined");
    }
    std::vector<int64_t> starts{0};
    for (const int64_t vectors : each) starts.push_back(starts.back() + vectors);
    for (int64_t i = 0; i < classes_; ++i)
      for (int64_t j = i + 1; j < classes_; ++j)
        pairs_.push_back(
            {int32_t(i), int32_t(j), starts[size_t(i)], each[size_t(i)], starts[size_t(j)], each[size_t(j)]});
  }
  void prepare(Prepack& prepack) override {
    Svm::prepare(prepack);
    kept_pairs_ = keep_list(prepack, pairs_);
    kept_a_ = keep_list(prepack, prob_a_);
    kept_b_ = keep_list(prepack, prob_b_);
    kept_names_ = keep_list(prepack, names_);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int64_t rows = rows_of(x).rows;
    const Tensor labels = context.wants_output(0) ? context.output(0, Shape{rows}) : Tensor{};
    const Tensor z = context.wants_output(1) ? context.output(1, Shape{rows, columns_}) : Tensor{};
    if (rows == 0) return;
    const auto pair_count = int64_t(pairs_.size());
    const int64_t scored = count_ ? pair_count : classes_;
    float* const scores = floats(context, rows, scored);
    if (count_) {
      float* const kernels = floats(context, rows, count_);
      run_kernels(context, x, rows, count_, 0.f, kernels);
      const int64_t n = checked_product(rows, pair_count);
      device::for_each_index(
          context.stream(), n,
          ScorePairs{kernels, kept_coefficients_, kept_rho_, kept_pairs_, scores, count_, Divider(pair_count, n)});
    } else {
      run_kernels(context, x, rows, classes_, rho_[0], scores);
    }
    const int64_t squares = count_ && kept_a_ ? 2 * checked_product(classes_, classes_) + classes_ : 0;
    const int64_t each = classes_ + squares;
    device::for_each_index(context.stream(), rows,
                           FinishClasses{.scores = scores,
                                         .pairs = kept_pairs_,
                                         .prob_a = kept_a_,
                                         .prob_b = kept_b_,
                                         .work = floats(context, rows, each),
                                         .each = each,
                                         .names = kept_names_,
                                         .labels = labels.as<int64_t>(),
                                         .z = z.data ? z.as<float>() : floats(context, rows, columns_),
                                         .classes = classes_,
                                         .pair_count = pair_count,
                                         .columns = columns_,
                                         .transform = transform_,
                                         .weights_are_positive = weights_are_positive_});
  }

 private:
  std::vector<float> prob_a_, prob_b_;
  std::vector<int64_t> names_;
  ScoreTransform transform_;
  std::vector<ClassPair> pairs_;
  int64_t classes_, columns_;
  bool weights_are_positive_;
  const ClassPair* kept_pairs_ = nullptr;
  const float *kept_a_ = nullptr, *kept_b_ = nullptr;
  const int64_t* kept_names_ = nullptr;
};

}  // namespace

std::vector<OpRow> svm_rows() {
  return {{.domain = kMl,
           .name = "SVMClassifier",
           .since = 1,
           .types = {in(0, kFeatures), out(0, Types{Type::i64})},
           .make = make<SvmClassifier>},
          {.domain = kMl,
           .name = "SVMRegressor",
           .since = 1,
           .types = {in(0, Types{Type::f32})},
           .make = make<SvmRegressor>}};
}

}  // namespace encore::ops
