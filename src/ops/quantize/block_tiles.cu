// Products with weights of 2, 4 or 8 bits for a few rows of halves, as when a model generates: bound by reading the
// weights, once.
//
// A block makes 16 columns of the result, its warps share out the depth. Tensor cores add up in any order, so what a
// lane gets of a tile is what it has read: 16 bytes of codes from each of two rows, several of which are under way.
#include <algorithm>
#include <utility>

#include "device/divide.h"
#include "device/neighbours.h"
#include "device/pair.h"
#include "device/warp.h"
#include "ops/dispatch.h"
#include "ops/quantize/block_weights.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Granule;
using device::PerThread;

constexpr int kColumns = 16, kRows = 8, kMostRows = 64;

// Weights from codes; those of bfloat16 in 8 bits by way of float, since they find no room in its mantissa.
template <class T, int kBits>
struct Dequantizer {
  device::PairedCodes<T, kBits> codes;
  uint32_t scale, offset;
  Dequantizer() = default;
  DEVICE_FN Dequantizer(T scale_of, uint32_t zero, float offset_of)
      : codes(zero), scale(device::twice(scale_of.bits)), offset(device::twice(T(offset_of).bits)) {}
  // Of the code kI of each half of the word.
  template <int kI>
  DEVICE_FN uint32_t pair(uint32_t word) const {
    return device::multiply_add_pairs<T>(codes.template pair<kI>(word), scale, offset);
  }
};
template <>
struct Dequantizer<BFloat16, 8> {
  float scale, zero, offset;
  Dequantizer() = default;
  DEVICE_FN Dequantizer(BFloat16 scale_of, uint32_t zero_of, float offset_of)
      : scale(float(scale_of)), zero(value(zero_of)), offset(offset_of) {}
  template <int kI>
  DEVICE_FN uint32_t pair(uint32_t word) const {
    const auto weight = [&](int byte) { return (value(word >> 8 * byte & 0xff) - zero) * scale + offset; };
    return device::as_pair<BFloat16>(weight(kI), weight(2 + kI));
  }

 private:
  DEVICE_FN static float value(uint32_t code) { return std::bit_cast<float>(0x4b000000u | code); }  // 2^23 more
};

template <class T, int kBits, int kTiles>
struct MultiplyTiles {
  static constexpr int kMaxThreads = 256, kWarps = kMaxThreads / 32;
  static constexpr int kHeld = 4;  // chunks of codes that a lane has under way
  static constexpr int kWords = 4, kPairs = 16 / kBits, kInWord = 2 * kPairs, kInChunk = kWords * kInWord;
  static constexpr int kWordsAtOnce = kBits == 8 ? 2 : 1;  // so that it takes at least 16 bytes of a
  static constexpr int kTaken = kWordsAtOnce * kPairs;     // pairs of them
  static constexpr int kPitch = 20;                        // floats; so that lanes write to banks of their own
  struct Shared {
    float sums[kWarps][kTiles * kRows][kPitch];
  };
  struct RowChunk {
    Granule codes;
    uint32_t scale, zero;  // as they are in memory
  };
  struct Held {
    RowChunk at[kHeld][2];
  };
  struct Lane {
    const uint8_t* codes[2];
    const T* scales[2];
    const uint8_t* zeros[2];
    const T* a[kTiles];
  };
  struct Sums {
    device::SumTile at[kTiles];
  };
  struct Lefts {
    uint32_t at[2][kTaken];
  };
  struct Rights {
    uint32_t at[kTiles][kTaken];
  };
  struct Dequantizers {
    Dequantizer<T, kBits> at[2];
  };

  const T* a;
  T* y;
  const T* bias;
  const uint8_t* codes;
  const T* scales;
  const uint8_t* zeros;  // null: none
  bool packed_zeros, typed_zeros;
  int count, depth, columns, blocks, chunk_shift;  // chunks of a block: 1 << chunk_shift
  int chunks, steps, row_tiles;
  int64_t row_bytes, zero_bytes;
  device::Divider by_row_tiles;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    int64_t row_tile;
    const int column0 = int(by_row_tiles(b.index(), row_tile)) * kColumns, row0 = int(row_tile) * kTiles * kRows;
    const int warps = b.size() / 32;
    device::for_each_warp(b, [&](device::Warp warp, Shared& s) {
      PerThread<Lane, 32> lanes;
      PerThread<Held, 32> held;
      PerThread<Sums, 32> sums;
      PerThread<Lefts, 32> lefts;
      PerThread<Rights, 32> rights;
      PerThread<Dequantizers, 32> dequantizers;
      warp.lanes([&](int lane) {
        lanes[lane] = lane_of(lane, row0, column0);
        UNROLL for (int h = 0; h < kHeld; ++h) load(held[lane].at[h], lanes[lane], lane, warp.index() + h * warps);
        sums[lane] = Sums{};
      });
      NO_UNROLL for (int first = warp.index(); first < steps; first += kHeld * warps) {
        UNROLL for (int h = 0; h < kHeld; ++h) {
          const int step = first + h * warps;
          if (step >= steps) break;
          warp.lanes([&](int lane) {
            UNROLL for (int r = 0; r < 2; ++r) dequantizers[lane].at[r] = dequantizer(held[lane].at[h][r]);
          });
          UNROLL for (int w = 0; w < kWords; w += kWordsAtOnce) {
            warp.lanes([&](int lane) {
              take(rights[lane], lanes[lane], (step * 4 + lane % 4) * kInChunk + w * kInWord);
              UNROLL for (int r = 0; r < 2; ++r)
                  dequantize(lefts[lane].at[r], dequantizers[lane].at[r], &held[lane].at[h][r].codes.words[w],
                             std::make_integer_sequence<int, kTaken>{});
            });
            UNROLL for (int i = 0; i < kTaken; i += 2) {
              UNROLL for (int n = 0; n < kTiles; ++n) warp.template multiply<T>(
                  [&](int lane) -> device::SumTile& { return sums[lane].at[n]; },
                  [&](int lane) {
                    const auto& left = lefts[lane].at;
                    return device::LeftTile{{left[0][i], left[1][i], left[0][i + 1], left[1][i + 1]}};
                  },
                  [&](int lane) {
                    return device::RightTile{{rights[lane].at[n][i], rights[lane].at[n][i + 1]}};
                  });
            }
          }
          warp.lanes([&](int lane) { load(held[lane].at[h], lanes[lane], lane, step + kHeld * warps); });
        }
      }
      warp.lanes([&](int lane) {
        const int g = lane / 4, two = lane % 4 * 2;
        UNROLL for (int n = 0; n < kTiles; ++n) {
          UNROLL for (int i = 0; i < 4; ++i) s.sums[warp.index()][n * kRows + two + i % 2][g + i / 2 * 8] =
              sums[lane].at[n].at[i];
        }
      });
    });
    b.threads([&](int t, Shared&) {
      for (int at = t; at < kTiles * kRows * kColumns; at += b.size()) {
        const int row = at / kColumns, column = at % kColumns;
        if (row0 + row >= count || column0 + column >= columns) continue;
        float sum = 0;
        for (int w = 0; w < warps; ++w) sum += s.sums[w][row][column];
        if (bias) sum += float(bias[column0 + column]);
        y[int64_t(row0 + row) * columns + column0 + column] = T(sum);
      }
    });
  }

 private:
  // Lanes beyond the last row, or column, do as the last one does.
  DEVICE_FN Lane lane_of(int lane, int row0, int column0) const {
    Lane mine;
    UNROLL for (int r = 0; r < 2; ++r) {
      const int wanted = column0 + lane / 4 + 8 * r;
      const int64_t column = wanted < columns ? wanted : columns - 1;
      mine.codes[r] = codes + column * row_bytes;
      mine.scales[r] = scales + column * blocks;
      mine.zeros[r] = !zeros         ? nullptr
                      : packed_zeros ? zeros + column * zero_bytes
                                     : zeros + column * blocks * int(sizeof(T));
    }
    UNROLL for (int n = 0; n < kTiles; ++n) {
      const int wanted = row0 + n * kRows + lane / 4;
      mine.a[n] = a + int64_t(wanted < count ? wanted : count - 1) * depth;
    }
    return mine;
  }
  template <int... kI>
  DEVICE_FN static void dequantize(uint32_t (&pairs)[kTaken], const Dequantizer<T, kBits>& by, const uint32_t* words,
                                   std::integer_sequence<int, kI...>) {
    ((pairs[kI] = by.template pair<kI % kPairs>(words[kI / kPairs])), ...);
  }
  // What is beyond the end becomes zeros, since its scale is zero.
  DEVICE_FN void load(RowChunk (&into)[2], const Lane& mine, int lane, int step) const {
    const int chunk = step * 4 + lane % 4, block = chunk >> chunk_shift;
    UNROLL for (int r = 0; r < 2; ++r) {
      into[r] = RowChunk{};
      if (!typed_zeros) into[r].zero = 1u << (kBits - 1);
      if (chunk >= chunks) continue;
      into[r].codes = reinterpret_cast<const Granule*>(mine.codes[r])[chunk];
      into[r].scale = mine.scales[r][block].bits;
      if (packed_zeros) into[r].zero = uint32_t(mine.zeros[r][block * kBits / 8]) >> (block * kBits % 8);
      if (typed_zeros) into[r].zero = reinterpret_cast<const T*>(mine.zeros[r])[block].bits;
    }
  }
  DEVICE_FN Dequantizer<T, kBits> dequantizer(const RowChunk& chunk) const {
    const T scale = std::bit_cast<T>(uint16_t(chunk.scale));
    if (!typed_zeros) return {scale, chunk.zero & ((1u << kBits) - 1), 0.f};
    return {scale, 0, -float(std::bit_cast<T>(uint16_t(chunk.zero))) * float(scale)};
  }
  // Of each row of a, what belongs to the codes at hand, in their order.
  DEVICE_FN void take(Rights& into, const Lane& mine, int at) const {
    UNROLL for (int n = 0; n < kTiles; ++n) {
      uint32_t pairs[kTaken];
      UNROLL for (int i = 0; i < kTaken; i += 4) {
        const Granule four = at + 2 * i < depth ? *reinterpret_cast<const Granule*>(mine.a[n] + at + 2 * i) : Granule{};
        UNROLL for (int j = 0; j < 4; ++j) pairs[i + j] = four.words[j];
      }
      UNROLL for (int i = 0; i < kTaken; i += 2) {
        const int word = i / kPairs * kPairs, low = word + i % kPairs / 2, high = low + kPairs / 2;
        into.at[n][i] = device::low_halves(pairs[low], pairs[high]);
        into.at[n][i + 1] = device::high_halves(pairs[low], pairs[high]);
      }
    }
  }
};

template <class T, int kBits, int kTiles>
void launch(StreamRef stream, const BlockProduct& p, const BlockCodes& w) {
  using Kernel = MultiplyTiles<T, kBits, kTiles>;
  const int chunks = int(w.row_bytes() / 16), steps = (chunks + 3) / 4;
  const int64_t row_tiles = (p.count + kTiles * kRows - 1) / (kTiles * kRows);
  const int64_t tiles = (w.rows + kColumns - 1) / kColumns * row_tiles;
  const int warps = std::clamp((steps + Kernel::kHeld - 1) / Kernel::kHeld, 1, Kernel::kWarps);
  int chunk_shift = 0;
  while ((int64_t(Kernel::kInChunk) << chunk_shift) < w.block()) ++chunk_shift;
  device::block_kernel<typename Kernel::Shared>(stream, {tiles, 32 * warps},
                                                Kernel{.a = static_cast<const T*>(p.a),
                                                       .y = static_cast<T*>(p.y),
                                                       .bias = static_cast<const T*>(p.bias),
                                                       .codes = w.codes,
                                                       .scales = static_cast<const T*>(w.scales),
                                                       .zeros = static_cast<const uint8_t*>(w.zeros),
                                                       .packed_zeros = w.zeros && w.packed_zeros,
                                                       .typed_zeros = w.zeros && !w.packed_zeros,
                                                       .count = int(p.count),
                                                       .depth = int(w.depth),
                                                       .columns = int(w.rows),
                                                       .blocks = int(w.blocks),
                                                       .chunk_shift = chunk_shift,
                                                       .chunks = chunks,
                                                       .steps = steps,
                                                       .row_tiles = int(row_tiles),
                                                       .row_bytes = w.row_bytes(),
                                                       .zero_bytes = w.zero_bytes(),
                                                       .by_row_tiles = device::Divider(row_tiles, tiles)});
}
template <class T, int kBits>
void launch(StreamRef stream, const BlockProduct& p, const BlockCodes& w) {
  if (p.count <= kRows)
    launch<T, kBits, 1>(stream, p, w);
  else if (p.count <= 2 * kRows)
    launch<T, kBits, 2>(stream, p, w);
  else
    launch<T, kBits, 4>(stream, p, w);
}

}  // namespace

bool multiply_tiles(StreamRef stream, const BlockProduct& p, const BlockCodes& w) {
  const auto aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if ((p.type != Type::f16 && p.type != Type::bf16) || p.count > kMostRows || w.groups) return false;
  if (w.depth % 8 != 0 || w.row_bytes() % 16 != 0 || w.block() * w.bits < 128) return false;
  if (!aligned(p.a) || !aligned(w.codes)) return false;
  if (w.blocks * w.block() >= int64_t(1) << 30 || w.rows >= int64_t(1) << 30) return false;
  dispatch(TypeList<Half, BFloat16>{}, p.type, [&]<class T> {
    switch (w.bits) {
      case 2: return launch<T, 2>(stream, p, w);
      case 4: return launch<T, 4>(stream, p, w);
      default: return launch<T, 8>(stream, p, w);
    }
  });
  return true;
}

}  // namespace encore::ops
