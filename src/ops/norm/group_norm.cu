// InstanceNormalization, GroupNormalization and MeanVarianceNormalization: groups of values, each of them less its mean
// and over its deviation.
#include <cmath>

#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/elementwise/channel_map.h"
#include "ops/nn/batch_statistics.h"
#include "ops/norm/rows.h"
#include "ops/reduce/plan.h"
#include "ops/registry.h"
#include "ops/shape/movement.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::Pack;
using device::PerThread;

// `span` neighbours share a scale and a bias, which repeat after `parameters`.
struct Parameters {
  const void *scale = nullptr, *bias = nullptr;  // of the values' type; null: 1 and 0
  int64_t span, count = 1;
};
struct Epsilon {
  double inside = 0, beside = 0;  // added to the variance, and to its root
  template <class C>
  DEVICE_FN C over_deviation(C variance) const {
    return C(1) / (std::sqrt(variance + C(inside)) + C(beside));
  }
};

// y = (x - mean) * factor + offset: of values far from zero that differ little, products alone would leave nothing.
template <class C>
struct Affine {
  C mean, factor, offset;
  DEVICE_FN C operator()(C x) const { return (x - mean) * factor + offset; }
};
// What is done to the values of the i-th span.
template <class T>
struct SpanParameters {
  using C = Compute<T>;
  const T *scale, *bias;
  Divider by_count;
  struct Given {
    C scale, bias;
    DEVICE_FN Affine<C> with(C mean, C over_deviation) const { return {mean, scale * over_deviation, bias}; }
  };
  DEVICE_FN Given of(int64_t i) const {
    if (!scale) return {C(1), C(0)};
    int64_t at;
    by_count(i, at);
    return {C(scale[at]), C(bias[at])};
  }
};

// Rows that a team keeps in registers, or so short that reading them again costs little.
template <class T, class How>
struct NormalizeShortRows {
  using Teams = RowTeams<T, How>;
  using C = Compute<T>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = How::kPack, kMaxThreads = Teams::kMaxThreads;

  const T* x;
  T* y;
  int64_t rows, width;
  C per_value;  // 1 / width
  Epsilon epsilon;
  Divider by_span;
  SpanParameters<T> parameters;

  // Two passes over the values, since the mean of the squares less the square of the mean cancels.
  DEVICE_FN void operator()(Block& b, const Shared& s) const {
    const Teams teams(b, x, y, rows, width);
    const bool is_span = by_span.divisor() == width;
    PerThread<typename Teams::Kept, kMaxThreads> kept;
    PerThread<typename SpanParameters<T>::Given, kMaxThreads> of_row;  // asked for before the wait for the sums
    teams.bring(b);
    auto sum = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const T* from = teams.source(b, s, t);
          if constexpr (How::kKeep != 0) teams.read(b, s, t, kept[t], T(0.f));
          if (is_span && teams.has_row(t)) of_row[t] = parameters.of(teams.index(t));
          C all = 0;
          teams.each_slot(t, [&](int k, Index first) {
            C values[kPack];
            Teams::take(values, kept[t].at[k], from + first);
            UNROLL for (int j = 0; j < kPack; ++j) all += values[j];
          });
          return all;
        },
        Plus());
    auto squares = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const T* from = teams.source(b, s, t);
          const C mean = sum[t] * per_value;
          C all = 0;
          teams.each(t, [&](int k, Index first) {
            C values[kPack];
            Teams::take(values, kept[t].at[k], from + first);
            UNROLL for (int j = 0; j < kPack; ++j) all += (values[j] - mean) * (values[j] - mean);
          });
          return all;
        },
        Plus());
    b.threads([&](int t, Shared& s) {
      T* to = teams.target(b, s, t);
      const T* from = teams.source(b, s, t);
      const C mean = sum[t] * per_value, over_deviation = epsilon.over_deviation(squares[t] * per_value);
      const int64_t before = teams.index(t) * width;
      const auto write = [&](auto of) {
        teams.each(t, [&](int k, Index first) {
          C values[kPack];
          Teams::take(values, kept[t].at[k], from + first);
          const Affine<C> affine = of(before + first).with(mean, over_deviation);
          Pack<T, kPack> out;
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(affine(values[j]));
          device::store_pack(to + first, out, true);
        });
      };
      if (is_span)
        write([&](int64_t) { return of_row[t]; });
      else
        write([&](int64_t i) {
          int64_t at;
          return parameters.of(by_span(i, at));
        });
    });
    teams.take_back(b);
  }
};

// The same with statistics that have been taken before.
template <class T>
struct NormalizeSpans {
  using C = Compute<T>;
  static constexpr bool kReads = true;
  PerChannel mean, variance;
  Epsilon epsilon;
  Divider by_spans;  // of a group
  SpanParameters<T> parameters;
  DEVICE_FN Affine<C> of(int64_t span) const {
    int64_t rest;
    const int64_t group = by_spans(span, rest);
    return parameters.of(span).with(mean.at<C>(group), epsilon.over_deviation(variance.at<C>(group)));
  }
  DEVICE_FN C apply(const Affine<C>& of, C x) const { return of(x); }
};

// Each of `channels` groups has `width` neighbours in each of `batch` images.
void normalize_groups(Context& context, const Tensor& x, const ChannelShape& shape, const Parameters& given,
                      Epsilon epsilon, void* into) {
  constexpr int64_t kShort = 16384;  // beyond, a group wants more than one block
  if (x.count() == 0) return;
  dispatch(FloatList{}, x.type, [&]<class T>() {
    const int64_t spans = x.count() / given.span;
    const SpanParameters<T> parameters{static_cast<const T*>(given.scale), static_cast<const T*>(given.bias),
                                       Divider(given.count, spans)};
    T* const y = static_cast<T*>(into);
    if (shape.batch == 1 && shape.width <= kShort) {
      constexpr int kWide = device::pack_size<T>();
      const bool whole = given.span % kWide == 0 && device::is_pack_aligned<kWide>(x.as<const T>()) &&
                         device::is_pack_aligned<kWide>(y);
      spread_over_teams<T, kWide, true>(
          context.stream(), shape.channels, shape.width, whole, [&]<class How>(device::Blocks grid) {
            using Kernel = NormalizeShortRows<T, How>;
            using C = Compute<T>;
            device::block_kernel<typename Kernel::Shared>(
                context.stream(), grid,
                Kernel{x.as<const T>(), y, shape.channels, shape.width, C(1) / C(shape.width), epsilon,
                       Divider(given.span, x.count()), parameters});
          });
      return;
    }
    using C = Compute<T>;
    const auto own = [&] {
      return PerChannel{context.scratch(size_t(shape.channels) * sizeof(C)), device::kTypeOf<C>};
    };
    const BatchStatistics statistics{own(), own(), {}, {}, {}, {}, {}, {}};
    take_statistics(context, x, shape, 0, 0, statistics);
    const int64_t spans_of_group = shape.width / given.span;
    map_channels(
        context.stream(), x.as<const T>(), y, shape.batch, shape.channels * spans_of_group, given.span,
        NormalizeSpans<T>{statistics.mean, statistics.variance, epsilon, Divider(spans_of_group, spans), parameters});
  });
}

// The scale and the bias, one of each for each of `count`.
Parameters parameters_of(Context& context, int64_t count, int64_t span) {
  const Tensor &x = context.input(0), &scale = context.input(1), &bias = context.input(2);
  const auto check = [&](const Tensor& given, const char* what) {
    require(given.shape == Shape{count} && given.type == x.type, what, " has shape ", given.shape.str(), " of ",
            device::name(given.type), "; X ", x.shape.str(), " wants [", count, "] of ", device::name(x.type));
  };
  check(scale, "scale");
  check(bias, "bias");
  return {scale.data, bias.data, span, count};
}

void check_rank(const NodeInfo& node, size_t least) {
  const auto x = node.input_dims(0);
  require(!x || x->size() >= least, "X has rank ", x ? x->size() : 0, "; it needs batch and channels");
}

class InstanceNormalization : public Op {
 public:
  explicit InstanceNormalization(const NodeInfo& node) : epsilon_(node.get_float("epsilon", 1e-5f)) {
    check_rank(node, 2);
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "X has shape ", x.shape.str(), "; it needs batch and channels");
    const int64_t channels = x.shape[1], width = x.shape.count(2, rank);
    const Parameters parameters = parameters_of(context, channels, width);
    const Tensor y = context.output(0, x.shape);
    if (y.count() > 0) normalize_groups(context, x, {1, x.shape[0] * channels, width}, parameters, {epsilon_}, y.data);
  }

 private:
  float epsilon_;
};

class GroupNormalization : public Op {
 public:
  explicit GroupNormalization(const NodeInfo& node)
      : by_channel_(node.since_version() >= 21),
        groups_(node.get_int("num_groups", 0)),
        epsilon_(node.get_float("epsilon", 1e-5f)) {
    check_rank(node, 2);
    require(groups_ >= 1, "num_groups is ", groups_, "; it must be at least 1");
    const int64_t stash = node.get_int("stash_type", 1);
    const bool wide = stash == int64_t(Type::f64) && node.input_type(0) == Type::f64;
    if (stash != int64_t(Type::f32) && !wide)
      fail(Code::not_supported, "stash_type is ", stash, "; it must be 1 (float), or 11 (double) where X is double");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank >= 2, "X has shape ", x.shape.str(), "; it needs batch and channels");
    const int64_t channels = x.shape[1], plane = x.shape.count(2, rank);
    require(channels % groups_ == 0, "the ", channels, " channels of X cannot be divided by num_groups ", groups_);
    const int64_t width = checked_product(channels / groups_, plane);
    const Parameters parameters =
        by_channel_ ? parameters_of(context, channels, plane) : parameters_of(context, groups_, width);
    const Tensor y = context.output(0, x.shape);
    if (y.count() > 0) normalize_groups(context, x, {1, x.shape[0] * groups_, width}, parameters, {epsilon_}, y.data);
  }

 private:
  bool by_channel_;  // before opset 21 there are a scale and a bias for each group
  int64_t groups_;
  float epsilon_;
};

class MeanVarianceNormalization : public Op {
 public:
  explicit MeanVarianceNormalization(const NodeInfo& node)
      : axes_(node.find_ints("axes").value_or(std::vector<int64_t>{0, 2, 3})) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const auto rank = size_t(x.shape.rank());
    AxisSet reduced(rank, axes_.empty());
    // What is meant where nothing is said are all but the channels, of images with fewer dimensions, too.
    const bool is_default = axes_ == std::vector<int64_t>{0, 2, 3};
    for (int64_t axis : axes_)
      if (!is_default || axis < int64_t(rank)) reduced[size_t(checked_axis(axis, int(rank), "axes"))] = true;
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;

    // Groups that lie as those of a batch do: what is kept are neighbouring dimensions.
    size_t first = 0;
    while (first < rank && reduced[first]) ++first;
    size_t last = first;
    while (last < rank && !reduced[last]) ++last;
    bool is_batch = true;
    for (size_t i = last; i < rank; ++i) is_batch &= reduced[i];
    const Epsilon epsilon{.beside = 1e-9};
    if (is_batch) {
      const int a = int(first), b = int(last);
      const ChannelShape shape{x.shape.count(0, a), x.shape.count(a, b), x.shape.count(b, int(rank))};
      return normalize_groups(context, x, shape, {.span = shape.width}, epsilon, y.data);
    }
    // Others are brought together, and back.
    std::vector<int> order, back(rank);
    for (const bool wanted : {false, true})
      for (size_t i = 0; i < rank; ++i)
        if (reduced[i] == wanted) order.push_back(int(i));
    std::vector<int64_t> dims;
    int64_t groups = 1;
    for (size_t i = 0; i < rank; ++i) {
      back[size_t(order[i])] = int(i);
      dims.push_back(x.shape[order[i]]);
      if (!reduced[size_t(order[i])]) groups *= dims.back();
    }
    const Tensor together{x.type, Where::device, Shape(dims), context.scratch(x.bytes())};
    transpose(context.stream(), x, order, together);
    const int64_t width = x.count() / groups;
    normalize_groups(context, together, {1, groups, width}, {.span = width}, epsilon, together.data);
    transpose(context.stream(), together, back, y);
  }

 private:
  std::vector<int64_t> axes_;
};

}  // namespace

std::vector<OpRow> group_norm_rows() {
  const std::vector<TypeRule> types = {in(0, kFloats)};
  return {
      {.name = "InstanceNormalization", .since = 1, .types = types, .make = make<InstanceNormalization>},
      {.name = "GroupNormalization", .since = 18, .types = types, .make = make<GroupNormalization>},
      {.name = "MeanVarianceNormalization", .since = 9, .types = types, .make = make<MeanVarianceNormalization>},
  };
}

}  // namespace encore::ops
