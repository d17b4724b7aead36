// GatedRMSNorm and BranchwiseRMSNorm: rows over the root of their mean square, times a scale, times a gate.
#include <cmath>

#include "device/divide.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/elementwise/any_floats.h"
#include "ops/elementwise/digits.h"
#include "ops/norm/rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Divider;
using device::Pack;
using device::PerThread;

template <class T, class How>
struct OverRootMeanSquare {
  using Teams = RowTeams<T, How>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = How::kPack, kMaxThreads = Teams::kMaxThreads;

  const T *x, *gate;  // gate: null for none
  T* y;
  AnyFloats scale;        // without data: 1
  Divider by_scale_rows;  // after which they repeat
  int64_t rows, width;
  float per_value, epsilon;
  bool silu;  // the gate is x * sigmoid(x), else the sigmoid

  // The gate is asked for together with the values, before the wait for the sum; the scale, too, where registers have
  // room for it.
  static constexpr bool kAsksScale = How::kKeep != 0 && How::kLanes != 0;
  struct Kept {
    Pack<T, kPack> x[How::kKeep ? How::kKeep : 1], gate[How::kKeep ? How::kKeep : 1];
    AnyFloats::Raw<kPack> scale[kAsksScale ? How::kKeep : 1];
  };

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const Teams teams(b, x, y, rows, width);
    PerThread<Kept, kMaxThreads> kept;
    PerThread<int64_t, kMaxThreads> in_scale;  // where the row's begins
    const auto read = [&](int t, int k, Index first) {
      const int64_t at = teams.index(t) * width + first;
      kept[t].x[k] = device::load_pack<kPack>(x + at, true);
      if (gate) kept[t].gate[k] = device::load_pack<kPack>(gate + at, true);
      if constexpr (kAsksScale) {
        if (scale.data) kept[t].scale[k] = scale.raw<kPack>(in_scale[t] + first);
      }
    };
    auto squares = Teams::Together::reduce(
        b, 0.f,
        [&](int t) {
          float all = 0;
          int64_t scale_row = 0;
          if (by_scale_rows.divisor() > 1) by_scale_rows(teams.index(t), scale_row);
          in_scale[t] = scale_row * width;
          if constexpr (How::kKeep != 0) teams.each(t, [&](int k, Index first) { read(t, k, first); });
          teams.each(t, [&](int k, Index first) {
            if constexpr (How::kKeep == 0) read(t, k, first);
            UNROLL for (int j = 0; j < kPack; ++j) {
              const auto v = float(kept[t].x[k].at[j]);
              all += v * v;
            }
          });
          return all;
        },
        Plus());
    b.threads([&](int t, Shared&) {
      const float over_root = inverse_root_for<T>(squares[t] * per_value + epsilon);
      teams.each(t, [&](int k, Index first) {
        if constexpr (How::kKeep == 0) read(t, k, first);
        Pack<float, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = float(kept[t].x[k].at[j]) * over_root;
        if (scale.data) {
          if constexpr (!kAsksScale) kept[t].scale[0] = scale.raw<kPack>(in_scale[t] + first);
          const auto values = scale.floats<kPack>(kept[t].scale[kAsksScale ? k : 0]);
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] *= values.at[j];
        }
        if (gate) UNROLL for (int j = 0; j < kPack; ++j) {
            const auto v = float(kept[t].gate[k].at[j]);
            out.at[j] *= silu ? v * sigmoid_for<T>(v) : sigmoid_for<T>(v);
          }
        Pack<T, kPack> rounded;
        UNROLL for (int j = 0; j < kPack; ++j) rounded.at[j] = T(out.at[j]);
        device::store_pack(y + teams.index(t) * width + first, rounded, true);
      });
    });
  }
};

struct Rows {
  int64_t rows, width, scale_rows;
  float epsilon;
  bool silu = false;
};

void normalize(StreamRef stream, const Tensor& x, const Tensor* scale, const Tensor* gate, const Tensor& y,
               const Rows& given) {
  if (x.count() == 0) return;
  dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T>() {
    constexpr int kWide = device::pack_size<T>();
    const AnyFloats factors = scale ? AnyFloats{scale->data, scale->type} : AnyFloats{};
    const T* gates = gate ? gate->as<const T>() : nullptr;
    const bool whole = given.width % kWide == 0 && device::is_pack_aligned<kWide>(x.as<const T>()) &&
                       device::is_pack_aligned<kWide>(y.as<const T>()) && device::is_pack_aligned<kWide>(gates) &&
                       factors.has_packs<kWide>();
    spread_over_teams<void, kWide, false>(stream, given.rows, given.width, whole, [&]<class How>(device::Blocks grid) {
      using Kernel = OverRootMeanSquare<T, How>;
      device::block_kernel<typename Kernel::Shared>(
          stream, grid,
          Kernel{x.as<const T>(), gates, y.as<T>(), factors, Divider(given.scale_rows, given.rows), given.rows,
                 given.width, 1.f / float(given.width), given.epsilon, given.silu});
    });
  });
}

class GatedRMSNorm : public Op {
 public:
  explicit GatedRMSNorm(const NodeInfo& node) : epsilon_(node.get_float("epsilon", 1e-5f)) {
    silu_ = read_choice<bool>(node, "activation", "silu", {{"silu", true}, {"swish", true}, {"sigmoid", false}});
  }
  void run(Context& context) const override {
    const Tensor &x = context.input(0), &scale = context.input(1), &gate = context.input(2);
    const int64_t width = scale.count();
    require(x.shape.rank() > 0 && (width > 0 ? x.shape.back() % width == 0 : x.shape.back() == 0), "X ", x.shape.str(),
            " does not consist of groups of ", width, ", as scale has");
    require(gate.shape == x.shape, "gate ", gate.shape.str(), " must have the shape of X ", x.shape.str());
    const Tensor y = context.output(0, x.shape);
    if (y.count() > 0) normalize(context.stream(), x, &scale, &gate, y, {x.count() / width, width, 1, epsilon_, silu_});
  }

 private:
  float epsilon_;
  bool silu_;
};

class BranchwiseRMSNorm : public Op {
 public:
  explicit BranchwiseRMSNorm(const NodeInfo& node)
      : branches_(node.get_int("num_branches", 0)), epsilon_(node.get_float("epsilon", 1e-5f)) {
    require(branches_ >= 0, "num_branches is ", branches_, "; it must not be negative");
  }
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const Tensor* scale = context.find_input(1);
    const Branches shape = branches_of(x.shape, branches_, "X");
    bool per_branch = false;
    if (scale) {
      per_branch = scale->shape == Shape{shape.count, shape.width} ||
                   scale->shape == Shape{checked_product(shape.count, shape.width)};
      require(per_branch || scale->shape == Shape{shape.width}, "scale ", scale->shape.str(), " does not fit ",
              shape.count, " branches of ", shape.width);
    }
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    normalize(context.stream(), x, scale, nullptr, y,
              {shape.rows * shape.count, shape.width, per_branch ? shape.count : 1, epsilon_});
  }

 private:
  int64_t branches_;
  float epsilon_;
};

}  // namespace

std::vector<OpRow> gated_rms_norm_rows() {
  const std::vector<TypeRule> types = {in_all(0, kHalves | Types{Type::f32})};
  return {
      {.domain = kMicrosoft, .name = "GatedRMSNorm", .since = 1, .types = types, .make = make<GatedRMSNorm>},
      {.domain = kMicrosoft, .name = "BranchwiseRMSNorm", .since = 1, .types = types, .make = make<BranchwiseRMSNorm>}};
}

}  // namespace encore::ops
