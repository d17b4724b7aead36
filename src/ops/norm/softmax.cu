// Softmax, LogSoftmax and com.microsoft's BiasSoftmax. A row of -inf, or one with NaN or +inf, gives NaN, as it does on
// the CPU.
#include <cmath>
#include <limits>

#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/norm/softmax.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::Pack;
using device::PerThread;

template <class C>
inline constexpr C kLowest = -std::numeric_limits<C>::infinity();

// Added to rows before the softmax; null data adds nothing. Row r takes the addend's row r / group % rows.
template <class T>
struct Addend {
  const T* data = nullptr;
  device::Divider group, rows;
  DEVICE_FN const T* of(int64_t row, int64_t width) const {
    if (!data) return nullptr;
    int64_t own;
    rows(group(row, own), own);
    return data + own * width;
  }
};

// e^x, with as many digits as T keeps.
template <class T, class C>
DEVICE_FN C power_of(C x) {
  if constexpr (sizeof(T) == 2) return std::exp2(x * C(1.4426950408889634));
  return std::exp(x);
}

// Rows whose values are neighbours. If not all of them are made of whole packs (kWhole), packs lie where addresses of x
// are aligned, and the first and the last of a row may reach beyond it: there they hold -inf, which adds nothing.
template <class T, bool kWhole, int kLanes, int kKeep>
struct SoftmaxRows {
  using C = Compute<T>;
  using Together = Team<kLanes>;
  static constexpr int kPack = device::pack_size<T>(), kMaxThreads = Together::kMaxThreads;
  using Packs = Deal<kPack, kKeep>;
  using Kept = typename Packs::template Kept<C>;

  const T* x;
  T* y;
  int64_t rows, width;
  bool log;
  Addend<T> addend;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<Kept, kMaxThreads> kept;
    auto top = Together::reduce(
        b, kLowest<C>,
        [&](int t) {
          C most = kLowest<C>;
          each(b, t, [&](int k, const Row& row, auto first) {
            row.load(kept[t].at[k], first);
            UNROLL for (int j = 0; j < kPack; ++j) most = Larger()(most, kept[t].at[k][j]);
          });
          return most;
        },
        Larger());
    auto sum = Together::reduce(
        b, C(0),
        [&](int t) {
          C all = 0;
          each(b, t, [&](int k, const Row& row, auto first) {
            if constexpr (kKeep == 0) row.load(kept[t].at[k], first);
            UNROLL for (int j = 0; j < kPack; ++j) {
              const C power = power_of<T>(kept[t].at[k][j] - top[t]);
              all += power;
              if (kKeep != 0 && !log) kept[t].at[k][j] = power;
            }
          });
          return all;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const C scale = C(1) / sum[t], shift = top[t], log_sum = log ? std::log(sum[t]) : C(0);
      each(b, t, [&](int k, const Row& row, auto first) {
        if constexpr (kKeep == 0) row.load(kept[t].at[k], first);
        Pack<T, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) {
          C value = kept[t].at[k][j];
          if (log)
            value = value - shift - log_sum;
          else
            value = (kKeep ? value : power_of<T>(value - shift)) * scale;
          out.at[j] = T(value);
        }
        row.store(out, first);
      });
    });
  }

 private:
  struct Row {
    const T *x, *addend;
    T* y;
    int64_t width;

    DEVICE_FN bool has(int64_t i) const { return kWhole || uint64_t(i) < uint64_t(width); }
    DEVICE_FN bool has_all_from(int64_t first) const { return has(first) && has(first + kPack - 1); }
    template <class V>
    DEVICE_FN static bool is_aligned(const V* address) {
      return kWhole || device::is_pack_aligned<kPack>(address);
    }
    DEVICE_FN void load(C (&values)[kPack], int64_t first) const {
      if (!has_all_from(first)) {
        UNROLL for (int j = 0; j < kPack; ++j) {
          values[j] = has(first + j) ? C(x[first + j]) : kLowest<C>;
          if (addend && has(first + j)) values[j] += C(addend[first + j]);
        }
        return;
      }
      const Pack<T, kPack> own = device::load_pack<kPack>(x + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = C(own.at[j]);
      if (!addend) return;
      const Pack<T, kPack> more = device::load_pack<kPack>(addend + first, is_aligned(addend + first));
      UNROLL for (int j = 0; j < kPack; ++j) values[j] += C(more.at[j]);
    }
    DEVICE_FN void store(const Pack<T, kPack>& values, int64_t first) const {
      if (has_all_from(first)) return device::store_pack(y + first, values, is_aligned(y + first));
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (has(first + j)) y[first + j] = values.at[j];
      }
    }
  };
  // f(pack, row, first value of the pack in the row)
  template <class F>
  DEVICE_FN void each(const Block<NoShared>& b, int t, F f) const {
    const int64_t index = Together::index(b, t);
    if (index >= rows) return;
    const Row row{x + index * width, addend.of(index, width), y + index * width, width};
    const int before = kWhole ? 0 : int(reinterpret_cast<uintptr_t>(row.x) / sizeof(T) % kPack);
    Packs::each(width + before, Together::lane(t), Together::size(b),
                [&](int k, auto first) { f(k, row, first - before); });
  }
};

template <class T>
void softmax_rows_of(StreamRef stream, const T* x, T* y, int64_t rows, int64_t width, bool log, Addend<T> addend = {}) {
  constexpr int kPack = device::pack_size<T>();
  const auto launch = [&]<bool kWhole>(int64_t most) {
    spread_rows<kPack, sizeof(T) == 8>(stream, rows, most, [&]<int kLanes, int kKeep>(device::Blocks grid) {
      device::block_kernel<NoShared>(stream, grid,
                                     SoftmaxRows<T, kWhole, kLanes, kKeep>{x, y, rows, width, log, addend});
    });
  };
  if (width % kPack == 0 && device::is_pack_aligned<kPack>(x) && device::is_pack_aligned<kPack>(y) &&
      device::is_pack_aligned<kPack>(addend.data))
    return launch.template operator()<true>(width);
  launch.template operator()<false>((width + 2 * kPack - 2) / kPack * kPack);
}

template <bool kLog>
class Softmax : public Op {
 public:
  explicit Softmax(const NodeInfo& node) : axis_(node) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const AxisRows rows = axis_.rows_of(x.shape);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    if (rows.inner != 1) return softmax_middle(context.stream(), x, rows, kLog, y);
    dispatch(FloatList{}, x.type, [&]<class T> {
      softmax_rows_of(context.stream(), x.as<const T>(), y.as<T>(), rows.outer, rows.width, kLog);
    });
  }

 private:
  SoftmaxAxis axis_;
};

// softmax(data + bias) over all dimensions from the axis on. The bias has fewer rows: each serves a group of
// neighbouring rows, or they take turns.
class BiasSoftmax : public Op {
 public:
  explicit BiasSoftmax(const NodeInfo& node)
      : axis_(node.get_int("axis", 1)), neighbours_(node.get_int("is_inner_broadcast", 0) != 0) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &bias = context.input(1);
    require(x.type == bias.type, "data has type ", device::name(x.type), ", bias ", device::name(bias.type));
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    require(fits(bias.shape, x.shape, axis), "bias ", bias.shape.str(), " does not fit data ", x.shape.str(),
            " from axis ", axis, " on with is_inner_broadcast=", int(neighbours_));
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    const int64_t rows = x.shape.count(0, axis), width = x.shape.count(axis, rank), bias_rows = bias.count() / width;
    dispatch(FloatList{}, x.type, [&]<class T> {
      const device::Divider group(neighbours_ ? rows / bias_rows : 1, rows), turns(bias_rows, rows);
      softmax_rows_of(context.stream(), x.as<const T>(), y.as<T>(), rows, width, false,
                      Addend<T>{bias.as<const T>(), group, turns});
    });
  }

 private:
  // It has all dimensions from the axis on. Of those before the axis it has the first ones if neighbours share a row,
  // the last ones if they take turns, and is broadcast along the others.
  bool fits(const Shape& bias, const Shape& x, int axis) const {
    if (!broadcasts_to(bias, x)) return false;
    const int lead = x.rank() - bias.rank();
    bool changed = false;  // from dimensions that are there to others, or the other way round
    for (int i = 0; i < x.rank(); ++i) {
      const bool there = i >= lead && bias[i - lead] == x[i];
      if (i >= axis && !there) return false;
      if (i >= axis || x[i] == 1) continue;
      if (changed && there == neighbours_) return false;
      changed |= there != neighbours_;
    }
    return true;
  }

  int64_t axis_;
  bool neighbours_;
};

}  // namespace

void log_softmax(StreamRef stream, const Tensor& x, int axis, const Tensor& y) {
  if (x.count() == 0) return;
  const int rank = x.shape.rank();
  const int64_t outer = x.shape.count(0, axis), width = x.shape[axis], inner = x.shape.count(axis + 1, rank);
  if (inner != 1) return softmax_middle(stream, x, {outer, width, inner}, true, y);
  dispatch(FloatList{}, x.type,
           [&]<class T> { softmax_rows_of(stream, x.as<const T>(), y.as<T>(), outer, width, true); });
}

std::vector<OpRow> softmax_rows() {
  return {
      {.name = "Softmax", .since = 1, .types = {in(0, kFloats)}, .make = make<Softmax<false>>, .may_reuse = {{0, 0}}},
      {.name = "LogSoftmax", .since = 1, .types = {in(0, kFloats)}, .make = make<Softmax<true>>, .may_reuse = {{0, 0}}},
      {.domain = kMicrosoft,
       .name = "BiasSoftmax",
       .since = 1,
       .until = 1,
       .types = {in(0, kFloats), in(1, kFloats)},
       .make = make<BiasSoftmax>,
       .may_reuse = {{0, 0}}},
  };
}

}  // namespace encore::ops
