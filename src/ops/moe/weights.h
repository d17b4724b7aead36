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
  const void* scales = nullptr;
  const uint8_t* zeros = nullptr;  // null: the middle
  Type scale_type = Type::undefined;
  int bits = 0;       // of an integer; 0: values are of the products' type
  int64_t rows = 0;   // of an expert
  int64_t block = 0;  // along the depth, values that share a scale: a power of two; 0: all of a row
};

// 16 bytes, of which `left` are there; the others are zero. `aligned`: all of them are, at an address that suits.
DEVICE_FN device::Pack<uint32_t, 4> words_at(const uint8_t* from, int64_t left, bool aligned) {
  if (aligned && left >= 16) return *reinterpret_cast<const device::Pack<uint32_t, 4>*>(from);
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

template <class T, int kBits>
struct Weights {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWords = kBits == 0 && !kHalf ? 8 : 4;                         // in one load
  static constexpr int kCount = kBits ? 128 / kBits : 8;                              // weights in one load
  static constexpr int kGroup = 16, kGroups = kCount < kGroup ? 1 : kCount / kGroup;  // that share a scale
  struct Loaded {
    uint32_t words[kWords];
    float scale[kGroups], zero[kGroups];
  };

  const uint8_t* values;
  const void* scales;
  const uint8_t* zeros;
  int64_t row_bytes, zero_bytes;  // the latter of a row's zeros, or of an expert's if a row has one
  int depth, rows, blocks, shift;
  Type scale_type;
  bool zero_by_expert, aligned;

  Weights() = default;
  Weights(const Matrix& m, int64_t depth_)
      : values(static_cast<const uint8_t*>(m.values)),
        scales(m.scales),
        zeros(m.zeros),
        row_bytes(kBits ? depth_ * kBits / 8 : depth_ * int64_t(sizeof(T))),
        depth(int(depth_)),
        rows(int(m.rows)),
        blocks(m.block ? int((depth_ + m.block - 1) / m.block) : 1),
        shift(m.block ? std::countr_zero(uint64_t(m.block)) : 31),
        scale_type(m.scale_type),
        zero_by_expert(m.block == 0),
        aligned(row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(m.values) % 16 == 0) {
    zero_bytes = ((zero_by_expert ? rows : int64_t(blocks)) * kBits + 7) / 8;
  }

  // kCount weights from `k` on of an expert's row; zeros, or anything finite, after its last. kWhole: all that is
  // read is 16 bytes, at an address that suits.
  template <bool kWhole>
  DEVICE_FN Loaded load(int expert, int row, int k) const {
    Loaded loaded = {};
    if (k >= depth) return loaded;
    const int64_t at = int64_t(expert) * rows + row;
    const int64_t byte = kBits ? int64_t(k) * kBits / 8 : int64_t(k) * int64_t(sizeof(T));
    const uint8_t* const from = values + at * row_bytes + byte;
    const int64_t left = row_bytes - byte;
    UNROLL for (int i = 0; i < kWords; i += 4) {
      const auto four = kWhole ? *reinterpret_cast<const device::Pack<uint32_t, 4>*>(from + 4 * i)
                               : words_at(from + 4 * i, left - 4 * i, aligned);
      UNROLL for (int j = 0; j < 4; ++j) loaded.words[i + j] = four.at[j];
    }
    if constexpr (kBits != 0) {
      UNROLL for (int i = 0; i < kGroups; ++i) {
        int block = (k + i * kGroup) >> shift;
        if (!kWhole) block = block < blocks ? block : blocks - 1;
        loaded.scale[i] = scale_at(at * blocks + block);
        loaded.zero[i] = zeros ? zero_at(expert, at, row, block) : float(1 << (kBits - 1));
      }
    }
    return loaded;
  }

  // Weights 8 i to 8 i + 7 of them.
  DEVICE_FN static Eight<T> eight(const Loaded& loaded, int i) {
    Eight<T> all;
    if constexpr (kBits == 0) {
      UNROLL for (int j = 0; j < kWords; ++j) all.words[j] = loaded.words[j];
    } else {
      const float scale = loaded.scale[i * 8 / kGroup], zero = loaded.zero[i * 8 / kGroup];
      if constexpr (kBits == 4 && kHalf) {
        // An integer beside the bits of a power of two is that power plus the integer.
        constexpr float kPower = std::is_same_v<T, Half> ? 1024.f : 128.f;
        const uint32_t power = device::as_pair<T>(kPower, kPower), one = device::as_pair<T>(1.f, 1.f);
        const uint32_t below = device::as_pair<T>(-kPower - zero, -kPower - zero);
        const uint32_t times = device::as_pair<T>(scale, scale), nothing = 0x80008000u;
        uint32_t apart[4];  // weights j and j + 4
        UNROLL for (int j = 0; j < 4; ++j) {
          const uint32_t whole = (loaded.words[i] >> 4 * j & 0x000f000fu) | power;
          apart[j] = device::multiply_add_pairs<T>(device::multiply_add_pairs<T>(whole, one, below), times, nothing);
        }
        UNROLL for (int j = 0; j < 2; ++j) {
          all.words[j] = device::low_halves(apart[2 * j], apart[2 * j + 1]);
          all.words[j + 2] = device::high_halves(apart[2 * j], apart[2 * j + 1]);
        }
      } else {
        float wide[8];
        UNROLL for (int j = 0; j < 8; ++j) {
          const uint32_t word = kBits == 4 ? loaded.words[i] >> 4 * j : loaded.words[2 * i + j / 4] >> 8 * (j % 4);
          const uint32_t whole = word & ((1u << kBits) - 1);
          wide[j] = (std::bit_cast<float>(0x4b000000u | whole) - (8388608.f + zero)) * scale;
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

 private:
  DEVICE_FN float scale_at(int64_t i) const {
    if (scale_type == device::kTypeOf<T>) return float(static_cast<const T*>(scales)[i]);
    if (scale_type == Type::f32) return static_cast<const float*>(scales)[i];
    if (scale_type == Type::f16) return float(static_cast<const Half*>(scales)[i]);
    return float(static_cast<const BFloat16*>(scales)[i]);
  }
  DEVICE_FN float zero_at(int expert, int64_t at, int row, int block) const {
    const uint8_t* const from = zeros + (zero_by_expert ? int64_t(expert) : at) * zero_bytes;
    const int i = zero_by_expert ? row : block;
    return kBits == 4 ? float(from[i / 2] >> 4 * (i % 2) & 15) : float(from[i]);
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
