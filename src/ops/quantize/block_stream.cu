// Products of up to 16 rows of halves with woven weights, as when a model generates: bound by reading the weights.
//
// A block makes 16 columns of the result at a time, its warps share out the units of the depth. Each lane asks for its
// units well before it needs them, also for those of the columns that come next, so that reading never pauses; what a
// block multiplies by waits in shared memory.
#include <algorithm>
#include <optional>
#include <utility>

#include "ops/dispatch.h"
#include "ops/elementwise/silu_gate.h"
#include "ops/quantize/stream_rows.h"
#include "ops/quantize/weave.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Granule;
using device::LeftTile;
using device::Pack;
using device::PerThread;
using device::SumTile;
using device::Warp;

constexpr int kRows = 8, kMostRows = 16, kMostWarps = 16;
constexpr int kPitch = 20;  // floats; so that lanes write to banks of their own

// For so many rows, or kMostRows, which Rows brings. kZeros: there are zero points.
template <class T, int kBits, int kMost, bool kZeros, class Rows>
struct StreamCodes {
  using Form = Weave<kBits>;
  static constexpr int kMaxThreads = 32 * kMostWarps, kTiles = (kMost + kRows - 1) / kRows;
  static constexpr int kNext = kMost == 1 ? 2 : 1;  // value of a SumTile: one row has those of even columns alone
  static constexpr bool kBeginsEarly = true;        // with the weights, which are woven of constants
  // Units that a lane has under way, as many as registers have room for.
  static constexpr int kHeld = 4 - (kTiles == 2) - (kBits == 2 ? 1 + kZeros : 0);
  static constexpr int kGroups = Form::kGroups, kTaken = Form::kPart / 2;
  // Groups that are multiplied in turns, so that none waits for its own sums.
  static constexpr int kTurns = kBits == 2 ? 1 : kZeros || kTiles > 1 ? 2 : kGroups;
  struct Shared {
    float bias[2][Form::kRows];
  };
  struct Unit {
    Granule codes[2];          // of the rows g and g + 8
    uint32_t scales[kGroups];  // of both rows; or the first is for all
    uint32_t zeros[kGroups / 2];
  };
  struct Held {
    Unit at[kHeld];
  };
  struct Turns {
    Numbers<T, kBits> numbers[kTurns][2];
    uint32_t right[kTurns][kTiles][kTaken];
    SumTile sums[kTurns][kTiles];
  };
  struct Sums {
    SumTile at[kTiles];
  };

  Rows rows;
  T* y;
  const T* bias;
  const uint8_t* codes;
  const uint16_t* scales;
  const uint8_t* zeros;
  int count, depth, columns, units, tiles, pitch;  // pitch: of a's rows in shared memory
  bool shared;                                     // a unit has but one scale
  bool gated;                                      // as in BlockProduct: a tile has columns of both

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int warps = b.size() / 32, step = int(b.count());
    PerThread<Held, kMaxThreads> held;
    rows.template keep<kMost == 1>(
        b, RowsExtent{count, depth, pitch, units * Form::kUnit},
        [&](int t) {
          UNROLL for (int h = 0; h < kHeld; ++h) load(held[t].at[h], int(b.index()), t % 32, t / 32 + h * warps);
        },
        [&](Shared& s) { return rows_in(b, s); }, [&](Shared& s) { return sums_in(b, s, 0); });
    int tile = int(b.index()), side = 0;  // of what is double, so that a tile is joined while the next is made
    NO_UNROLL for (; tile < tiles; tile += step, side ^= 1) {
      device::for_each_warp(b, [&](Warp warp, Shared& s) {
        const int own = int(warp.least([&](int) { return unsigned(warp.index()); }));  // as all lanes know together
        PerThread<Sums, 32> sums;
        PerThread<T, 32> addend;
        warp.lanes([&](int lane) {
          if (tile >= step) join(b, s, tile - step, side ^ 1, warp.index() * 32 + lane);
          sums[lane] = Sums{};
          addend[lane] = T(0.f);
          const int column = tile * Form::kRows + lane;
          if (bias && warp.index() == 0 && lane < Form::kRows && column < columns) addend[lane] = bias[column];
        });
        NO_UNROLL for (int first = own; first < units; first += kHeld * warps) {
          UNROLL for (int h = 0; h < kHeld; ++h) {
            const int unit = first + h * warps;
            if (unit >= units) break;
            const auto used = [&](int lane) -> Unit& { return held[warp.index() * 32 + lane].at[h]; };
            UNROLL for (int v = 0; v < kGroups; v += kTurns) multiply(warp, sums, used, v, rows_in(b, s), unit);
            const bool more = unit + kHeld * warps < units;
            warp.lanes([&](int lane) {
              load(used(lane), more ? tile : tile + step, lane, more ? unit + kHeld * warps : own + h * warps);
            });
          }
        }
        warp.lanes([&](int lane) {
          show(sums_in(b, s, side) + warp.index() * count * kPitch, sums[lane], lane);
          if (warp.index() == 0 && lane < Form::kRows) s.bias[side][lane] = float(addend[lane]);
        });
      });
    }
    b.threads([&](int t, Shared& s) { join(b, s, tile - step, side ^ 1, t); });
  }

 private:
  DEVICE_FN float* sums_in(const Block<Shared>& b, Shared& s, int side) const {
    return b.template dynamic<float>(s) + side * (b.size() / 32) * count * kPitch;
  }
  DEVICE_FN T* rows_in(const Block<Shared>& b, Shared& s) const { return reinterpret_cast<T*>(sums_in(b, s, 2)); }

  DEVICE_FN void load(Unit& into, int tile, int lane, int unit) const {
    if (tile >= tiles || unit >= units) return;
    const auto at = unsigned(tile) * unsigned(units) + unsigned(unit);
    const auto* const from = reinterpret_cast<const Granule*>(codes + lane * 16) + size_t(at) * (Form::kBytes / 16);
    into.codes[0] = from[0], into.codes[1] = from[32];
    const size_t share = size_t(at) * 8 + unsigned(lane) / 4;  // of both rows at once
    if (shared) {
      into.scales[0] = reinterpret_cast<const uint32_t*>(scales)[share];
      if (kZeros) into.zeros[0] = reinterpret_cast<const uint16_t*>(zeros)[share];
      return;
    }
    const auto own = reinterpret_cast<const Pack<uint32_t, kGroups>*>(scales)[share];
    UNROLL for (int v = 0; v < kGroups; ++v) into.scales[v] = own.at[v];
    if (!kZeros) return;
    const auto own_zeros = reinterpret_cast<const Pack<uint32_t, kGroups / 2>*>(zeros)[share];
    UNROLL for (int i = 0; i < kGroups / 2; ++i) into.zeros[i] = own_zeros.at[i];
  }

  // The zero point of a group, once for each half of a word; r: of the rows g, or g + 8.
  DEVICE_FN uint32_t zeros_of(const Unit& unit, int v, int r) const {
    if (!kZeros) return (1u << (kBits - 1)) * 0x10001u;
    return device::byte_pair(shared ? +unit.zeros[0] : +unit.zeros[v / 2], r + (shared ? 0 : v % 2 * 2));
  }

  // The groups from v on, kTurns of them.
  template <class Used>
  DEVICE_FN void multiply(const Warp& warp, PerThread<Sums, 32>& sums, Used used, int v, const T* rows,
                          int unit) const {
    PerThread<Turns, 32> turns;
    warp.lanes([&](int lane) {
      UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        const int wanted = tile * kRows + lane / 4;
        const int row = wanted < count ? wanted : count - 1;  // lanes beyond the last row do as the last one does
        const T* const from = rows + row * pitch + unit * Form::kUnit + v * Form::kGroup + lane % 4 * Form::kPart;
        UNROLL for (int n = 0; n < kTurns; ++n) {
          UNROLL for (int i = 0; i < kTaken; i += 4) {
            const Granule four = *reinterpret_cast<const Granule*>(from + n * Form::kGroup + 2 * i);
            UNROLL for (int j = 0; j < 4; ++j) turns[lane].right[n][tile][i + j] = four.words[j];
          }
          turns[lane].sums[n][tile] = SumTile{};
        }
      }
      UNROLL for (int n = 0; n < kTurns; ++n) {
        UNROLL for (int r = 0; r < 2; ++r) turns[lane].numbers[n][r] =
            Numbers<T, kBits>(zeros_of(used(lane), v + n, r));
      }
    });
    multiply(warp, turns, used, v, std::make_integer_sequence<int, kTaken / 2>{});
    warp.lanes([&](int lane) {
      UNROLL for (int n = 0; n < kTurns; ++n) {
        const Unit& unit = used(lane);
        const uint32_t scales = shared ? +unit.scales[0] : +unit.scales[v + n];
        const float low = float(std::bit_cast<T>(uint16_t(scales)));
        const float high = float(std::bit_cast<T>(uint16_t(scales >> 16)));
        UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          UNROLL for (int i = 0; i < 4; i += kNext) sums[lane].at[tile].at[i] +=
              (i < 2 ? low : high) * turns[lane].sums[n][tile].at[i];
        }
      }
    });
  }
  template <class Used, int... kTwo>
  DEVICE_FN void multiply(const Warp& warp, PerThread<Turns, 32>& turns, Used used, int v,
                          std::integer_sequence<int, kTwo...>) const {
    (multiply<2 * kTwo>(warp, turns, used, v), ...);
  }
  template <int kI, class Used>
  DEVICE_FN void multiply(const Warp& warp, PerThread<Turns, 32>& turns, Used used, int v) const {
    UNROLL for (int n = 0; n < kTurns; ++n) {
      PerThread<LeftTile, 32> left;
      UNROLL for (int tile = 0; tile < kTiles; ++tile)
          warp.template multiply<T>([&](int lane) -> SumTile& { return turns[lane].sums[n][tile]; },
                                    [&](int lane) {
                                      if (tile == 0)
                                        left[lane] = left_of<kI>(turns[lane].numbers[n], used(lane), v + n);
                                      return left[lane];
                                    },
                                    [&](int lane) {
                                      const auto& right = turns[lane].right[n][tile];
                                      return device::RightTile{{right[kI], right[kI + 1]}};
                                    });
    }
  }
  template <int kI>
  DEVICE_FN static LeftTile left_of(const Numbers<T, kBits> (&by)[2], const Unit& unit, int v) {
    constexpr int kPair = kI % Form::kPairs;
    const int word = v * Form::kWords + kI / Form::kPairs;
    const uint32_t low = unit.codes[0].words[word], high = unit.codes[1].words[word];
    return {{by[0].template pair<kPair>(low), by[1].template pair<kPair>(high),  //
             by[0].template pair<kPair + 1>(low), by[1].template pair<kPair + 1>(high)}};
  }

  DEVICE_FN void show(float* to, const Sums& sums, int lane) const {
    UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      UNROLL for (int i = 0; i < 4; i += kNext) {
        const int row = tile * kRows + lane % 4 * 2 + i % 2;
        if (row < count) to[row * kPitch + lane / 4 + i / 2 * 8] = sums.at[tile].at[i];
      }
    }
  }
  DEVICE_FN void join(const Block<Shared>& b, Shared& s, int tile, int side, int t) const {
    static_assert(Form::kRows == 16);
    const int log2 = gated ? 3 : 4, made = 1 << log2, width = gated ? columns / 2 : columns;
    NO_UNROLL for (int at = t; at < count << log2; at += b.size()) {
      const int row = at >> log2, in_tile = at & (made - 1), column = (tile << log2) + in_tile;
      if (column >= width) continue;
      float value = total(b, s, side, row, in_tile);
      if (gated) value = SiluGate().rough(value, total(b, s, side, row, in_tile + made));
      y[size_t(row) * size_t(width) + size_t(column)] = T(value);
    }
  }
  DEVICE_FN float total(const Block<Shared>& b, Shared& s, int side, int row, int in_tile) const {
    const float* const sums = sums_in(b, s, side) + row * kPitch + in_tile;
    const int warps = b.size() / 32, step = count * kPitch;
    return s.bias[side][in_tile] + (warps == kMostWarps       ? sum_of<kMostWarps>(sums, step)
                                    : warps == kMostWarps / 2 ? sum_of<kMostWarps / 2>(sums, step)
                                                              : sum_of<kMostWarps / 4>(sums, step));
  }
  template <int kCount>
  DEVICE_FN static float sum_of(const float* values, int step) {
    float parts[4] = {};  // none waits for all the others
    UNROLL for (int i = 0; i < kCount; ++i) parts[i % 4] += values[i * step];
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
};

// How a launch is spread.
struct Spread {
  int64_t tiles, pitch, warps, blocks, bytes;
};

// Nothing if shared memory has no room for the rows. A block has `least_warps`, or more.
template <int kBits>
std::optional<Spread> spread_of(int device, int64_t count, const BlockCodes& w, int64_t least_warps) {
  using Form = Weave<kBits>;
  const int64_t units = Form::units(w), tiles = (w.rows + Form::kRows - 1) / Form::kRows;
  // Half a line more than units have, so that neighbouring rows lie in banks of their own.
  const int64_t pitch = units * Form::kUnit + 32, multiprocessors = device::multiprocessors(device);
  const auto bytes = [&](int64_t warps) { return count * (2 * warps * kPitch * 4 + pitch * 2); };
  constexpr int64_t kOthers = 2048;  // that a block takes besides
  // As many blocks on a multiprocessor as have kMostWarps warps together: of fewer warps if there are tiles enough.
  int64_t warps = tiles <= multiprocessors       ? kMostWarps
                  : tiles <= 2 * multiprocessors ? kMostWarps / 2
                                                 : kMostWarps / 4;
  const auto are_few = [&] {
    return warps < least_warps || (bytes(warps) + kOthers) * (kMostWarps / warps) > device::kMostSharedBytes;
  };
  while (warps < kMostWarps && are_few()) warps *= 2;
  if (warps < least_warps || bytes(warps) + kOthers > device::kMostSharedBytes || tiles * units >= int64_t(1) << 31)
    return {};
  const int64_t slots = multiprocessors * (kMostWarps / warps), rounds = (tiles + slots - 1) / slots;
  // So many blocks that all have as much to do.
  return Spread{tiles, pitch, warps, (tiles + rounds - 1) / rounds, bytes(warps)};
}
template <int kBits>
std::optional<Spread> spread_normed(int device, int64_t count, const BlockCodes& w) {
  const int64_t strips = count * RowsNormed<Half>::strips(Weave<kBits>::units(w) * Weave<kBits>::kUnit);
  return spread_of<kBits>(device, count, w, (strips + RowsNormed<Half>::kKeep - 1) / RowsNormed<Half>::kKeep);
}

template <class T, int kBits, int kMost, bool kZeros, class Rows>
void launch(StreamRef stream, const Rows& rows, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven,
            const Spread& spread) {
  using Kernel = StreamCodes<T, kBits, kMost, kZeros, Rows>;
  using Form = Weave<kBits>;
  device::block_kernel<typename Kernel::Shared>(
      stream, {spread.blocks, int(32 * spread.warps), spread.bytes},
      Kernel{rows, static_cast<T*>(p.y), static_cast<const T*>(p.bias), woven.codes, woven.scales, woven.zeros,
             int(p.count), int(w.depth), int(w.rows), int(Form::units(w)), int(spread.tiles), int(spread.pitch),
             Form::shares(w) == 1, p.gated});
}

// Calls f.template operator()<kMost>().
template <class F>
void for_rows(int64_t count, F f) {
  if (count == 1)
    f.template operator()<1>();
  else if (count <= kRows)
    f.template operator()<kRows>();
  else
    f.template operator()<kMostRows>();
}

bool has_all(const BlockCodes& w, const WovenCodes& woven) { return woven.scales && (!w.zeros || woven.zeros); }

}  // namespace

bool multiply_stream(StreamRef stream, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  if (p.count > kMostRows || !has_all(w, woven) || reinterpret_cast<uintptr_t>(p.a) % 16 != 0) return false;
  return for_bits(w.bits, [&]<int kBits> {
    const auto spread = spread_of<kBits>(stream.device(), p.count, w, 1);
    if (spread)
      dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
        const RowsAsTheyAre<T> rows(static_cast<const T*>(p.a), Weave<kBits>::units(w) * Weave<kBits>::kUnit);
        for_rows(p.count, [&]<int kMost> {
          woven.zeros ? launch<T, kBits, kMost, true>(stream, rows, p, w, woven, *spread)
                      : launch<T, kBits, kMost, false>(stream, rows, p, w, woven, *spread);
        });
      });
    return spread.has_value();
  });
}

bool can_norm_on_the_way(int device, int64_t count, const BlockCodes& w, const WovenCodes& woven) {
  if (count == 0 || count > kRows || !woven.codes || !has_all(w, woven)) return false;
  return for_bits(w.bits, [&]<int kBits> { return spread_normed<kBits>(device, count, w).has_value(); });
}

void multiply_normed(StreamRef stream, const RowNorm& norm, const BlockProduct& p, const BlockCodes& w,
                     const WovenCodes& woven) {
  for_bits(w.bits, [&]<int kBits> {
    const Spread spread = spread_normed<kBits>(stream.device(), p.count, w).value();
    dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
      const RowsNormed<T> rows(norm, Weave<kBits>::units(w) * Weave<kBits>::kUnit);
      for_rows(p.count, [&]<int kMost> {
        if constexpr (kMost <= kRows)
          woven.zeros ? launch<T, kBits, kMost, true>(stream, rows, p, w, woven, spread)
                      : launch<T, kBits, kMost, false>(stream, rows, p, w, woven, spread);
      });
    });
  });
}

}  // namespace encore::ops
