// Routing: a warp finds a token's experts one after the other, each the best below the one before. One block then
// counts rows by experts and puts them in their places.
#include "ops/moe/route.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/divide.h"
#include "device/transform.h"
#include "device/warp.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Divider;
using device::Pack;
using device::PerThread;
using device::Warp;

constexpr int kThreads = 1024, kRouteThreads = 128;
// Tokens which the block that puts rows in their places routes, too.
constexpr int64_t kFewTokens = 64;

// A logit and its expert as a number that is larger the better they are: NaN is worst, of equals the first is best.
DEVICE_FN uint64_t rank_of(float logit, int expert) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.f);  // one zero
  uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (logit != logit) order = 0;
  return uint64_t(order) << 32 | uint32_t(~uint32_t(expert));
}
DEVICE_FN int expert_of(uint64_t rank) { return int(~uint32_t(rank)); }

template <class T>
struct Router {
  const T *logits, *gates;
  float* weights;
  int* chosen_experts;
  int64_t tokens;
  int experts, chosen;
  bool normalize, sparse_mixer;

  DEVICE_FN void route(const Warp& warp, int64_t token) const {
    const T* const row = logits + token * experts;
    PerThread<uint64_t, 32> best;
    PerThread<float, 32> sum;
    uint64_t below = ~uint64_t(0);
    float top = 0, total = 0;
    int first = -1;
    for (int i = 0; i < chosen; ++i) {
      warp.lanes([&](int lane) {
        uint64_t most = 0;
        for (int e = lane; e < experts; e += 32) {
          const uint64_t rank = rank_of(float(row[e]), e);
          most = rank < below && rank > most ? rank : most;
        }
        best[lane] = most;
      });
      warp.template reduce_columns<1>([&](int lane) -> uint64_t& { return best[lane]; },
                                      [](uint64_t a, uint64_t b) { return a > b ? a : b; });
      below = best[0];
      const int expert = expert_of(below);
      const float logit = float(row[expert]);
      if (i == 0) top = logit;
      if (i == 0 || sparse_mixer) {  // the mixer weighs each expert among those that are close to it
        warp.lanes([&](int lane) {
          float all = 0;
          for (int e = lane; e < experts; e += 32) {
            const float other = float(row[e]);
            if (sparse_mixer && (e == first || logit - other > 0.02f * larger(other < 0 ? -other : other, logit)))
              continue;
            all += std::exp(other - logit);
          }
          sum[lane] = all;
        });
        warp.template reduce_columns<1>([&](int lane) -> float& { return sum[lane]; },
                                        [](float a, float b) { return a + b; });
        total = sum[0];
      }
      first = i == 0 ? expert : first;
      const float share = sparse_mixer ? 1.f : std::exp(logit - top);
      warp.lanes([&](int lane) {
        if (lane != 0) return;
        chosen_experts[token * chosen + i] = expert;
        // Where a logit is NaN or infinite, no expert counts.
        weights[token * chosen + i] = gates ? float(gates[token * experts + expert]) : total > 0 ? share / total : 0.f;
      });
    }
    if (!normalize || sparse_mixer) return;
    warp.lanes([&](int lane) {
      if (lane != 0) return;
      float* const own = weights + token * chosen;
      float all = 0;
      for (int i = 0; i < chosen; ++i) all += own[i];
      if (!(all > 1e-6f)) return;
      for (int i = 0; i < chosen; ++i) own[i] /= all;
    });
  }

 private:
  DEVICE_FN static float larger(float a, float b) { return a > b ? a : b; }
};

template <class T>
struct Route {
  struct Shared {
    int nothing;
  };
  Router<T> router;
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    device::for_each_warp(b, [&](const Warp& warp, Shared&) {
      const int64_t token = b.index() * (kRouteThreads / 32) + warp.index();
      if (token < router.tokens) router.route(warp, token);
    });
  }
};

struct Counted {
  int rows, tiles;
};
struct SumOfCounted {
  DEVICE_FN Counted operator()(Counted a, Counted b) const { return {a.rows + b.rows, a.tiles + b.tiles}; }
};

template <class T>
struct Arrange {
  struct Shared {
    int nothing;
  };
  Router<T> router;
  bool routes;
  Arrangement to;
  int* counts;  // of rows, by experts
  int* ranks;   // of rows, among their expert's

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int experts = router.experts;
    b.threads([&](int t, Shared&) {
      for (int e = t; e < experts; e += kThreads) counts[e] = 0;
    });
    if (routes)
      device::for_each_warp(b, [&](const Warp& warp, Shared&) {
        for (int64_t token = warp.index(); token < router.tokens; token += kThreads / 32) router.route(warp, token);
      });
    b.threads([&](int t, Shared&) {
      for (int64_t row = t; row < to.rows; row += kThreads)
        ranks[row] = device::atomic_add(counts + to.experts[row], 1);
    });
    Counted before{};
    for (int first = 0; first < experts; first += kThreads) {
      PerThread<Counted, kThreads> base;
      const Counted own = b.scan(
          base, Counted{},
          [&](int t) {
            const int rows = first + t < experts ? counts[first + t] : 0;
            return Counted{rows, (rows + to.tile_rows - 1) / to.tile_rows};
          },
          SumOfCounted());
      b.threads([&](int t, Shared&) {
        const int expert = first + t;
        if (expert >= experts) return;
        const Counted at = SumOfCounted()(before, base[t]);
        to.offsets[expert] = at.rows;
        int tile = at.tiles;
        for (int place = 0; place < counts[expert]; place += to.tile_rows, ++tile) {
          to.tile_expert[tile] = expert;
          to.tile_place[tile] = at.rows + place;
        }
      });
      before = SumOfCounted()(before, own);
    }
    b.threads([&](int t, Shared&) {
      if (t == 0) {
        to.offsets[experts] = before.rows;
        *to.tiles = before.tiles;
      }
      for (int64_t row = t; row < to.rows; row += kThreads)
        to.sorted[to.offsets[to.experts[row]] + ranks[row]] = int(row);
    });
  }
};

template <class T>
struct Combine {
  static constexpr int kPack = device::pack_size<T>();
  const T* z;
  T* y;
  const float* weights;
  Divider by_packs;
  int width, chosen;
  bool aligned;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t pack;
    const int64_t token = by_packs(i, pack);
    const int first = int(pack) * kPack, count = width - first < kPack ? width - first : kPack;
    float sums[kPack] = {};
    for (int c = 0; c < chosen; ++c) {
      const int64_t row = token * chosen + c;
      const float weight = weights[row];
      const auto own = device::load_pack<kPack>(z + row * width + first, aligned, count);
      if (weight == 0) continue;
      UNROLL for (int j = 0; j < kPack; ++j) sums[j] += weight * float(own.at[j]);
    }
    Pack<T, kPack> out;
    UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(sums[j]);
    device::store_pack(y + token * width + first, out, aligned, count);
  }
};

using Floats = TypeList<float, Half, BFloat16>;

}  // namespace

Arrangement arrange(Context& context, const Routing& r, int tile_rows) {
  Arrangement to;
  to.rows = checked_product(r.tokens, r.chosen);
  require(to.rows < (int64_t(1) << 31), r.tokens, " tokens for ", r.chosen,
          " experts each are too many rows; give fewer tokens at once");
  to.tile_rows = tile_rows;
  to.most_tiles = to.rows / tile_rows + std::min(to.rows, r.experts);
  const auto numbers = [&](int64_t count) { return static_cast<int*>(context.scratch(size_t(count) * sizeof(int))); };
  to.weights = static_cast<float*>(context.scratch(size_t(to.rows) * sizeof(float)));
  to.experts = numbers(to.rows);
  to.sorted = numbers(to.rows);
  to.offsets = numbers(r.experts + 1);
  to.tile_expert = numbers(to.most_tiles);
  to.tile_place = numbers(to.most_tiles);
  to.tiles = numbers(1);
  int *const counts = numbers(r.experts), *const ranks = numbers(to.rows);
  dispatch(Floats{}, r.logits.type, [&]<class T> {
    const Router<T> router{r.logits.as<const T>(),
                           r.gates ? r.gates->as<const T>() : nullptr,
                           to.weights,
                           to.experts,
                           r.tokens,
                           int(r.experts),
                           int(r.chosen),
                           r.normalize,
                           r.sparse_mixer};
    const bool few = r.tokens <= kFewTokens;
    constexpr int kWarps = kRouteThreads / 32;
    if (!few)
      device::block_kernel<typename Route<T>::Shared>(
          context.stream(), {(r.tokens + kWarps - 1) / kWarps, kRouteThreads}, Route<T>{router});
    device::block_kernel<typename Arrange<T>::Shared>(context.stream(), {1, kThreads},
                                                      Arrange<T>{router, few, to, counts, ranks});
  });
  return to;
}

void combine(Context& context, const Arrangement& a, int64_t chosen, const Tensor& y, const void* z) {
  dispatch(Floats{}, y.type, [&]<class T> {
    constexpr int kPack = Combine<T>::kPack;
    const int64_t width = y.shape.back(), packs = (width + kPack - 1) / kPack;
    const int64_t count = checked_product(a.rows / chosen, packs);
    const T* const from = static_cast<const T*>(z);
    const bool aligned =
        width % kPack == 0 && device::is_pack_aligned<kPack>(y.as<const T>()) && device::is_pack_aligned<kPack>(from);
    device::for_each_index(
        context.stream(), count,
        Combine<T>{from, y.as<T>(), a.weights, Divider(packs, count), int(width), int(chosen), aligned});
  });
}

}  // namespace encore::ops
