#include "ops/norm/unaligned_norm.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "device/device.h"
#include "device/warp.h"
#include "ops/dispatch.h"
#include "ops/norm/unaligned_rows.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;
using device::PerThread;
using device::Warp;

// Rows that are as far apart as a pack has values are aligned alike, or nearer ones if packs and rows have a divisor in
// common. A block takes such rows, one or two for each of its warps, and so needs scale and bias but once: in shared
// memory, where their packs are those of the rows.
template <class T>
struct NormalizeUnalignedRows {
  static constexpr int kPack = device::pack_size<T>(), kKeep = 8, kMostPacks = 32 * kKeep;
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kMaxThreads = 1024;  // more than there are: of 64 registers each, half of all threads find some
  using Part = UnalignedPart<T, 32, kKeep>;
  struct Kept {
    typename Part::Raw at[kKeep];
  };
  // Packs as they are computed with, in parts of 16 bytes: neighbours read neighbouring ones.
  using Floats = Pack<float, 4>;
  struct Packs {
    Floats part[kPack / 4][kMostPacks];
  };
  struct alignas(16) Shared {
    Packs gamma, beta;
  };

  RowNorm norm;
  float per_value;  // 1 / width
  int width, apart_log2;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const int64_t first_row =
        ((b.index() >> apart_log2) * kWarps << apart_log2) + (b.index() & ((1 << apart_log2) - 1));
    const int64_t step = b.count() * kWarps;
    PerThread<Kept, kThreads> kept;
    b.threads([&](int t, Shared& s) {
      part(first_row + (t / 32 << apart_log2), t % 32).read(kept[t].at, T(0.f));
      const T* const first = static_cast<const T*>(norm.x) + first_row * width;
      const int before = int(reinterpret_cast<uintptr_t>(first) / sizeof(T) % kPack);
      for (int at = t * kPack - before, i = t; at < width; at += kThreads * kPack, i += kThreads) {
        put(s.gamma, i, shifted(static_cast<const T*>(norm.gamma.data), at));
        if (norm.beta.data) put(s.beta, i, shifted(static_cast<const T*>(norm.beta.data), at));
      }
    });
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      const int first_thread = 32 * warp.index();
      const int64_t first = first_row + (warp.index() << apart_log2);
      for (int64_t row = first; row < norm.rows; row += step) {
        PerThread<float, 32> sum, squares;
        warp.lanes([&](int lane) {
          if (row != first) part(row, lane).read(kept[first_thread + lane].at, T(0.f));
          sum[lane] = squares[lane] = 0;
          const auto add_up = [&](float& all, auto of) {
            part(row, lane).each_slot([&](int k, int) {
              float values[kPack];
              Part::take(values, kept[first_thread + lane].at[k]);
              UNROLL for (int j = 0; j < kPack; ++j) all += of(values[j]);
            });
          };
          if (norm.centred)
            add_up(sum[lane], [](float v) { return v; });
          else
            add_up(squares[lane], [](float v) { return v * v; });
        });
        if (norm.centred) {  // the mean of the squares less the square of the mean would cancel
          warp.template reduce_columns<1>([&](int lane) -> float& { return sum[lane]; }, Plus());
          warp.lanes([&](int lane) {
            const float mean = sum[lane] * per_value;
            const Part own = part(row, lane);
            own.each([&](int k, int) {
              float values[kPack];
              Part::take(values, kept[first_thread + lane].at[k]);
              own.fill(values, k, mean);
              UNROLL for (int j = 0; j < kPack; ++j) squares[lane] += (values[j] - mean) * (values[j] - mean);
            });
          });
        }
        warp.template reduce_columns<1>([&](int lane) -> float& { return squares[lane]; }, Plus());
        warp.lanes([&](int lane) {
          const float mean = sum[lane] * per_value;
          const float scale = 1.f / std::sqrt(squares[lane] * per_value + float(norm.epsilon));
          if (lane == 0) {
            write(norm.mean, row, mean);
            write(norm.inverse_deviation, row, scale);
          }
          write_row(row, lane, kept[first_thread + lane], mean, scale, s);
        });
      }
    });
  }

 private:
  DEVICE_FN Part part(int64_t row, int lane) const {
    return {static_cast<const T*>(norm.x) + row * width, width, lane, row < norm.rows};
  }
  // A pack of a row that may begin before it and end after it.
  DEVICE_FN Pack<T, kPack> shifted(const T* row, int at) const {
    if (at >= 0 && at + kPack <= width) return device::load_neighbours(row + at);
    Pack<T, kPack> pack;
    UNROLL for (int j = 0; j < kPack; ++j) pack.at[j] = unsigned(at + j) < unsigned(width) ? row[at + j] : T(0.f);
    return pack;
  }
  DEVICE_FN static void put(Packs& packs, int i, const Pack<T, kPack>& pack) {
    UNROLL for (int p = 0; p < kPack / 4; ++p) {
      UNROLL for (int j = 0; j < 4; ++j) packs.part[p][i].at[j] = float(pack.at[4 * p + j]);
    }
  }
  DEVICE_FN static Pack<float, kPack> get(const Packs& packs, int i) {
    Pack<float, kPack> pack;
    UNROLL for (int p = 0; p < kPack / 4; ++p) {
      const Floats part = packs.part[p][i];
      UNROLL for (int j = 0; j < 4; ++j) pack.at[4 * p + j] = part.at[j];
    }
    return pack;
  }
  DEVICE_FN void write_row(int64_t row, int lane, const Kept& kept, float mean, float scale, const Shared& s) const {
    const Part own = part(row, lane);
    T* const y = static_cast<T*>(norm.y) + row * width;
    const float offset = -mean * scale;
    const auto write_packs = [&](auto offset_of) {
      own.each([&](int k, int) {
        float values[kPack];
        Part::take(values, kept.at[k]);
        const int i = own.index(k);
        const auto gamma = get(s.gamma, i);
        const auto beta = offset_of(i);
        Pack<T, kPack> out;
        UNROLL for (int j = 0; j < kPack; ++j) {
          // Of halves a difference of products has digits enough.
          const float even = sizeof(T) == 2 ? values[j] * scale + offset : (values[j] - mean) * scale;
          out.at[j] = T(even * gamma.at[j] + beta.at[j]);
        }
        own.store(y, k, out);
      });
    };
    if (norm.beta.data)
      write_packs([&](int i) { return get(s.beta, i); });
    else
      write_packs([](int) { return Pack<float, kPack>{}; });
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

bool normalize_unaligned_rows(device::StreamRef stream, const RowNorm& norm, Type x, Type gamma) {
  if (x != gamma || x == Type::f64 || norm.skip || norm.bias || norm.sum) return false;
  if (norm.gamma.step != 0 || norm.beta.step != 0) return false;
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  bool done = false;
  dispatch(TypeList<float, Half, BFloat16>{}, x, [&]<class T> {
    using Kernel = NormalizeUnalignedRows<T>;
    const auto *from = static_cast<const T*>(norm.x), *to = static_cast<const T*>(norm.y);
    const int64_t apart = Kernel::kPack / std::gcd(norm.width, int64_t(Kernel::kPack));
    if (!are_aligned_alike(from, to) || (apart == 1 && device::is_pack_aligned<Kernel::kPack>(from))) return;
    if (norm.width <= kStagedSlots<T> * 8 || most_packs<T>(norm.width) > Kernel::kMostPacks) return;
    if (norm.rows < 2 * Kernel::kWarps * multiprocessors) return;
    const int64_t groups = (norm.rows + apart - 1) / apart;  // of neighbours, none aligned as another
    // Two rows for each warp where there are many: more would leave multiprocessors idle at the end.
    const int64_t of_block = Kernel::kWarps * (norm.rows > 16 * Kernel::kWarps * multiprocessors ? 2 : 1);
    device::block_kernel<typename Kernel::Shared>(
        stream, {(groups + of_block - 1) / of_block * apart, Kernel::kThreads},
        Kernel{norm, 1.f / float(norm.width), int(norm.width), std::countr_zero(uint64_t(apart))});
    done = true;
  });
  return done;
}

}  // namespace encore::ops
