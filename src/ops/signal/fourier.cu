// Rows that fit into a block's shared memory are done by one kernel; longer ones by one for each factor of the length.
#include "ops/signal/fourier.h"

#include <algorithm>
#include <type_traits>

#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/signal/butterfly.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::Divider;
using device::Half;

// Halves are read and written by kernels for floats.
template <class C>
DEVICE_FN C read_number(Type type, const void* from, int64_t i) {
  if constexpr (std::is_same_v<C, float>) {
    if (type == Type::f16) return static_cast<const Half*>(from)[i];
    if (type == Type::bf16) return static_cast<const BFloat16*>(from)[i];
  }
  return static_cast<const C*>(from)[i];
}
template <class C>
DEVICE_FN void write_number(Type type, void* to, int64_t i, C value) {
  if constexpr (std::is_same_v<C, float>) {
    if (type == Type::f16) {
      static_cast<Half*>(to)[i] = Half(value);
      return;
    }
    if (type == Type::bf16) {
      static_cast<BFloat16*>(to)[i] = BFloat16(value);
      return;
    }
  }
  static_cast<C*>(to)[i] = value;
}

// The element `k` of a row, ready for a transform forward: an inverse one is that of conjugates.
template <class C>
struct Reader {
  FourierSide side;
  Type type;
  const void* window;
  int64_t length;
  bool conjugate, half_given;
  Divider by_inner;

  DEVICE_FN Complex<C> operator()(int64_t row, int64_t k) const {
    const bool turned = half_given && 2 * k > length;
    const Complex<C> value = stored(row, turned ? length - k : k);
    if (half_given && (k == 0 || 2 * k == length)) return {value.re, C(0)};
    return conjugate != turned ? value.conjugate() : value;
  }

 private:
  DEVICE_FN Complex<C> stored(int64_t row, int64_t k) const {
    if (k >= side.count) return {C(0), C(0)};
    int64_t inner;
    const int64_t outer = by_inner(row, inner);
    const int64_t at = outer * side.outer_stride + inner * side.inner_stride + k * side.step;
    const C factor = window ? read_number<C>(type, window, k) : C(1);
    return {factor * read_number<C>(type, side.data, at),
            side.numbers == 2 ? factor * read_number<C>(type, side.data, at + 1) : C(0)};
  }
};

template <class C>
struct Writer {
  FourierSide side;
  Type type;
  C scale;
  bool conjugate;
  Divider by_inner;

  DEVICE_FN void operator()(int64_t row, int64_t k, Complex<C> value) const {
    if (k >= side.count) return;
    int64_t inner;
    const int64_t outer = by_inner(row, inner);
    const int64_t at = outer * side.outer_stride + inner * side.inner_stride + k * side.step;
    write_number<C>(type, side.data, at, scale * value.re);
    if (side.numbers == 2) write_number<C>(type, side.data, at + 1, scale * (conjugate ? -value.im : value.im));
  }
};

// ---- in shared memory

template <class C, int kMost>
struct ShortRows {
  static constexpr int kMaxThreads = 256;
  struct Shared {
    Complex<C> a[kMost], b[kMost], roots[kMost / 2 + 1];
  };
  Reader<C> reader;
  Writer<C> writer;
  int64_t rows;
  int length, rows_at_once;
  Radices radices;

  DEVICE_FN void operator()(device::Block<Shared>& block, const Shared&) const {
    const int64_t first = block.index() * rows_at_once;
    const int here = rows - first < rows_at_once ? int(rows - first) : rows_at_once, all = here * length;
    const int size = block.size();
    block.threads([&](int t, Shared& s) {
      for (int k = t; 2 * k <= length; k += size) s.roots[k] = root_of_one<C>(k, length);
      for (int i = t; i < all; i += size) s.a[i] = reader(first + i / length, i % length);
    });
    int stride = 1;
    for (int pass = 0; pass < radices.count; ++pass) {
      const int radix = radices.of[pass], in_row = length / radix;
      block.threads([&](int t, Shared& s) {
        const Complex<C>* const from = pass % 2 ? s.b : s.a;
        Complex<C>* const to = pass % 2 ? s.a : s.b;
        for (int i = t; i < here * in_row; i += size) {
          const int row = i / in_row, j = i - row * in_row, p = j / stride, q = j - p * stride;
          butterfly<C>(radix, from + row * length + j, to + row * length + q + stride * radix * p, in_row, stride,
                       Roots<C>{s.roots, length}, int64_t(stride) * p);
        }
      });
      stride *= radix;
    }
    block.threads([&](int t, Shared& s) {
      const Complex<C>* const from = radices.count % 2 ? s.b : s.a;
      for (int i = t; i < all; i += size) writer(first + i / length, i % length, from[i]);
    });
  }
};

// How long rows may be: three arrays fill most of the shared memory of a block.
template <class C>
constexpr int kLongest = std::is_same_v<C, double> ? 1024 : 2048;
template <class C>
constexpr int kSmall = kLongest<C> / 4;  // lets more blocks run at once

template <class C, int kMost>
void launch_short(Context& context, const Reader<C>& reader, const Writer<C>& writer, int64_t rows, int length,
                  const Radices& radices) {
  const int64_t share = rows / (2 * device::multiprocessors(context.stream().device()));  // of a block, if all are busy
  const int at_once = int(std::clamp<int64_t>(share, 1, kMost / length));
  const int threads = std::clamp((at_once * length / 4 + 31) / 32 * 32, 32, ShortRows<C, kMost>::kMaxThreads);
  device::block_kernel<typename ShortRows<C, kMost>::Shared>(
      context.stream(), {(rows + at_once - 1) / at_once, threads},
      ShortRows<C, kMost>{reader, writer, rows, length, at_once, radices});
}

// ---- in device memory

template <class C>
struct MakeRoots {
  Complex<C>* roots;
  int64_t n;
  DEVICE_FN void operator()(int64_t k) const { roots[k] = root_of_one<C>(k, n); }
};

template <class C>
struct LoadRows {
  Complex<C>* to;
  Reader<C> reader;
  Divider by_length;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t k;
    const int64_t row = by_length(i, k);
    to[i] = reader(row, k);
  }
};

template <class C>
struct StoreRows {
  const Complex<C>* from;
  Writer<C> writer;
  Divider by_length;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t k;
    const int64_t row = by_length(i, k);
    writer(row, k, from[i]);
  }
};

template <class C>
struct Pass {
  const Complex<C>* from;
  Complex<C>* to;
  Roots<C> roots;
  int radix;
  int64_t stride;
  Divider by_butterflies, by_stride;  // of a row
  DEVICE_FN void operator()(int64_t i) const {
    int64_t j, q;
    const int64_t row = by_butterflies(i, j) * roots.n, p = by_stride(j, q);
    butterfly<C>(radix, from + row + j, to + row + q + stride * radix * p, by_butterflies.divisor(), stride, roots,
                 stride * p);
  }
};

template <class C>
const Complex<C>* make_roots(Context& context, int64_t length) {
  auto* const roots = static_cast<Complex<C>*>(context.scratch(size_t(length / 2 + 1) * sizeof(Complex<C>)));
  device::for_each_index(context.stream(), length / 2 + 1, MakeRoots<C>{roots, length});
  return roots;
}

// Transforms rows in `data`, with `other` of the same size beside it; the result is in one of them.
template <class C>
Complex<C>* run_passes(Context& context, Complex<C>* data, Complex<C>* other, int64_t rows, int64_t length,
                       const Radices& radices, const Complex<C>* roots) {
  int64_t stride = 1;
  for (int pass = 0; pass < radices.count; ++pass) {
    const int radix = radices.of[pass];
    const int64_t in_row = length / radix, all = rows * in_row;
    device::for_each_index(
        context.stream(), all,
        Pass<C>{data, other, {roots, length}, radix, stride, Divider(in_row, all), Divider(stride, all)});
    stride *= radix;
    std::swap(data, other);
  }
  return data;
}

template <class C>
Complex<C>* complex_scratch(Context& context, int64_t count) {
  return static_cast<Complex<C>*>(context.scratch(size_t(checked_product(count, int64_t(sizeof(Complex<C>))))));
}

// ---- any length: with jk = (j² + k² - (j-k)²) / 2 a transform is a convolution, for which a power of two will do

// exp(-πi k²/n)
template <class C>
struct MakeChirp {
  Complex<C>* chirp;
  int64_t n;
  DEVICE_FN void operator()(int64_t k) const {
    chirp[k] = root_of_one<C>(int64_t(uint64_t(k) * uint64_t(k) % uint64_t(2 * n)), 2 * n);
  }
};
template <class C>
struct MakeFilter {
  Complex<C>* filter;
  const Complex<C>* chirp;
  int64_t n, size;
  DEVICE_FN void operator()(int64_t i) const {
    const int64_t k = i < n ? i : size - i;
    filter[i] = k < n ? chirp[k].conjugate() : Complex<C>{C(0), C(0)};
  }
};
template <class C>
struct LoadChirped {
  Complex<C>* to;
  const Complex<C>* chirp;
  Reader<C> reader;
  Divider by_size;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t k;
    const int64_t row = by_size(i, k);
    to[i] = k < reader.length ? reader(row, k) * chirp[k] : Complex<C>{C(0), C(0)};
  }
};
// The transform back is one forward, of conjugates.
template <class C>
struct Filter {
  Complex<C>* data;
  const Complex<C>* filter;
  Divider by_size;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t k;
    by_size(i, k);
    data[i] = (data[i] * filter[k]).conjugate();
  }
};
template <class C>
struct StoreChirped {
  const Complex<C>* from;
  const Complex<C>* chirp;
  Writer<C> writer;
  int64_t size;
  Divider by_length;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t k;
    const int64_t row = by_length(i, k);
    const Complex<C> value = from[row * size + k].conjugate() * chirp[k];
    writer(row, k, {value.re / C(size), value.im / C(size)});
  }
};

template <class C>
void by_convolution(Context& context, const Reader<C>& reader, const Writer<C>& writer, int64_t rows, int64_t length) {
  const StreamRef stream = context.stream();
  int64_t size = 1;
  while (size < 2 * length - 1) size *= 2;
  Radices radices;
  factor(size, radices);
  const int64_t all = checked_product(rows, size);
  Complex<C>*const chirp = complex_scratch<C>(context, length), *filter = complex_scratch<C>(context, size);
  Complex<C>*const data = complex_scratch<C>(context, all), *const other = complex_scratch<C>(context, all);
  const Complex<C>* const roots = make_roots<C>(context, size);
  device::for_each_index(stream, length, MakeChirp<C>{chirp, length});
  device::for_each_index(stream, size, MakeFilter<C>{filter, chirp, length, size});
  filter = run_passes(context, filter, complex_scratch<C>(context, size), 1, size, radices, roots);
  device::for_each_index(stream, all, LoadChirped<C>{data, chirp, reader, Divider(size, all)});
  Complex<C>* const spectra = run_passes(context, data, other, rows, size, radices, roots);
  device::for_each_index(stream, all, Filter<C>{spectra, filter, Divider(size, all)});
  const Complex<C>* const made =
      run_passes(context, spectra, spectra == data ? other : data, rows, size, radices, roots);
  device::for_each_index(stream, rows * length,
                         StoreChirped<C>{made, chirp, writer, size, Divider(length, rows * length)});
}

template <class C>
void transform_rows(Context& context, const Fourier& f) {
  const Reader<C> reader{f.in, f.type, f.window, f.length, f.inverse, f.half_given, Divider(f.inner_rows, f.rows)};
  const Writer<C> writer{f.out, f.type, f.inverse ? C(1) / C(f.length) : C(1), f.inverse,
                         Divider(f.inner_rows, f.rows)};
  Radices radices;
  if (!factor(f.length, radices)) return by_convolution<C>(context, reader, writer, f.rows, f.length);
  if (f.length <= kSmall<C>) return launch_short<C, kSmall<C>>(context, reader, writer, f.rows, int(f.length), radices);
  if (f.length <= kLongest<C>)
    return launch_short<C, kLongest<C>>(context, reader, writer, f.rows, int(f.length), radices);
  const int64_t all = checked_product(f.rows, f.length);
  Complex<C>*const data = complex_scratch<C>(context, all), *const other = complex_scratch<C>(context, all);
  const Complex<C>* const roots = make_roots<C>(context, f.length);
  device::for_each_index(context.stream(), all, LoadRows<C>{data, reader, Divider(f.length, all)});
  const Complex<C>* const made = run_passes(context, data, other, f.rows, f.length, radices, roots);
  device::for_each_index(context.stream(), all, StoreRows<C>{made, writer, Divider(f.length, all)});
}

}  // namespace

void fourier(Context& context, const Fourier& problem) {
  if (problem.rows == 0) return;
  if (problem.type == Type::f64)
    transform_rows<double>(context, problem);
  else
    transform_rows<float>(context, problem);
}

}  // namespace encore::ops
