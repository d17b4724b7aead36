#include "ops/norm/normed_embeddings.h"

#include <cmath>

#include "device/divide.h"
#include "device/prefetch.h"
#include "ops/dispatch.h"
#include "ops/norm/rows.h"

namespace encore::ops {
namespace {

using device::Compute;
using device::Divider;
using device::FaultRef;
using device::Pack;
using device::PerThread;

template <class T, class How>
struct NormalizeEmbeddings {
  using Teams = RowTeams<T, How>;
  using C = Compute<T>;
  using Shared = typename Teams::Shared;
  using Block = device::Block<Shared>;
  using Index = typename Teams::Index;
  static constexpr int kPack = How::kPack, kMaxThreads = Teams::kMaxThreads;

  struct Term {
    const T* table;
    int64_t count;
    Indices ids;
    Divider by_repeats;
    C factor;
  };
  // The rows of a thread's token.
  struct Token {
    const T* rows[kMostEmbeddings];
  };

  Term terms[kMostEmbeddings];
  FloatsOr<T> gamma, beta;
  T *sum, *y;
  int64_t rows, width;
  C per_value, epsilon;
  bool centred, rounds, counts_from_end;
  FaultRef fault;

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const Teams teams(b, y, y, rows, width);
    PerThread<typename Teams::template KeptAs<C>, kMaxThreads> kept;
    PerThread<Token, kMaxThreads> tokens;
    const auto each_pack = [&](int t, auto f) {
      teams.each(t, [&](int k, Index first) {
        if constexpr (How::kKeep == 0) read(tokens[t], kept[t].at[k], first);
        f(kept[t].at[k], first);
      });
    };
    auto total = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          C all = 0;
          if (!teams.has_row(t)) return all;
          if (b.index() == 0)
            teams.each(t, [&](int, Index first) {
              device::prefetch(gamma.address(first));
              if (beta.data) device::prefetch(beta.address(first));
            });
          tokens[t] = token(teams.index(t));
          if constexpr (How::kKeep != 0)  // all are asked for before the first is needed
            teams.each(t, [&](int k, Index first) { read(tokens[t], kept[t].at[k], first); });
          each_pack(t, [&](const C(&values)[kPack], Index first) {
            UNROLL for (int j = 0; j < kPack; ++j) all += values[j];
            if (sum) store(sum + teams.index(t) * width + first, [&](int j) { return values[j]; });
          });
          return all;
        },
        Plus());
    auto squares = Teams::Together::reduce(
        b, C(0),
        [&](int t) {
          const C mean = mean_of(total[t]);
          C all = 0;
          each_pack(t, [&](const C(&values)[kPack], Index) {
            UNROLL for (int j = 0; j < kPack; ++j) all += (values[j] - mean) * (values[j] - mean);
          });
          return all;
        },
        Plus());
    b.threads([&](int t, Shared&) {
      const C mean = mean_of(total[t]), scale = C(1) / std::sqrt(squares[t] * per_value + epsilon);
      each_pack(t, [&](const C(&values)[kPack], Index first) {
        const auto factors = gamma.template floats<kPack>(gamma.template raw<kPack>(first));
        Pack<float, kPack> offsets{};
        if (beta.data) offsets = beta.template floats<kPack>(beta.template raw<kPack>(first));
        store(y + teams.index(t) * width + first,
              [&](int j) { return (values[j] - mean) * scale * C(factors.at[j]) + C(offsets.at[j]); });
      });
    });
  }

 private:
  DEVICE_FN C mean_of(C total) const { return centred ? total * per_value : C(0); }
  DEVICE_FN C rounded(C value) const { return rounds ? C(T(value)) : value; }

  DEVICE_FN void read(const Token& token, C (&values)[kPack], int64_t first) const {
    Pack<T, kPack> packs[kMostEmbeddings];
    UNROLL for (int i = 0; i < kMostEmbeddings; ++i) {
      packs[i] = {};
      if (token.rows[i]) packs[i] = device::load_pack<kPack>(token.rows[i] + first, true);
    }
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = rounded(C(packs[0].at[j]) * terms[0].factor);
    UNROLL for (int i = 1; i < kMostEmbeddings; ++i) {
      if (!token.rows[i]) break;
      UNROLL for (int j = 0; j < kPack; ++j) values[j] =
          rounded(values[j] + rounded(C(packs[i].at[j]) * terms[i].factor));
    }
  }

  // All ids are asked for before the first is looked at.
  DEVICE_FN Token token(int64_t row) const {
    int64_t ids[kMostEmbeddings] = {};
    UNROLL for (int i = 0; i < kMostEmbeddings; ++i) {
      const Term& term = terms[i];
      if (!term.table) continue;
      term.by_repeats(row, ids[i]);
      if (term.ids.data) ids[i] = term.ids[ids[i]];
    }
    Token token;
    UNROLL for (int i = 0; i < kMostEmbeddings; ++i) token.rows[i] =
        terms[i].table ? picked(terms[i], ids[i]) : nullptr;
    return token;
  }
  DEVICE_FN const T* picked(const Term& term, int64_t id) const {
    int64_t at = id;
    if (term.ids.data) {
      if (counts_from_end || (id >= 0 && id < term.count)) {
        at = fault.checked_index(id, term.count);
      } else {
        fault.report(device::FaultKind::index_out_of_range, id, term.count);
        at = 0;
      }
    }
    return term.table + at * width;
  }
  template <class F>
  DEVICE_FN static void store(T* to, F value) {
    Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(value(j));
    device::store_pack(to, out, true);
  }
};

}  // namespace

void normalize_embeddings(Context& context, const NormedEmbeddings& norm, Type type) {
  if (norm.rows == 0 || norm.width == 0) return;
  dispatch(TypeList<float, Half, BFloat16>{}, type, [&]<class T>() {
    using C = Compute<T>;
    constexpr int kWide = device::pack_size<T>();
    bool whole = norm.width % kWide == 0;
    const auto is_aligned = [](const void* data) {
      return device::is_pack_aligned<kWide>(static_cast<const T*>(data));
    };
    for (const EmbeddingTerm& term : norm.terms) whole = whole && is_aligned(term.table);
    whole = whole && is_aligned(norm.sum) && is_aligned(norm.y) && FloatsOr<T>::has_packs(norm.gamma) &&
            (!norm.beta.data || FloatsOr<T>::has_packs(norm.beta));
    spread_over_teams<void, kWide,
                      true>(context.stream(), norm.rows, norm.width, whole, [&]<class How>(device::Blocks grid) {
      using Kernel = NormalizeEmbeddings<T, How>;
      Kernel kernel{
          {},          {norm.gamma},         {norm.beta},          static_cast<T*>(norm.sum), static_cast<T*>(norm.y),
          norm.rows,   norm.width,           C(1) / C(norm.width), C(norm.epsilon),           norm.centred,
          norm.rounds, norm.counts_from_end, context.fault()};
      for (int i = 0; i < kMostEmbeddings; ++i) {
        const EmbeddingTerm& term = norm.terms[size_t(i)];
        kernel.terms[i] = {static_cast<const T*>(term.table), term.count, term.ids, Divider(term.repeats, norm.rows),
                           C(term.factor)};
      }
      device::block_kernel<typename Kernel::Shared>(context.stream(), grid, kernel);
    });
  });
}

}  // namespace encore::ops
