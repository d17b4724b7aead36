// The parts of fast Fourier transforms: Stockham's, which sorts on the way, of any radix.
#pragma once
#include <cmath>
#include <cstdint>

#include "device/annotate.h"

namespace encore::ops {

template <class C>
struct Complex {
  C re, im;
  DEVICE_FN Complex operator+(Complex o) const { return {re + o.re, im + o.im}; }
  DEVICE_FN Complex operator-(Complex o) const { return {re - o.re, im - o.im}; }
  DEVICE_FN Complex operator*(Complex o) const { return {re * o.re - im * o.im, re * o.im + im * o.re}; }
  DEVICE_FN Complex by_minus_i() const { return {im, -re}; }
  DEVICE_FN Complex conjugate() const { return {re, -im}; }
};

// exp(-2πi k/n), 0 <= k < n. What sine and cosine get is no more than π/4, so that nothing of k's digits is lost.
template <class C>
DEVICE_FN Complex<C> root_of_one(int64_t k, int64_t n) {
  const int64_t quarter = 4 * k / n, rest = 4 * k - quarter * n;
  const bool near_next = 2 * rest > n;
  const C angle = C(1.5707963267948966) * (C(near_next ? n - rest : rest) / C(n));
  const C sine = std::sin(angle), cosine = std::cos(angle);
  const C x = near_next ? sine : cosine, y = near_next ? cosine : sine;  // of the angle within its quarter
  switch (quarter) {
    case 0: return {x, -y};
    case 1: return {-y, -x};
    case 2: return {-x, y};
    default: return {y, x};
  }
}

// The same from a table of its first half, k up to n/2.
template <class C>
struct Roots {
  const Complex<C>* table;
  int64_t n;
  DEVICE_FN Complex<C> operator[](int64_t k) const { return 2 * k <= n ? table[k] : table[n - k].conjugate(); }
};

constexpr int kLargestRadix = 61;

struct Radices {
  static constexpr int kMost = 40;
  int count = 0;
  int of[kMost];
};
// False if a prime of it is larger than kLargestRadix.
inline bool factor(int64_t length, Radices& radices) {
  radices.count = 0;
  const auto take = [&](int radix) {
    for (; length % radix == 0; length /= radix) radices.of[radices.count++] = radix;
  };
  take(4);
  for (int radix = 2; radix <= kLargestRadix; ++radix) take(radix);
  return length == 1;
}

template <int kRadix, class C>
DEVICE_FN void small_butterfly(const Complex<C>* from, Complex<C>* to, int64_t in_step, int64_t out_step,
                               const Roots<C>& roots, int64_t turn) {
  Complex<C> x[kRadix], w[kRadix];
  UNROLL for (int t = 0; t < kRadix; ++t) x[t] = from[t * in_step];
  UNROLL for (int t = 1; t < kRadix; ++t) w[t] = roots[roots.n / kRadix * t];
  Complex<C> sum = x[0];
  UNROLL for (int t = 1; t < kRadix; ++t) sum = sum + x[t];
  to[0] = sum;
  UNROLL for (int u = 1; u < kRadix; ++u) {
    sum = x[0];
    UNROLL for (int t = 1; t < kRadix; ++t) sum = sum + x[t] * w[t * u % kRadix];
    to[u * out_step] = sum * roots[turn * u];
  }
}

// to[u] = root^(turn u) Σ from[t] exp(-2πi tu/radix)
template <class C>
DEVICE_FN void butterfly(int radix, const Complex<C>* from, Complex<C>* to, int64_t in_step, int64_t out_step,
                         const Roots<C>& roots, int64_t turn) {
  if (radix == 4) {
    const Complex<C> a = from[0], b = from[in_step], c = from[2 * in_step], d = from[3 * in_step];
    const Complex<C> even = a + c, odd = b + d, even_gap = a - c, odd_gap = (b - d).by_minus_i();
    to[0] = even + odd;
    to[out_step] = (even_gap + odd_gap) * roots[turn];
    to[2 * out_step] = (even - odd) * roots[2 * turn];
    to[3 * out_step] = (even_gap - odd_gap) * roots[3 * turn];
  } else if (radix == 2) {
    const Complex<C> a = from[0], b = from[in_step];
    to[0] = a + b;
    to[out_step] = (a - b) * roots[turn];
  } else if (radix == 3) {
    small_butterfly<3>(from, to, in_step, out_step, roots, turn);
  } else if (radix == 5) {
    small_butterfly<5>(from, to, in_step, out_step, roots, turn);
  } else {
    const int64_t unit = roots.n / radix;
    for (int u = 0; u < radix; ++u) {
      Complex<C> sum = from[0];
      int power = 0;
      for (int t = 1; t < radix; ++t) {
        power += u;
        if (power >= radix) power -= radix;
        sum = sum + from[t * in_step] * roots[unit * power];
      }
      to[u * out_step] = sum * roots[turn * u];
    }
  }
}

}  // namespace encore::ops
