// Weights of experts, read 16 bytes at a time and brought to the type of the products: as they are, or integers of four
// or eight bits, two or one of them in a byte, that are (integer - zero) * scale.
#pragma once
#include <bit>
#include <cstdint>

#include "device/pair.h"
#include "device/transform.h"
#include "device/warp.h"
#include "ops/dispatch.h"

namespace encore::ops {

// All experts' matrices of one layer, [experts, rows, depth], in device memory.
struct Matrix {
  const void* values = nullptr;
  const void* scales = nullptr;    // of the products' type
  const uint8_t* zeros = nullptr;  // null: the middle
  int bits = 0;                    // of an integer; 0: values are of the products' type
  int64_t rows = 0;                // of an expert
  int64_t block = 0;               // along the depth, values that share a scale: a power of two; 0: all of a row
};

// 16 bytes, of which `left` are there; the others are zero. `aligned`: all of them are, at an address that suits.
DEVICE_FN device::Pack<uint32_t, 4> words_at(const uint8_t* from, int64_t left, bool aligned) {
  if (aligned && left >= 16) return device::load_aligned<4>(reinterpret_cast<const uint32_t*>(from));
  device::Pack<uint32_t, 4> words;
  UNROLL for (int i = 0; i < 4; ++i) {
    words.at[i] = 0;
    NO_UNROLL for (int j = 0; j < 4; ++j) {
      if (4 * i + j < left) words.at[i] |= uint32_t(from[4 * i + j]) << 8 * j;
    }
  }
  return words;
}

// Eight neighbouring weights.
template <class T>
struct Eight {
  uint32_t words[8 * sizeof(T) / 4];
  DEVICE_FN float at(int i) const {
    if constexpr (sizeof(T) == 4)
      return std::bit_cast<float>(words[i]);
    else
      return float(std::bit_cast<T>(uint16_t(words[i / 2] >> 16 * (i % 2))));
  }
};

// kWhole: rows are of whole loads, at addresses that suit, and all weights of a load share a scale.
template <class T, int kBits, bool kWhole>
struct Weights {
  static constexpr bool kHalf = sizeof(T) == 2;
  // Weights come in pairs of the j-th and the one four further on, for which x is brought into the same order.
  static constexpr bool kApart = kWhole && kBits == 4 && kHalf;
  static constexpr int kWords = kBits == 0 && !kHalf ? 8 : 4;                                    // in one load
  static constexpr int kCount = kBits ? 128 / kBits : 8;                                         // weights in one load
  static constexpr int kGroup = kWhole || kCount < 16 ? kCount : 16, kGroups = kCount / kGroup;  // that share a scale
  // As they are in memory, so that nothing waits for them before they are used.
  struct Loaded {
    uint32_t words[kWords];
    T scale[kGroups];
    uint32_t zero[kGroups];  // a byte
    int zero_bit[kGroups];
  };
  // Where a row is.
  struct Row {
    const uint8_t* values;
    const T* scales;
    const uint8_t* zeros;
    int first_zero;
  };

  const uint8_t* values;
  const T* scales;
  const uint8_t* zeros;
  int64_t row_bytes, zero_bytes;  // the latter of a row's zeros, or of an expert's if a row has one
  int depth, rows, blocks, shift;
  bool zero_by_expert, aligned;

  Weights() = default;
  Weights(const Matrix& m, int64_t depth_)
      : values(static_cast<const uint8_t*>(m.values)),
        scales(static_cast<const T*>(m.scales)),
        zeros(m.zeros),
        row_bytes(kBits ? depth_ * kBits / 8 : depth_ * int64_t(sizeof(T))),
        depth(int(depth_)),
        rows(int(m.rows)),
        blocks(m.block ? int((depth_ + m.block - 1) / m.block) : 1),
        shift(m.block ? std::countr_zero(uint64_t(m.block)) : 31),
        zero_by_expert(m.block == 0),
        aligned(row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(m.values) % 16 == 0) {
    zero_bytes = ((zero_by_expert ? rows : int64_t(blocks)) * kBits + 7) / 8;
  }

  DEVICE_FN Row row(int expert, int row) const {
    const int64_t at = int64_t(expert) * rows + row;
    return {values + at * row_bytes, kBits ? scales + at * blocks : nullptr,
            zeros ? zeros + (zero_by_expert ? int64_t(expert) : at) * zero_bytes : nullptr, zero_by_expert ? row : 0};
  }
  // kCount weights of a row from `k` on; zeros, or anything finite, after its last.
  DEVICE_FN Loaded load(const Row& row, int k) const {
    Loaded loaded = {};
    if (k >= depth) return loaded;
    const int64_t byte = kBits ? int64_t(k) * kBits / 8 : int64_t(k) * int64_t(sizeof(T));
    UNROLL for (int i = 0; i < kWords; i += 4) {
      const uint8_t* const from = row.values + byte + 4 * i;
      const auto four = kWhole ? device::load_aligned<4>(reinterpret_cast<const uint32_t*>(from))
                               : words_at(from, row_bytes - byte - 4 * i, aligned);
      UNROLL for (int j = 0; j < 4; ++j) loaded.words[i + j] = four.at[j];
    }
    if constexpr (kBits != 0) {
      UNROLL for (int i = 0; i < kGroups; ++i) {
        int block = (k + i * kGroup) >> shift;
        if (!kWhole) block = block < blocks ? block : blocks - 1;
        loaded.scale[i] = row.scales[block];
        const int place = row.first_zero + block;
        loaded.zero[i] = 1 << (kBits - 1);
        if (row.zeros) {
          loaded.zero[i] = row.zeros[kBits == 4 ? place / 2 : place];
          loaded.zero_bit[i] = kBits == 4 ? place % 2 * 4 : 0;
        }
      }
    }
    return loaded;
  }

  // Eight values of x as they meet weights.
  DEVICE_FN static device::Pack<uint32_t, 4> matched(const device::Pack<uint32_t, 4>& x) {
    if (!kApart) return x;
    return {device::low_halves(x.at[0], x.at[2]), device::high_halves(x.at[0], x.at[2]),
            device::low_halves(x.at[1], x.at[3]), device::high_halves(x.at[1], x.at[3])};
  }
  // Weights 8 i to 8 i + 7 of them.
  DEVICE_FN static Eight<T> eight(const Loaded& loaded, int i) {
    Eight<T> all;
    if constexpr (kBits == 0) {
      UNROLL for (int j = 0; j < kWords; ++j) all.words[j] = loaded.words[j];
    } else {
      constexpr uint32_t kMask = (1u << kBits) - 1;
      const int group = i * 8 / kGroup;
      const uint32_t zero = loaded.zero[group] >> loaded.zero_bit[group] & kMask;
      // An integer beside the bits of a power of two is that power plus the integer.
      if constexpr (kBits == 4 && kHalf) {
        constexpr uint32_t kPower = std::is_same_v<T, Half> ? 0x64006400u : 0x43004300u;  // 1024, 128
        constexpr uint32_t kOne = std::is_same_v<T, Half> ? 0x3c003c00u : 0x3f803f80u;
        const uint32_t below = (kPower | zero | zero << 16) ^ 0x80008000u, nothing = 0x80008000u;
        const uint32_t scale = loaded.scale[group].bits, times = scale | scale << 16;
        uint32_t apart[4];  // weights j and j + 4
        UNROLL for (int j = 0; j < 4; ++j) {
          const uint32_t whole = (loaded.words[i] >> 4 * j & 0x000f000fu) | kPower;
          apart[j] = device::multiply_add_pairs<T>(device::multiply_add_pairs<T>(whole, kOne, below), times, nothing);
        }
        UNROLL for (int j = 0; j < 4; ++j) all.words[j] = apart[j];
        if constexpr (!kApart) {
          UNROLL for (int j = 0; j < 2; ++j) {
            all.words[j] = device::low_halves(apart[2 * j], apart[2 * j + 1]);
            all.words[j + 2] = device::high_halves(apart[2 * j], apart[2 * j + 1]);
          }
        }
      } else {
        constexpr uint32_t kPower = 0x4b000000u;  // 2^23
        const float below = std::bit_cast<float>(kPower | zero), scale = float(loaded.scale[group]);
        float wide[8];
        UNROLL for (int j = 0; j < 8; ++j) {
          const uint32_t word = kBits == 4 ? loaded.words[i] >> 4 * j : loaded.words[2 * i + j / 4] >> 8 * (j % 4);
          wide[j] = (std::bit_cast<float>(kPower | (word & kMask)) - below) * scale;
        }
        if constexpr (kHalf) {
          UNROLL for (int j = 0; j < 4; ++j) all.words[j] = device::as_pair<T>(wide[2 * j], wide[2 * j + 1]);
        } else {
          UNROLL for (int j = 0; j < 8; ++j) all.words[j] = std::bit_cast<uint32_t>(wide[j]);
        }
      }
    }
    return all;
  }
};

// Calls f.template operator()<kBits>().
template <class F>
void dispatch_bits(int bits, F&& f) {
  switch (bits) {
    case 0: return f.template operator()<0>();
    case 4: return f.template operator()<4>();
    case 8: return f.template operator()<8>();
    default: fail(Code::internal, "weights of ", bits, " bits");
  }
}

}  // namespace encore::ops
