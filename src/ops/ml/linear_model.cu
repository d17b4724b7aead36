// LinearClassifier and LinearRegressor: a product with coefficients, and what becomes of its scores.
#include "device/launch.h"
#include "ops/keep_list.h"
#include "ops/ml/features.h"
#include "ops/ml/scores.h"

namespace encore::ops {
namespace {

struct Widen {
  Features x;
  float* wide;
  DEVICE_FN void operator()(int64_t i) const { wide[i] = x.at<float>(i); }
};

// A thread makes a row.
struct Finish {
  const float* scores;
  float* z;
  int64_t* labels;  // null: nobody asks
  const int64_t* names;
  int64_t targets, columns;  // of scores and z
  int64_t negative, positive;
  ScoreTransform transform;
  DEVICE_FN void operator()(int64_t row) const {
    const float* const from = scores + row * targets;
    float* const to = z + row * columns;
    if (labels) labels[row] = label(from);
    if (columns != targets) {
      score_both_classes(transform, false, from[0], to);
      return;
    }
    for (int64_t i = 0; i < targets; ++i) to[i] = from[i];
    if (targets > 1 || transform == ScoreTransform::probit) transform_scores(transform, to, targets);
  }

 private:
  DEVICE_FN int64_t label(const float* from) const {
    if (targets == 1) return from[0] > 0 ? positive : negative;
    int64_t best = 0;
    for (int64_t i = 1; i < targets; ++i)
      if (from[i] > from[best]) best = i;
    return names[best];
  }
};

class LinearModel : public Op {
 public:
  explicit LinearModel(const NodeInfo& node)
      : classifies_(node.op_type() == "LinearClassifier"),
        coefficients_(node.find_floats("coefficients").value_or(std::vector<float>{})),
        intercepts_(node.find_floats("intercepts").value_or(std::vector<float>{})),
        transform_(score_transform_of(node)) {
    require(!coefficients_.empty(), "coefficients are missing");
    if (!classifies_) {
      targets_ = node.get_int("targets", 1);
      require(targets_ > 0 && targets_ <= int64_t(coefficients_.size()), "targets is ", targets_, "; there are ",
              coefficients_.size(), " coefficients");
      if (int64_t(intercepts_.size()) != targets_) intercepts_.clear();  // as the CPU EP has it
      columns_ = targets_;
    } else {
      names_ = number_labels(node, "classlabels_ints");
      targets_ = columns_ = int64_t(intercepts_.size());
      require(targets_ > 0, "intercepts are missing");
      if (targets_ == 1 && names_.size() == 2) {
        columns_ = 2;
        require(transform_ != ScoreTransform::probit, "post_transform PROBIT of a single score is not defined");
      }
      require(targets_ == 1 || int64_t(names_.size()) >= targets_, "there are ", names_.size(), " labels for ",
              targets_, " classes");
    }
    require(int64_t(coefficients_.size()) % targets_ == 0, "there are ", coefficients_.size(), " coefficients for ",
            targets_, " targets");
  }
  void prepare(Prepack& prepack) override {
    kept_coefficients_ = keep_list(prepack, coefficients_);
    kept_intercepts_ = keep_list(prepack, intercepts_);
    kept_names_ = keep_list(prepack, names_);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const FeatureRows all(x.shape);
    const auto features = int64_t(coefficients_.size()) / targets_;
    require(all.width == features, "rows have ", all.width, " features; the coefficients are of ", features);
    const Tensor labels = classifies_ && context.wants_output(0) ? context.output(0, Shape{all.rows}) : Tensor{};
    const Shape shape{all.rows, columns_};
    const int place = classifies_ ? 1 : 0;
    const Tensor z = context.wants_output(place) ? context.output(place, shape) : Tensor{};
    if (all.rows == 0) return;
    const auto floats = [&](int64_t rows, int64_t width) {
      return static_cast<float*>(context.scratch(size_t(checked_product(rows, width)) * sizeof(float)));
    };
    const float* wide = x.as<const float>();
    if (x.type != Type::f32) {
      float* const made = floats(all.rows, features);
      device::for_each_index(context.stream(), x.count(), Widen{Features(x), made});
      wide = made;
    }
    device::Gemm gemm;
    gemm.m = all.rows, gemm.n = gemm.ldc = targets_, gemm.k = gemm.lda = gemm.ldb = features;
    gemm.transpose_b = true;
    gemm.has_bias = kept_intercepts_ != nullptr;
    float* const scores = floats(all.rows, targets_);
    ScratchWorkspace workspace(context);
    context.blas().gemm(context.stream(), gemm, wide, kept_coefficients_, scores, kept_intercepts_, workspace);
    const bool named = names_.size() == 2;
    device::for_each_index(context.stream(), all.rows,
                           Finish{.scores = scores,
                                  .z = z.data ? z.as<float>() : floats(all.rows, columns_),
                                  .labels = labels.as<int64_t>(),
                                  .names = kept_names_,
                                  .targets = targets_,
                                  .columns = columns_,
                                  .negative = named ? names_[0] : 0,
                                  .positive = named ? names_[1] : 1,
                                  .transform = transform_});
  }

 private:
  bool classifies_;
  std::vector<float> coefficients_, intercepts_;
  std::vector<int64_t> names_;
  ScoreTransform transform_;
  int64_t targets_, columns_;
  const float *kept_coefficients_ = nullptr, *kept_intercepts_ = nullptr;
  const int64_t* kept_names_ = nullptr;
};

}  // namespace

std::vector<OpRow> linear_model_rows() {
  return {{.domain = kMl,
           .name = "LinearClassifier",
           .since = 1,
           .types = {in(0, kFeatures), out(0, Types{Type::i64})},
           .make = make<LinearModel>},
          {.domain = kMl,
           .name = "LinearRegressor",
           .since = 1,
           .types = {in(0, Types{Type::f32})},
           .make = make<LinearModel>}};
}

}  // namespace encore::ops
