// ArrayFeatureExtractor, Binarizer, Scaler and Normalizer.
#include "ops/ml/features.h"

#include <cmath>
#include <limits>

#include "device/divide.h"
#include "device/transform.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/keep_list.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;

template <class T>
struct Extract {
  const T* x;
  const int64_t* wanted;
  T* z;
  int64_t width;
  Divider by_count;
  device::FaultRef fault;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column;
    const int64_t row = by_count(i, column);
    z[i] = x[row * width + fault.checked_index(wanted[column], width)];
  }
};

class ArrayFeatureExtractor : public Op {
 public:
  explicit ArrayFeatureExtractor(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &wanted = context.input(1);
    const int rank = x.shape.rank();
    require(rank > 0, "the input is a scalar; rows of features are wanted");
    const int64_t count = wanted.count(), width = x.shape.back();
    require(width > 0 || count == 0, "the input ", x.shape.str(), " has no features to take ", count, " of");
    const Tensor z = context.output(0, rank == 1 ? Shape{1, count} : x.shape.with(rank - 1, count));
    if (z.count() == 0) return;
    dispatch_size(device::size_bytes(x.type), [&]<class T>() {
      if constexpr (sizeof(T) == 4 || sizeof(T) == 8)
        device::for_each_index(context.stream(), z.count(),
                               Extract<T>{x.as<const T>(), wanted.as<const int64_t>(), z.as<T>(), width,
                                          Divider(count, z.count()), context.fault()});
    });
  }
};

// NaN is not above the threshold.
struct Binarize {
  float threshold;
  DEVICE_FN float operator()(float x) const { return x > threshold ? 1.f : 0.f; }
};

class Binarizer : public Op {
 public:
  explicit Binarizer(const NodeInfo& node) : binarize_{node.get_float("threshold", 0.f)} {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    device::transform(context.stream(), x.count(), context.output(0, x.shape).as<float>(), binarize_,
                      x.as<const float>());
  }

 private:
  Binarize binarize_;
};

struct Scale {
  Features x;
  float* y;
  const float *offsets, *scales;
  Divider by_width;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t feature;
    by_width(i, feature);
    const float offset = offsets[feature], scale = scales[feature];
    y[i] = x.type == Type::f64 ? float((x.at<double>(i) - double(offset)) * double(scale))
                               : (x.at<float>(i) - offset) * scale;
  }
};

class Scaler : public Op {
 public:
  explicit Scaler(const NodeInfo& node)
      : offsets_(node.find_floats("offset").value_or(std::vector<float>{})),
        scales_(node.find_floats("scale").value_or(std::vector<float>{})) {
    require(!scales_.empty() && scales_.size() == offsets_.size(), "there are ", scales_.size(), " scales and ",
            offsets_.size(), " offsets; as many are wanted of both");
  }
  void prepare(Prepack& prepack) override {
    kept_offsets_ = keep_list(prepack, offsets_);
    kept_scales_ = keep_list(prepack, scales_);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    const auto count = int64_t(scales_.size());
    require(rank > 0, "the input is a scalar; rows of features are wanted");
    const int64_t features = x.shape[rank == 1 ? 0 : 1];
    require(count == 1 || count == features, "there are ", count, " scales; one is wanted, or ", features);
    const Tensor y = context.output(0, x.shape);
    device::for_each_index(context.stream(), x.count(),
                           Scale{Features(x), y.as<float>(), kept_offsets_, kept_scales_, Divider(count, x.count())});
  }

 private:
  std::vector<float> offsets_, scales_;
  const float *kept_offsets_ = nullptr, *kept_scales_ = nullptr;
};

enum class Norm { max, l1, l2 };

// A group of threads makes a row.
struct Normalize {
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kGroup = 32, kRows = kThreads / kGroup;
  Features x;
  float* y;
  int64_t rows, width;
  Norm norm;
  DEVICE_FN void operator()(Block<device::NoShared>& b, const device::NoShared&) const {
    device::PerThread<float, kMaxThreads> whole;
    const bool is_max = norm == Norm::max;
    b.reduce_groups<kGroup>(
        whole,
        [&](int t) {
          float mine = is_max ? std::numeric_limits<float>::lowest() : 0.f;
          for_each(b.index(), t, [&](int64_t at) {
            const float term = term_of(at);
            mine = is_max ? larger_number(mine, term) : mine + term;
          });
          return mine;
        },
        [is_max](float v, float w) { return is_max ? larger_number(v, w) : v + w; });
    b.threads([&](int t, device::NoShared&) {
      for_each(b.index(), t, [&](int64_t at) {
        const float value = x.at<float>(at), all = whole[t];
        if (all == 0.f)
          y[at] = value;
        else if (norm == Norm::l2)
          y[at] = value < 0 ? -std::sqrt(term_of(at) / all) : std::sqrt(term_of(at) / all);
        else
          y[at] = value / all;
      });
    });
  }

 private:
  // `v` is a number.
  DEVICE_FN static float larger_number(float v, float w) { return v < w ? w : v; }
  DEVICE_FN float term_of(int64_t at) const {
    if (norm == Norm::max) return x.at<float>(at);
    if (norm == Norm::l1) return std::fabs(x.at<float>(at));
    if (x.type == Type::f32) return x.at<float>(at) * x.at<float>(at);
    return float(x.at<double>(at) * x.at<double>(at));
  }
  template <class F>
  DEVICE_FN void for_each(int64_t block, int t, F f) const {
    const int64_t row = block * kRows + t / kGroup;
    if (row >= rows) return;
    for (int64_t i = t % kGroup; i < width; i += kGroup) f(row * width + i);
  }
};

class Normalizer : public Op {
 public:
  explicit Normalizer(const NodeInfo& node) {
    norm_ = read_choice<Norm>(node, "norm", "MAX", {{"MAX", Norm::max}, {"L1", Norm::l1}, {"L2", Norm::l2}});
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const FeatureRows all(x.shape);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    device::block_kernel<device::NoShared>(context.stream(),
                                           {(all.rows + Normalize::kRows - 1) / Normalize::kRows, Normalize::kThreads},
                                           Normalize{Features(x), y.as<float>(), all.rows, all.width, norm_});
  }

 private:
  Norm norm_;
};

}  // namespace

std::vector<OpRow> ml_feature_rows() {
  const Types floats{Type::f32};
  const auto row = [](const char* name, std::vector<TypeRule> types, MakeOp make) {
    return OpRow{.domain = kMl, .name = name, .since = 1, .types = std::move(types), .make = make};
  };
  return {
      row("ArrayFeatureExtractor", {in(0, kFeatures), in(1, Types{Type::i64})}, make<ArrayFeatureExtractor>),
      row("Binarizer", {in(0, floats)}, make<Binarizer>),
      row("Scaler", {in(0, kFeatures)}, make<Scaler>),
      row("Normalizer", {in(0, kFeatures)}, make<Normalizer>),
  };
}

}  // namespace encore::ops
