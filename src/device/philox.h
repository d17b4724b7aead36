// Random numbers by counter: each is a function of a seed and of where it stands, so that any thread makes its own.
// Philox 4x32-10, by Salmon, Moraes, Dror and Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once
#include <cstdint>

#include "device/annotate.h"

namespace encore::device {

struct Random4 {
  uint32_t word[4];
};

// The words at `index` of sequence `sequence`.
DEVICE_FN Random4 philox(uint64_t seed, uint64_t sequence, uint64_t index) {
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  uint32_t a = uint32_t(index), b = uint32_t(index >> 32), c = uint32_t(sequence), d = uint32_t(sequence >> 32);
  UNROLL for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t(0xD2511F53u) * a, right = uint64_t(0xCD9E8D57u) * c;
    a = uint32_t(right >> 32) ^ b ^ key0;
    b = uint32_t(right);
    c = uint32_t(left >> 32) ^ d ^ key1;
    d = uint32_t(left);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// From 0 up to, and without, 1, in steps of 2^-24.
DEVICE_FN float uniform(uint32_t word) { return float(word >> 8) * 0x1p-24f; }

}  // namespace encore::device
