// Softmax, LogSoftmax and com.microsoft's BiasSoftmax. A row of -inf, or one with NaN or +inf, gives NaN, as it does on
// the CPU.
#include <bit>
#include <cmath>
#include <optional>

#include "device/divide.h"
#include "device/larger.h"
#include "ops/dispatch.h"
#include "ops/norm/powers.h"
#include "ops/norm/softmax.h"
#include "ops/norm/softmax_short.h"
#include "ops/norm/unaligned_rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Pack;
using device::PerThread;

// How rows share those of an addend, which has [outer, inner] of their [outer, middle, inner].
struct RowSharing {
  int64_t outer = 1, middle = 1, inner = 1;
};
// Of what is added to x, whose rows are all dimensions from the axis on; none if it is not so.
std::optional<RowSharing> sharing_of(const Shape& addend, const Shape& x, int axis) {
  if (!shares_rows(addend.dims(), x.dims(), axis)) return std::nullopt;
  const int lead = x.rank() - addend.rank();
  RowSharing rows;
  for (int i = 0; i < axis; ++i) {
    const bool there = i >= lead && addend[i - lead] == x[i];
    (!there ? rows.middle : rows.middle > 1 ? rows.inner : rows.outer) *= x[i];
  }
  return rows;
}

// Added to rows before the softmax.
template <class T>
struct Addend {
  const T* data = nullptr;
  int64_t inner = 1;
  device::Divider by_outer, by_inner;
  bool zeros = false;  // are what rows become that have no number

  Addend() = default;
  Addend(const Tensor& addend, const RowSharing& rows, bool zeros)
      : data(addend.as<const T>()),
        inner(rows.inner),
        by_outer(rows.middle * inner, rows.outer * rows.middle * inner),
        by_inner(inner, rows.middle * inner),
        zeros(zeros) {}
  DEVICE_FN const T* of(int64_t row, int64_t width) const {
    int64_t rest, own;
    const int64_t outer = by_outer(row, rest);
    by_inner(rest, own);
    return data + (outer * inner + own) * width;
  }
};

// Rows whose values are neighbours. What is kept is the value and, after the second pass, its power unless `log`; where
// only halves are kept, powers are computed again.
template <class T, class How, bool kAdds>
struct SoftmaxRows {
  using Teams = RowTeams<T, How>;
  using C = Compute<T>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = Teams::kPack, kMaxThreads = Teams::kMaxThreads;
  using Kept = std::conditional_t<kAdds, typename Teams::template KeptAs<C>, typename Teams::Kept>;
  static constexpr bool kKeepsPowers = How::kKeep != 0 && std::is_same_v<Kept, typename Teams::template KeptAs<C>>;

  const T* x;
  T* y;
  int64_t rows, width;
  bool log;
  Addend<T> addend;

  DEVICE_FN void operator()(Block& b, const Shared& s) const {
    const Teams teams(b, x, y, rows, width);
    PerThread<Kept, kMaxThreads> kept;
    teams.bring(b);
    auto top = Teams::Together::reduce(
        b, kLowest<C>,
        [&](int t) {
          const Row row(*this, teams, b, s, t);
          if constexpr (How::kKeep != 0) {
            teams.read(b, s, t, kept[t], T(kLowest<C>));
            if constexpr (kAdds) teams.each(t, [&](int k, Index first) { row.add(kept[t].at[k], first); });
          }
          C most = kLowest<C>;
          teams.each_slot(t,
                          [&](int k, Index first) { most = LargerNumber()(most, row.largest(kept[t].at[k], first)); });
          return most;
        },
        LargerNumber());
    auto sum = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const Row row(*this, teams, b, s, t);
          C all = 0;
          const auto add_powers = [&](auto keeps) {
            teams.each_slot(t, [&](int k, Index first) {
              C values[kPack];
              row.take(values, kept[t].at[k], first);
              UNROLL for (int j = 0; j < kPack; ++j) {
                const C power = logs() ? power_of<T>(values[j] - top[t]) : power_below<T>(values[j], top[t]);
                all += power;
                if constexpr (kKeepsPowers)
                  if constexpr (decltype(keeps)::value) kept[t].at[k][j] = power;
              }
            });
          };
          if (logs())
            add_powers(std::false_type{});
          else
            add_powers(std::bool_constant<kKeepsPowers>{});
          return all;
        },
        Plus());
    b.threads([&](int t, Shared& s) {
      const Row row(*this, teams, b, s, t);
      T* y = teams.target(b, s, t);
      const auto write = [&](auto made) {
        teams.each(t, [&](int k, Index first) {
          C values[kPack];
          row.take(values, kept[t].at[k], first);
          Pack<T, kPack> out;
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(made(values[j]));
          teams.store(t, y, k, first, out);
        });
      };
      const C shift = top[t];
      if (logs()) {
        const C log_sum = std::log(sum[t]);
        write([&](C value) { return value - shift - log_sum; });
      } else {
        const C scale = C(1) / sum[t];
        bool is_zeros = false;
        if constexpr (kAdds) is_zeros = addend.zeros && sum[t] != sum[t];
        write([&](C value) { return is_zeros ? C(0) : (kKeepsPowers ? value : power_below<T>(value, shift)) * scale; });
      }
    });
    teams.take_back(b);
  }

 private:
  DEVICE_FN bool logs() const { return !kAdds && log; }

  struct Row {
    const T *x, *addend = nullptr;
    DEVICE_FN Row(const SoftmaxRows& kernel, const Teams& teams, const Block& b, const Shared& s, int t)
        : x(teams.source(b, s, t)) {
      if constexpr (kAdds) addend = kernel.addend.of(teams.index(t), kernel.width);
    }
    template <class V>
    DEVICE_FN void take(C (&values)[kPack], const V& kept, int64_t first) const {
      Teams::take(values, kept, x + first);
      if constexpr (kAdds && How::kKeep == 0) add(values, first);
    }
    // A NaN may be passed over: the sum will have it.
    template <class V>
    DEVICE_FN C largest(const V& kept, int64_t first) const {
      if constexpr (How::kKeep != 0 && device::kIsHalf<T> && kPack > 1 && std::is_same_v<V, typename Teams::Raw>)
        return C(device::largest_or_nan(std::bit_cast<Pack<T, kPack>>(kept)));
      C values[kPack], most = kLowest<C>;
      take(values, kept, first);
      UNROLL for (int j = 0; j < kPack; ++j) most = LargerNumber()(most, values[j]);
      return most;
    }
    DEVICE_FN void add(C (&values)[kPack], int64_t first) const {
      const auto pack = device::load_pack<kPack>(addend + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] += C(pack.at[j]);
    }
  };
};

template <class T, bool kAdds = false>
void softmax_rows_of(StreamRef stream, const T* x, T* y, int64_t rows, int64_t width, bool log, Addend<T> addend = {}) {
  constexpr int kPack = device::pack_size<T>();
  const bool whole = width % kPack == 0 && device::is_pack_aligned<kPack>(x) && device::is_pack_aligned<kPack>(y) &&
                     device::is_pack_aligned<kPack>(addend.data);
  using Staged = std::conditional_t<kAdds, void, T>;
  if constexpr (!kAdds && device::kIsHalf<T>)
    if (!whole && softmax_short_rows(stream, x, y, rows, width, log)) return;
  const auto launch = [&]<class How>(device::Blocks grid) {
    using Kernel = SoftmaxRows<T, How, kAdds>;
    device::block_kernel<typename Kernel::Shared>(stream, grid, Kernel{x, y, rows, width, log, addend});
  };
  if constexpr (!kAdds && sizeof(T) != 8) {
    const int64_t packs = most_packs<T>(width);
    const auto launch_unaligned = [&]<class How> {
      const int lanes = How::kLanes, threads = lanes ? 128 : int((packs + 127) / 128 * 32);
      launch.template operator()<How>({lanes ? (rows * lanes + threads - 1) / threads : rows, threads});
    };
    if (!whole && are_aligned_alike(x, y) && width > kStagedSlots<T>) {
      if (packs <= 8) return launch_unaligned.template operator()<Unaligned<4, 2>>();
      if (packs <= 32) return launch_unaligned.template operator()<Unaligned<8, 4>>();
      if (packs <= 256) return launch_unaligned.template operator()<Unaligned<32, 8>>();
      if (packs <= 1024) return launch_unaligned.template operator()<Unaligned<0, 4>>();
    }
  }
  spread_over_teams<Staged, kPack, kAdds || sizeof(T) == 8>(stream, rows, width, whole, launch);
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

// softmax(data + bias) over all dimensions from the axis on. Of those before it the bias has the first ones, so that
// neighbours share a row, or the last ones, so that they take turns.
class BiasSoftmax : public Op {
 public:
  explicit BiasSoftmax(const NodeInfo& node)
      : axis_(node.get_int("axis", 1)), neighbours_(node.get_int("is_inner_broadcast", 0) != 0) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &bias = context.input(1);
    require(x.type == bias.type, "data has type ", device::name(x.type), ", bias ", device::name(bias.type));
    const int rank = x.shape.rank(), axis = checked_axis(axis_, rank);
    const auto sharing = sharing_of(bias.shape, x.shape, axis);
    const bool fits = sharing && (neighbours_ ? sharing->inner : sharing->middle > 1 ? sharing->outer : 1) == 1;
    require(fits, "bias ", bias.shape.str(), " does not fit data ", x.shape.str(), " from axis ", axis,
            " on with is_inner_broadcast=", int(neighbours_));
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    dispatch(FloatList{}, x.type, [&]<class T> {
      softmax_rows_of<T, true>(context.stream(), x.as<const T>(), y.as<T>(), x.shape.count(0, axis),
                               x.shape.count(axis, rank), false, Addend<T>(bias, *sharing, false));
    });
  }

 private:
  int64_t axis_;
  bool neighbours_;
};

class MaskedSoftmax : public Op {
 public:
  explicit MaskedSoftmax(const NodeInfo& node) : zeros_(node.get_int(kZeros, 0) != 0) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &mask = context.input(1);
    require(shares_rows(mask.shape.dims(), x.shape.dims(), x.shape.rank() - 1), "mask ", mask.shape.str(),
            " does not fit scores ", x.shape.str());
    const Tensor y = context.output(0, x.shape);
    if (x.count() > 0) masked_softmax(context.stream(), x, &mask, zeros_, y);
  }

 private:
  bool zeros_;
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

void masked_softmax(StreamRef stream, const Tensor& scores, const Tensor* mask, bool zeros, const Tensor& y) {
  const int axis = scores.shape.rank() - 1;
  const int64_t rows = scores.shape.count(0, axis), width = scores.shape[axis];
  dispatch(FloatList{}, scores.type, [&]<class T> {
    const T* const x = scores.as<const T>();
    if (!mask) return softmax_rows_of(stream, x, y.as<T>(), rows, width, false);
    const Addend<T> addend(*mask, *sharing_of(mask->shape, scores.shape, axis), zeros);
    softmax_rows_of<T, true>(stream, x, y.as<T>(), rows, width, false, addend);
  });
}

bool shares_rows(std::span<const int64_t> addend, std::span<const int64_t> x, int axis) {
  if (addend.size() > x.size()) return false;
  const size_t lead = x.size() - addend.size();
  bool lacks = false, ends = false;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t of_addend = i < lead ? 1 : addend[i - lead];
    const bool there = of_addend == x[i] && x[i] != -1, is_of_row = i >= size_t(axis);
    if (!there && (of_addend != 1 || is_of_row || ends)) return false;
    if (x[i] == 1) continue;
    ends |= lacks && there && !is_of_row;
    lacks |= !there;
  }
  return true;
}

std::unique_ptr<Op> make_masked_softmax(const NodeInfo& node) { return std::make_unique<MaskedSoftmax>(node); }

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
