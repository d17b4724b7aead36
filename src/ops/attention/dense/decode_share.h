// What a block does of a decode step: heads that share one of keys look at a part of the keys.
//
// Most warps look at the keys that were there before, as in AttendGroupedDecode. The others rotate the new row
// meanwhile; those of the first part put its key and values into the cache, and look at that key themselves.
#pragma once
#include <bit>
#include <optional>

#include "device/fast_math.h"
#include "device/prefetch.h"
#include "ops/attention/dense/dense_rows.h"
#include "ops/attention/kv_cache/add_rows.h"

namespace encore::ops {

// What one part of the keys makes of some values of a row, or nothing.
template <int kMany>
struct PartOfRow {
  float acc[kMany] = {}, row_max = kMaskedScore<float>, row_sum = 0, sink = kMaskedScore<float>;

  // Lanes that are the same modulo kColumns have the parts of one row; acc becomes the row's.
  template <int kColumns>
  DEVICE_FN static void join(const device::Warp& warp, device::PerThread<PartOfRow, 32>& parts) {
    device::PerThread<float, 32> base;
    warp.lanes([&](int lane) { base[lane] = max_score(parts[lane].row_max, parts[lane].sink); });
    warp.template reduce_columns<kColumns>([&](int lane) -> float& { return base[lane]; },
                                           [](float a, float c) { return max_score(a, c); });
    warp.lanes([&](int lane) {
      PartOfRow& part = parts[lane];
      base[lane] = finite_max(base[lane]);
      const float correction = exponential(part.row_max - base[lane]);
      UNROLL for (float& one : part.acc) one *= correction;
      part.row_sum *= correction;
    });
    const auto add_up = [&](auto value) {
      warp.template reduce_columns<kColumns>(value, [](float a, float c) { return a + c; });
    };
    UNROLL for (int i = 0; i < kMany; ++i) add_up([&](int lane) -> float& { return parts[lane].acc[i]; });
    add_up([&](int lane) -> float& { return parts[lane].row_sum; });
    warp.lanes([&](int lane) {
      PartOfRow& part = parts[lane];
      const float factor = normalised(1, part.row_sum + exponential(part.sink - base[lane]));
      UNROLL for (float& one : part.acc) one *= factor;
    });
  }
};

template <class T, int kChunks, int kOldWarps>
struct DecodeShare {
  using Value = T;
  using Group = AttendGroupedDecode<T, kChunks, 1, DenseRows<T, 8>>;
  using Warp = device::Warp;
  using State = typename Group::State;
  using Tile = typename Group::Tile;
  using Keys = typename Group::Keys;
  using Values = typename Group::Values;
  template <class V>
  using PerThread = device::PerThread<V, 32 * (kOldWarps + kChunks / 2)>;
  static constexpr int kRows = 8, kKeys = Group::kKeys, kWidth = Group::kWidth;
  static constexpr int kNewWarps = kChunks / 2, kWarps = kOldWarps + 1;  // that have accumulators
  static constexpr int kOldThreads = 32 * kOldWarps, kNewThreads = 32 * kNewWarps, kStep = kOldWarps * kKeys;
  static_assert(AddPacks<T>::kPack == 8, "a pack is eight values of a tile's row");
  static constexpr int kAccOfWarp = kRows * State::kAccRow;
  static constexpr int64_t kAccBytes = int64_t(kWarps) * kAccOfWarp * int64_t(sizeof(float));
  struct Shared {
    Words q[1][kChunks][32];
    Words fresh[2][kWidth / 8];  // the new key, and its values
    int64_t mask_row[kRows];
    KeyRange range[kRows];
    float row_max[kWarps][kRows], row_sum[kWarps][kRows];
  };
  // Of the keys that were there before, those that a block looks at; and those that each row sees.
  struct Share {
    int old, first, end;
    KeyRange all;
    Slots slots;
  };
  // Where a lane's part of its warp's first tile is, in rows of the cache; null where there is none.
  struct Places {
    const T *keys[2], *values[4];
  };

  Group group;
  AddPacks<T> add;
  int parts_log2;
  float q_epsilon, k_epsilon;  // of norms

  DEVICE_FN Share share_of(const Tile& tile, int part) const {
    Share share;
    share.old = tile.length - (tile.length > 0);
    share.all = group.source.range(tile, 0);  // all rows are of one query
    share.slots = {share.all.first, share.all.end, share.all.end, share.all.first};
    const int tiles = share.old > share.all.first ? (share.old - share.all.first + kKeys - 1) / kKeys : 0;
    const int own = (tiles + (1 << parts_log2) - 1) >> parts_log2;
    share.first = share.all.first + part * own * kKeys;
    share.end = share.old - share.first > own * kKeys ? share.first + own * kKeys : share.old;
    return share;
  }

  // Those that the first tiles look at, and their values, have been in the cache since steps before this one. They are
  // brought nearer before it is known how many there are: as many as there are by now, or one less.
  DEVICE_FN void prefetch_keys(const Tile& tile, int part, int t) const {
    constexpr int kLine = 64;  // values
    const Share share = share_of(tile, part);
    const int key = share.first + t;
    if (key >= share.end) return;
    UNROLL for (int column = 0; column < kWidth; column += kLine) {
      if (column >= group.head_size) break;
      device::prefetch(group.source.key_row(tile, {}, key, 0, true) + column);
      device::prefetch(group.source.value_row(tile, {}, key, 0, true) + column);
    }
  }
  DEVICE_FN Places places_of(const Tile& tile, int part, int t) const {
    const Share share = share_of(tile, part);
    const int slot = share.first + t / 32 * kKeys;
    // By a branch: compilers leave it ahead of the wait.
    Places places;
    UNROLL for (int i = 0; i < 2; ++i) {
      const int key = slot + t % 32 / 4 + 8 * i;
      places.keys[i] = key < share.end ? group.source.key_row(tile, {}, key, 0, true) : nullptr;
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      const int key = slot + device::k_of(t % 32, i);
      places.values[i] = key < share.end ? group.source.value_row(tile, {}, key, 0, true) : nullptr;
    }
    return places;
  }
  DEVICE_FN void load(Keys& keys, Values& values, const Places& places, int lane) const {
    const auto words = [](const T* row, int column, int size) {
      return row && column < size ? device::load_words<8>(row + column) : Words{};
    };
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int c = 0; c < kChunks; ++c) keys.at[i][c] =
          words(places.keys[i], 32 * c + 8 * (lane % 4), group.head_size);
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      UNROLL for (int n = 0; n < Group::kSpans; ++n) values.at[i][n] =
          words(places.values[i], 64 * n + 8 * (lane / 4), group.value_size);
    }
  }
  // Before all else of a tile whose length is known.
  DEVICE_FN void find_ranges(Shared& s, const Tile& tile, int t) const {
    if (t >= tile.rows) return;
    s.range[t] = group.source.range(tile, t);
    s.mask_row[t] = group.source.mask_row(tile, t);
  }

  // What of queries, and of the new key and its values, there is not.
  DEVICE_FN void clear(Shared& s, const Tile& tile, int t) const {
    constexpr int kFresh = kWidth / 8;
    static_assert(kChunks % kNewWarps == 0 && kFresh <= kNewThreads);
    UNROLL for (int n = 0; n < kChunks / kNewWarps; ++n) {
      const int i = t + n * kNewThreads, row = i % 32 / 4, column = i / 32 * 32 + i % 4 * 8;
      if (row >= tile.rows || column >= group.head_size) in_q(s, row, column) = Words{};
    }
    if (t < kFresh && 8 * t >= group.head_size) s.fresh[0][t] = s.fresh[1][t] = Words{};
  }
  // Queries go where tiles want them, the new key and its values into the cache, too.
  DEVICE_FN void take_new(Shared& s, const Tile& tile, bool keeps, int64_t likely, int t) const {
    for (int i = t; i < threads_of_new(tile, keeps); i += kNewThreads) {
      const New one = new_of(tile, i);
      if (one.pack >= add.packs) continue;
      const auto asked = add.ask(add.head_of(tile.batch, one.number), one.pack);
      put(s, tile, one, add.rotated(asked, tile.batch, tile.batch, 0, one.number, one.pack, likely));
    }
  }
  // The same where queries and keys are normalised. Neighbouring lanes have a head.
  DEVICE_FN void take_normed(const Warp& warp, Shared& s, const Tile& tile, bool keeps, int64_t likely) const {
    struct Asked {
      typename AddPacks<T>::Asked at;
      float squares, all;
    };
    const int own = 32 * warp.index() - kOldThreads, end = threads_of_new(tile, keeps);
    for (int first = own; first < end; first += kNewThreads) {
      device::PerThread<Asked, 32> asked;
      warp.lanes([&](int lane) {
        const New one = new_of(tile, first + lane);
        asked[lane] = {};
        if (first + lane >= end || one.pack >= add.packs) return;
        asked[lane].at = add.ask(add.head_of(tile.batch, one.number), one.pack);
        asked[lane].squares = add.squares_of(asked[lane].at);
      });
      warp.template scan<1>(
          1 << add.lanes_log2, 0.f, [&](int lane) { return &asked[lane].squares; },
          [&](int lane) { return &asked[lane].all; }, [](float a, float c) { return a + c; });
      warp.lanes([&](int lane) {
        const New one = new_of(tile, first + lane);
        if (first + lane >= end || one.pack >= add.packs) return;
        const T* const weights = one.which < 0 ? add.add.q_weights : one.which == 0 ? add.add.k_weights : nullptr;
        const float mean = asked[lane].all / float(add.add.layout.size);
        const float factor = device::fast_inverse_root(mean + (one.which < 0 ? q_epsilon : k_epsilon));
        put(s, tile, one,
            add.rotated(asked[lane].at, tile.batch, tile.batch, 0, one.number, one.pack, likely, weights, factor));
      });
    }
  }

  // What a warp has of its part goes to shared memory; `acc` is the first warp's. The keys and values of the first tile
  // are on their way to the threads.
  template <class B, class Own>
  DEVICE_FN void attend(const Warp& warp, B& b, Own& s, float* acc, PerThread<Keys>& keys, PerThread<Values>& values,
                        const Tile& tile, int part) const {
    const int w = warp.index();
    if (w >= kWarps) return;
    const Share share = share_of(tile, part);
    const float factor = group.source.score_scale(group.scale);
    device::PerThread<State, 32> state;
    warp.lanes([&](int lane) { state[lane].clear(); });
    const bool is_old = w < kOldWarps;
    if (!is_old)
      warp.lanes([&](int lane) { take_fresh(s, keys[kOldThreads + lane], values[kOldThreads + lane], lane); });
    // Of the new key there is one tile, which the first part has.
    const int first = is_old ? share.first + w * kKeys : share.old;
    const int end = is_old ? share.end : part == 0 ? tile.length : share.old;
    group.attend_keys(warp, b, s, state, keys, values, {tile, share.slots, share.all, first, end, kStep, factor});
    State::store_partial(warp, state, s.row_max[w], s.row_sum[w], acc + w * kAccOfWarp);
  }
  // What all warps have of two neighbouring values of a row.
  static constexpr int kMany = 2;
  DEVICE_FN auto combined(const Shared& s, const float* acc, int row, int column) const {
    return State::template combine<kMany>(s.row_max, s.row_sum, acc + row * State::kAccRow + column, row,
                                          kMaskedScore<float>);
  }

 private:
  // Of new rows a pack, of which head.
  struct New {
    int row, pack, which, number;  // which: the key's or its values; below zero: a query's
  };
  DEVICE_FN int threads_of_new(const Tile& tile, bool keeps) const {
    return (tile.rows + (keeps ? 2 : 0)) << add.lanes_log2;
  }
  DEVICE_FN New new_of(const Tile& tile, int i) const {
    const int row = i >> add.lanes_log2, which = row - tile.rows;
    const int number =
        which < 0 ? tile.kv_head * tile.rows + row : add.add.q_heads + which * add.add.kv_heads + tile.kv_head;
    return {row, i - (row << add.lanes_log2), which, number};
  }
  DEVICE_FN void put(Shared& s, const Tile& tile, const New& one, const typename AddPacks<T>::Rotated& rotated) const {
    const auto put = [&](int column, const auto& packed) {
      (one.which < 0 ? in_q(s, one.row, column) : s.fresh[one.which][column / 8]) = device::words_of(packed);
    };
    put(rotated.first, rotated.packs.real);
    if (rotated.rotates) put(rotated.first + add.add.layout.half, rotated.packs.imaginary);
    if (one.which >= 0 && add.add.has_room(rotated.begin))
      add.store(rotated, add.in_cache(tile.batch, one.number, rotated.begin));
  }
  DEVICE_FN static Words& in_q(Shared& s, int row, int column) {
    return s.q[0][column / 32][row * 4 + column % 32 / 8];
  }
  // As if a tile began with the new key.
  DEVICE_FN static void take_fresh(const Shared& s, Keys& keys, Values& values, int lane) {
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int c = 0; c < kChunks; ++c) keys.at[i][c] =
          i == 0 && lane / 4 == 0 ? s.fresh[0][4 * c + lane % 4] : Words{};
    }
    UNROLL for (int i = 0; i < 4; ++i) {
      UNROLL for (int n = 0; n < Group::kSpans; ++n) values.at[i][n] =
          i == 0 && lane % 4 == 0 ? s.fresh[1][8 * n + lane / 4] : Words{};
    }
  }
};

// Of so many parts of the keys; none if the new row is not packs. The past is in the cache already.
template <class Share>
std::optional<Share> share_decode_step(device::FaultRef fault, const CacheExtension& e, const Attend& p, int parts) {
  using T = typename Share::Value;
  CacheExtension all = e;
  all.rotated_q = all.keys;  // queries are rotated, wherever they go
  const auto add = rows_to_add<T, false>(fault, all, new_rows(e), e.keys, e.values);
  if (!add.are_packs()) return std::nullopt;
  const DenseRows<T, 8> rows{{},
                             VisibleKeysView<T>(p, fault),
                             FoldedRows(p),
                             p.q,
                             p.k,
                             p.v,
                             p.y,
                             int(p.heads),
                             device::SmallDivider(1),
                             device::SmallDivider(int(p.kv_heads))};
  return Share{{rows, SinkView<T>(p), int(p.head_size), int(p.value_size), float(p.scale), float(p.softcap), {}, {}},
               AddPacks<T>(add),
               std::countr_zero(unsigned(parts)),
               e.q_epsilon,
               e.k_epsilon};
}

}  // namespace encore::ops
