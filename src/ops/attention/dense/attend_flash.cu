// Attention of many heads or long sequences on tensor cores, as FlashAttention does it: a block has 64 queries of a
// head, 16 for each warp (attend_warp.h), and tiles of 64 keys and values pass by in shared memory, the next ones on
// their way meanwhile.
//
// In shared memory granules of 16 bytes lie where the lanes that read at the same time meet all banks.
#include <algorithm>
#include <utility>

#include "device/copy_async.h"
#include "device/unaligned_pack.h"
#include "ops/attention/dense/attend_warp.h"
#include "ops/attention/dense/split_k.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Granule;

constexpr int kWarps = 4, kQueries = 16 * kWarps;  // of a block

template <class T, int kHead>
struct AttendFlash : AttendWarp<T, kHead> {
  using Base = AttendWarp<T, kHead>;
  using Keys = typename Base::Keys;
  using Values = typename Base::Values;
  using Queries = typename Base::Queries;
  using State = typename Base::State;
  using OfRows = typename Base::OfRows;
  using Place = typename Base::Place;
  using Base::kChunks, Base::kKeys, Base::kPart, Base::kRows, Base::kSpans, Base::kSteps, Base::kTiles;
  using Base::head_size, Base::k, Base::sinks, Base::v, Base::value_size, Base::visible, Base::y;
  static constexpr int kThreads = 32 * kWarps, kMaxThreads = kThreads;
  static constexpr int kTile = 64, kStages = kHead > 64 ? 2 : 3;  // keys; tiles that are there or on their way
  static constexpr int kAcross = kHead / 8;                       // granules of a row
  static constexpr int kGranules = kTile * kAcross;               // of a tile's keys, and of its values
  static constexpr int64_t kDynamicBytes = int64_t(kStages) * 2 * kGranules * int64_t(sizeof(Granule));
  struct Shared {
    KeyRange seen[kWarps];  // by any of a warp's queries
  };

  device::SmallDivider by_tiles, by_heads, by_group;

  // Neighbouring blocks share keys; those with the last queries, which see most keys, come first.
  DEVICE_FN Place place_of(int64_t block) const {
    int tile, head, in_group;
    const int batch = by_heads(by_tiles(int(block), tile), head);
    const int first = (by_tiles.divisor() - 1 - tile) * kQueries, left = visible.queries - first;
    return {batch, head, by_group(head, in_group), first, left < kQueries ? left : kQueries};
  }

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Place place = place_of(b.index());
    const int length = visible.length(place.batch);
    // Rows are in order of queries: later ones see no earlier keys.
    const int begin = visible.range(length, place.first).first;
    const int end = visible.range(length, place.first + place.rows - 1).end;
    const int tiles = end > begin ? (end - begin + kTile - 1) / kTile : 0;
    PerThread<Queries, kThreads> queries;
    PerThread<State, kThreads> state;
    b.threads([&](int t, Shared& s) {
      Granule* const stages = b.template dynamic<Granule>(s);
      UNROLL for (int i = 0; i < kStages - 1; ++i) {
        bring(stages + i * 2 * kGranules, place, begin + i * kTile, end, t);
        device::end_group_of_copies();
      }
      const Place own = of_warp(place, t / 32);
      if (own.rows > 0) this->load(queries[t], own, length, t % 32);
      if (t % 32 == 0)
        s.seen[t / 32] = {visible.range(length, own.first).first,
                          own.rows > 0 ? visible.range(length, own.first + own.rows - 1).end : 0};
      this->clear(state[t]);
      device::wait_for_copies_before<kStages - 2>();
    });
    int now = 0, next = kStages - 1;  // stages
    NO_UNROLL for (int tile = 0; tile < tiles; ++tile) {
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        Granule* const stages = b.template dynamic<Granule>(s);
        warp.apart([&](int lane) {
          const int key = begin + (tile + kStages - 1) * kTile;
          bring(stages + next * 2 * kGranules, place, key, end, 32 * warp.index() + lane);
          device::end_group_of_copies();
        });
        const Granule* const from = stages + now * 2 * kGranules;
        const KeyRange seen = s.seen[warp.index()];
        NO_UNROLL for (int part = 0; part < kTile; part += kKeys) {
          const int key = begin + tile * kTile + part;
          if (key < seen.end && key + kKeys > seen.first) attend_part(warp, queries, state, from, part, key, end);
        }
        warp.apart([&](int) { device::wait_for_copies_before<kStages - 2>(); });
      });
      next = now, now = now + 1 < kStages ? now + 1 : 0;
    }
    device::for_each_warp(b, [&](const Warp& warp, Shared&) {
      const Place own = of_warp(place, warp.index());
      if (own.rows > 0) finish(warp, state, own);
    });
  }

 private:
  DEVICE_FN static Place of_warp(Place place, int warp) {
    place.first += kRows * warp;
    place.rows -= kRows * warp;
    if (place.rows > kRows) place.rows = kRows;
    return place;
  }

  // Where a granule of a row lies: lanes that read at once have four granules of two rows of keys, or two granules of
  // every other of eight rows of values.
  DEVICE_FN static int key_at(int row, int granule) {
    return row * kAcross + (granule ^ (kAcross > 4 ? (row & 1) * 4 : 0));
  }
  DEVICE_FN static int value_at(int row, int granule) {
    return kGranules + row * kAcross + (granule ^ (row >> 1 & (kAcross / 2 - 1)) * 2);
  }

  // Zeros stand for keys from `end` on, and for what a head has fewer values.
  DEVICE_FN void bring(Granule* stage, const Place& place, int key, int end, int t) const {
    if (key >= end) return;
    UNROLL for (int i = 0; i < kGranules / kThreads; ++i) {
      const int row = (t + i * kThreads) / kAcross, granule = (t + i * kThreads) % kAcross, one = key + row;
      const bool there = one < end;
      const int64_t in_row = there ? one : key;
      const bool of_key = there && granule * 8 < head_size, of_value = there && granule * 8 < value_size;
      device::copy_async_or_zeros(stage + key_at(row, granule),
                                  k.at(place.batch, place.kv_head, in_row) + (of_key ? granule * 8 : 0), of_key);
      device::copy_async_or_zeros(stage + value_at(row, granule),
                                  v.at(place.batch, place.kv_head, in_row) + (of_value ? granule * 8 : 0), of_value);
    }
  }

  // The tile's keys from `part` on, which are the keys from `key` on.
  DEVICE_FN void attend_part(const Warp& warp, PerThread<Queries, kThreads>& queries,
                             PerThread<State, kThreads>& state, const Granule* stage, int part, int key,
                             int end) const {
    const int first = 32 * warp.index();
    this->attend_keys(
        warp, queries, state, first, key, end,
        [&](Keys& to, int lane) {
          UNROLL for (int n = 0; n < kTiles; ++n) {
            UNROLL for (int c = 0; c < kChunks; ++c)
                to.at[n][c] = stage[key_at(part + 8 * n + lane / 4, 4 * c + lane % 4)];
          }
        },
        [&](Values& to, int lane) {
          UNROLL for (int step = 0; step < kSteps; ++step) {
            UNROLL for (int i = 0; i < 4; ++i) {
              const int row = part + 16 * step + device::k_of(lane, i);
              UNROLL for (int n = 0; n < kSpans; ++n) {
                const int column = 8 * kPart * n + kPart * (lane / 4);
                const Granule* const from = stage + value_at(row, column / 8);
                to.at[step][i][n] = reinterpret_cast<const typename Base::Part*>(from)[column % 8 / kPart];
              }
            }
          }
        });
  }

  DEVICE_FN void finish(const Warp& warp, PerThread<State, kThreads>& state, const Place& own) const {
    PerThread<OfRows, 32> row_sums;
    warp.apart([&](int lane) {
      UNROLL for (int e = 0; e < 2; ++e) row_sums[lane].at[e] = state[32 * warp.index() + lane].row_sum[e];
    });
    Base::over_quads(warp, row_sums, [](float a, float c) { return a + c; });
    warp.apart([&](int lane) {
      const State& of = state[32 * warp.index() + lane];
      const float sink = sinks.at(own.head);
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = lane / 4 + 8 * e;
        if (row >= own.rows) continue;
        const float shifted = of.row_max[e] - kExpShift<T>, base = finite_max(max_score(sink, shifted));
        const float correction = exponential(shifted - base);
        const float row_sum = row_sums[lane].at[e] * correction + exponential(sink - base);
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 2 * kPart; i += 8) {
            const int column = 8 * kPart * n + 2 * kPart * (lane % 4) + i;
            device::Pack<T, 8> values;
            UNROLL for (int c = 0; c < 8; ++c) values.at[c] = T(
                normalised(of.acc[n][(i + c) % kPart].at[2 * e + (i + c) / kPart] * correction, row_sum));
            if (column < value_size)
              device::store_whole(y.at(own.batch, own.head, own.first + row) + column, values);
          }
        }
      }
    });
  }
};

template <class T, int kHead>
void run(Context& context, const Attend& p) {
  using Kernel = AttendFlash<T, kHead>;
  const int64_t tiles = (p.queries + kQueries - 1) / kQueries;
  const device::Blocks grid{
      .blocks = p.batch * p.heads * tiles, .threads = Kernel::kThreads, .dynamic_bytes = Kernel::kDynamicBytes};
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), grid,
      Kernel{{p, context.fault()},
             device::SmallDivider(int(tiles)),
             device::SmallDivider(int(p.heads)),
             device::SmallDivider(int(p.heads / p.kv_heads))});
}

}  // namespace

bool suits_flash(const Attend& p) {
  constexpr int64_t kMostSize = 128, kMostKeys = 512, kMostBlocks = int64_t(1) << 24;
  const int64_t size = std::max(p.head_size, p.value_size);
  if ((p.type != Type::f16 && p.type != Type::bf16) || p.scores.data || p.keys == 0 || p.keys > kMostKeys ||
      p.queries <= kQueries / 2 || p.value_size == 0 || size > kMostSize ||
      p.batch * p.heads > kMostBlocks / p.queries)
    return false;
  for (const auto& [rows, count] :
       {std::pair{p.q, p.head_size}, {p.k, p.head_size}, {p.v, p.value_size}, {p.y, p.value_size}})
    if (!packs_fit<8, Half>(rows, count)) return false;
  return true;
}

void attend_flash(Context& context, const Attend& problem) {
  const int64_t size = std::max(problem.head_size, problem.value_size);
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> {
    if (size <= 32)
      run<T, 32>(context, problem);
    else if (size <= 64)
      run<T, 64>(context, problem);
    else
      run<T, 128>(context, problem);
  });
}

}  // namespace encore::ops
