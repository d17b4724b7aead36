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

// X is the type of the values, V of scale and result, C what is computed in. If not all rows are made of whole packs
// (kWhole), packs lie where addresses of x are aligned, and the first and the last of a row may reach beyond it.
template <class X, class V, class C, bool kAdds, bool kWhole, int kLanes, int kKeep>
struct NormalizeRows {
  using Together = Team<kLanes>;
  static constexpr int kPack = device::pack_size<X, V>(), kMaxThreads = Together::kMaxThreads;
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
              row.store(row.sum, first, out);
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
              const C off = row.has(first + j) ? kept[t].at[k][j] - mean : C(0);
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
        const auto gamma = row.values(gammas, first);
        Pack<V, kPack> beta{};
        if (betas) beta = row.values(betas, first);
        Pack<V, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) out.at[j] =
            V((kept[t].at[k][j] - mean) * scale * C(gamma.at[j]) + C(beta.at[j]));
        row.store(y, first, out);
      });
    });
  }

 private:
  struct Row {
    int64_t index, width;
    bool there;
    const X *x, *skip = nullptr, *bias = nullptr;
    X* sum = nullptr;

    DEVICE_FN Row(const NormalizeRows& kernel, const Block<NoShared>& b, int t) {
      const RowNorm& norm = kernel.norm;
      index = Together::index(b, t);
      width = norm.width;
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
    DEVICE_FN bool has(int64_t i) const { return kWhole || uint64_t(i) < uint64_t(width); }
    // Values of a row from `first` on; those beyond its ends are 0.
    template <class T>
    DEVICE_FN Pack<T, kPack> values(const T* row, int64_t first) const {
      if (has(first) && has(first + kPack - 1))
        return device::load_pack<kPack>(row + first, kWhole || device::is_pack_aligned<kPack>(row + first));
      Pack<T, kPack> pack;
      UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = has(first + j) ? row[first + j] : T(0.f);
      return pack;
    }
    template <class T>
    DEVICE_FN void store(T* row, int64_t first, const Pack<T, kPack>& pack) const {
      if (has(first) && has(first + kPack - 1))
        return device::store_pack(row + first, pack, kWhole || device::is_pack_aligned<kPack>(row + first));
      UNROLL for (int j = 0; j < kPack; ++j) {
        if (has(first + j)) row[first + j] = pack.at[j];
      }
    }
    DEVICE_FN void load(C (&into)[kPack], int64_t first) const {
      const auto own = values(x, first);
      UNROLL for (int j = 0; j < kPack; ++j) into[j] = C(own.at[j]);
      if (kAdds && skip) add(into, skip, first);
      if (kAdds && bias) add(into, bias, first);
    }
    DEVICE_FN void add(C (&into)[kPack], const X* row, int64_t first) const {
      const auto more = values(row, first);
      UNROLL for (int j = 0; j < kPack; ++j) into[j] += C(more.at[j]);
    }
  };

  template <class F>
  DEVICE_FN void each(const Block<NoShared>& b, int t, const Row& row, F f) const {
    if (!row.there) return;
    const int before = kWhole ? 0 : int(reinterpret_cast<uintptr_t>(row.x) / sizeof(X) % kPack);
    Packs::each(norm.width + before, Together::lane(t), Together::size(b),
                [&](int k, auto first) { f(k, first - before); });
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
  constexpr int kPack = device::pack_size<X, V>();
  bool whole = norm.width % kPack == 0;
  for (const void* x : {norm.x, norm.skip, norm.bias, static_cast<const void*>(norm.sum)})
    whole &= device::is_pack_aligned<kPack>(static_cast<const X*>(x));
  for (const void* v : {norm.gamma.data, norm.beta.data, static_cast<const void*>(norm.y)})
    whole &= device::is_pack_aligned<kPack>(static_cast<const V*>(v));
  const device::Divider by_skip_rows(norm.skip_rows, norm.rows);
  constexpr bool kFew = sizeof(C) == 8 || kAdds || !std::is_same_v<X, V>;
  const auto launch = [&]<bool kWhole>(int64_t most) {
    spread_rows<kPack, kFew || !kWhole>(stream, norm.rows, most, [&]<int kLanes, int kKeep>(device::Blocks grid) {
      device::block_kernel<NoShared>(stream, grid,
                                     NormalizeRows<X, V, C, kAdds, kWhole, kLanes, kKeep>{norm, by_skip_rows});
    });
  };
  if (whole) return launch.template operator()<true>(norm.width);
  launch.template operator()<false>((norm.width + 2 * kPack - 2) / kPack * kPack);
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
