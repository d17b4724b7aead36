// A thread reads a square of b, 16 bytes from each of so many rows as 16 bytes have values: all of it is on its way
// before the first value is used. It adds up what the square is multiplied by, for as many columns as the square has,
// goes on along the depth, and in the end the block adds up its threads. No block waits for another one: where b has
// few columns, blocks have fewer of them and more threads along the depth.
#include "device/few_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/error.h"
#include "device/neighbours.h"
#include "device/transform.h"

namespace encore::device {
namespace {

template <class T>
struct Product {
  const T *a, *b, *addend, *bias;
  T* c;
  int64_t lda, ldb, ldc;
  int rows, columns, depth;
  float alpha, beta;
  Epilogue epilogue;
  int lane_shift;  // 2^ so many threads side by side
  int parts;       // that the sums of an output are first added up in
};

DEVICE_FN float after(Epilogue epilogue, float value) {
  if (epilogue == Epilogue::relu) return value < 0 ? 0 : value;
  if (epilogue == Epilogue::gelu_tanh)
    return 0.5f * value * (1 + tanhf(0.7978845608f * (value + 0.044715f * value * value * value)));
  return value;
}

// Replaces what is there if `wanted`. Compilers leave it where it is written, and neither branch nor wait there.
DEVICE_FN void read_if(bool wanted, Granule& to, const void* from) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
      "@wanted ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(to.words[0]), "+r"(to.words[1]), "+r"(to.words[2]), "+r"(to.words[3])
      : "l"(from), "r"(uint32_t(wanted)));
#else
  if (wanted) to = *static_cast<const Granule*>(from);
#endif
}

// kTransposed: rows of b are columns of the product. kAligned: all of a and b that is read lies in aligned packs.
template <class T, int kRows, bool kTransposed, bool kAligned>
struct FewRows {
  static constexpr int kSide = pack_size<T>();
  static constexpr int kEach = kRows * kSide, kQuads = kEach / 4;      // sums of a thread
  static constexpr int kThreads = kRows == 1 && kAligned ? 512 : 256;  // of a block, at most
  // So many registers that two blocks run side by side, if that is enough of them.
  static constexpr int kMaxThreads = kRows == 1 || kAligned ? 2 * kThreads : kThreads;
  static constexpr int kPlane = 4 * kThreads + 16;  // of one quad each, in other banks than the next
  using Square = Pack<T, kSide>;
  using Loaded = std::conditional_t<kAligned, Granule, Neighbours<T>>;
  struct Shared {
    alignas(16) float quads[kQuads * kPlane];
    float sums[kThreads];
  };
  struct Place {
    int row, column;
    bool wanted;
  };
  struct Late {  // what the result needs besides
    T addend, bias;
  };

  Product<T> p;

  DEVICE_FN void operator()(Block<Shared>& block, const Shared&) const {
    const int shift = p.lane_shift, outputs = kEach << shift, parts = p.parts;
    const int first = int(block.index()) * (kSide << shift);
    PerThread<Late, kThreads> late;
    block.threads([&](int t, Shared& s) {
      float sums[kRows][kSide] = {};
      add_up(sums, first, t, block.size(), late[t]);
      UNROLL for (int q = 0; q < kQuads; ++q) {
        const float* quad = &sums[q * 4 / kSide][q * 4 % kSide];
        *reinterpret_cast<Pack<float, 4>*>(s.quads + q * kPlane + 4 * t) = {quad[0], quad[1], quad[2], quad[3]};
      }
    });
    // Every 2^shift-th thread has sums of the same columns. Each is a part's: add up the parts, and then all of them.
    block.threads([&](int t, Shared& s) {
      const int output = t & (outputs - 1), part = unsigned(t) / kEach >> shift;
      const float* from = s.quads + (output >> (2 + shift)) * kPlane + (output & ((4 << shift) - 1));
      float sum = 0;
      UNROLL for (int i = 0; i < kEach; ++i) sum += from[(i * parts + part) << (2 + shift)];
      s.sums[t] = sum;
    });
    block.threads([&](int t, Shared& s) {
      const Place to = place_of(first, t);
      if (!to.wanted) return;
      float sum = 0;
      NO_UNROLL for (int i = 0; i < parts; i += 8) {
        float some[8];
        UNROLL for (int j = 0; j < 8; ++j) some[j] = i + j < parts ? s.sums[t + (i + j) * outputs] : 0.f;
        sum += ((some[0] + some[1]) + (some[2] + some[3])) + ((some[4] + some[5]) + (some[6] + some[7]));
      }
      float value = p.alpha * sum;
      if (p.beta != 0) value += p.beta * float(late[t].addend);
      if (p.bias) value += float(late[t].bias);
      p.c[to.row * p.ldc + to.column] = T(after(p.epilogue, value));
    });
  }

 private:
  // The first column of a square: the last ones of b if it would not fit in.
  DEVICE_FN int column_of(int first, int lane) const {
    const int column = first + lane * kSide, last = p.columns - kSide;
    return column < last ? column : last;
  }
  // The output of a block's thread. Not wanted: another square's, a row that there is not, or a thread too many.
  DEVICE_FN Place place_of(int first, int t) const {
    const unsigned plane = unsigned(t) >> (2 + p.lane_shift);
    const int lane = t >> 2 & ((1 << p.lane_shift) - 1), row = int(plane / (kSide / 4));
    const int column = column_of(first, lane) + int(plane % (kSide / 4)) * 4 + (t & 3);
    return {row, column, row < p.rows && column >= first + lane * kSide};
  }
  DEVICE_FN Late late_of(const Place& at) const {
    Late late = {};
    if (at.wanted && p.beta != 0) late.addend = p.addend[at.row * p.ldc + at.column];
    if (at.wanted && p.bias) late.bias = p.bias[at.column];
    return late;
  }

  // A row of a square is asked for as soon as the one before it in the same registers has been used: while a thread has
  // something left to read, a whole square is on its way.
  DEVICE_FN void add_up(float (&sums)[kRows][kSide], int first, int t, int threads, Late& late) const {
    const int column = column_of(first, t & ((1 << p.lane_shift) - 1)), step = (threads >> p.lane_shift) * kSide;
    const T* const b = p.b + (kTransposed ? column * p.ldb : column);
    int k = (t >> p.lane_shift) * kSide, left = p.depth - k;
    Loaded square[kSide] = {}, rows[kRows] = {};
    UNROLL for (int i = 0; i < kSide; ++i) load_b(square[i], b, k, i, left);
    UNROLL for (int r = 0; r < kRows; ++r) load_a(rows[r], k, r, left);
    if (p.bias || p.beta != 0) late = late_of(place_of(first, t));
    NO_UNROLL while (left > 0) {
      const int next = k + step, next_left = left - step;
      float a[kRows][kSide];
      UNROLL for (int r = 0; r < kRows; ++r) {
        const Square row = values_of(rows[r], left);
        UNROLL for (int i = 0; i < kSide; ++i) a[r][i] = float(row.at[i]);
        load_a(rows[r], next, r, next_left);
      }
      UNROLL for (int i = 0; i < kSide; ++i) {
        const Square row = values_of(square[i], kTransposed ? left : kSide);
        UNROLL for (int j = 0; j < kSide; ++j) {
          const float value = float(row.at[j]);
          UNROLL for (int r = 0; r < kRows; ++r) {
            float& sum = sums[r][kTransposed ? i : j];
            sum = fmaf(a[r][kTransposed ? j : i], value, sum);
          }
        }
        load_b(square[i], b, next, i, next_left);
      }
      k = next, left = next_left;
    }
  }
  // Row i of the square at depth k; `left` is how deep the product is from there on.
  DEVICE_FN void load_b(Loaded& to, const T* b, int k, int i, int left) const {
    if constexpr (kTransposed)
      load(to, b + i * p.ldb + k, left);
    else
      load(to, b + (k + i) * p.ldb, kAligned ? left : i < left ? kSide : 0);
  }
  DEVICE_FN void load_a(Loaded& to, int k, int row, int left) const {
    load(to, p.a + (row < p.rows ? row : 0) * p.lda + k, left);
  }
  // Of so many values what fits in, or nothing.
  DEVICE_FN static void load(Loaded& to, const T* from, int count) {
    if constexpr (kAligned)
      read_if(count > 0, to, from);
    else
      to = Loaded(from, count < 0 ? 0 : count < kSide ? count : kSide);
  }
  // Zeros beyond `count`.
  DEVICE_FN static Square values_of(const Loaded& loaded, int count) {
    if constexpr (kAligned) {
      return std::bit_cast<Square>(loaded);
    } else {
      Square values = loaded.pack();
      if (count < kSide) UNROLL for (int i = 0; i < kSide; ++i) values.at[i] = i < count ? values.at[i] : T{};
      return values;
    }
  }
};

template <class T, int kRows, bool kTransposed, bool kAligned>
void launch(StreamRef stream, Product<T> p, int lanes) {
  using Kernel = FewRows<T, kRows, kTransposed, kAligned>;
  // No more threads along the depth than have something to do, but one for each output of the block.
  int threads = Kernel::kThreads;
  while (threads / 2 >= std::max(32, Kernel::kEach * lanes) && threads / 2 / lanes * Kernel::kSide >= p.depth)
    threads /= 2;
  p.parts = threads / (Kernel::kEach * lanes);
  const int64_t columns = Kernel::kSide * lanes;
  block_kernel<typename Kernel::Shared>(stream, {(p.columns + columns - 1) / columns, threads}, Kernel{p});
}

template <class T>
void multiply(StreamRef stream, const Gemm& g, const Product<T>& p, int lanes) {
  constexpr int kSide = pack_size<T>();
  const bool aligned = is_pack_aligned<kSide>(p.a) && is_pack_aligned<kSide>(p.b) && p.depth % kSide == 0 &&
                       p.ldb % kSide == 0 && (g.m == 1 || p.lda % kSide == 0) &&
                       (g.transpose_b || p.columns % kSide == 0);
  const auto with_rows = [&]<int kRows> {
    if (g.transpose_b)
      aligned ? launch<T, kRows, true, true>(stream, p, lanes) : launch<T, kRows, true, false>(stream, p, lanes);
    else
      aligned ? launch<T, kRows, false, true>(stream, p, lanes) : launch<T, kRows, false, false>(stream, p, lanes);
  };
  if (g.m == 1)
    with_rows.template operator()<1>();
  else if (g.m == 2)
    with_rows.template operator()<2>();
  else
    with_rows.template operator()<4>();
}

bool is_half(Type type) { return type == Type::f16 || type == Type::bf16; }

bool serves(const Gemm& g) {
  const int64_t side = int64_t(16 / size_bytes(g.type));
  return (is_half(g.type) || g.type == Type::f32) && g.type == g.output && g.batch == 1 && g.m >= 1 &&
         g.m <= kMostFewRows && g.n >= side && g.k > 0 && g.n <= INT32_MAX / 2 && g.k <= INT32_MAX / 2 &&
         (!g.transpose_a || (g.m == 1 && g.lda == 1));
}

}  // namespace

std::vector<int> few_rows_lanes(const Gemm& g, int multiprocessors) {
  if (!serves(g)) return {};
  // The more lanes, the longer the pieces of b's rows, or the longer threads go on before they are added up; but each
  // multiprocessor should have something to do, and better two blocks than one.
  const int least = g.transpose_b ? 1 : 2, most = g.transpose_b ? 4 : 8;
  const auto busy = [&](int lanes) {
    return 2 * g.n * int64_t(size_bytes(g.type)) >= 3 * 16 * int64_t(lanes) * multiprocessors;
  };
  int best = most;
  while (best > least && !busy(best)) best /= 2;
  std::vector<int> lanes{best};
  for (int other = least; other <= most; other *= 2)
    if (other != best) lanes.push_back(other);
  return lanes;
}

bool few_rows_pay(const Gemm& g) { return serves(g) && is_half(g.type) && g.n >= 512 && g.n * g.k >= int64_t(1) << 20; }

void multiply_few_rows(StreamRef stream, const Gemm& g, const void* a, const void* b, const void* addend, void* c,
                       const void* bias, int lanes) {
  check(g);
  const bool known = serves(g) && (lanes == 1 || lanes == 2 || lanes == 4 || lanes == 8);
  if (!known) fail(Code::internal, describe(g), ": not a product of few rows with ", lanes, " lanes");
  const auto of = [&]<class T>(T) {
    multiply<T>(stream, g,
                {static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(addend),
                 static_cast<const T*>(bias), static_cast<T*>(c), g.lda, g.ldb, g.ldc, int(g.m), int(g.n), int(g.k),
                 g.alpha, g.beta, g.epilogue, std::countr_zero(unsigned(lanes)), 0},
                lanes);
  };
  switch (g.type) {
    case Type::f16: return of(Half());
    case Type::bf16: return of(BFloat16());
    default: return of(float());
  }
}

}  // namespace encore::device
