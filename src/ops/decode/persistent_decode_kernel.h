// The kernel of persistent_decode.h. A step is a product, or attention's first half, in which blocks look at parts of
// the keys, or its second, in which the parts are put together. In each step every block gets what the step before made
// and makes its part of the next; in each it tells all others that it was there, so that two steps' values are kept.
//
// A block has whole tiles of a product's columns. Their units, along the depth, stand in a row, of which each warp has
// a part. As soon as a warp has multiplied its last one it asks for its first of the next product: these are on their
// way while blocks tell one another what they made.
#pragma once
#include <bit>
#include <cmath>

#include "device/fast_math.h"
#include "device/persistent.h"
#include "ops/attention/dense/decode_share.h"
#include "ops/decode/persistent_decode.h"
#include "ops/decode/weight_columns.h"
#include "ops/elementwise/silu_gate.h"

namespace encore::ops {

template <class T>
struct PersistentProduct {
  const void *weights, *scales, *zeros;
  const T *bias, *gamma, *x, *skip;  // x, skip: or null; what is taken over from the steps before is not here
  T *sum, *y;                        // null: nobody reads them
  int depth, columns, units;         // units: of a tile
  int tiles, more;                   // of each block, and how many blocks have one more
  float per_value, epsilon;
  bool takes_skip, keeps_sum;  // from the last product that kept it
  bool one_scale, gated;
};

template <class T>
struct PersistentAttend {
  T *keys, *values, *y;  // y may be null
  const T *cos, *sin, *sinks;
  const int64_t* position_ids;
  const int32_t* last_keys;
  int fault_node;
};

enum class DecodeStage : uint8_t { product, attend, combine };

template <class T>
struct PersistentSteps {
  static constexpr int kMost = int(kMostDecodeProducts + 2 * kMostDecodeAttends);
  int count = 0;
  DecodeStage stage[kMost];
  uint8_t number[kMost];  // of the product or the attend
  PersistentProduct<T> products[kMostDecodeProducts];
  PersistentAttend<T> attends[kMostDecodeAttends];
};

template <class T, class Weights, int kChunks>
struct PersistentDecode {
  static constexpr int kWarps = 16, kThreads = 32 * kWarps, kMaxThreads = kThreads;
  static constexpr int kQuad = 4, kQuads = 4;  // values of a row that a thread gets at once
  static constexpr int kMostNormed = kThreads * kQuad * kQuads;
  static constexpr int kPairsOfWarp = 2, kMostParts = 32 / kPairsOfWarp;  // as attention is put together
  using Product = PersistentProduct<T>;
  using Attend = PersistentAttend<T>;
  using Share = DecodeShare<T, kChunks, kWarps - kChunks / 2>;
  using Tile = typename Share::Tile;
  using Unit = typename Weights::Unit;
  using Sums = typename Weights::Sums;
  using Quad = device::Pack<T, kQuad>;
  using Pair = device::Pack<float, 2>;
  template <class S>
  using Block = device::Block<S>;
  template <class V, int kMost>
  using PerThread = device::PerThread<V, kMost>;
  static constexpr int kHeld = Weights::kHeld, kColumns = Weights::kColumns;
  struct Shared : Share::Shared {
    float squares[kWarps];
  };
  struct Own {
    Unit held[kHeld];  // of the next product
  };

  device::StepValues made;
  int presence, blocks;            // where blocks say that they were there
  int residual_at, sums_at;        // bytes in shared memory
  int parts_log2, kv_heads, rows;  // of attention; rows: heads that share one of keys
  int k_at, v_at;                  // keys and values in what the product before made, behind queries
  Share share;                     // of the first attend
  PersistentSteps<T> steps;

  DEVICE_FN void begin(Block<Shared>& b, const Shared&, PerThread<Own, kThreads>& own) const {
    b.threads([&](int t, Shared&) {
      own[t] = Own{};
      ask(own[t], steps.products[0], int(b.index()), t);
    });
  }
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&, PerThread<Own, kThreads>& own, int64_t at) const {
    const int step = int(at);
    switch (steps.stage[step]) {
      case DecodeStage::product: return multiply(b, own, step);
      case DecodeStage::attend: return attend(b, step);
      case DecodeStage::combine: return combine(b, own, step);
    }
  }

 private:
  // ---- products

  struct Cursor {
    int tile, unit;
    DEVICE_FN void advance(int units) {
      if (++unit == units) unit = 0, ++tile;
    }
  };
  // Of a block, and of each of its warps.
  struct Extent {
    int first_tile, tiles, units, of_warp;
    DEVICE_FN int end(int from) const { return units - from < of_warp ? units : from + of_warp; }
  };
  DEVICE_FN static Extent extent_of(const Product& p, int block) {
    Extent own;
    own.first_tile = block * p.tiles + (block < p.more ? block : p.more);
    own.tiles = p.tiles + (block < p.more);
    own.units = own.tiles * p.units;
    own.of_warp = (own.units + kWarps - 1) / kWarps;
    return own;
  }
  DEVICE_FN static Cursor cursor_at(const Product& p, int first_tile, int unit) {
    const int tile = unsigned(unit) / unsigned(p.units);
    return {first_tile + tile, unit - tile * p.units};
  }

  // The warp's first units.
  DEVICE_FN static void ask(Own& own, const Product& p, int block, int t) {
    const Extent extent = extent_of(p, block);
    const int from = t / 32 * extent.of_warp, end = extent.end(from);
    const Weights weights = Weights::of(p);
    Cursor next = cursor_at(p, extent.first_tile, from);
    UNROLL for (int h = 0; h < kHeld; ++h) {
      if (from + h < end) weights.load(own.held[h], t % 32, next.tile, next.unit, p.units);
      next.advance(p.units);
    }
  }
  DEVICE_FN const Product& product_of(int step) const { return steps.products[steps.number[step]]; }
  DEVICE_FN const Attend& attend_of(int step) const { return steps.attends[steps.number[step]]; }
  DEVICE_FN bool is_product(int step) const { return step < steps.count && steps.stage[step] == DecodeStage::product; }

  DEVICE_FN static T* row_in(const Block<Shared>& b, Shared& s) { return b.template dynamic<T>(s); }
  DEVICE_FN T* residual_in(const Block<Shared>& b, Shared& s) const { return b.template dynamic<T>(s, residual_at); }
  DEVICE_FN float* sums_in(const Block<Shared>& b, Shared& s) const { return b.template dynamic<float>(s, sums_at); }
  // Of a tile, what a warp has of it: where one of both ends the other goes on, so this numbers them.
  DEVICE_FN float* part_in(const Block<Shared>& b, Shared& s, int tile, int warp) const {
    return sums_in(b, s) + (tile + warp) * kTilePitch;
  }

  DEVICE_FN void multiply(Block<Shared>& b, PerThread<Own, kThreads>& own, int step) const {
    const Product& p = product_of(step);
    p.gamma ? take_normed(b, p, step) : take(b, p, step);
    const Extent extent = extent_of(p, int(b.index()));
    const Weights weights = Weights::of(p);
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const int w = int(warp.least([&](int) { return unsigned(warp.index()); }));  // as all lanes know together
      const int from = w * extent.of_warp, end = extent.end(from);
      Cursor at = cursor_at(p, 0, from), next = cursor_at(p, extent.first_tile, from + kHeld);
      PerThread<Sums, 32> sums;
      warp.lanes([&](int lane) { sums[lane] = Sums{}; });
      NO_UNROLL for (int first = from; first < end; first += kHeld) {
        UNROLL for (int h = 0; h < kHeld; ++h) {
          if (first + h >= end) break;
          const auto used = [&](int lane) -> Unit& { return own[32 * warp.index() + lane].held[h]; };
          weights.multiply(warp, sums, used, row_in(b, s), at.unit);
          const bool ends = at.unit + 1 == p.units || first + h + 1 == end;
          if (first + h + kHeld < end)
            warp.apart([&](int lane) { weights.load(used(lane), lane, next.tile, next.unit, p.units); });
          next.advance(p.units);
          if (ends) weights.show(warp, part_in(b, s, at.tile, w), sums);
          at.advance(p.units);
        }
      }
      warp.apart([&](int lane) {
        const int t = 32 * warp.index() + lane;
        own[t] = Own{};
        if (is_product(step + 1)) ask(own[t], product_of(step + 1), int(b.index()), t);
      });
    });
    b.threads([&](int t, Shared& s) {
      store(b, s, p, extent, step, t);
      say_presence(int(b.index()), step, t);
    });
  }

  // Results in pairs. Gated, a tile makes half as many.
  DEVICE_FN void store(const Block<Shared>& b, Shared& s, const Product& p, const Extent& extent, int step,
                       int t) const {
    const int log2 = p.gated ? 2 : 3, count = extent.tiles << log2;
    for (int i = t; i < count; i += kThreads) {
      const int tile = i >> log2, in_tile = 2 * (i & ((1 << log2) - 1));
      Pair value = total(b, s, p, extent, tile, in_tile);
      const int column = (extent.first_tile + tile) * kColumns + in_tile;
      add_bias(value, p, column);
      if (p.gated) {
        Pair other = total(b, s, p, extent, tile, in_tile + kColumns / 2);
        add_bias(other, p, column + kColumns / 2);
        UNROLL for (int e = 0; e < 2; ++e) value.at[e] = SiluGate().rough(value.at[e], other.at[e]);
      }
      put(step, ((extent.first_tile + tile) << log2) + in_tile / 2, value, p.y);
    }
  }
  DEVICE_FN static void add_bias(Pair& value, const Product& p, int column) {
    if (!p.bias) return;
    UNROLL for (int e = 0; e < 2; ++e) value.at[e] += float(p.bias[column + e]);
  }
  // Of all parts that warps have of it.
  DEVICE_FN Pair total(const Block<Shared>& b, Shared& s, const Product& p, const Extent& extent, int tile,
                       int in_tile) const {
    constexpr int kAtOnce = 8;
    const int first = unsigned(tile * p.units) / unsigned(extent.of_warp);
    const int last = unsigned((tile + 1) * p.units - 1) / unsigned(extent.of_warp);
    Pair sum{};
    NO_UNROLL for (int w = first; w <= last; w += kAtOnce) {
      Pair some[kAtOnce];
      UNROLL for (int n = 0; n < kAtOnce; ++n) some[n] =
          w + n <= last ? *reinterpret_cast<const Pair*>(part_in(b, s, tile, w + n) + in_tile) : Pair{};
      UNROLL for (int e = 0; e < 2; ++e) sum.at[e] +=
          ((some[0].at[e] + some[1].at[e]) + (some[2].at[e] + some[3].at[e])) +
          ((some[4].at[e] + some[5].at[e]) + (some[6].at[e] + some[7].at[e]));
    }
    return sum;
  }

  // ---- what blocks tell one another

  // A pair of a row's values, `i` pairs behind the first.
  DEVICE_FN void put(int step, int i, const Pair& value, T* y) const {
    const uint32_t word = device::as_pair<T>(value.at[0], value.at[1]);
    if (step + 1 < steps.count) made.put(i, step, std::bit_cast<float>(word));
    if (y) reinterpret_cast<uint32_t*>(y)[i] = word;
  }
  DEVICE_FN void say_presence(int block, int step, int t) const {
    if (step + 1 == steps.count || t >= 2) return;
    if (t == 0) made.put(presence + block, step, 0);
    if (t == 1 && block == 0 && blocks % 2 == 1) made.put(presence + blocks, step, 0);  // so that all come in pairs
  }
  DEVICE_FN void wait_for_all(int step, int t) const {
    if (step == 0 || 2 * t >= blocks) return;
    Pair pair;
    made.get_pairs<1>(presence + 2 * t, 0, presence + blocks + 1, step - 1, &pair);
  }
  struct Row {
    Quad at[kQuads];
  };
  // Every kThreads-th quad of a row from quad t on; garbage beyond its end.
  DEVICE_FN Row get(const Product& p, int step, int t) const {
    Row row;
    if (p.x) {
      UNROLL for (int n = 0; n < kQuads; ++n) {
        const int at = (t + n * kThreads) * kQuad;
        if (at < p.depth) row.at[n] = device::load_aligned<kQuad>(p.x + at);
      }
      return row;
    }
    Pair pairs[kQuads];
    made.get_pairs<kQuads>(2 * t, 2 * kThreads, p.depth / 2, step - 1, pairs);
    UNROLL for (int n = 0; n < kQuads; ++n) row.at[n] = std::bit_cast<Quad>(pairs[n]);
    return row;
  }

  DEVICE_FN void take(Block<Shared>& b, const Product& p, int step) const {
    b.threads([&](int t, Shared& s) {
      for (int first = t; first * kQuad < p.depth; first += kQuads * kThreads) {
        const Row row = get(p, step, first);
        UNROLL for (int n = 0; n < kQuads; ++n) {
          const int at = (first + n * kThreads) * kQuad;
          if (at < p.depth) device::store_aligned(row_in(b, s) + at, row.at[n]);
        }
      }
      fill_up(b, s, p, t);
      wait_for_all(step, t);
    });
  }
  // Zeros behind the row, up to the last unit's end.
  DEVICE_FN static void fill_up(const Block<Shared>& b, Shared& s, const Product& p, int t) {
    const int at = p.depth + t * kQuad;
    if (at < p.units * Weights::kUnit) device::store_aligned(row_in(b, s) + at, Quad{});
  }

  DEVICE_FN void take_normed(Block<Shared>& b, const Product& p, int step) const {
    struct Kept {
      float at[kQuads][kQuad];
      Quad gamma[kQuads];
    };
    PerThread<Kept, kThreads> kept;
    const auto each = [&](int t, auto f) {
      UNROLL for (int n = 0; n < kQuads; ++n) {
        const int at = (t + n * kThreads) * kQuad;
        if (at < p.depth) f(n, at);
      }
    };
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      PerThread<float, 32> squares;
      warp.lanes([&](int lane) {
        const int t = 32 * warp.index() + lane;
        Kept& own = kept[t];
        each(t, [&](int n, int at) { own.gamma[n] = device::load_aligned<kQuad>(p.gamma + at); });
        const Row row = get(p, step, t);
        squares[lane] = 0;
        each(t, [&](int n, int at) {
          Quad skip{}, sum;
          if (p.skip) skip = device::load_aligned<kQuad>(p.skip + at);
          if (p.takes_skip) skip = device::load_aligned<kQuad>(residual_in(b, s) + at);
          UNROLL for (int i = 0; i < kQuad; ++i) {
            const float value = float(row.at[n].at[i]) + float(skip.at[i]);
            own.at[n][i] = value;
            sum.at[i] = T(value);
            squares[lane] += value * value;
          }
          if (p.keeps_sum) device::store_aligned(residual_in(b, s) + at, sum);
          if (p.sum && b.index() == 0) device::store_aligned(p.sum + at, sum);
        });
        wait_for_all(step, t);
      });
      warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; },
                                      [](float x, float y) { return x + y; });
      warp.lanes([&](int lane) {
        if (lane == 0) s.squares[warp.index()] = squares[lane];
      });
    });
    b.threads([&](int t, Shared& s) {
      float total = 0;
      UNROLL for (int w = 0; w < kWarps; ++w) total += s.squares[w];
      const float scale = device::fast_inverse_root(total * p.per_value + p.epsilon);
      each(t, [&](int n, int at) {
        const Kept& own = kept[t];
        Quad normed;
        UNROLL for (int i = 0; i < kQuad; ++i) normed.at[i] = T(own.at[n][i] * scale * float(own.gamma[n].at[i]));
        device::store_aligned(row_in(b, s) + at, normed);
      });
      fill_up(b, s, p, t);
    });
  }

  // ---- attention

  // Of what a block has of a head of keys, where a row's maximum, its sum and its values go.
  DEVICE_FN int partial_at(int kv_head, int part, int row) const {
    return (((kv_head << parts_log2) + part) * rows + row) * (share.group.value_size + 2);
  }
  DEVICE_FN Share share_of(const Attend& a, T* fresh, int kv_head) const {
    Share own = share;
    auto& source = own.group.source;
    source.k.data = a.keys, source.v.data = a.values;
    source.visible.last_keys = a.last_keys;
    auto& add = own.add.add;
    add.keys = a.keys, add.values = a.values;
    add.cos = a.cos, add.sin = a.sin;
    add.position_ids = a.position_ids;
    add.added.last_keys = a.last_keys;
    source.visible.fault.node = add.fault.node = a.fault_node;
    // As if those of all heads stood beside those that are there.
    const int size = share.group.head_size;
    add.q = fresh - kv_head * rows * size;
    add.k = fresh + (rows - kv_head) * size;
    add.v = add.k + size;
    return own;
  }

  DEVICE_FN void attend(Block<Shared>& b, int step) const {
    const Attend& a = attend_of(step);
    const int kv_head = int(b.index()) >> parts_log2, part = int(b.index()) & ((1 << parts_log2) - 1);
    const bool has_part = kv_head < kv_heads;
    const int size = share.group.head_size;
    Tile tile{0, kv_head, 0, rows, 0};
    typename Share::template PerThread<typename Share::Keys> keys;
    typename Share::template PerThread<typename Share::Values> values;
    b.threads([&](int t, Shared& s) {
      if (has_part) {
        const Share own = share_of(a, row_in(b, s), kv_head);
        Tile known = tile;
        known.length = own.group.source.visible.length(0);
        if (t < Share::kOldThreads) own.load(keys[t], values[t], own.places_of(known, part, t), t % 32);
        own.find_ranges(s, known, t);
        if (t >= Share::kOldThreads) own.clear(s, tile, t - Share::kOldThreads);
        get_fresh(row_in(b, s), kv_head, size, step, t);
      }
      wait_for_all(step, t);
    });
    if (!has_part) return b.threads([&](int t, Shared&) { say_presence(int(b.index()), step, t); });
    b.threads([&](int t, Shared& s) {
      if (t < Share::kOldThreads) return;
      const Share own = share_of(a, row_in(b, s), kv_head);
      own.take_new(s, tile, part == 0, own.add.likely_position(0, 0, 0), t - Share::kOldThreads);
    });
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const Share own = share_of(a, row_in(b, s), kv_head);
      Tile known = tile;
      known.length = own.group.source.visible.length(0);
      own.attend(warp, b, s, sums_in(b, s), keys, values, known, part);
    });
    b.threads([&](int t, Shared& s) {
      const int value_size = share.group.value_size, pairs = value_size / 2;
      for (int i = t; i < rows * pairs; i += kThreads) {
        const int row = unsigned(i) / unsigned(pairs), column = 2 * (i - row * pairs);
        const auto combined = share.combined(s, sums_in(b, s), row, column);
        const int at = partial_at(kv_head, part, row);
        UNROLL for (int e = 0; e < 2; ++e) made.put(at + 2 + column + e, step, combined.acc.at[e]);
        if (column == 0) made.put(at, step, combined.row_max), made.put(at + 1, step, combined.row_sum);
      }
      say_presence(int(b.index()), step, t);
    });
  }
  // Queries, the new key and its values, of one head of keys.
  DEVICE_FN void get_fresh(T* to, int kv_head, int size, int step, int t) const {
    const int quads = size / kQuad, row = unsigned(t) / unsigned(quads), at = (t - row * quads) * kQuad;
    if (row >= rows + 2) return;
    const int from = row < rows ? (kv_head * rows + row) * size : (row == rows ? k_at : v_at) + kv_head * size;
    Pair pair;
    made.get_pairs<1>((from + at) / 2, 0, (from + at) / 2 + 2, step - 1, &pair);
    device::store_aligned(to + row * size + at, std::bit_cast<Quad>(pair));
  }

  // A lane has a pair of values of one part; of a warp's pairs those that are the same modulo kPairsOfWarp are one.
  struct Piece {
    float acc[2], row_max, row_sum, sink, base;
  };
  DEVICE_FN void combine(Block<Shared>& b, PerThread<Own, kThreads>& own, int step) const {
    const Attend& a = attend_of(step);
    const int block = int(b.index()), all = kv_heads * rows * (share.group.value_size / 2);
    const int least = all / blocks, more = all - least * blocks;
    const int from = block * least + (block < more ? block : more), end = from + least + (block < more);
    b.threads([&](int t, Shared&) {
      if (is_product(step + 1)) ask(own[t], product_of(step + 1), block, t);
      wait_for_all(step, t);
    });
    device::for_each_warp(b, [&](const device::Warp& warp, Shared&) {
      for (int first = from + warp.index() * kPairsOfWarp; first < end; first += kWarps * kPairsOfWarp)
        combine(warp, a, first, end, step);
    });
    b.threads([&](int t, Shared&) { say_presence(block, step, t); });
  }
  DEVICE_FN void combine(const device::Warp& warp, const Attend& a, int first, int end, int step) const {
    const int pairs = share.group.value_size / 2;
    PerThread<Piece, 32> pieces;
    PerThread<float, 32> most;
    warp.lanes([&](int lane) {
      const int pair = first + lane % kPairsOfWarp, part = lane / kPairsOfWarp;
      Piece& piece = pieces[lane];
      piece = {{}, kMaskedScore<float>, 0, kMaskedScore<float>, 0};
      if (pair < end && part >> parts_log2 == 0) {
        const int head = unsigned(pair) / unsigned(pairs), kv_head = unsigned(head) / unsigned(rows);
        const int at = partial_at(kv_head, part, head - kv_head * rows), column = 2 * (pair - head * pairs);
        Pair got[2];
        made.get_pairs<2>(at, 2 + column, at + 4 + column, step - 1, got);
        piece.row_max = got[0].at[0], piece.row_sum = got[0].at[1];
        UNROLL for (int e = 0; e < 2; ++e) piece.acc[e] = got[1].at[e];
        if (a.sinks) piece.sink = float(a.sinks[head]);
      }
      most[lane] = max_score(piece.row_max, piece.sink);
    });
    warp.template reduce_columns<kPairsOfWarp>([&](int lane) -> float& { return most[lane]; },
                                               [](float x, float y) { return max_score(x, y); });
    warp.lanes([&](int lane) {
      Piece& piece = pieces[lane];
      piece.base = finite_max(most[lane]);
      const float correction = exponential(piece.row_max - piece.base);
      UNROLL for (int e = 0; e < 2; ++e) piece.acc[e] *= correction;
      piece.row_sum *= correction;
    });
    const auto add_up = [&](auto value) {
      warp.template reduce_columns<kPairsOfWarp>(value, [](float x, float y) { return x + y; });
    };
    UNROLL for (int e = 0; e < 2; ++e) add_up([&](int lane) -> float& { return pieces[lane].acc[e]; });
    add_up([&](int lane) -> float& { return pieces[lane].row_sum; });
    warp.lanes([&](int lane) {
      if (lane >= kPairsOfWarp || first + lane >= end) return;
      const Piece& piece = pieces[lane];
      const float factor = normalised(1, piece.row_sum + exponential(piece.sink - piece.base));
      put(step, first + lane, {piece.acc[0] * factor, piece.acc[1] * factor}, a.y);
    });
  }
};

}  // namespace encore::ops
