// Attention of short sequences on tensor cores. A block has 16 queries of a head, and its warps share out the keys, so
// that all keys and values are on their way at once, straight into the registers of the lanes that need them
// (attend_warp.h). Each warp has an online softmax of its own; the partial results are combined at the end.
#include <algorithm>
#include <utility>

#include "ops/attention/dense/attend_warp.h"
#include "ops/attention/dense/split_k.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

constexpr int kMostWarps = 8, kRows = 16;  // of a block: the latter are queries

template <class T, int kHead>
struct AttendShort : AttendWarp<T, kHead> {
  using Base = AttendWarp<T, kHead>;
  using Eight = typename Base::Eight;
  using Part = typename Base::Part;
  using Keys = typename Base::Keys;
  using Values = typename Base::Values;
  using Queries = typename Base::Queries;
  using State = typename Base::State;
  using OfRows = typename Base::OfRows;
  using Place = typename Base::Place;
  using Base::kChunks, Base::kKeys, Base::kPart, Base::kSpans, Base::kSteps, Base::kTiles;
  using Base::head_size, Base::k, Base::sinks, Base::v, Base::value_size, Base::visible, Base::y;
  static constexpr int kMaxThreads = 32 * kMostWarps;
  static constexpr int kAccRow = kHead + 4;  // from one row's accumulators to the next in shared memory

  struct Shared {
    float row_max[kMostWarps][kRows], row_sum[kMostWarps][kRows];
  };

  device::SmallDivider by_tiles, by_heads, by_group;

  DEVICE_FN Place place_of(int64_t block) const {
    int tile, head, in_group;
    const int batch = by_heads(by_tiles(int(block), tile), head);
    const int first = tile * kRows, left = visible.queries - first;
    return {batch, head, by_group(head, in_group), first, left < kRows ? left : kRows};
  }

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Place place = place_of(b.index());
    const int length = visible.length(place.batch), warps = b.size() / 32;
    // Rows are in order of queries: later ones see no earlier keys.
    const int begin = visible.range(length, place.first).first;
    const int end = visible.range(length, place.first + place.rows - 1).end;
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      PerThread<Queries, 32> queries;
      PerThread<State, 32> state;
      warp.apart([&](int lane) {
        this->load(queries[lane], place, length, lane);
        this->clear(state[lane]);
      });
      NO_UNROLL for (int key = begin + warp.index() * kKeys; key < end; key += warps * kKeys)
          this->attend_keys(
              warp, queries, state, 0, key, end, [&](Keys& to, int lane) { bring(to, place, key, end, lane); },
              [&](Values& to, int lane) { bring(to, place, key, end, lane); });
      store_partial(warp, state, s, b.template dynamic<float>(s) + warp.index() * kRows * kAccRow);
    });
    b.threads([&](int t, Shared& s) {
      constexpr int kPacks = kHead / 8;
      for (int i = t; i < kRows * kPacks; i += b.size()) {
        const int row = i / kPacks, column = i % kPacks * 8;
        if (row < place.rows && column < value_size) finish(s, b.template dynamic<float>(s), warps, place, row, column);
      }
    });
  }

 private:
  // Zeros stand for keys from `end` on.
  DEVICE_FN void bring(Keys& to, const Place& place, int key, int end, int lane) const {
    UNROLL for (int n = 0; n < kTiles; ++n) {
      const int one = key + 8 * n + lane / 4;
      const T* const from = k.at(place.batch, place.kv_head, one);
      UNROLL for (int c = 0; c < kChunks; ++c) {
        const int column = 32 * c + 8 * (lane % 4);
        to.at[n][c] = one < end && column < head_size ? device::load_words<8>(from + column) : Eight{};
      }
    }
  }
  DEVICE_FN void bring(Values& to, const Place& place, int key, int end, int lane) const {
    UNROLL for (int step = 0; step < kSteps; ++step) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int one = key + 16 * step + device::k_of(lane, i);
        const T* const from = v.at(place.batch, place.kv_head, one);
        UNROLL for (int n = 0; n < kSpans; ++n) {
          const int column = 8 * kPart * n + kPart * (lane / 4);
          to.at[step][i][n] = one < end && column < value_size ? device::load_words<kPart>(from + column) : Part{};
        }
      }
    }
  }
  DEVICE_FN static void store_partial(const Warp& warp, PerThread<State, 32>& state, Shared& s, float* acc) {
    PerThread<OfRows, 32> row_sums;
    warp.apart([&](int lane) { UNROLL for (int e = 0; e < 2; ++e) row_sums[lane].at[e] = state[lane].row_sum[e]; });
    Base::over_quads(warp, row_sums, [](float a, float c) { return a + c; });
    warp.apart([&](int lane) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = lane / 4 + 8 * e;
        if (lane % 4 == 0) {
          s.row_max[warp.index()][row] = state[lane].row_max[e] - kExpShift<T>;
          s.row_sum[warp.index()][row] = row_sums[lane].at[e];
        }
        UNROLL for (int n = 0; n < kSpans; ++n) {
          UNROLL for (int i = 0; i < 2 * kPart; i += 4) {
            device::Pack<float, 4> pack;
            UNROLL for (int c = 0; c < 4; ++c) pack.at[c] =
                state[lane].acc[n][(i + c) % kPart].at[2 * e + (i + c) / kPart];
            const int column = 8 * kPart * n + 2 * kPart * (lane % 4) + i;
            *reinterpret_cast<device::Pack<float, 4>*>(acc + row * kAccRow + column) = pack;
          }
        }
      }
    });
  }
  DEVICE_FN void finish(const Shared& s, const float* acc, int warps, const Place& place, int row, int column) const {
    const float sink = sinks.at(place.head);
    float row_max = sink;
    NO_UNROLL for (int w = 0; w < warps; ++w) row_max = max_score(row_max, s.row_max[w][row]);
    const float base = finite_max(row_max);
    float row_sum = exponential(sink - base);
    device::Pack<float, 8> combined{};
    NO_UNROLL for (int w = 0; w < warps; ++w) {
      const float correction = exponential(s.row_max[w][row] - base);
      const float* const own = acc + (w * kRows + row) * kAccRow + column;
      UNROLL for (int i = 0; i < 8; ++i) combined.at[i] += own[i] * correction;
      row_sum += s.row_sum[w][row] * correction;
    }
    device::Pack<T, 8> values;
    UNROLL for (int i = 0; i < 8; ++i) values.at[i] = T(normalised(combined.at[i], row_sum));
    device::store_whole(y.at(place.batch, place.head, place.first + row) + column, values);
  }
};

// Of a block: one for as many keys as it has at a time or, if the blocks are not all there at once then, for twice as
// many. None if they never are, or not of large heads: a library's kernel waits less often for rows that are read
// again.
int warps_for(int64_t blocks, int64_t keys, int64_t size, int64_t multiprocessors) {
  const bool large = size > 64;
  const int64_t at_once = large ? 16 : 32, room = size > 32 ? 8 : 16;  // warps of a multiprocessor
  const int64_t most = std::min<int64_t>((keys + at_once - 1) / at_once, kMostWarps);
  for (const int64_t warps : {most, large ? most : (most + 1) / 2})
    if (blocks <= multiprocessors * (room / warps)) return int(warps);
  return 0;
}
int warps_for(const Context& context, const Attend& p) {
  const int64_t tiles = (p.queries + kRows - 1) / kRows;
  return warps_for(p.batch * p.heads * tiles, p.keys, std::max(p.head_size, p.value_size),
                   device::multiprocessors(context.stream().device()));
}

template <class T, int kHead>
void run(Context& context, const Attend& p) {
  using Kernel = AttendShort<T, kHead>;
  const int64_t tiles = (p.queries + kRows - 1) / kRows;
  const int warps = warps_for(context, p);
  const device::Blocks grid{.blocks = p.batch * p.heads * tiles,
                            .threads = 32 * warps,
                            .dynamic_bytes = warps * kRows * Kernel::kAccRow * int64_t(sizeof(float))};
  device::block_kernel<typename Kernel::Shared>(
      context.stream(), grid,
      Kernel{{p, context.fault()},
             device::SmallDivider(int(tiles)),
             device::SmallDivider(int(p.heads)),
             device::SmallDivider(int(p.heads / p.kv_heads))});
}

}  // namespace

bool suits_short(const Context& context, const Attend& p) {
  constexpr int64_t kMostSize = 128, kMostKeys = 512, kMostQueries = int64_t(1) << 24;
  const int64_t size = std::max(p.head_size, p.value_size);
  if ((p.type != Type::f16 && p.type != Type::bf16) || p.scores.data || p.keys == 0 || p.keys > kMostKeys ||
      p.value_size == 0 || size > kMostSize || p.batch * p.heads > kMostQueries / p.queries ||
      warps_for(context, p) == 0)
    return false;
  for (const auto& [rows, count] :
       {std::pair{p.q, p.head_size}, {p.k, p.head_size}, {p.v, p.value_size}, {p.y, p.value_size}})
    if (!packs_fit<8, Half>(rows, count)) return false;
  return true;
}

void attend_short(Context& context, const Attend& problem) {
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
