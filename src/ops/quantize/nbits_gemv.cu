// GEMV with woven weights, and products of up to 16 rows of halves, as decoding has them: bound by reading the weights.
//
// A block makes tiles of 16 columns of the result. Their units stand in a row, of which each warp has a part: it reads
// on and on, having asked for its units well before it needs them, and waits for no other warp before the end. What a
// block multiplies by waits in shared memory.
#include <algorithm>
#include <optional>

#include "ops/dispatch.h"
#include "ops/elementwise/silu_gate.h"
#include "ops/quantize/gemv_rows.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {
namespace {

using device::Block;
using device::PerThread;
using device::Warp;

constexpr int kRows = 8, kMostRows = 16, kMostWarps = 16;

// For so many rows, or kMostRows, which Rows brings. kZeros: there are zero points.
template <class T, int kBits, int kMost, bool kZeros, class Rows>
struct NBitsGemv {
  using Form = Weave<kBits>;
  using Weights = WovenUnits<T, kBits, kMost, kZeros>;
  using Unit = typename Weights::Unit;
  using Sums = typename Weights::Sums;
  static constexpr int kMaxThreads = 32 * kMostWarps, kHeld = Weights::kHeld;
  static constexpr bool kBeginsEarly = true;  // with the weights, which are woven of constants
  struct Shared {
    float squares[Rows::kMostFree];
  };
  struct Held {
    Unit at[kHeld];
  };

  Rows rows;
  T* y;
  const T* bias;
  Weights weights;
  int depth, columns, units;
  int tiles, of_block, of_warp;  // in all, of a block, and units of a warp
  device::SmallDivider by_count, by_units, by_warps;
  bool gated;  // as in BlockProduct: a tile has columns of both
  bool constant_bias;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int first_tile = int(b.index()) * of_block, left = tiles - first_tile;
    const int own_tiles = left < of_block ? left : of_block, own_units = own_tiles * units, base = first_tile * units;
    PerThread<Held, kMaxThreads> held;
    PerThread<float, kMaxThreads> addend;
    rows.template keep<kMost == 1>(
        b, RowsExtent{weights.count, depth, weights.pitch, units * Form::kUnit},
        [&](int t) {
          const int from = t / 32 * of_warp;
          UNROLL for (int h = 0; h < kHeld; ++h) {
            if (h < of_warp && from + h < own_units) weights.load(held[t].at[h], t % 32, base + from + h);
          }
          addend[t] = constant_bias ? addend_of(place_of(t, first_tile).column) : 0.f;
        },
        [&](Shared& s) { return rows_in(b, s); }, [&](Shared& s) { return s.squares; });
    device::for_each_warp(b, [&](Warp warp, Shared& s) {
      const int own = int(warp.least([&](int) { return unsigned(warp.index()); }));  // as all lanes know together
      const int from = own * of_warp, to = own_units - from < of_warp ? own_units : from + of_warp;
      int unit, tile = by_units(from, unit);
      PerThread<Sums, 32> sums;
      warp.lanes([&](int lane) { sums[lane] = Sums{}; });
      NO_UNROLL for (int first = from; first < to; first += kHeld) {
        UNROLL for (int h = 0; h < kHeld; ++h) {
          const int at = first + h;
          if (at >= to) break;
          const auto used = [&](int lane) -> Unit& { return held[warp.index() * 32 + lane].at[h]; };
          weights.multiply(warp, sums, used, rows_in(b, s), unit);
          ++unit;
          const bool more = at + kHeld < to, ends = unit == units || at + 1 == to;
          warp.lanes([&](int lane) {
            if (more) weights.load(used(lane), lane, base + at + kHeld);
            if (!ends) return;
            weights.show(part_in(b, s, tile, own), sums[lane], lane);
            sums[lane] = Sums{};
          });
          if (ends) ++tile, unit = 0;
        }
      }
    });
    b.threads([&](int t, Shared& s) {
      const int made = (own_tiles * weights.count) << log2_made();
      NO_UNROLL for (int i = t; i < made; i += b.size()) {
        const Place place = place_of(i, first_tile);
        store(b, s, place, first_tile, constant_bias && i == t ? addend[t] : addend_of(place.column));
      }
    });
  }

 private:
  // Of a result.
  struct Place {
    int tile, row, in_tile, column;
  };
  // Gated, a tile makes half as many.
  DEVICE_FN int log2_made() const { return gated ? 3 : 4; }
  DEVICE_FN Place place_of(int i, int first_tile) const {
    static_assert(Form::kRows == 16);
    const int log2 = log2_made();
    Place place;
    place.row = 0, place.tile = i >> log2;
    if (kMost > 1) place.tile = by_count(place.tile, place.row);
    place.in_tile = i & ((1 << log2) - 1);
    place.column = ((first_tile + place.tile) << log2) + place.in_tile;
    return place;
  }
  // Of those that are not gated.
  DEVICE_FN float addend_of(int column) const { return bias && column < columns && !gated ? float(bias[column]) : 0.f; }
  DEVICE_FN void store(const Block<Shared>& b, Shared& s, const Place& place, int first_tile, float addend) const {
    const int width = gated ? columns / 2 : columns;
    if (place.column >= width) return;
    float value = total(b, s, place.tile, place.row, place.in_tile) + addend;
    if (gated) {
      const int half = Form::kRows / 2, column = (first_tile + place.tile) * Form::kRows + place.in_tile;
      const float other = total(b, s, place.tile, place.row, place.in_tile + half);
      value = bias ? SiluGate().rough(value + float(bias[column]), other + float(bias[column + half]))
                   : SiluGate().rough(value, other);
    }
    y[size_t(place.row) * size_t(width) + size_t(place.column)] = T(value);
  }
  // Of all parts that warps have of it.
  DEVICE_FN float total(const Block<Shared>& b, Shared& s, int tile, int row, int in_tile) const {
    constexpr int kAtOnce = 8;
    int rest;
    const int first = by_warps(tile * units, rest), last = by_warps((tile + 1) * units - 1, rest);
    const float* from = part_in(b, s, tile, first) + row * kTilePitch + in_tile;
    float sum = 0;
    NO_UNROLL for (int w = first; w <= last; w += kAtOnce, from += kAtOnce * weights.count * kTilePitch) {
      float some[kAtOnce];
      UNROLL for (int n = 0; n < kAtOnce; ++n) some[n] = w + n <= last ? from[n * weights.count * kTilePitch] : 0;
      sum += ((some[0] + some[1]) + (some[2] + some[3])) + ((some[4] + some[5]) + (some[6] + some[7]));
    }
    return sum;
  }

  // Of a tile, what a warp has of it: where one of both ends the other goes on, so this numbers them.
  DEVICE_FN float* part_in(const Block<Shared>& b, Shared& s, int tile, int warp) const {
    return b.template dynamic<float>(s) + (tile + warp) * weights.count * kTilePitch;
  }
  DEVICE_FN T* rows_in(const Block<Shared>& b, Shared& s) const {
    return reinterpret_cast<T*>(part_in(b, s, of_block, b.size() / 32));
  }
};

// How a launch is spread.
struct GemvSpread {
  int64_t tiles, of_block, of_warp, pitch, warps, blocks, bytes;
};

// Nothing if shared memory has no room for the rows. A block has `least_warps`, or more.
template <int kBits>
std::optional<GemvSpread> spread_of(int device, int64_t count, const BlockCodes& w, int64_t least_warps) {
  using Form = Weave<kBits>;
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t units = Form::units(w), tiles = ceil(w.rows, Form::kRows);
  if (least_warps > kMostWarps || units == 0 || tiles * units >= int64_t(1) << 31) return {};
  // Half a line more than units have, so that neighbouring rows lie in banks of their own.
  const int64_t pitch = units * Form::kUnit + 32;
  constexpr int64_t kOthers = 2048;  // that a block takes besides
  // A block for each multiprocessor; more if it had no room for all its parts.
  GemvSpread s{.tiles = tiles, .of_block = ceil(tiles, device::multiprocessors(device)), .pitch = pitch};
  for (;; s.of_block = ceil(s.of_block, 2)) {
    s.warps = std::clamp<int64_t>((std::max(s.of_block * units, least_warps) + 3) / 4 * 4, 4, kMostWarps);
    s.bytes = count * ((s.of_block + s.warps) * kTilePitch * 4 + pitch * 2);
    if (s.bytes + kOthers <= device::shared_bytes(device)) break;
    if (s.of_block == 1) return {};
  }
  s.of_warp = ceil(s.of_block * units, s.warps);
  s.blocks = ceil(tiles, s.of_block);
  return s;
}
template <int kBits>
std::optional<GemvSpread> spread_normed(int device, int64_t count, const BlockCodes& w) {
  const int64_t strips = count * RowsNormed<Half>::strips(Weave<kBits>::units(w) * Weave<kBits>::kUnit);
  return spread_of<kBits>(device, count, w, (strips + RowsNormed<Half>::kKeep - 1) / RowsNormed<Half>::kKeep);
}

template <class T, int kBits, int kMost, bool kZeros, class Rows>
void launch(StreamRef stream, const Rows& rows, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven,
            const GemvSpread& spread) {
  using Kernel = NBitsGemv<T, kBits, kMost, kZeros, Rows>;
  using Form = Weave<kBits>;
  device::block_kernel<typename Kernel::Shared>(stream, {spread.blocks, int(32 * spread.warps), spread.bytes},
                                                Kernel{rows,
                                                       static_cast<T*>(p.y),
                                                       static_cast<const T*>(p.bias),
                                                       {woven, int(p.count), int(spread.pitch), Form::shares(w) == 1},
                                                       int(w.depth),
                                                       int(w.rows),
                                                       int(Form::units(w)),
                                                       int(spread.tiles),
                                                       int(spread.of_block),
                                                       int(spread.of_warp),
                                                       device::SmallDivider(int(p.count)),
                                                       device::SmallDivider(int(Form::units(w))),
                                                       device::SmallDivider(int(spread.of_warp)),
                                                       p.gated,
                                                       p.constant_bias});
}

// Calls f.template operator()<kMost>(). One row is as good as eight but for weights of four bits, which most models
// have: kernels take room in the library.
template <int kBits, class F>
void for_rows(int64_t count, F f) {
  if constexpr (kBits == 4) {
    if (count == 1) return f.template operator()<1>();
  }
  if (count <= kRows)
    f.template operator()<kRows>();
  else
    f.template operator()<kMostRows>();
}

bool has_all(const BlockCodes& w, const WovenCodes& woven) { return woven.scales && (!w.zeros || woven.zeros); }

}  // namespace

bool multiply_nbits_gemv(StreamRef stream, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  if (p.count > kMostRows || !has_all(w, woven) || reinterpret_cast<uintptr_t>(p.a) % 16 != 0) return false;
  return for_bits(w.bits, [&]<int kBits> {
    const auto spread = spread_of<kBits>(stream.device(), p.count, w, 1);
    if (spread)
      dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
        const RowsAsTheyAre<T> rows(static_cast<const T*>(p.a), Weave<kBits>::units(w) * Weave<kBits>::kUnit);
        for_rows<kBits>(p.count, [&]<int kMost> {
          woven.zeros ? launch<T, kBits, kMost, true>(stream, rows, p, w, woven, *spread)
                      : launch<T, kBits, kMost, false>(stream, rows, p, w, woven, *spread);
        });
      });
    return spread.has_value();
  });
}

bool fits_normed(int device, int64_t count, const BlockCodes& w, const WovenCodes& woven) {
  if (count == 0 || count > kRows || !woven.codes || !has_all(w, woven)) return false;
  return for_bits(w.bits, [&]<int kBits> { return spread_normed<kBits>(device, count, w).has_value(); });
}

void multiply_normed(StreamRef stream, const RowNorm& norm, const BlockProduct& p, const BlockCodes& w,
                     const WovenCodes& woven) {
  for_bits(w.bits, [&]<int kBits> {
    const GemvSpread spread = spread_normed<kBits>(stream.device(), p.count, w).value();
    dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
      const RowsNormed<T> rows(norm, Weave<kBits>::units(w) * Weave<kBits>::kUnit);
      for_rows<kBits>(p.count, [&]<int kMost> {
        if constexpr (kMost <= kRows)
          woven.zeros ? launch<T, kBits, kMost, true>(stream, rows, p, w, woven, spread)
                      : launch<T, kBits, kMost, false>(stream, rows, p, w, woven, spread);
      });
    });
  });
}

}  // namespace encore::ops
