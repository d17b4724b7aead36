// GEMV of one to four rows: a thread reads a square of b, 16 bytes from each of so many rows as 16 bytes have values:
// all of it is on its way before the first value is used. It adds up what the square is multiplied by, for as many
// columns as the square has, goes on along the depth, and in the end the block adds up its threads. No block waits for
// another one: where b has few columns, blocks have fewer of them and more threads along the depth.
//
// A row that is to be normed each block brings to shared memory times gamma, while b is on its way, and adds up the
// squares. It scales its sums in the end, so that no thread waits for the row's mean.
#include "device/gemv.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/device.h"
#include "device/error.h"
#include "device/gemv_product.h"
#include "device/prefetch.h"
#include "device/transform.h"
#include "device/unaligned_pack.h"

namespace encore::device {
namespace {

// Replaces what is there if `wanted`. Compilers leave it where it is written, and neither branch nor wait there. What
// is read once stays out of the caches that others read from again. Not as what never changes (.nc): compilers would
// read that before the kernel waits for earlier work.
template <bool kOnce>
DEVICE_FN void read_if(bool wanted, Granule& to, const void* from) {
#ifdef __CUDA_ARCH__
  uint32_t(&words)[4] = to.at;
  if constexpr (kOnce)
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(uint32_t(wanted)));
  else
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(from), "r"(uint32_t(wanted)));
#else
  if (wanted) to = *static_cast<const Granule*>(from);
#endif
}

// kTransposed: rows of b are columns of the product. kAligned: all of a and b that is read lies in aligned packs.
// kNormed: there is a gamma.
template <class T, int kRows, bool kTransposed, bool kAligned, bool kNormed>
struct Gemv {
  static constexpr int kSide = pack_size<T>();
  static constexpr int kEach = kRows * kSide, kQuads = kEach / 4;       // sums of a thread
  static constexpr int kThreads = kRows == 1 && kAligned ? 1024 : 256;  // of a block, at most
  // So many registers that two of 512 or 256 run side by side, if that is enough of them.
  static constexpr int kMaxThreads = (kRows == 1 ? 2 : 1) * (kAligned ? 512 : 256);
  static constexpr int kPlane = 4 * kThreads + 16;  // of one quad each, in other banks than the next
  static constexpr int kSquares = kNormed ? kThreads : 1, kSquareSums = kNormed ? 32 : 1;
  static_assert(!kNormed || (kRows == 1 && !kTransposed && kAligned));
  static constexpr int kQuad = 4;
  using Quad = Pack<float, kQuad>;
  using Square = Pack<T, kSide>;
  using Loaded = std::conditional_t<kAligned, Granule, UnalignedPack<T>>;
  struct Shared {
    alignas(16) float quads[kQuads * kPlane];
    float sums[kThreads];
    float squares[kSquares];  // of each thread
    alignas(16) float square_sums[kSquareSums];
  };
  struct Place {
    int row, column;
    bool wanted;
  };
  struct Held {
    Loaded square[kSide];  // of b, on its way
  };
  using Late = typename GemvProduct<T>::Late;
  static constexpr bool kBeginsEarly = true;

  GemvProduct<T> p;
  int shift;        // 2^ so many threads stand side by side
  int parts;        // that the sums of an output are first added up in
  float per_value;  // 1 / depth

  DEVICE_FN void operator()(Block<Shared>& block, const Shared&) const {
    const int outputs = kEach << shift;
    const int first = int(block.index()) * (kSide << shift);
    PerThread<Late, kThreads> late;
    PerThread<Held, kThreads> held;
    if constexpr (kNormed)
      block.threads([&](int t, Shared& s) {
        if (block.index() == 0) prefetch_gamma(t, block.size());
        ask_first(held[t], first, t, block);
        take_row(block, s, t);
      });
    block.threads([&](int t, Shared& s) {
      float sums[kRows][kSide] = {};
      if constexpr (!kNormed) ask_first(held[t], first, t, block);
      add_up(sums, held[t].square, first, t, block, s, late[t]);
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
      if (kNormed && t < kSquareSums) {
        float squares = 0;
        for (int i = t; i < block.size(); i += kSquareSums) squares += s.squares[i];
        s.square_sums[t] = squares;
      }
    });
    block.threads([&](int t, Shared& s) {
      const Place to = place_of(first, t);
      if (!to.wanted || (is_gated() && !p.is_of_x(to.column))) return;
      const float scale = scale_of(s), sum = scale * sum_of(s, t, outputs);
      if (is_gated())
        p.store_gated(to.row, to.column, sum, scale * sum_of(s, t + 4 * (kGateColumns / kSide), outputs));
      else
        p.store(to.row, to.column, sum, late[t]);
    });
  }

 private:
  // Floats and what is transposed are not.
  DEVICE_FN bool is_gated() const { return sizeof(T) == 2 && !kTransposed && p.more.gated; }
  // Of all parts.
  DEVICE_FN float sum_of(const Shared& s, int output, int outputs) const {
    float sum = 0;
    NO_UNROLL for (int i = 0; i < parts; i += 8) {
      float some[8];
      UNROLL for (int j = 0; j < 8; ++j) some[j] = i + j < parts ? s.sums[output + (i + j) * outputs] : 0.f;
      sum += ((some[0] + some[1]) + (some[2] + some[3])) + ((some[4] + some[5]) + (some[6] + some[7]));
    }
    return sum;
  }
  DEVICE_FN float scale_of(const Shared& s) const {
    if constexpr (!kNormed) return 1;
    float squares = 0;
    UNROLL for (int i = 0; i < kSquareSums; i += kQuad) {
      const Quad some = *reinterpret_cast<const Quad*>(s.square_sums + i);
      squares += (some.at[0] + some.at[1]) + (some.at[2] + some.at[3]);
    }
    return fast_inverse_root(squares * per_value + p.more.epsilon);
  }
  // The output of a block's thread. Not wanted: another square's, a row that there is not, or a thread too many.
  DEVICE_FN Place place_of(int first, int t) const {
    const unsigned plane = unsigned(t) >> (2 + shift);
    const int lane = t >> 2 & ((1 << shift) - 1), row = int(plane / (kSide / 4));
    const int column = p.fitting(first + lane * kSide, kSide) + int(plane % (kSide / 4)) * 4 + (t & 3);
    return {row, column, row < p.rows && column >= first + lane * kSide};
  }
  // Of b what a thread's columns begin with.
  DEVICE_FN const T* columns_of(int first, int t) const {
    const int column = p.fitting(first + (t & ((1 << shift) - 1)) * kSide, kSide);
    return p.b + (kTransposed ? column * p.ldb : column);
  }
  DEVICE_FN int depth_of(int t) const { return (t >> shift) * kSide; }
  // Asks for the first square, and waits for earlier work.
  DEVICE_FN void ask_first(Held& held, int first, int t, Block<Shared>& block) const {
    const T* const b = columns_of(first, t);
    const int k = depth_of(t);
    held = Held{};
    if (!p.constant_b) block.wait();
    UNROLL for (int i = 0; i < kSide; ++i) load_b(held.square[i], b, k, i, p.depth - k);
    if (p.constant_b) block.wait();
  }
  DEVICE_FN void prefetch_gamma(int t, int threads) const {
    for (int k = t * kSide; k < p.depth; k += threads * kSide) prefetch(static_cast<const T*>(p.more.gamma) + k);
  }
  DEVICE_FN static float* row_in(const Block<Shared>& block, Shared& s) { return block.template dynamic<float>(s); }
  DEVICE_FN void take_row(const Block<Shared>& block, Shared& s, int t) const {
    const auto at = [](const void* row, int k) { return load_pack<kSide>(static_cast<const T*>(row) + k, true); };
    T* const to = block.index() == 0 ? static_cast<T*>(p.more.sum) : nullptr;
    float squares = 0;
    for (int k = t * kSide; k < p.depth; k += block.size() * kSide) {
      const Square x = at(p.a, k), skip = p.more.skip ? at(p.more.skip, k) : Square{}, gamma = at(p.more.gamma, k);
      Square sum;
      float* const made = row_in(block, s) + k;
      UNROLL for (int i = 0; i < kSide; i += kQuad) {
        Quad some;
        UNROLL for (int j = 0; j < kQuad; ++j) {
          const float value = float(x.at[i + j]) + float(skip.at[i + j]);
          squares = fmaf(value, value, squares);
          some.at[j] = value * float(gamma.at[i + j]);
          sum.at[i + j] = T(value);
        }
        *reinterpret_cast<Quad*>(made + i) = some;
      }
      if (to) store_pack(to + k, sum, is_pack_aligned<kSide>(to));
    }
    s.squares[t] = squares;
  }
  // A row of a square is asked for as soon as the one before it in the same registers has been used: while a thread has
  // something left to read, a whole square is on its way.
  DEVICE_FN void add_up(float (&sums)[kRows][kSide], Loaded (&square)[kSide], int first, int t,
                        const Block<Shared>& block, Shared& s, Late& late) const {
    const T* const b = columns_of(first, t);
    const int step = (block.size() >> shift) * kSide;
    int k = depth_of(t), left = p.depth - k;
    Loaded rows[kRows] = {};
    if constexpr (!kNormed) UNROLL for (int r = 0; r < kRows; ++r) load_a(rows[r], k, r, left);
    if (p.has_late())
      if (const Place to = place_of(first, t); to.wanted) late = p.late(to.row, to.column);
    NO_UNROLL while (left > 0) {
      const int next = k + step, next_left = left - step;
      float a[kRows][kSide];
      if constexpr (kNormed) {
        UNROLL for (int i = 0; i < kSide; i += kQuad) {
          const Quad some = *reinterpret_cast<const Quad*>(row_in(block, s) + k + i);
          UNROLL for (int j = 0; j < kQuad; ++j) a[0][i + j] = some.at[j];
        }
      } else {
        UNROLL for (int r = 0; r < kRows; ++r) {
          const Square row = values_of(rows[r], left);
          UNROLL for (int i = 0; i < kSide; ++i) a[r][i] = float(row.at[i]);
          load_a(rows[r], next, r, next_left);
        }
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
      load<true>(to, b + i * p.ldb + k, left);
    else
      load<true>(to, b + (k + i) * p.ldb, kAligned ? left : i < left ? kSide : 0);
  }
  DEVICE_FN void load_a(Loaded& to, int k, int row, int left) const {
    load<false>(to, p.a + (row < p.rows ? row : 0) * p.lda + k, left);
  }
  // Of so many values what fits in, or nothing.
  template <bool kOnce>
  DEVICE_FN static void load(Loaded& to, const T* from, int count) {
    if constexpr (kAligned)
      read_if<kOnce>(count > 0, to, from);
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

template <class T, int kRows, bool kTransposed, bool kAligned, bool kNormed = false>
void launch(StreamRef stream, const GemvProduct<T>& p, int lanes) {
  using Kernel = Gemv<T, kRows, kTransposed, kAligned, kNormed>;
  const int64_t columns = Kernel::kSide * lanes, blocks = (p.columns + columns - 1) / columns;
  // A multiprocessor has one of the largest blocks, or two; no more threads along the depth than have something to do,
  // but one for each output of the block.
  int threads = blocks <= multiprocessors(stream.device()) ? Kernel::kThreads : std::min(Kernel::kThreads, 512);
  while (threads / 2 >= std::max(32, Kernel::kEach * lanes) && threads / 2 / lanes * Kernel::kSide >= p.depth)
    threads /= 2;
  const int64_t row_bytes = kNormed ? p.depth * int64_t(sizeof(float)) : 0;
  block_kernel<typename Kernel::Shared>(
      stream, {blocks, threads, row_bytes},
      Kernel{p, std::countr_zero(unsigned(lanes)), threads / (Kernel::kEach * lanes), 1 / float(p.depth)});
}

template <class T>
void launch(StreamRef stream, const Gemm& g, const GemvProduct<T>& p, int lanes, bool in_packs) {
  if constexpr (sizeof(T) == 2) {
    if (p.more.gamma) return launch<T, 1, false, true, true>(stream, p, lanes);
  }
  const auto with_rows = [&]<int kRows> {
    if (g.transpose_b)
      in_packs ? launch<T, kRows, true, true>(stream, p, lanes) : launch<T, kRows, true, false>(stream, p, lanes);
    else
      in_packs ? launch<T, kRows, false, true>(stream, p, lanes) : launch<T, kRows, false, false>(stream, p, lanes);
  };
  if (g.m == 1)
    with_rows.template operator()<1>();
  else if (g.m == 2)
    with_rows.template operator()<2>();
  else
    with_rows.template operator()<4>();
}

bool is_half(Type type) { return type == Type::f16 || type == Type::bf16; }

int64_t side_of(const Gemm& g) { return int64_t(16 / size_bytes(g.type)); }

bool fits_gemv(const Gemm& g) {
  return (is_half(g.type) || g.type == Type::f32) && g.type == g.output && g.batch == 1 && g.m >= 1 &&
         g.m <= kMostGemvRows && g.n >= side_of(g) && g.k > 0 && g.n <= INT32_MAX / 2 && g.k <= INT32_MAX / 2 &&
         (!g.transpose_a || (g.m == 1 && g.lda == 1));
}

// Whether all that is read lies in aligned packs.
bool lies_in_packs(const Gemm& g, bool aligned) {
  const int64_t side = side_of(g);
  return aligned && g.k % side == 0 && g.ldb % side == 0 && (g.m == 1 || g.lda % side == 0) &&
         (g.transpose_b || g.n % side == 0);
}

bool fits_gemv(const Gemm& g, bool tiles, bool aligned) {
  if (tiles) return is_half(g.type) && !g.transpose_b && lies_in_packs(g, aligned);
  return g.m <= 4;
}

bool does(const Gemm& g, bool tiles, bool aligned, const GemvMore& more) {
  constexpr int64_t kDeepest = 12288;  // of a row that shared memory has room for
  const bool is_plain = is_half(g.type) && !g.transpose_b && g.n >= 2 * kGateColumns;
  const bool can_gate = g.n % (2 * kGateColumns) == 0 && g.beta == 0 && !g.has_bias && g.epilogue == Epilogue::none;
  return (!more.gamma || (is_plain && g.m == 1 && g.k <= kDeepest && !tiles && lies_in_packs(g, aligned))) &&
         (!more.gated || (is_plain && can_gate));
}

}  // namespace

std::vector<GemvWay> gemv_ways(const Gemm& g, bool aligned, int multiprocessors) {
  if (!fits_gemv(g)) return {};
  // The wider, the longer the pieces of b's rows, or the longer threads go on before they are added up; but each
  // multiprocessor should have something to do, and better two blocks than one. One row of a asks for so little work
  // that less than half of them can read b: pieces as long as a line of the cache count for more.
  const int least = g.transpose_b ? 1 : 2, most = g.transpose_b ? 4 : 8;
  const double of_each = g.m == 1 && !g.transpose_b && lies_in_packs(g, aligned) ? 0.4 : 1.5;
  const auto busy = [&](int width) { return double(g.n) >= of_each * double(side_of(g) * width * multiprocessors); };
  int best = most;
  while (best > least && !busy(best)) best /= 2;
  std::vector<GemvWay> ways;
  for (const bool tiles : {g.m > 1, g.m == 1}) {
    if (!fits_gemv(g, tiles, aligned)) continue;
    ways.push_back({tiles, best});
    for (int other = least; other <= most; other *= 2)
      if (other != best) ways.push_back({tiles, other});
  }
  return ways;
}

GemvWay gemv_way(const Gemm& g, bool aligned, int multiprocessors, const GemvMore& more) {
  // One row alone is done sooner than by any of the library's kernels.
  const bool is_alone = g.m == 1 && !more.gamma && !more.gated;
  const int64_t least_columns = is_alone ? 256 : 512, least_read = int64_t(1) << (is_alone ? 17 : 20);
  const bool is_served = is_half(g.type) || (g.type == Type::f32 && g.m <= 4);
  if (!is_served || g.n < least_columns || g.n * g.k < least_read) return {};
  const std::vector<GemvWay> ways = gemv_ways(g, aligned, multiprocessors);
  return ways.empty() || !does(g, ways.front().tiles, aligned, more) ? GemvWay{} : ways.front();
}

void gemv(StreamRef stream, const Gemm& g, const void* a, const void* b, const void* addend, void* c, const void* bias,
          GemvWay way, const GemvMore& more) {
  check(g);
  uintptr_t addresses = 0;
  for (const void* read : {a, b, more.gamma, more.skip}) addresses |= reinterpret_cast<uintptr_t>(read);
  const bool aligned = addresses % 16 == 0;
  const bool known_width = way.width == 1 || way.width == 2 || way.width == 4 || way.width == 8;
  if (!fits_gemv(g) || !fits_gemv(g, way.tiles, aligned) || !known_width || (way.tiles && way.width == 1) ||
      !does(g, way.tiles, aligned, more) || (!way.tiles && way.width == 1 && (more.gamma || more.gated)))
    fail(Code::internal, describe(g), ": not a product of few rows", way.tiles ? " by tiles" : "", " of width ",
         way.width);
  const auto of = [&]<class T>(T) {
    const GemvProduct<T> p{static_cast<const T*>(a),
                           static_cast<const T*>(b),
                           static_cast<const T*>(addend),
                           static_cast<const T*>(bias),
                           static_cast<T*>(c),
                           g.lda,
                           g.ldb,
                           more.gated ? g.ldc / 2 : g.ldc,
                           int(g.m),
                           int(g.n),
                           int(g.k),
                           g.alpha,
                           g.beta,
                           g.epilogue,
                           g.constant_b,
                           more};
    if constexpr (!std::is_same_v<T, float>)
      if (way.tiles) return gemv_by_tiles(stream, p, way.width);
    launch(stream, g, p, way.width, lies_in_packs(g, aligned));
  };
  switch (g.type) {
    case Type::f16: return of(Half());
    case Type::bf16: return of(BFloat16());
    default: return of(float());
  }
}

}  // namespace encore::device
