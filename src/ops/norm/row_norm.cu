#include "ops/norm/row_norm.h"

#include <cmath>
#include <type_traits>

#include "device/divide.h"
#include "ops/dispatch.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::Pack;
using device::PerThread;

// X is the type of the values, V of scale and result, C what is computed in.
template <class X, class V, class C, bool kAdds, int kPack, int kLanes, int kKeep>
struct NormalizeRows {
  using Together = Team<kLanes>;
  static constexpr int kMaxThreads = Together::kMaxThreads;
  using Packs = Deal<kPack, kKeep>;
  using Kept = typename Packs::template Kept<C>;

  RowNorm norm;
  device::Divider by_skip_rows;

  // Two passes over the values, since the mean of the squares less the square of the mean cancels.
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    PerThread<Kept, kMaxThreads> kept;
    const C per_value = C(1) / C(norm.width);
    auto total = Together::reduce(
        b, C(0),
        [&](int t) {
          const Row row(*this, b, t);
          C all = 0;
          each(b, t, row, [&](int k, auto first) {
            row.load(kept[t].at[k], first);
            if (kAdds && row.sum) {
              Pack<X, kPack> out;
              UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = X(kept[t].at[k][j]);
              device::store_pack(row.sum + first, out, true);
            }
            UNROLL for (int j = 0; j < kPack; ++j) all += kept[t].at[k][j];
          });
          return all;
        },
        Plus());
    auto squares = Together::reduce(
        b, C(0),
        [&](int t) {
          const Row row(*this, b, t);
          const C mean = norm.centred ? total[t] * per_value : C(0);
          C all = 0;
          each(b, t, row, [&](int k, auto first) {
            if constexpr (kKeep == 0) row.load(kept[t].at[k], first);
            UNROLL for (int j = 0; j < kPack; ++j) {
              const C off = kept[t].at[k][j] - mean;
              all += off * off;
            }
          });
          return all;
        },
        Plus());
    b.threads([&](int t, NoShared&) {
      const Row row(*this, b, t);
      const C mean = norm.centred ? total[t] * per_value : C(0);
      const C scale = C(1) / std::sqrt(squares[t] * per_value + C(norm.epsilon));
      if (row.there && Together::lane(t) == 0) {
        write(norm.mean, row.index, mean);
        write(norm.inverse_deviation, row.index, scale);
      }
      const V* gammas = static_cast<const V*>(norm.gamma.data) + row.index * norm.gamma.step;
      const V* betas = static_cast<const V*>(norm.beta.data);
      if (betas) betas += row.index * norm.beta.step;
      V* y = static_cast<V*>(norm.y) + row.index * norm.width;
      each(b, t, row, [&](int k, auto first) {
        if constexpr (kKeep == 0) row.load(kept[t].at[k], first);
        const auto gamma = device::load_pack<kPack>(gammas + first, true);
        Pack<V, kPack> beta{};
        if (betas) beta = device::load_pack<kPack>(betas + first, true);
        Pack<V, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] =
            V((kept[t].at[k][j] - mean) * scale * C(gamma.at[j]) + C(beta.at[j]));
        device::store_pack(y + first, out, true);
      });
    });
  }

 private:
  struct Row {
    int64_t index;
    bool there;
    const X *x, *skip = nullptr, *bias = nullptr;
    X* sum = nullptr;

    DEVICE_FN Row(const NormalizeRows& kernel, const Block<NoShared>& b, int t) {
      const RowNorm& norm = kernel.norm;
      index = Together::index(b, t);
      there = index < norm.rows;
      x = static_cast<const X*>(norm.x) + index * norm.width;
      if constexpr (kAdds) {
        if (norm.skip) {
          int64_t skip_row;
          kernel.by_skip_rows(index, skip_row);
          skip = static_cast<const X*>(norm.skip) + skip_row * norm.width;
        }
        bias = static_cast<const X*>(norm.bias);
        if (norm.sum) sum = static_cast<X*>(norm.sum) + index * norm.width;
      }
    }
    DEVICE_FN void load(C (&values)[kPack], int64_t first) const {
      const auto own = device::load_pack<kPack>(x + first, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = C(own.at[j]);
      if (kAdds && skip) add(values, skip + first);
      if (kAdds && bias) add(values, bias + first);
    }
    DEVICE_FN static void add(C (&values)[kPack], const X* from) {
      const auto more = device::load_pack<kPack>(from, true);
      UNROLL for (int j = 0; j < kPack; ++j) values[j] += C(more.at[j]);
    }
  };

  template <class F>
  DEVICE_FN void each(const Block<NoShared>& b, int t, const Row& row, F f) const {
    if (row.there) Packs::each(norm.width, Together::lane(t), Together::size(b), f);
  }
  DEVICE_FN void write(void* statistics, int64_t row, C value) const {
    if (!statistics) return;
    if (norm.double_statistics)
      static_cast<double*>(statistics)[row] = value;
    else
      static_cast<float*>(statistics)[row] = float(value);
  }
};

template <class X, class V, bool kAdds, class C = Compute<X>>
void normalize(StreamRef stream, const RowNorm& norm) {
  constexpr int kWide = device::pack_size<X, V>();
  bool aligned = norm.width % kWide == 0;
  for (const void* x : {norm.x, norm.skip, norm.bias, static_cast<const void*>(norm.sum)})
    aligned &= device::is_pack_aligned<kWide>(static_cast<const X*>(x));
  for (const void* v : {norm.gamma.data, norm.beta.data, static_cast<const void*>(norm.y)})
    aligned &= device::is_pack_aligned<kWide>(static_cast<const V*>(v));
  const device::Divider by_skip_rows(norm.skip_rows, norm.rows);
  with_packs<kWide>(aligned, [&]<int kPack> {
    spread_rows<kPack, sizeof(C) == 8 || kAdds || !std::is_same_v<X, V>>(
        stream, norm.rows, norm.width, [&]<int kLanes, int kKeep>(device::Blocks grid) {
          device::block_kernel<NoShared>(stream, grid,
                                         NormalizeRows<X, V, C, kAdds, kPack, kLanes, kKeep>{norm, by_skip_rows});
        });
  });
}

// Calls f with the two types: the same, or a half type and float.
template <class F>
void dispatch_pair(Type x, Type gamma, F f) {
  if (x == gamma) {
    dispatch(FloatList{}, x, [&]<class T> { f.template operator()<T, T>(); });
  } else if (x == Type::f32) {
    dispatch(TypeList<Half, BFloat16>{}, gamma, [&]<class T> { f.template operator()<float, T>(); });
  } else {
    dispatch(TypeList<Half, BFloat16>{}, x, [&]<class T> { f.template operator()<T, float>(); });
  }
}

}  // namespace

bool can_normalize(Type x, Type gamma) {
  if (x == gamma) return kFloats.has(x);
  return (kHalves.has(x) && gamma == Type::f32) || (x == Type::f32 && kHalves.has(gamma));
}

void normalize_rows(StreamRef stream, const RowNorm& norm, Type x, Type gamma) {
  require(can_normalize(x, gamma), "values of type ", device::name(x), " with a scale of type ", device::name(gamma),
          " are not supported");
  if (norm.rows == 0 || norm.width == 0) return;
  if (norm.skip || norm.bias || norm.sum) {
    require(x == gamma, "a sum of type ", device::name(x), " with a scale of type ", device::name(gamma),
            " is not supported");
    if (norm.strict && x == Type::f32) return normalize<float, float, true, double>(stream, norm);
    dispatch(TypeList<float, Half, BFloat16>{}, x, [&]<class T> { normalize<T, T, true>(stream, norm); });
  } else {
    dispatch_pair(x, gamma, [&]<class X, class V> { normalize<X, V, false>(stream, norm); });
  }
}

}  // namespace encore::ops
