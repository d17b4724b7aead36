#include "ops/norm/softmax_short.h"

#include <bit>
#include <cmath>

#include "device/larger.h"
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "ops/norm/powers.h"
#include "ops/norm/rows.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::Half;
using device::Pack;

// A thread has a row to itself, and takes it by words of two values: those of a block lie in shared memory, which moves
// them in packs. A row that begins within a word has a first value of its own, one that ends there a last one. Nothing
// is kept in registers, so there are warps enough for one to wait while others work.
template <class T, int kThreads>
struct SoftmaxShortRows {
  static constexpr int kPack = device::pack_size<T>(), kMostPacks = 8;  // of a thread
  static constexpr int kMost = kMostPacks * kPack - 1;  // values of a row: packs may be cut at both ends
  using Shared = Staged;
  using Block = device::Block<Shared>;
  using Pair = Pack<T, 2>;
  using Raw = RawPack<T, kPack>;

  const T* x;
  T* y;
  int64_t rows;
  int width;
  bool log;

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const int64_t first = b.index() * kThreads, left = rows - first;
    const int own = left < kThreads ? int(left) : kThreads, count = own * width;
    const T* const from = x + first * width;
    const int past = int(reinterpret_cast<uintptr_t>(from) % sizeof(Raw) / sizeof(T));  // values after aligned ones
    const int packs = (past + count + kPack - 1) / kPack;
    b.threads([&](int t, Shared& s) {
      const char *const begin = reinterpret_cast<const char*>(from), *const end = begin + count * sizeof(T);
      Raw some[kMostPacks];
      // Without conditions, so that no load waits for another: what is beyond is the last one again.
      const auto each = [&](auto f) {
        UNROLL for (int i = 0; i < kMostPacks; ++i) {
          if (i * kThreads >= packs) break;
          const int p = t + i * kThreads;
          f(some[i], p < packs ? p : packs - 1);
        }
      };
      each([&](Raw& raw, int p) {
        raw = std::bit_cast<Raw>(
            device::load_granule(reinterpret_cast<const char*>(from - past + p * kPack), begin, end));
      });
      Raw* const to = b.template dynamic<Raw>(s);
      each([&](const Raw& raw, int p) { to[p] = raw; });
    });
    b.threads([&](int t, Shared& s) {
      const int row = row_of(t);
      if (row < own) make(b.template dynamic<T>(s) + past + row * width);
    });
    b.threads([&](int t, Shared& s) {
      const T* const made = b.template dynamic<T>(s);
      T* const to = y + first * width;
      if (!are_aligned_alike(from, to)) {
        for (int i = t; i < count; i += kThreads) to[i] = made[past + i];
        return;
      }
      // Packs that are the block's as a whole; of the first and the last its own values.
      const int begin = past ? 1 : 0, end = (past + count) / kPack;
      UNROLL for (int i = 0; i < kMostPacks; ++i) {
        const int p = t + i * kThreads;
        if (p >= begin && p < end)
          device::store_whole(to - past + p * kPack, *reinterpret_cast<const Pack<T, kPack>*>(made + p * kPack));
      }
      const int at = (t / kPack ? end : 0) * kPack + t % kPack - past;
      if (t < 2 * kPack && (t / kPack ? end >= begin : begin) && at >= 0 && at < count) to[at] = made[past + at];
    });
  }

 private:
  // Of odd rows, which lie an odd number of words apart if they are two apart, a warp has every second one: so its
  // threads read different banks, and all rows begin alike.
  DEVICE_FN int row_of(int t) const { return width % 2 ? (t & ~63) | (t & 31) << 1 | (t >> 5 & 1) : t; }

  // The row, in shared memory, becomes its softmax.
  DEVICE_FN void make(T* row) const {
    const bool has_first = reinterpret_cast<uintptr_t>(row) % sizeof(uint32_t) != 0;
    const int count = (width - has_first) / 2;
    const bool has_last = (width - has_first) % 2 != 0;
    uint32_t* const words = reinterpret_cast<uint32_t*>(row + has_first);
    Pair ends{{T(kLowest<float>), T(kLowest<float>)}};
    if (has_first) ends.at[0] = row[0];
    if (has_last) ends.at[1] = row[width - 1];
    const auto each = [&](auto f) {
      constexpr int kAtOnce = 4;
      int k = 0;
      NO_UNROLL for (; k + kAtOnce <= count; k += kAtOnce) {
        uint32_t some[kAtOnce];
        UNROLL for (int i = 0; i < kAtOnce; ++i) some[i] = words[k + i];
        UNROLL for (int i = 0; i < kAtOnce; ++i) f(k + i, std::bit_cast<Pair>(some[i]));
      }
      NO_UNROLL for (; k < count; ++k) f(k, std::bit_cast<Pair>(words[k]));
    };
    Pair most = ends;
    each([&](int, const Pair& pair) { most = device::larger_or_nan(most, pair); });
    const float top = float(device::largest_or_nan(most));
    const auto sum_of = [&](auto power) {
      float sums[2] = {power(float(ends.at[0])), power(float(ends.at[1]))};
      each([&](int, const Pair& pair) { UNROLL for (int j = 0; j < 2; ++j) sums[j] += power(float(pair.at[j])); });
      return sums[0] + sums[1];
    };
    const auto write = [&](auto made) {
      each([&](int k, const Pair& pair) {
        words[k] = device::as_pair<T>(made(float(pair.at[0])), made(float(pair.at[1])));
      });
      if (has_first) row[0] = T(made(float(ends.at[0])));
      if (has_last) row[width - 1] = T(made(float(ends.at[1])));
    };
    if (log) {
      const float log_sum = std::log(sum_of([&](float value) { return power_of<T>(value - top); }));
      write([&](float value) { return value - top - log_sum; });
    } else {
      const auto power = [&](float value) { return power_below<T>(value, top); };
      const float scale = 1.f / sum_of(power);
      write([&](float value) { return power(value) * scale; });
    }
  }
};

}  // namespace

template <class T>
bool softmax_short_rows(device::StreamRef stream, const T* x, T* y, int64_t rows, int64_t width, bool log) {
  const auto launch = [&]<int kThreads> {
    using Kernel = SoftmaxShortRows<T, kThreads>;
    if (width > Kernel::kMost) return false;
    const int64_t bytes = (kThreads * width * int64_t(sizeof(T)) + 31) / 16 * 16;
    device::block_kernel<typename Kernel::Shared>(stream, {(rows + kThreads - 1) / kThreads, kThreads, bytes},
                                                  Kernel{x, y, rows, int(width), log});
    return true;
  };
  // The fewer blocks, the smaller, so that all multiprocessors get some.
  const bool few = rows < 256 * int64_t(device::multiprocessors(stream.device()));
  return few ? launch.template operator()<64>() : launch.template operator()<128>();
}
template bool softmax_short_rows(device::StreamRef, const Half*, Half*, int64_t, int64_t, bool);
template bool softmax_short_rows(device::StreamRef, const BFloat16*, BFloat16*, int64_t, int64_t, bool);

}  // namespace encore::ops
