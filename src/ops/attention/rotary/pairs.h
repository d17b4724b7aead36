// Pairs of a head's values as rotary embeddings rotate them: neighbours, or halves apart. The first of a pair is the
// real part of a number and the other one the imaginary part.
#pragma once
#include "device/half.h"
#include "device/transform.h"

namespace encore::ops {

// Which of a head's values are pairs: of the first 2 * `half` values all, of the others none.
struct PairLayout {
  int size, half, rotated_packs;  // of a head; and how many packs the pairs fill
  bool interleaved, aligned;      // aligned: whole packs may be moved at once
};

// A pack of pairs, which are neighbours or not. Values that are not rotated are moved as they are, bit by bit.
template <class T, bool kNeighbours>
struct Pairs {
  static constexpr int kPack = device::pack_size<T>();
  using Pack = device::Pack<T, kPack>;

  Pack real, imaginary;

  // Pairs `first` to first + count - 1.
  DEVICE_FN static Pairs load(const T* head, const PairLayout& layout, int first, int count) {
    if constexpr (!kNeighbours)
      return {device::load_pack<kPack>(head + first, layout.aligned, count),
              device::load_pack<kPack>(head + layout.half + first, layout.aligned, count)};
    const T* const from = head + 2 * first;
    Pairs pairs;
    if (layout.aligned && count == kPack) {
      const Pack low = device::load_pack<kPack>(from, true), high = device::load_pack<kPack>(from + kPack, true);
      UNROLL for (int i = 0; i < kPack; ++i) {
        const Pack& of = i < kPack / 2 ? low : high;
        pairs.real.at[i] = of.at[2 * i % kPack];
        pairs.imaginary.at[i] = of.at[2 * i % kPack + 1];
      }
      return pairs;
    }
    UNROLL for (int i = 0; i < kPack; ++i) {
      const int at = i < count ? 2 * i : 0;
      pairs.real.at[i] = from[at];
      pairs.imaginary.at[i] = from[at + 1];
    }
    return pairs;
  }
  DEVICE_FN void store(T* head, const PairLayout& layout, int first, int count) const {
    if constexpr (!kNeighbours) {
      device::store_pack(head + first, real, layout.aligned, count);
      device::store_pack(head + layout.half + first, imaginary, layout.aligned, count);
      return;
    }
    T* const to = head + 2 * first;
    if (layout.aligned && count == kPack) {
      Pack low, high;
      UNROLL for (int i = 0; i < kPack; ++i) {
        Pack& of = i < kPack / 2 ? low : high;
        of.at[2 * i % kPack] = real.at[i];
        of.at[2 * i % kPack + 1] = imaginary.at[i];
      }
      device::store_pack(to, low, true);
      device::store_pack(to + kPack, high, true);
      return;
    }
    UNROLL for (int i = 0; i < kPack; ++i) {
      if (i >= count) return;
      to[2 * i] = real.at[i];
      to[2 * i + 1] = imaginary.at[i];
    }
  }
  // By the angles of which these are the cosines and sines.
  DEVICE_FN void rotate(const Pack& cosines, const Pack& sines) {
    UNROLL for (int i = 0; i < kPack; ++i) {
      const float a = float(real.at[i]), b = float(imaginary.at[i]), c = float(cosines.at[i]), s = float(sines.at[i]);
      real.at[i] = T(c * a - s * b);
      imaginary.at[i] = T(s * a + c * b);
    }
  }
  // Each by the factor, and then by its weight.
  DEVICE_FN void scale(float factor, const Pairs& weights) {
    UNROLL for (int i = 0; i < kPack; ++i) {
      real.at[i] = T(float(real.at[i]) * factor * float(weights.real.at[i]));
      imaginary.at[i] = T(float(imaginary.at[i]) * factor * float(weights.imaginary.at[i]));
    }
  }
};

}  // namespace encore::ops
