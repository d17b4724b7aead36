// The kernel of persistent_decode.h. A step is a product, or attention's first half, in which blocks look at parts of
// the keys, or its second, in which the parts are put together. In each step every block gets what the step before made
// and makes its part of the next.
//
// A block has whole tiles of a product's columns. Their units, along the depth, stand in a row, of which each warp has
// a part. A warp asks for units in their order, as many ahead as its ring has slots, whichever product they are of:
// weights are on their way while blocks tell one another what they made, and while they attend.
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
  int width_log2;                    // of a tile, in 16 columns
  int tiles, more;                   // of each block, and how many blocks have one more
  float per_value, epsilon;
  bool takes_skip, keeps_sum;  // from the last product that kept it
  bool one_scale, gated;
};

template <class T>
struct PersistentAttend {
  int64_t keys, values;  // where the cache is, as seen from the first attend's
  T* y;                  // or null
  const T *sinks, *q_weights, *k_weights;
};

// Each layer has a cache of its own. The new row is in shared memory: queries, the key and its values.
template <class T>
struct LayerRows : DecodeRows<T> {
  using Base = DecodeRows<T>;
  struct Tile : Base::Tile {
    int64_t keys, values;
    const T *fresh, *q_weights, *k_weights;
  };
  DEVICE_FN const T* key_row(const Tile& tile, typename Base::Walk walk, int key, int in_tile, bool there) const {
    return Base::key_row(tile, walk, key, in_tile, there) + tile.keys;
  }
  DEVICE_FN const T* value_row(const Tile& tile, typename Base::Walk walk, int key, int in_tile, bool there) const {
    return Base::value_row(tile, walk, key, in_tile, there) + tile.values;
  }
  DEVICE_FN static const T* new_head(const AddPacks<T>& add, const Tile& tile, int row, int /*number*/) {
    return tile.fresh + row * add.add.layout.size;
  }
  DEVICE_FN static const T* norm_weights(const AddPacks<T>&, const Tile& tile, int which) {
    return which < 0 ? tile.q_weights : which == 0 ? tile.k_weights : nullptr;
  }
  DEVICE_FN static int64_t moved(const Tile& tile, bool value) { return value ? tile.values : tile.keys; }
};

enum class DecodeStage : uint8_t { product, attend, combine };

template <class T>
struct PersistentSteps {
  static constexpr int kMost = int(kMostDecodeProducts + 2 * kMostDecodeAttends);
  int count = 0, products_count = 0;
  DecodeStage stage[kMost];
  uint8_t number[kMost];  // of the product or the attend
  PersistentProduct<T> products[kMostDecodeProducts];
  PersistentAttend<T> attends[kMostDecodeAttends];
};

template <class T, class Weights, int kChunks>
struct PersistentDecode {
  static constexpr int kWarps = kChunks == 2 ? 16 : 12;  // as registers allow
  static constexpr int kThreads = 32 * kWarps, kMaxThreads = kThreads;
  // Values of a row that a thread gets at once: all of a row that is normed, and one more to tell of blocks.
  static constexpr int kQuad = 4, kQuads = (int(kMostNormedDepth) + kThreads * kQuad - 1) / (kThreads * kQuad) + 1;
  static constexpr int kPairsOfWarp = 2, kMostParts = 32 / kPairsOfWarp;  // as attention is put together
  using Product = PersistentProduct<T>;
  using Attend = PersistentAttend<T>;
  using Share = DecodeShare<T, kChunks, kWarps - kChunks / 2, LayerRows<T>>;
  using Tile = typename Share::Tile;
  using Sums = typename Weights::Sums;
  using Quad = device::Pack<T, kQuad>;
  using Pair = device::Pack<float, 2>;
  template <class S>
  using Block = device::Block<S>;
  template <class V, int kMost>
  using PerThread = device::PerThread<V, kMost>;
  static constexpr int kRing = Weights::kRing * 16 / kWarps, kColumns = 16;
  static constexpr int64_t kRingBytes = int64_t(kWarps) * kRing * Weights::kSlot;
  struct Shared : Share::Shared {
    float squares[kWarps];
  };
  // Where a warp's next unit is, and the slots of that and of the one to be multiplied next.
  struct Own {
    int product, left, tile, unit;
    int ask_slot, use_slot;
  };

  // In a step that a product follows each block puts a value behind the results, to say that it was there, and there
  // each gets all of these. So of the steps before that one nobody gets anything any more. Two steps in a row do
  // without, at most.
  device::ValuesOfSteps<4> made;
  device::ValuesOfSteps<1> partials;  // of attention, whose steps are further apart
  int blocks;
  int row_at, sums_at, acc_at;     // bytes in shared memory
  int parts_log2, kv_heads, rows;  // of attention; rows: heads that share one of keys
  int k_at, v_at;                  // keys and values in what the product before made, behind queries
  Share share;                     // of the first attend
  PersistentSteps<T> steps;

  DEVICE_FN void begin(Block<Shared>& b, const Shared&, PerThread<Own, kThreads>& own) const {
    b.threads([&](int t, Shared& s) {
      own[t] = {-1, 0, 0, 0, 0, 0};
      for (int i = 0; i < kRing; ++i) ask(b, s, own[t], t);
    });
  }
  DEVICE_FN void operator()(Block<Shared>& b, const Shared&, PerThread<Own, kThreads>& own, int64_t at) const {
    const int step = int(at);
    switch (steps.stage[step]) {
      case DecodeStage::product: return multiply(b, own, step);
      case DecodeStage::attend: return attend(b, step);
      case DecodeStage::combine: return combine(b, step);
    }
  }

 private:
  // ---- products

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
  // The next unit of all, which is a group of copies; an empty one behind the last unit.
  DEVICE_FN void ask(const Block<Shared>& b, Shared& s, Own& own, int t) const {
    while (own.left == 0 && own.product + 1 < steps.products_count) {
      const Product& next = steps.products[++own.product];
      const Extent extent = extent_of(next, int(b.index()));
      const int from = t / 32 * extent.of_warp, end = extent.end(from);
      own.left = end > from ? end - from : 0;
      own.tile = unsigned(from) / unsigned(next.units);
      own.unit = from - own.tile * next.units;
      own.tile += extent.first_tile;
    }
    if (own.left > 0) {
      const Product& p = steps.products[own.product];
      Weights::of(p).ask(slot_in(b, s, t / 32, own.ask_slot), t % 32, own.tile, own.unit, p.units);
      if (++own.unit == p.units) own.unit = 0, ++own.tile;
      --own.left;
      own.ask_slot = own.ask_slot + 1 < kRing ? own.ask_slot + 1 : 0;
    }
    device::end_group_of_copies();
  }
  DEVICE_FN static unsigned char* slot_in(const Block<Shared>& b, Shared& s, int warp, int slot) {
    return b.template dynamic<unsigned char>(s, (warp * kRing + slot) * Weights::kSlot);
  }
  DEVICE_FN const Product& product_of(int step) const { return steps.products[steps.number[step]]; }
  DEVICE_FN const Attend& attend_of(int step) const { return steps.attends[steps.number[step]]; }

  DEVICE_FN T* row_in(const Block<Shared>& b, Shared& s) const { return b.template dynamic<T>(s, row_at); }
  DEVICE_FN T* residual_in(const Block<Shared>& b, Shared& s) const { return b.template dynamic<T>(s, kRingBytes); }
  // Of a tile, what a warp has of it: where one of both ends the other goes on, so this numbers them.
  DEVICE_FN float* part_in(const Block<Shared>& b, Shared& s, const Product& p, int tile, int warp) const {
    return b.template dynamic<float>(s, sums_at) + ((tile + warp) << p.width_log2) * kTilePitch;
  }

  DEVICE_FN void multiply(Block<Shared>& b, PerThread<Own, kThreads>& own, int step) const {
    const Product& p = product_of(step);
    p.gamma ? take_normed(b, p, step) : take(b, p, step);
    const Extent extent = extent_of(p, int(b.index()));
    const Weights weights = Weights::of(p);
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      const int w = int(warp.least([&](int) { return unsigned(warp.index()); }));  // as all lanes know together
      const int from = w * extent.of_warp, end = extent.end(from);
      int tile = unsigned(from) / unsigned(p.units), unit = from - tile * p.units;
      PerThread<Sums, 32> sums;
      warp.lanes([&](int lane) { sums[lane] = Sums{}; });
      NO_UNROLL for (int at = from; at < end; ++at) {
        int slot;
        warp.lanes([&](int lane) {
          Own& mine = own[32 * warp.index() + lane];
          slot = mine.use_slot;
          mine.use_slot = slot + 1 < kRing ? slot + 1 : 0;
          device::wait_for_copies_before<kRing - 1>();
        });
        weights.multiply(warp, sums, slot_in(b, s, w, slot), row_in(b, s), extent.first_tile + tile, unit, p.units);
        warp.apart([&](int lane) { ask(b, s, own[32 * warp.index() + lane], 32 * warp.index() + lane); });
        const bool ends = ++unit == p.units || at + 1 == end;
        if (ends) weights.show(warp, part_in(b, s, p, tile, w), sums), ++tile, unit = 0;
      }
    });
    b.threads([&](int t, Shared& s) {
      store(b, s, p, extent, step, t);
      say_presence(int(b.index()), step, p.columns / (p.gated ? 4 : 2), t);
    });
  }

  // Results in pairs. Gated, 16 columns make half as many.
  DEVICE_FN void store(const Block<Shared>& b, Shared& s, const Product& p, const Extent& extent, int step,
                       int t) const {
    const int log2 = p.gated ? 2 : 3, count = extent.tiles << p.width_log2 << log2;
    const int first = extent.first_tile << p.width_log2;
    for (int i = t; i < count; i += kThreads) {
      const int sixteen = i >> log2, in_sixteen = 2 * (i & ((1 << log2) - 1));
      Pair value = total(b, s, p, extent, sixteen, in_sixteen);
      const int column = (first + sixteen) * kColumns + in_sixteen;
      add_bias(value, p, column);
      if (p.gated) {
        Pair other = total(b, s, p, extent, sixteen, in_sixteen + kColumns / 2);
        add_bias(other, p, column + kColumns / 2);
        UNROLL for (int e = 0; e < 2; ++e) value.at[e] = SiluGate().rough(value.at[e], other.at[e]);
      }
      put(step, (first << log2) + i, value, p.y);
    }
  }
  DEVICE_FN static void add_bias(Pair& value, const Product& p, int column) {
    if (!p.bias) return;
    UNROLL for (int e = 0; e < 2; ++e) value.at[e] += float(p.bias[column + e]);
  }
  // Of all parts that warps have of it.
  DEVICE_FN Pair total(const Block<Shared>& b, Shared& s, const Product& p, const Extent& extent, int sixteen,
                       int in_sixteen) const {
    constexpr int kAtOnce = 8;
    const int tile = sixteen >> p.width_log2, in_tile = sixteen - (tile << p.width_log2);
    const int first = unsigned(tile * p.units) / unsigned(extent.of_warp);
    const int last = unsigned((tile + 1) * p.units - 1) / unsigned(extent.of_warp);
    const int apart = kTilePitch << p.width_log2;  // from one warp's part to the next one's
    const float* const from = part_in(b, s, p, tile, first) + in_tile * kTilePitch + in_sixteen;
    Pair sum{};
    NO_UNROLL for (int w = 0; w <= last - first; w += kAtOnce) {
      Pair some[kAtOnce];
      UNROLL for (int n = 0; n < kAtOnce; ++n) some[n] =
          w + n <= last - first ? *reinterpret_cast<const Pair*>(from + (w + n) * apart) : Pair{};
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
  // Behind so many pairs, as one more, or two: all come in twos.
  DEVICE_FN void say_presence(int block, int step, int pairs, int t) const {
    if (step + 1 == steps.count) return;
    if (t == kThreads - 1) made.put(pairs + block, step, 0);
    if (t == kThreads - 2 && block == 0 && blocks % 2 == 1) made.put(pairs + blocks, step, 0);
  }
  struct Row {
    Quad at[kQuads];
  };
  // Every kThreads-th quad of a row from quad t on; garbage beyond its end. Who gets the last waits for all blocks.
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
    made.template get_pairs<kQuads>(2 * t, 2 * kThreads, p.depth / 2 + blocks, step - 1, pairs);
    UNROLL for (int n = 0; n < kQuads; ++n) row.at[n] = std::bit_cast<Quad>(pairs[n]);
    return row;
  }
  // Of a row, and of what says that blocks were there.
  DEVICE_FN int quads_of(const Product& p) const { return p.depth / kQuad + (p.x ? 0 : (blocks + 1) / 2); }

  DEVICE_FN void take(Block<Shared>& b, const Product& p, int step) const {
    b.threads([&](int t, Shared& s) {
      for (int first = t; first < quads_of(p); first += kQuads * kThreads) {
        const Row row = get(p, step, first);
        UNROLL for (int n = 0; n < kQuads; ++n) {
          const int at = (first + n * kThreads) * kQuad;
          if (at < p.depth) device::store_aligned(row_in(b, s) + at, row.at[n]);
        }
      }
      fill_up(b, s, p, t);
    });
  }
  // Zeros behind the row, up to the last unit's end.
  DEVICE_FN void fill_up(const Block<Shared>& b, Shared& s, const Product& p, int t) const {
    const int at = p.depth + t * kQuad;
    if (at < (p.units * Weights::kUnit >> p.width_log2)) device::store_aligned(row_in(b, s) + at, Quad{});
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

  // What warps make of their keys.
  DEVICE_FN float* acc_in(const Block<Shared>& b, Shared& s) const { return b.template dynamic<float>(s, acc_at); }

  // Of what a block has of a head of keys, where a row's maximum, its sum and its values go.
  DEVICE_FN int partial_at(int kv_head, int part, int row) const {
    return (((kv_head << parts_log2) + part) * rows + row) * (share.group.value_size + 2);
  }
  // Of what a block looks at; its length is missing.
  DEVICE_FN Tile tile_of(const Attend& a, const T* fresh, int kv_head) const {
    Tile tile;
    tile.batch = 0, tile.kv_head = kv_head, tile.first_row = 0, tile.rows = rows, tile.length = 0;
    tile.keys = a.keys, tile.values = a.values, tile.fresh = fresh;
    tile.q_weights = a.q_weights, tile.k_weights = a.k_weights;
    return tile;
  }

  DEVICE_FN void attend(Block<Shared>& b, int step) const {
    const Attend& a = attend_of(step);
    const int kv_head = int(b.index()) >> parts_log2, part = int(b.index()) & ((1 << parts_log2) - 1);
    const bool has_part = kv_head < kv_heads;
    const int size = share.group.head_size;
    typename Share::template PerThread<typename Share::Keys> keys;
    typename Share::template PerThread<typename Share::Values> values;
    b.threads([&](int t, Shared& s) {
      if (has_part) {
        Tile tile = tile_of(a, row_in(b, s), kv_head);
        tile.length = share.group.source.visible.length(0);
        if (t < Share::kOldThreads) share.load(keys[t], values[t], share.places_of(tile, part, t), t % 32);
        share.find_ranges(s, tile, t);
        if (t >= Share::kOldThreads) share.clear(s, tile, t - Share::kOldThreads);
        get_fresh(row_in(b, s), kv_head, size, step, t);
      }
    });
    if (!has_part) return;
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      if (32 * warp.index() < Share::kOldThreads) return;
      const Tile tile = tile_of(a, row_in(b, s), kv_head);
      share.take_normed(warp, s, tile, part == 0, share.add.likely_position(0, 0, 0));
    });
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      Tile tile = tile_of(a, row_in(b, s), kv_head);
      tile.length = share.group.source.visible.length(0);
      share.attend(warp, b, s, acc_in(b, s), keys, values, tile, part);
    });
    b.threads([&](int t, Shared& s) {
      const int value_size = share.group.value_size, pairs = value_size / 2;
      for (int i = t; i < rows * pairs; i += kThreads) {
        const int row = unsigned(i) / unsigned(pairs), column = 2 * (i - row * pairs);
        const auto combined = share.combined(s, acc_in(b, s), row, column);
        const int at = partial_at(kv_head, part, row);
        UNROLL for (int e = 0; e < 2; ++e) partials.put(at + 2 + column + e, step, combined.acc.at[e]);
        if (column == 0) partials.put(at, step, combined.row_max), partials.put(at + 1, step, combined.row_sum);
      }
    });
  }
  // Queries, the new key and its values, of one head of keys.
  DEVICE_FN void get_fresh(T* to, int kv_head, int size, int step, int t) const {
    const int quads = size / kQuad, row = unsigned(t) / unsigned(quads), at = (t - row * quads) * kQuad;
    if (row >= rows + 2) return;
    const int from = row < rows ? (kv_head * rows + row) * size : (row == rows ? k_at : v_at) + kv_head * size;
    Pair pair;
    made.template get_pairs<1>((from + at) / 2, 0, (from + at) / 2 + 2, step - 1, &pair);
    device::store_aligned(to + row * size + at, std::bit_cast<Quad>(pair));
  }

  // A lane has a pair of values of one part; of a warp's pairs those that are the same modulo kPairsOfWarp are one.
  DEVICE_FN void combine(Block<Shared>& b, int step) const {
    const Attend& a = attend_of(step);
    const int block = int(b.index()), all = kv_heads * rows * (share.group.value_size / 2);
    const int least = all / blocks, more = all - least * blocks;
    const int from = block * least + (block < more ? block : more), end = from + least + (block < more);
    device::for_each_warp(b, [&](const device::Warp& warp, Shared&) {
      for (int first = from + warp.index() * kPairsOfWarp; first < end; first += kWarps * kPairsOfWarp)
        combine(warp, a, first, end, step);
    });
    b.threads([&](int t, Shared&) { say_presence(block, step, all, t); });
  }
  DEVICE_FN void combine(const device::Warp& warp, const Attend& a, int first, int end, int step) const {
    const int pairs = share.group.value_size / 2;
    PerThread<PartOfRow<2>, 32> parts;
    warp.lanes([&](int lane) {
      const int pair = first + lane % kPairsOfWarp, part = lane / kPairsOfWarp;
      PartOfRow<2>& own = parts[lane];
      own = {};
      if (pair >= end || part >> parts_log2 != 0) return;
      const int head = unsigned(pair) / unsigned(pairs), kv_head = unsigned(head) / unsigned(rows);
      const int at = partial_at(kv_head, part, head - kv_head * rows), column = 2 * (pair - head * pairs);
      Pair got[2];
      partials.template get_pairs<2>(at, 2 + column, at + 4 + column, step - 1, got);
      own.row_max = got[0].at[0], own.row_sum = got[0].at[1];
      UNROLL for (int e = 0; e < 2; ++e) own.acc[e] = got[1].at[e];
      if (a.sinks) own.sink = float(a.sinks[head]);
    });
    PartOfRow<2>::template join<kPairsOfWarp>(warp, parts);
    warp.lanes([&](int lane) {
      if (lane < kPairsOfWarp && first + lane < end)
        put(step, first + lane, {parts[lane].acc[0], parts[lane].acc[1]}, a.y);
    });
  }
};

}  // namespace encore::ops
