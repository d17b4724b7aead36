// Products of some rows of halves, up to 64, with woven weights.
//
// A block makes 16 columns of the result, its warps share out the units of the depth. Codes become whole numbers in
// halves, exactly; the sums of a group are multiplied by its scale in float. A lane has several units under way.
#include <algorithm>
#include <utility>

#include "device/divide.h"
#include "device/mma_fragments.h"
#include "device/pair.h"
#include "device/unaligned_pack.h"
#include "ops/dispatch.h"
#include "ops/quantize/woven_units.h"

namespace encore::ops {
namespace {

using device::Block;
using device::FragmentC;
using device::Granule;
using device::PerThread;

constexpr int kRows = 8, kMostRows = 64;

template <class T, int kBits, int kTiles>
struct NBitsTiles {
  using Form = Weave<kBits>;
  static constexpr int kMaxThreads = 256, kWarps = kMaxThreads / 32;
  // Units that a lane has under way: as many as leave room for two blocks.
  static constexpr int kHeld = kBits == 2 || kTiles == 4 ? 3 : 4;
  static constexpr int kGroups = Form::kGroups, kTaken = Form::kPart / 2;
  struct Shared {
    float sums[kWarps][kTiles * kRows][kTilePitch];
  };
  using Unit = WovenUnit<kBits>;
  struct Held {
    Unit at[kHeld];
  };
  struct Rows {
    const T* at[kTiles];
  };
  struct Sums {
    FragmentC at[kTiles];
  };
  struct Lefts {
    uint32_t at[2][kTaken];
  };
  struct Rights {
    uint32_t at[kTiles][kTaken];
  };

  const T* a;
  T* y;
  const T* bias;
  const uint8_t* codes;
  const uint16_t* scales;
  const uint8_t* zeros;
  int count, depth, columns, units, shares;
  device::Divider by_row_tiles;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    int64_t row_tile;
    const int64_t tile = by_row_tiles(b.index(), row_tile);
    const int column0 = int(tile) * Form::kRows, row0 = int(row_tile) * kTiles * kRows, warps = b.size() / 32;
    const bool shared = shares == 1;
    device::for_each_warp(b, [&](device::Warp warp, Shared& s) {
      PerThread<Held, 32> held;
      PerThread<Rows, 32> rows;
      PerThread<Sums, 32> sums, group_sums;
      PerThread<Lefts, 32> lefts;
      PerThread<Rights, 32> rights;
      warp.lanes([&](int lane) {
        UNROLL for (int h = 0; h < kHeld; ++h) load(held[lane].at[h], tile, lane, warp.index() + h * warps);
        rows[lane] = rows_of(lane, row0);
        sums[lane] = group_sums[lane] = Sums{};
      });
      NO_UNROLL for (int first = warp.index(); first < units; first += kHeld * warps) {
        UNROLL for (int h = 0; h < kHeld; ++h) {
          const int unit = first + h * warps;
          if (unit >= units) break;
          UNROLL for (int v = 0; v < kGroups; ++v) {
            warp.lanes([&](int lane) {
              take(rights[lane], rows[lane], lane, unit * Form::kUnit + v * Form::kGroup);
              numbers(lefts[lane], held[lane].at[h], v);
            });
            UNROLL for (int i = 0; i < kTaken; i += 2) {
              UNROLL for (int n = 0; n < kTiles; ++n) warp.template mma<T>(
                  [&](int lane) -> FragmentC& { return group_sums[lane].at[n]; },
                  [&](int lane) {
                    const auto& left = lefts[lane].at;
                    return device::FragmentA{{left[0][i], left[1][i], left[0][i + 1], left[1][i + 1]}};
                  },
                  [&](int lane) {
                    const auto& right = rights[lane].at[n];
                    return device::FragmentB{{right[i], right[i + 1]}};
                  });
            }
            if (!shared || v == kGroups - 1) {
              warp.lanes([&](int lane) {
                const Unit& used = held[lane].at[h];
                scale(sums[lane], group_sums[lane], shared ? +used.scales[0] : +used.scales[v]);
              });
            }
          }
          warp.lanes([&](int lane) { load(held[lane].at[h], tile, lane, unit + kHeld * warps); });
        }
      }
      warp.lanes([&](int lane) {
        UNROLL for (int n = 0; n < kTiles; ++n) {
          UNROLL for (int i = 0; i < 4; ++i)
              s.sums[warp.index()][n * kRows + device::c_column(lane, i)][device::c_row(lane, i)] =
              sums[lane].at[n].at[i];
        }
      });
    });
    b.threads([&](int t, Shared&) {
      NO_UNROLL for (int at = t; at < kTiles * kRows * Form::kRows; at += b.size()) {
        const int row = at / Form::kRows, column = at % Form::kRows;
        if (row0 + row >= count || column0 + column >= columns) continue;
        float sum = 0;
        NO_UNROLL for (int w = 0; w < warps; ++w) sum += s.sums[w][row][column];
        if (bias) sum += float(bias[column0 + column]);
        y[int64_t(row0 + row) * columns + column0 + column] = T(sum);
      }
    });
  }

 private:
  // Lanes beyond the last row do as the last one does.
  DEVICE_FN Rows rows_of(int lane, int row0) const {
    Rows rows;
    UNROLL for (int n = 0; n < kTiles; ++n) {
      const int wanted = row0 + n * kRows + lane / 4;
      rows.at[n] = a + int64_t(wanted < count ? wanted : count - 1) * depth + lane % 4 * Form::kPart;
    }
    return rows;
  }
  DEVICE_FN void load(Unit& into, int64_t tile, int lane, int unit) const {
    if (unit >= units) return;
    into.load({codes, scales, zeros}, tile * units + unit, lane, shares == 1, zeros != nullptr);
  }
  // Of the codes of the group v, less their zero points.
  DEVICE_FN void numbers(Lefts& into, const Unit& unit, int v) const {
    uint32_t both = unit.zeros[v / 2] >> v % 2 * 16;
    if (shares == 1) both = unit.zeros[0];
    if (!zeros) both = (1u << (kBits - 1)) * 0x101u;
    UNROLL for (int r = 0; r < 2; ++r)
        numbers(into.at[r], Numbers<T, kBits>(device::byte_pair(both, r)), &unit.codes[r].at[v * Form::kWords],
                std::make_integer_sequence<int, kTaken>{});
  }
  template <int... kI>
  DEVICE_FN static void numbers(uint32_t (&pairs)[kTaken], const Numbers<T, kBits>& by, const uint32_t* words,
                                std::integer_sequence<int, kI...>) {
    ((pairs[kI] = by.template pair<kI % Form::kPairs>(words[kI / Form::kPairs])), ...);
  }
  // Of each row of a what belongs to a group.
  DEVICE_FN void take(Rights& into, const Rows& rows, int lane, int at) const {
    const int left = depth - at - lane % 4 * Form::kPart;
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < kTaken; i += 4) {
        Granule four = {};
        if (2 * i < left) four = *reinterpret_cast<const Granule*>(rows.at[n] + at + 2 * i);
        UNROLL for (int j = 0; j < 4; ++j) into.at[n][i + j] = four.at[j];
      }
    }
  }
  DEVICE_FN static void scale(Sums& to, Sums& from, uint32_t scales) {
    const float low = float(std::bit_cast<T>(uint16_t(scales))), high = float(std::bit_cast<T>(uint16_t(scales >> 16)));
    UNROLL for (int n = 0; n < kTiles; ++n) {
      UNROLL for (int i = 0; i < 4; ++i) to.at[n].at[i] += (i < 2 ? low : high) * from.at[n].at[i];
      from.at[n] = FragmentC{};
    }
  }
};

template <class T, int kBits, int kTiles>
void launch(StreamRef stream, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  using Kernel = NBitsTiles<T, kBits, kTiles>;
  const int units = int(Weave<kBits>::units(w));
  const int64_t row_tiles = (p.count + kTiles * kRows - 1) / (kTiles * kRows);
  const int64_t tiles = (w.rows + 15) / 16 * row_tiles;
  const int warps = std::clamp((units + Kernel::kHeld - 1) / Kernel::kHeld, 1, Kernel::kWarps);
  device::block_kernel<typename Kernel::Shared>(
      stream, {tiles, 32 * warps},
      Kernel{static_cast<const T*>(p.a), static_cast<T*>(p.y), static_cast<const T*>(p.bias), woven.codes, woven.scales,
             woven.zeros, int(p.count), int(w.depth), int(w.rows), units, Weave<kBits>::shares(w),
             device::Divider(row_tiles, tiles)});
}
template <class T, int kBits>
void launch(StreamRef stream, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  if (p.count <= 2 * kRows)
    launch<T, kBits, 2>(stream, p, w, woven);
  else
    launch<T, kBits, 4>(stream, p, w, woven);
}

}  // namespace

bool multiply_nbits_tiles(StreamRef stream, const BlockProduct& p, const BlockCodes& w, const WovenCodes& woven) {
  if (p.count > kMostRows || !woven.scales || (w.zeros && !woven.zeros)) return false;
  if (reinterpret_cast<uintptr_t>(p.a) % 16 != 0) return false;
  dispatch(TypeList<Half, BFloat16>{}, p.type,
           [&]<class T> { for_bits(w.bits, [&]<int kBits> { launch<T, kBits>(stream, p, w, woven); }); });
  return true;
}

}  // namespace encore::ops
