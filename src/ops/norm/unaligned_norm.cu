#include "ops/norm/unaligned_norm.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "device/device.h"
#include "device/warp.h"
#include "ops/dispatch.h"
#include "ops/elementwise/digits.h"
#include "ops/norm/row_norm_types.h"
#include "ops/norm/unaligned_rows.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;
using device::PerThread;
using device::Warp;

// Rows that are as far apart as a pack has values are aligned alike, or nearer ones if packs and rows have a divisor in
// common. A block takes only such rows, as many for each warp as there are. So it needs scale and bias but once, in
// shared memory, where their packs are those of the rows, and what a lane has of a row is the same for all of them. A
// row is taken apart as soon as it is there, and the next one asked for into the same registers, before anything is
// computed.
template <class T>
struct NormalizeUnalignedRows {
  static constexpr int kPack = device::pack_size<T>(), kKeep = 8, kStep = 32 * kPack, kMost = kKeep * kStep;
  static constexpr int kThreads = 128, kWarps = kThreads / 32;
  static constexpr int kMaxThreads = 512;  // more than there are: a thread gets 128 registers
  using Raw = RawPack<T, kPack>;
  struct Coming {
    Raw at[kKeep];
  };
  struct Kept {
    float at[kKeep][kPack];
  };
  // What a lane has of each row, in its slots: the packs that are its own, but the last lane the row's last one, in
  // slot 0; and then, as far as there are such, those 32 packs further on.
  struct Part {
    int first, rest;  // the first value in slot 0, and what would be that of slot 1 one step before it
    int left;         // from there to the row's last pack
    unsigned own;     // a bit for each value in slot 0 that is the row's
  };
  // Packs in parts of 16 bytes: neighbours read neighbouring ones.
  using Floats = Pack<float, 4>;
  struct Packs {
    Floats part[kPack / 4][32 * kKeep];
  };
  struct alignas(16) Shared {
    Packs gamma, beta;
    Part parts[32];
  };

  RowNorm norm;
  float epsilon, per_value;  // per_value: 1 / width
  int width, apart_log2;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t first_row =
        ((b.index() >> apart_log2) * kWarps << apart_log2) + (b.index() & ((1 << apart_log2) - 1));
    const int64_t step = b.count() * kWarps;
    const int before = int(reinterpret_cast<uintptr_t>(begin(first_row)) / sizeof(T) % kPack);
    PerThread<Coming, kThreads> coming;
    b.threads([&](int t, Shared& s) {
      const int64_t row = first_row + (t / 32 << apart_log2);
      const Part own = part(before, t % 32);
      UNROLL for (int k = 0; k < kKeep; ++k) coming[t].at[k] = raw_pack_of<kPack>(T(0.f));
      if (t < 32) s.parts[t] = own;
      bring(s, before, t, [&] {
        if (row < norm.rows) ask(coming[t], row, own);
      });
    });
    device::for_each_warp(b, [&](const Warp& warp, const Shared& s) {
      const int first_thread = 32 * warp.index();
      PerThread<Kept, 32> kept;
      PerThread<float, 32> sum, squares;
      for (int64_t row = first_row + (warp.index() << apart_log2); row < norm.rows; row += step) {
        warp.lanes([&](int lane) {
          const Part own = s.parts[lane];
          Coming& raw = coming[first_thread + lane];
          each_slot([&](int k) { take(kept[lane].at[k], raw.at[k]); });
          keep_own(kept[lane].at[0], own);
          if (row + step < norm.rows) ask(raw, row + step, own);
          sum[lane] = norm.centred ? sum_of(kept[lane], [](float v) { return v; }) : 0.f;
        });
        // The mean of the squares less the square of the mean would cancel.
        if (norm.centred) warp.template reduce_columns<1>([&](int lane) -> float& { return sum[lane]; }, Plus());
        warp.lanes([&](int lane) {
          const Part own = s.parts[lane];
          const float mean = sum[lane] * per_value;
          each_slot([&](int k) {
            const float less = has(own, k) ? mean : 0.f;  // values that the row lacks count as zero
            UNROLL for (float& value : kept[lane].at[k]) value -= less;
          });
          keep_own(kept[lane].at[0], own);
          squares[lane] = sum_of(kept[lane], [](float v) { return v * v; });
        });
        warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; }, Plus());
        warp.lanes([&](int lane) {
          const float scale = inverse_root_for<T>(squares[lane] * per_value + epsilon);
          if (lane == 0) {
            write(norm.mean, row, sum[lane] * per_value);
            write(norm.inverse_deviation, row, scale);
          }
          write_row(row, lane, kept[lane], scale, s);
        });
      }
    });
  }

 private:
  DEVICE_FN const T* begin(int64_t row) const { return static_cast<const T*>(norm.x) + row * width; }
  // `before`: values between an aligned address and a row. A row has more packs than a warp has lanes.
  DEVICE_FN Part part(int before, int lane) const {
    Part own;
    own.rest = (lane - 1) * kPack - before;
    const int last = (before + width - 1) / kPack * kPack - before;
    own.first = lane == 31 ? last : own.rest + kPack;
    own.left = last - own.rest;
    own.own = 0;
    UNROLL for (int j = 0; j < kPack; ++j) own.own |= unsigned(own.first + j) < unsigned(width) ? 1u << j : 0;
    return own;
  }
  DEVICE_FN static bool has(const Part& own, int k) { return k == 0 || k * kStep < own.left; }
  // f(k) for each slot in which any lane has a pack, and maybe for some more.
  template <class F>
  DEVICE_FN void each_slot(F f) const {
    UNROLL for (int k = 0; k < kKeep; ++k) {
      if (k > 0 && k % 2 == 0 && k * kStep - 2 * kPack >= width) break;
      f(k);
    }
  }
  DEVICE_FN void ask(Coming& raw, int64_t row, const Part& own) const {
    const T* const x = begin(row);
    const char *const from = reinterpret_cast<const char*>(x), *const to = reinterpret_cast<const char*>(x + width);
    const T *const first = x + own.first, *const rest = x + own.rest;
    UNROLL for (int k = 0; k < kKeep; ++k) {
      const char* const at = reinterpret_cast<const char*>(k == 0 ? first : rest + k * kStep);
      if (has(own, k)) raw.at[k] = std::bit_cast<Raw>(device::load_granule(at, from, to));
    }
  }
  DEVICE_FN static void take(float (&values)[kPack], const Raw& raw) {
    const auto pack = std::bit_cast<Pack<T, kPack>>(raw);
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = float(pack.at[j]);
  }
  // What slot 0 has of a neighbour's becomes zero.
  DEVICE_FN static void keep_own(float (&values)[kPack], const Part& own) {
    UNROLL for (int j = 0; j < kPack; ++j) values[j] = own.own >> j & 1 ? values[j] : 0.f;
  }
  template <class F>
  DEVICE_FN float sum_of(const Kept& kept, F of) const {
    float even = 0, odd = 0;
    each_slot([&](int k) {
      UNROLL for (int j = 0; j < kPack; j += 2) {
        even += of(kept.at[k][j]);
        odd += of(kept.at[k][j + 1]);
      }
    });
    return even + odd;
  }
  // Scale and bias, for which memory is waited for once; before that, `meanwhile` is done.
  template <class F>
  DEVICE_FN void bring(Shared& s, int before, int t, F meanwhile) const {
    constexpr int kOfThread = kMost / kThreads;
    const T* const gammas = static_cast<const T*>(norm.gamma.data);
    const T* const betas = static_cast<const T*>(norm.beta.data);
    T gamma[kOfThread], beta[kOfThread];
    UNROLL for (int i = 0; i < kOfThread; ++i) {
      const int at = t + i * kThreads;
      gamma[i] = beta[i] = T(0.f);
      if (at < width) gamma[i] = gammas[at];
      if (at < width && betas) beta[i] = betas[at];
    }
    meanwhile();
    UNROLL for (int i = 0; i < kOfThread; ++i) {
      const unsigned at = unsigned(t + i * kThreads);
      if (at < unsigned(width)) {
        put(s.gamma, at + unsigned(before), float(gamma[i]));
        put(s.beta, at + unsigned(before), float(beta[i]));
      }
    }
  }
  DEVICE_FN static void put(Packs& packs, unsigned i, float value) {
    packs.part[i % kPack / 4][i / kPack].at[i % 4] = value;
  }
  DEVICE_FN static Pack<float, kPack> get(const Packs& packs, unsigned i) {
    Pack<float, kPack> pack;
    UNROLL for (int p = 0; p < kPack / 4; ++p) {
      const Floats part = packs.part[p][i];
      UNROLL for (int j = 0; j < 4; ++j) pack.at[4 * p + j] = part.at[j];
    }
    return pack;
  }
  DEVICE_FN void write_row(int64_t row, int lane, const Kept& kept, float scale, const Shared& s) const {
    const Part own = s.parts[lane];
    T* const y = static_cast<T*>(norm.y) + row * width;
    T *const first = y + own.first, *const rest = y + own.rest;
    each_slot([&](int k) {
      const unsigned i = k == 0 ? unsigned(own.first + kPack - 1) / kPack : unsigned(lane - 1 + 32 * k);
      const auto gamma = get(s.gamma, i), beta = get(s.beta, i);
      float values[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) values[j] = kept.at[k][j] * scale * gamma.at[j] + beta.at[j];
      const auto out = packed(values);
      if (k > 0) {
        if (has(own, k)) device::store_whole(rest + k * kStep, out);
      } else if (own.own == (1u << kPack) - 1) {
        device::store_whole(first, out);
      } else {
        const bool begins = own.first < 0;
        store_end(first, out, begins ? own.first + kPack : width - own.first, begins);
      }
    });
  }
  // In words, which nvcc leaves whole.
  DEVICE_FN static Pack<T, kPack> packed(const float (&values)[kPack]) {
    Raw raw;
    if constexpr (sizeof(T) == 2) {
      UNROLL for (int i = 0; i < kPack / 2; ++i) raw.at[i] = device::as_pair<T>(values[2 * i], values[2 * i + 1]);
    } else {
      UNROLL for (int i = 0; i < kPack; ++i) raw.at[i] = values[i];
    }
    return std::bit_cast<Pack<T, kPack>>(raw);
  }
  DEVICE_FN void write(void* statistics, int64_t row, float value) const {
    if (!statistics) return;
    if (norm.double_statistics)
      static_cast<double*>(statistics)[row] = value;
    else
      static_cast<float*>(statistics)[row] = value;
  }
};

}  // namespace

bool normalize_unaligned_rows(device::StreamRef stream, const RowNorm& norm, const NormTypes& types) {
  const auto& [x, gamma, y] = types;
  if (x != gamma || x != y || x == Type::f64 || adds(norm)) return false;
  if (norm.gamma.step != 0 || norm.beta.step != 0) return false;
  bool done = false;
  dispatch(TypeList<float, Half, BFloat16>{}, x, [&]<class T> {
    using Kernel = NormalizeUnalignedRows<T>;
    const auto *from = static_cast<const T*>(norm.x), *to = static_cast<const T*>(norm.y);
    const int64_t apart = Kernel::kPack / std::gcd(norm.width, int64_t(Kernel::kPack));
    if (!are_aligned_alike(from, to) || (apart == 1 && device::is_pack_aligned<Kernel::kPack>(from))) return;
    if (norm.width <= kStagedSlots<T> * 8 || most_packs<T>(norm.width) > 32 * Kernel::kKeep) return;
    const int64_t groups = (norm.rows + apart - 1) / apart;  // of neighbours, none aligned as another
    // Twice as many blocks as there is room for at once: each brings scale and bias again, and the last ones of fewer
    // would leave multiprocessors idle.
    constexpr int kRoom = Kernel::kMaxThreads / Kernel::kThreads;
    const int64_t blocks = std::max<int64_t>(2 * kRoom * device::multiprocessors(stream.device()) / apart, 1);
    device::block_kernel<typename Kernel::Shared>(
        stream, {std::min((groups + Kernel::kWarps - 1) / Kernel::kWarps, blocks) * apart, Kernel::kThreads},
        Kernel{norm, float(norm.epsilon), 1.f / float(norm.width), int(norm.width), std::countr_zero(uint64_t(apart))});
    done = true;
  });
  return done;
}

}  // namespace encore::ops
