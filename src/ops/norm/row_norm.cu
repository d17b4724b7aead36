#include "ops/norm/row_norm.h"

#include <bit>
#include <type_traits>

#include "device/divide.h"
#include "ops/elementwise/digits.h"
#include "ops/norm/few_row_norm.h"
#include "ops/norm/row_norm_types.h"
#include "ops/norm/unaligned_norm.h"
#include "ops/norm/unaligned_rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Pack;
using device::PerThread;

// X is the type of the values, V of scale and bias, Y of results, C what is computed in.
template <class X, class V, class Y, class C, bool kAdds, class How>
struct NormalizeRows {
  static_assert(!How::kStaged || (std::is_same_v<X, V> && std::is_same_v<X, Y>));
  using Teams = RowTeams<X, How>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = Teams::kPack, kMaxThreads = Teams::kMaxThreads;
  using Kept = std::conditional_t<kAdds, typename Teams::template KeptAs<C>, typename Teams::Kept>;
  // Scale and bias of a thread's places.
  struct Asked {
    typename Teams::template Asked<V> gamma, beta;
  };

  RowNorm norm;
  device::Divider by_skip_rows;
  C per_value, epsilon;  // 1 / width

  // Two passes over the values, since the mean of the squares less the square of the mean cancels; one where nothing is
  // centred.
  DEVICE_FN void operator()(Block& b, const Shared& s) const {
    const X* const x = static_cast<const X*>(norm.x);
    X* own_y = const_cast<X*>(x);  // not asked for where results have another type
    if constexpr (std::is_same_v<X, Y>) own_y = static_cast<X*>(norm.y);
    const Teams teams(b, x, own_y, norm.rows, norm.width);
    PerThread<Kept, kMaxThreads> kept;
    PerThread<Asked, kMaxThreads> asked;
    teams.bring(b);
    auto total = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const Row row(*this, teams, b, s, t);
          if constexpr (Teams::kAsksAhead) ask(teams, row, t, asked[t]);
          if constexpr (How::kKeep != 0) read(teams, row, b, s, t, kept[t]);
          C all = 0;
          const auto add_up = [&](auto of) {
            teams.each_slot(t, [&](int k, Index first) {
              C values[kPack];
              row.take(values, kept[t].at[k], first);
              UNROLL for (int j = 0; j < kPack; ++j) all += of(values[j]);
            });
          };
          if (norm.centred)
            add_up([](C v) { return v; });
          else
            add_up([](C v) { return v * v; });
          if (kAdds && norm.sum)
            teams.each(t, [&](int k, Index first) {
              C values[kPack];
              row.take(values, kept[t].at[k], first);
              Pack<X, kPack> out;
              UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = X(values[j]);
              device::store_pack(static_cast<X*>(norm.sum) + row.index * norm.width + first, out, true);
            });
          return all;
        },
        Plus());
    auto squares = total;
    if (norm.centred)
      squares = Teams::Together::reduce(
          b, C(0),
          [&](int t) {
            const Row row(*this, teams, b, s, t);
            const C mean = total[t] * per_value;
            C all = 0;
            teams.each(t, [&](int k, Index first) {
              C values[kPack];
              row.take(values, kept[t].at[k], first);
              teams.fill(t, values, k, mean);
              UNROLL for (int j = 0; j < kPack; ++j) all += (values[j] - mean) * (values[j] - mean);
            });
            return all;
          },
          Plus());
    b.threads([&](int t, Shared& s) {
      const Row row(*this, teams, b, s, t);
      const C mean = norm.centred ? total[t] * per_value : C(0);
      const C scale = inverse_root_for<X>(squares[t] * per_value + epsilon);
      if (teams.has_row(t) && Teams::Together::lane(t) == 0) {
        write(norm.mean, row.index, mean);
        write(norm.inverse_deviation, row.index, scale);
      }
      const V *const gammas = row.gammas(*this), *const betas = row.betas(*this);
      Y* y;
      if constexpr (std::is_same_v<X, Y>)
        y = teams.target(b, s, t);
      else
        y = static_cast<Y*>(norm.y) + row.index * norm.width;
      const auto pack = [&](const auto& ahead, const V* from, int k, Index first) {
        if constexpr (Teams::kAsksAhead)
          return std::bit_cast<Pack<V, kPack>>(ahead.at[k]);
        else
          return teams.load(t, from, k, first);
      };
      const auto put = [&](auto offset_of) {
        teams.each(t, [&](int k, Index first) {
          C values[kPack];
          row.take(values, kept[t].at[k], first);
          const auto gamma = pack(asked[t].gamma, gammas, k, first);
          const auto beta = offset_of(k, first);
          Pack<Y, kPack> out;
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] =
              Y((values[j] - mean) * scale * C(gamma.at[j]) + C(beta.at[j]));
          teams.store(t, y, k, first, out);
        });
      };
      if (betas)
        put([&](int k, Index first) { return pack(asked[t].beta, betas, k, first); });
      else
        put([&](int, Index) { return Pack<C, kPack>{}; });
    });
    if constexpr (std::is_same_v<X, Y>) teams.take_back(b);
    if constexpr (How::kWhole)
      if (norm.behind) add_behind(b, teams.index(0));
  }

 private:
  struct Row {
    int64_t index;
    const X *x, *skip = nullptr, *bias = nullptr;

    DEVICE_FN Row(const NormalizeRows& kernel, const Teams& teams, const Block& b, const Shared& s, int t)
        : index(teams.index(t)), x(teams.source(b, s, t)) {
      if constexpr (kAdds) {
        const RowNorm& norm = kernel.norm;
        if (norm.skip) {
          int64_t skip_row;
          kernel.by_skip_rows(index, skip_row);
          skip = static_cast<const X*>(norm.skip) + skip_row * norm.width;
        }
        bias = static_cast<const X*>(norm.bias);
      }
    }
    DEVICE_FN const V* gammas(const NormalizeRows& kernel) const {
      return static_cast<const V*>(kernel.norm.gamma.data) + index * kernel.norm.gamma.step;
    }
    DEVICE_FN const V* betas(const NormalizeRows& kernel) const {
      const V* const all = static_cast<const V*>(kernel.norm.beta.data);
      return all ? all + index * kernel.norm.beta.step : nullptr;
    }
    template <class K>
    DEVICE_FN void take(C (&values)[kPack], const K& kept, int64_t first) const {
      Teams::take(values, kept, x + first);
      if constexpr (kAdds && How::kKeep == 0) add(values, first);
    }
    DEVICE_FN void add(C (&values)[kPack], int64_t first) const {
      if (skip) add(values, device::load_pack<kPack>(skip + first, true));
      if (bias) add(values, device::load_pack<kPack>(bias + first, true));
    }
    DEVICE_FN static void add(C (&values)[kPack], const Pack<X, kPack>& more) {
      UNROLL for (int j = 0; j < kPack; ++j) values[j] += C(more.at[j]);
    }
  };

  DEVICE_FN void ask(const Teams& teams, const Row& row, int t, Asked& asked) const {
    teams.ask(t, row.gammas(*this), asked.gamma);
    if (norm.beta.data) teams.ask(t, row.betas(*this), asked.beta);
  }
  // Reads what is kept, and adds up; what there is room for is asked for at once.
  DEVICE_FN void read(const Teams& teams, const Row& row, Block& b, const Shared& s, int t, Kept& kept) const {
    if constexpr (kAdds && Teams::kAsksAhead) {
      typename Teams::template Asked<X> skip = {}, bias = {};
      if (row.skip) teams.ask(t, row.skip, skip);
      if (row.bias) teams.ask(t, row.bias, bias);
      teams.read(b, s, t, kept, X(0.f));
      teams.each(t, [&](int k, Index) {
        Row::add(kept.at[k], std::bit_cast<Pack<X, kPack>>(skip.at[k]));
        Row::add(kept.at[k], std::bit_cast<Pack<X, kPack>>(bias.at[k]));
      });
    } else {
      teams.read(b, s, t, kept, X(0.f));
      if constexpr (kAdds) teams.each(t, [&](int k, Index first) { row.add(kept.at[k], first); });
    }
  }

  // To what the block has written, which is near. The other phases need no registers for it.
  DEVICE_FN void add_behind(Block& b, int64_t first_row) const {
    b.threads([&](int t, const Shared&) {
      const int rows = b.size() / Teams::Together::size(b);
      const int64_t left = norm.rows - first_row;
      Y* const y = static_cast<Y*>(norm.y) + first_row * norm.width;
      const Y* const behind = static_cast<const Y*>(norm.behind) + first_row * norm.width;
      const Index count = Index(rows < left ? rows : left) * Index(norm.width);
      NO_UNROLL for (Index i = t * kPack; i < count; i += b.size() * kPack) {
        auto some = device::load_pack<kPack>(y + i, true);
        const auto more = device::load_pack<kPack>(behind + i, true);
        UNROLL for (int j = 0; j < kPack; ++j) some.at[j] = AddBehind()(some.at[j], more.at[j]);
        device::store_pack(y + i, some, true);
      }
    });
  }

  DEVICE_FN void write(void* statistics, int64_t row, C value) const {
    if (!statistics) return;
    if (norm.double_statistics)
      static_cast<double*>(statistics)[row] = value;
    else
      static_cast<float*>(statistics)[row] = float(value);
  }
};

template <class X, class V, class Y, bool kAdds, class C = Compute<X>>
void normalize(StreamRef stream, const RowNorm& norm) {
  constexpr int kPack = device::pack_size<X, V>();
  const device::Divider by_skip_rows(norm.skip_rows, norm.rows);
  constexpr bool kPlain = std::is_same_v<X, V> && !kAdds;
  const bool whole = is_whole<X, V, Y>(norm);
  const auto launch = [&]<class How>(device::Blocks grid) {
    using Kernel = NormalizeRows<X, V, Y, C, kAdds, How>;
    device::block_kernel<typename Kernel::Shared>(stream, grid,
                                                  Kernel{norm, by_skip_rows, C(1) / C(norm.width), C(norm.epsilon)});
  };
  if constexpr (kPlain && sizeof(C) != 8) {
    const int64_t packs = most_packs<X>(norm.width);
    if (!whole && are_aligned_alike(static_cast<const X*>(norm.x), static_cast<const X*>(norm.y)) &&
        norm.width > 8 * kStagedSlots<X> && packs <= 1024)
      return launch.template operator()<Unaligned<0, 4>>({norm.rows, int((packs + 127) / 128 * 32)});
  }
  spread_over_teams<std::conditional_t<kPlain, X, void>, kPack, !kPlain || sizeof(C) == 8>(stream, norm.rows,
                                                                                           norm.width, whole, launch);
}

bool is_whole(const RowNorm& norm, const NormTypes& types) {
  bool whole = false;
  dispatch_norm(norm, types, [&]<class X, class V, class Y, bool kAdds> { whole = is_whole<X, V, Y>(norm); });
  return whole;
}

}  // namespace

bool can_normalize(const NormTypes& types) {
  const auto& [x, gamma, y] = types;
  if (y != gamma) return kHalves.has(x) && gamma == Type::f32 && y == x;
  if (x == gamma) return kFloats.has(x);
  return (kHalves.has(x) && gamma == Type::f32) || (x == Type::f32 && kHalves.has(gamma));
}

void normalize_rows(StreamRef stream, const RowNorm& norm, const NormTypes& types) {
  const auto& [x, gamma, y] = types;
  require(can_normalize(types) && (!adds(norm) || x == y), "values of type ", device::name(x), " with a scale of type ",
          device::name(gamma), " and results of type ", device::name(y), " are not supported");
  if (norm.rows == 0 || norm.width == 0) return;
  if (norm.behind && !is_whole(norm, types)) {
    RowNorm alone = norm;
    alone.behind = nullptr;
    normalize_rows(stream, alone, types);
    return dispatch(FloatList{}, y, [&]<class Y> {
      Y* const rows = static_cast<Y*>(norm.y);
      device::transform(stream, norm.rows * norm.width, rows, AddBehind(), rows, static_cast<const Y*>(norm.behind));
    });
  }
  const bool in_double = adds(norm) && norm.strict && x == Type::f32;
  if (!in_double && normalize_few_rows(stream, norm, types)) return;
  if (norm.ahead.gamma) {
    RowNorm rest = norm;
    rest.x = norm.y;
    rest.ahead = {};
    const RowNorm ahead{.rows = norm.rows,
                        .width = norm.width,
                        .x = norm.x,
                        .gamma = {norm.ahead.gamma},
                        .y = norm.y,
                        .centred = false,
                        .epsilon = norm.ahead.epsilon};
    normalize_rows(stream, ahead, types);
    return normalize_rows(stream, rest, types);
  }
  if (in_double) return normalize<float, float, float, true, double>(stream, norm);
  if (normalize_unaligned_rows(stream, norm, types)) return;
  dispatch_norm(norm, types, [&]<class X, class V, class Y, bool kAdds> { normalize<X, V, Y, kAdds>(stream, norm); });
}

}  // namespace encore::ops
