// Multi-head latent attention (MLA) over a paged cache: all heads share a latent row, which is a key and whose first
// channels are its values.
//
// A block has 32 rows, heads of tokens of one sequence, and meets 32 keys at a time. They go from pages to shared
// memory once, decoded, with the next ones on their way meanwhile. A warp has the scores of 16 keys and eight rows,
// eight threads have the softmax of a row, and a warp has accumulators of 64 channels, for all rows. Which lane has
// what of a tile is as in attend_grouped_decode.h, except that neighbours of keys and rows lie in other lanes, for the
// sake of banks.
#include "ops/attention/paged/paged_rows.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

template <class T>
struct AttendPagedLatent {
  template <class S>
  using Block = device::Block<S>;
  template <class V>
  using PerThread = device::PerThread<V, 256>;
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kRows = 32, kKeys = 32, kTeam = kThreads / kKeys;
  static constexpr int kTiles = kRows / 8;                           // of eight rows
  static constexpr int kMostSize = 576, kMostValues = 2 * kThreads;  // 64 of a warp
  static constexpr int kHeld = kMostSize / 8 / kTeam, kScores = kKeys / kTeam;
  static constexpr int kScoresRow = kKeys + 8, kPowersRow = kKeys + 8;
  static_assert(kThreads / 32 == kTiles * (kKeys / 16));
  using Source = PagedRows<T, uint8_t, kRows>;  // rows in bytes
  using Tile = typename Source::Tile;

  struct Shared {
    alignas(16) float scores[kRows * kScoresRow];
    alignas(8) T probs[kRows * kPowersRow];
    KeyRange range[kRows];
    bool there[kKeys];
    float correction[kRows], row_max[kRows], row_sum[kRows];
  };
  struct Held {
    Words at[kHeld];
    bool there;
  };
  struct Softmax {
    float scores[kScores], row_max, row_sum;
  };
  struct Accumulator {
    device::FragmentC at[kTiles][4];
  };

  Source source;
  CodeKind coded;
  int size, value_size, chunks;  // chunks of 32 channels
  bool aligned;                  // y
  T* y;
  float scale, softcap;
  SplitPartials partial;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& shared) const {
    const int shares = partial.shares, share = int(b.index() % shares), part = int(b.index() / shares);
    const Tile tile = source.find(b, part);
    if (tile.rows <= 0) return;
    const KeyRange low = source.range(tile, 0), high = source.range(tile, tile.rows - 1);
    const int tiles = high.end > low.first ? (high.end - low.first + kKeys - 1) / kKeys : 0;
    const int own = (tiles + shares - 1) / shares, first = low.first + share * own * kKeys;
    const int end = high.end - first > own * kKeys ? first + own * kKeys : high.end;

    PerThread<Held> held;
    PerThread<Softmax> softmax;
    PerThread<Accumulator> acc;
    b.threads([&](int t, Shared& s) {
      held[t] = load(tile, first, end, t);
      softmax[t].row_max = kMaskedScore<float>;
      softmax[t].row_sum = 0;
      acc[t] = Accumulator{};
      T* const queries = b.template dynamic<T>(s, keys_bytes());
      for (int i = t; i < kRows * 4 * chunks; i += kThreads) {
        const int row = i / (4 * chunks), column = i % (4 * chunks) * 8;
        *reinterpret_cast<Words*>(queries + row * stride() + column) =
            row < tile.rows && column < size ? source.q(tile, row, column) : Words{};
      }
      if (t < kRows) s.range[t] = t < tile.rows ? source.range(tile, t) : KeyRange{0, 0};
    });
    const float factor = source.score_scale(scale);
    for (int key = first; key < end; key += kKeys) {
      b.threads([&](int t, Shared& s) {
        store(b, s, held[t], t);
        held[t] = load(tile, key + kKeys, end, t);
      });
      device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) { score(b, warp, s); });
      PerThread<float> tile_max;
      b.template reduce_groups<kTeam>(
          tile_max, [&](int t) { return mask_and_max(shared, softmax[t], key, end, factor, t); },
          [](float a, float c) { return max_score(a, c); });
      b.threads([&](int t, Shared& s) { update(s, softmax[t], tile_max[t], t); });
      device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) { add_values(b, warp, s, acc); });
    }
    PerThread<float> row_sums;
    b.template reduce_groups<kTeam>(
        row_sums, [&](int t) { return softmax[t].row_sum; }, [](float a, float c) { return a + c; });
    b.threads([&](int t, Shared& s) {
      if (t % kTeam > 0) return;
      s.row_max[t / kTeam] = softmax[t].row_max - kExpShift<T>;
      s.row_sum[t / kTeam] = row_sums[t];
    });
    b.threads([&](int t, Shared& s) { finish(s, tile, acc[t], share, t); });
  }

 private:
  // Of a row in shared memory, in values. With eight more than whole chunks, lanes that read at once meet no bank
  // twice.
  DEVICE_FN int stride() const { return 32 * chunks + 8; }
  DEVICE_FN int64_t keys_bytes() const { return int64_t(kKeys) * stride() * int64_t(sizeof(T)); }
  // Which of eight neighbours lane i / 4 or column i has.
  DEVICE_FN static int spread(int i) { return i % 2 * 4 + i / 2; }

  // A thread's part of the tile that begins with `key`, as it is stored: every eighth pack of a row.
  DEVICE_FN Held load(const Tile& tile, int key, int end, int t) const {
    const int own = key + t / kTeam;
    const uint8_t* const row = source.key_row(tile, {-1}, own, t / kTeam, own < end);
    Held held;
    held.there = own < end && row;
    UNROLL for (int i = 0; i < kHeld; ++i) {
      const int column = 8 * (t % kTeam + kTeam * i);
      held.at[i] = Words{};
      if (!held.there || column >= size) continue;
      if (coded == CodeKind::none) {
        held.at[i] = *reinterpret_cast<const Words*>(row + 2 * column);
      } else if (coded == CodeKind::i4) {
        held.at[i].at[0] = *reinterpret_cast<const uint32_t*>(row + column / 2);
      } else {
        const auto codes = *reinterpret_cast<const device::Pack<uint32_t, 2>*>(row + column);
        held.at[i].at[0] = codes.at[0], held.at[i].at[1] = codes.at[1];
      }
    }
    return held;
  }
  DEVICE_FN Words words(const Words& raw) const {
    switch (coded) {
      case CodeKind::none: return raw;
      case CodeKind::i4: return device::eight_nibbles<T>({raw.at[0]});
      case CodeKind::i8: return device::eight_integers<T>({raw.at[0], raw.at[1]});
      default: return device::eight_floats<T>({raw.at[0], raw.at[1]});
    }
  }
  DEVICE_FN void store(const Block<Shared>& b, Shared& s, const Held& held, int t) const {
    T* const row = b.template dynamic<T>(s) + t / kTeam * stride();
    UNROLL for (int i = 0; i < kHeld; ++i) {
      const int column = 8 * (t % kTeam + kTeam * i);
      if (column >= 32 * chunks) break;
      *reinterpret_cast<Words*>(row + column) = held.there && column < size ? words(held.at[i]) : Words{};
    }
    if (t % kTeam == 0) s.there[t / kTeam] = held.there;
  }

  DEVICE_FN void score(const Block<Shared>& b, const device::Warp& warp, Shared& s) const {
    const int keys = warp.index() / kTiles * 16, rows = warp.index() % kTiles * 8;
    const auto at = [&](const T* from, int row, int chunk, int lane) {
      return *reinterpret_cast<const Words*>(from + row * stride() + 32 * chunk + lane % 4 * 8);
    };
    device::PerThread<device::FragmentC, 32> scores[2];
    warp.lanes([&](int lane) { scores[0][lane] = scores[1][lane] = device::FragmentC{}; });
    device::PerThread<Words, 32> q, low, high;
    NO_UNROLL for (int chunk = 0; chunk < chunks; ++chunk) {
      warp.lanes([&](int lane) {
        const T* const all = b.template dynamic<T>(s);
        low[lane] = at(all, keys + spread(lane / 4), chunk, lane);
        high[lane] = at(all, keys + spread(lane / 4) + 8, chunk, lane);
        q[lane] = at(b.template dynamic<T>(s, keys_bytes()), rows + spread(lane / 4), chunk, lane);
      });
      UNROLL for (int half = 0; half < 2; ++half) {
        warp.template mma<T>([&](int lane) -> device::FragmentC& { return scores[half][lane]; },
                             [&](int lane) { return device::fragment_a(low[lane], high[lane], half); },
                             [&](int lane) { return device::fragment_b(q[lane], half); });
      }
    }
    warp.lanes([&](int lane) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int row = rows + spread(device::c_column(lane, i)), key = keys + spread(lane / 4) + i / 2 * 8;
        s.scores[row * kScoresRow + key] = scores[0][lane].at[i] + scores[1][lane].at[i];
      }
    });
  }
  // A thread's scores of its row, masked, and the largest of them.
  DEVICE_FN float mask_and_max(const Shared& s, Softmax& own, int key, int end, float factor, int t) const {
    const int row = t / kTeam, in_tile = t % kTeam * kScores;
    const KeyRange range = s.range[row];
    const auto scores = *reinterpret_cast<const device::Pack<float, kScores>*>(s.scores + row * kScoresRow + in_tile);
    float row_max = kMaskedScore<float>;
    UNROLL for (int i = 0; i < kScores; ++i) {
      const int at = key + in_tile + i;
      const bool seen = at < end && at >= range.first && at < range.end && s.there[in_tile + i];
      own.scores[i] = seen ? capped(scores.at[i] * factor, softcap) : kMaskedScore<float>;
      row_max = max_score(row_max, own.scores[i]);
    }
    return row_max;
  }
  DEVICE_FN void update(Shared& s, Softmax& own, float row_max, int t) const {
    const float now = max_score(own.row_max, row_max), base = finite_max(now),
                correction = exponential(own.row_max - base);
    own.row_max = now;
    own.row_sum *= correction;
    device::Pack<T, kScores> probs;
    UNROLL for (int i = 0; i < kScores; ++i) {
      probs.at[i] = T(exponential(own.scores[i] - (base - kExpShift<T>)));
      own.row_sum += float(probs.at[i]);  // as it is multiplied: what rounding does to both cancels out
    }
    const int row = t / kTeam;
    *reinterpret_cast<device::Pack<T, kScores>*>(s.probs + row * kPowersRow + t % kTeam * kScores) = probs;
    if (t % kTeam == 0) s.correction[row] = correction;
  }
  DEVICE_FN void add_values(const Block<Shared>& b, const device::Warp& warp, Shared& s,
                            PerThread<Accumulator>& acc) const {
    const int first = warp.index() * 64, thread = warp.index() * 32;
    if (first >= value_size) return;
    warp.lanes([&](int lane) {
      UNROLL for (int r = 0; r < kTiles; ++r) {
        UNROLL for (int e = 0; e < 2; ++e) {
          const float correction = s.correction[8 * r + device::c_column(lane, e)];
          UNROLL for (int i = 0; i < 4; ++i) {
            acc[thread + lane].at[r][i].at[e] *= correction;
            acc[thread + lane].at[r][i].at[e + 2] *= correction;
          }
        }
      }
    });
    struct Values {
      Words at[4];
    };
    device::PerThread<Values, 32> values;
    device::PerThread<device::FragmentB, 32> probs;
    UNROLL for (int keys = 0; keys < kKeys; keys += 16) {
      warp.lanes([&](int lane) {
        const int column = first + lane / 4 * 8;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int key = keys + device::k_of(lane, j);
          values[lane].at[j] = column < value_size
                                   ? *reinterpret_cast<const Words*>(b.template dynamic<T>(s) + key * stride() + column)
                                   : Words{};
        }
      });
      UNROLL for (int r = 0; r < kTiles; ++r) {
        warp.lanes([&](int lane) {
          const T* const row = s.probs + (8 * r + lane / 4) * kPowersRow + keys + lane % 4 * 2;
          probs[lane] = {{*reinterpret_cast<const uint32_t*>(row), *reinterpret_cast<const uint32_t*>(row + 8)}};
        });
        UNROLL for (int i = 0; i < 4; ++i) {
          warp.template mma<T>([&](int lane) -> device::FragmentC& { return acc[thread + lane].at[r][i]; },
                               [&](int lane) {
                                 const auto word = [&](int j) { return values[lane].at[j].at[i]; };
                                 return device::fragment_a(word(0), word(1), word(2), word(3));
                               },
                               [&](int lane) { return probs[lane]; });
        }
      }
    }
  }

  DEVICE_FN void finish(const Shared& s, const Tile& tile, const Accumulator& acc, int share, int t) const {
    const int lane = t % 32, column = t / 32 * 64 + lane / 4 * 8;
    const int left = value_size - column, count = left < 8 ? left : 8;
    UNROLL for (int r = 0; r < kTiles; ++r) {
      UNROLL for (int e = 0; e < 2; ++e) {
        const int row = 8 * r + device::c_column(lane, e);
        if (row >= tile.rows || left <= 0) continue;
        float sum[8];
        UNROLL for (int i = 0; i < 8; ++i) {
          sum[i] = i < count ? source.finished(tile, acc.at[r][i / 2].at[e + i % 2 * 2], column + i) : 0.f;
        }
        const int64_t to = source.partial_row(tile, row);
        if (partial.shares == 1) {
          device::Pack<T, 8> pack;
          UNROLL for (int i = 0; i < 8; ++i) pack.at[i] = T(normalised(sum[i], s.row_sum[row]));
          device::store_pack(y + to * value_size + column, pack, aligned, count);
          continue;
        }
        const int64_t at = to * partial.shares + share;
        UNROLL for (int i = 0; i < 8; ++i) {
          if (i < count) partial.acc[at * value_size + column + i] = sum[i];
        }
        if (column > 0) continue;
        partial.row_max[at] = s.row_max[row];
        partial.row_sum[at] = s.row_sum[row];
      }
    }
  }
};

template <class T>
void run(Context& context, const AttendPaged& p) {
  using Kernel = AttendPagedLatent<T>;
  using Source = typename Kernel::Source;
  const int64_t size = p.pages.size;
  require(size <= Kernel::kMostSize && p.value_size <= Kernel::kMostValues, "latent rows of ", size,
          " channels, of which ", p.value_size, " are values: up to ", Kernel::kMostSize, " and ", Kernel::kMostValues,
          " are supported");
  PagedCache in_bytes = p.pages;
  in_bytes.size = row_bytes(kind_of(p.pages), size, p.type);
  const int64_t rows = p.sequences.tokens * p.heads, full = rows / Kernel::kRows;
  const int64_t blocks = full + p.sequences.count + 1, busy = full + std::min(p.sequences.count, p.sequences.tokens);
  const Attend rest = rest_of(p, p.most_keys);
  const int64_t shares =
      std::min(splits_for(context, rest, std::max<int64_t>(busy, 1), 1, 4 * Kernel::kKeys), kIntCap / blocks);
  const bool by_channel = p.pages.keys_by_channel;
  const float* const scales = p.pages.key_scales;
  const Source source{{},
                      p.sequences,
                      SlotView(p.pages, context.fault()),
                      typename Source::Cache(in_bytes),
                      TokenRows<T>(p),
                      device::SmallDivider(int(p.heads)),
                      int(p.before < 0 ? -1 : std::min(p.before, p.pages.width * p.pages.slots)),
                      p.causal,
                      false,
                      by_channel ? nullptr : scales,
                      by_channel ? scales : nullptr,
                      by_channel ? nullptr : scales,
                      by_channel ? scales : nullptr};
  const int chunks = int((size + 31) / 32);
  const SplitPartials partial = make_partials(context, rest, shares);
  T* const y = static_cast<T*>(p.y);
  const Kernel kernel{source,
                      kind_of(p.pages),
                      int(size),
                      int(p.value_size),
                      chunks,
                      p.value_size % 8 == 0 && device::is_pack_aligned<8>(y),
                      y,
                      float(p.scale),
                      float(p.softcap),
                      partial};
  const int64_t bytes = int64_t(Kernel::kKeys + Kernel::kRows) * (32 * chunks + 8) * int64_t(sizeof(T));
  device::block_kernel<typename Kernel::Shared>(context.stream(),
                                                {checked_product(blocks, shares), Kernel::kThreads, bytes}, kernel);
  combine_splits(context, rest, partial);
}

}  // namespace

void attend_paged_latent(Context& context, const AttendPaged& problem) {
  dispatch(TypeList<Half, BFloat16>{}, problem.type, [&]<class T> { run<T>(context, problem); });
}

}  // namespace encore::ops
