// Softmax and LogSoftmax along an axis whose values are not neighbours.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "device/device.h"
#include "device/divide.h"
#include "device/larger.h"
#include "device/transform.h"
#include "device/warp.h"
#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/norm/powers.h"
#include "ops/norm/softmax.h"
#include "ops/norm/softmax_long_middle.h"
#include "ops/reduce/team.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::NoShared;
using device::Pack;
using device::PerThread;

// An axis so short that a thread keeps columns as they are, and none waits for another.
template <class T>
struct SoftmaxColumns {
  using C = Compute<T>;
  // A pack is moved as one number: of what it is made of nvcc would store each part on its own.
  using Raw = uint64_t;
  static constexpr int kPack = sizeof(Raw) / sizeof(T), kKeep = sizeof(T) == 8 ? 12 : 24, kThreads = 128;
  static constexpr int kMaxThreads = 768;  // more than there are: registers for what is kept and not much more

  const T* x;
  T* y;
  int axis;
  int64_t inner, packs;
  device::Divider packs_in_inner;
  bool log;

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      const int64_t pack = b.index() * kThreads + t;
      if (pack >= packs) return;
      int64_t in_inner;
      const int64_t outer = packs_in_inner(pack, in_inner), first = outer * axis * inner + in_inner * kPack;
      C top[kPack], sum[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) {
        top[j] = -std::numeric_limits<C>::infinity();
        sum[j] = 0;
      }
      Raw kept[kKeep];
      UNROLL for (int k = 0; k < kKeep; ++k) {
        kept[k] = packed(top);
        if (k < axis) kept[k] = *reinterpret_cast<const Raw*>(x + (first + k * inner));
      }
      each(kept, [&](int, const C(&values)[kPack]) {
        UNROLL for (int j = 0; j < kPack; ++j) top[j] = LargerNumber()(top[j], values[j]);
      });
      each(kept, [&](int, const C(&values)[kPack]) {
        UNROLL for (int j = 0; j < kPack; ++j) sum[j] += power_of<T>(values[j] - top[j]);
      });
      const auto write = [&](auto made) {
        each(kept, [&](int k, const C(&values)[kPack]) {
          C out[kPack];
          UNROLL for (int j = 0; j < kPack; ++j) out[j] = made(j, values[j] - top[j]);
          if (k < axis) *reinterpret_cast<Raw*>(y + (first + k * inner)) = packed(out);
        });
      };
      if (log) {
        UNROLL for (int j = 0; j < kPack; ++j) sum[j] = std::log(sum[j]);
        write([&](int j, C below) { return below - sum[j]; });
      } else {
        UNROLL for (int j = 0; j < kPack; ++j) sum[j] = C(1) / sum[j];
        write([&](int j, C below) { return power_of<T>(below) * sum[j]; });
      }
    });
  }

 private:
  // As two words, of which a number takes no instruction to make.
  using Part = Pack<T, kPack == 1 ? 1 : kPack / 2>;
  using Word = std::conditional_t<kPack == 1, uint64_t, uint32_t>;
  static constexpr int kOfWord = int(sizeof(Word) / sizeof(T));

  DEVICE_FN static Raw packed(const C (&values)[kPack]) {
    Raw raw = 0;
    UNROLL for (int i = 0; i < kPack; i += kOfWord) {
      Part part;
      UNROLL for (int j = 0; j < kOfWord; ++j) part.at[j] = T(values[i + j]);
      raw |= Raw(std::bit_cast<Word>(part)) << (8 * sizeof(T) * i);
    }
    return raw;
  }
  // f(k, values) for each pack, and some beyond, which have -inf.
  template <class F>
  DEVICE_FN void each(const Raw (&kept)[kKeep], F f) const {
    UNROLL for (int k = 0; k < kKeep; ++k) {
      if (k % 4 == 0 && k >= axis) break;
      C values[kPack];
      UNROLL for (int i = 0; i < kPack; i += kOfWord) {
        const auto part = std::bit_cast<Part>(Word(kept[k] >> (8 * sizeof(T) * i)));
        UNROLL for (int j = 0; j < kOfWord; ++j) values[i + j] = C(part.at[j]);
      }
      f(k, values);
    }
  }
};

// Neighbouring threads take neighbouring packs, and `rows` threads of a block share each column. They keep its values
// in registers: kKeep packs each. With kKeep 0 the axis is too long for that, and is read twice; then as few columns as
// may be are under way at once, so that the cache has them still: a block is all that a multiprocessor has registers
// for.
template <class T, int kPack, int kKeep>
struct SoftmaxMiddle {
  using C = Compute<T>;
  static constexpr int kThreads = kKeep || sizeof(T) == 8 ? 256 : 512, kMaxThreads = kThreads;
  static constexpr int kMostLanes = 256, kBatch = kKeep ? kKeep : std::max(8, 16 / kPack);
  struct Shared {
    C part[kThreads * kPack], top[kMostLanes * kPack];  // of each row and column; of each column
  };
  struct Kept {
    C at[kKeep ? kKeep : 1][kPack];
    C top[kPack], sum[kPack];  // of what the thread has seen, if it keeps nothing
    int64_t first;             // where its pack of row 0 is; if it has none, ~ of where the last one is
  };

  const T* x;
  T* y;
  int64_t axis, inner, packs;  // packs side by side
  device::Divider packs_in_inner;
  int rows, lanes;  // powers of two
  int lane_bits;
  bool log;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    PerThread<Kept, kThreads> kept;
    b.threads([&](int t, Shared& s) {
      C most[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) most[j] = kLowest<C>;
      kept[t].first = first_of(b.index() * lanes + lane_of(t));
      if constexpr (kKeep != 0) {
        load(kept[t].first, row_of(t), kept[t].at);
        UNROLL for (int k = 0; k < kKeep; ++k) {
          UNROLL for (int j = 0; j < kPack; ++j) most[j] = LargerNumber()(most[j], kept[t].at[k][j]);
        }
      } else {
        look(row_of(t), kept[t]);
        UNROLL for (int j = 0; j < kPack; ++j) most[j] = kept[t].top[j];
      }
      UNROLL for (int j = 0; j < kPack; ++j) s.part[t * kPack + j] = most[j];
    });
    combine(
        b, LargerNumber(), [](C top) { return top; }, [](Shared& s) { return s.top; });
    b.threads([&](int t, Shared& s) {
      const C* top = s.top + lane_of(t) * kPack;
      C sum[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) sum[j] = 0;
      if constexpr (kKeep != 0) {
        UNROLL for (int k = 0; k < kKeep; ++k) {
          if (!has(row_of(t) + k * rows)) continue;
          UNROLL for (int j = 0; j < kPack; ++j) {
            const C below = kept[t].at[k][j] - top[j], power = power_of<T>(below);
            sum[j] += power;
            kept[t].at[k][j] = log ? below : power;
          }
        }
      } else {
        UNROLL for (int j = 0; j < kPack; ++j) sum[j] = kept[t].sum[j] * power_of<T>(kept[t].top[j] - top[j]);
      }
      UNROLL for (int j = 0; j < kPack; ++j) s.part[t * kPack + j] = sum[j];
    });
    combine(
        b, Plus(), [&](C sum) { return log ? std::log(sum) : C(1) / sum; }, [](Shared& s) { return s.part; });
    b.threads([&](int t, Shared& s) {
      const C* scale = s.part + lane_of(t) * kPack;
      if constexpr (kKeep != 0) {
        store(kept[t].first, row_of(t), kept[t].at, scale);
      } else {
        const int64_t first = kept[t].first;
        if (first < 0) return;
        C top[kPack], by[kPack];
        UNROLL for (int j = 0; j < kPack; ++j) {
          top[j] = s.top[lane_of(t) * kPack + j];
          by[j] = scale[j];
        }
        // Backwards: what was read last is the likeliest to be in the cache still.
        const int64_t step = int64_t(rows) * kBatch;
        for (int64_t r = row_of(t) + (axis - 1 - row_of(t)) / step * step; r >= row_of(t); r -= step) {
          Pack<T, kPack> raw[kBatch];
          ask(first, r, raw);
          const auto write = [&](auto made) {
            UNROLL for (int k = 0; k < kBatch; ++k) {
              UNROLL for (int j = 0; j < kPack; ++j) raw[k].at[j] = T(made(j, C(raw[k].at[j]) - top[j]));
              if (has(r + k * rows)) device::store_pack(y + (first + (r + k * rows) * inner), raw[k], true);
            }
          };
          if (log)
            write([&](int j, C below) { return below - by[j]; });
          else
            write([&](int j, C below) { return power_of<T>(below) * by[j]; });
        }
      }
    });
  }

 private:
  DEVICE_FN int row_of(int t) const { return t >> lane_bits; }
  DEVICE_FN int lane_of(int t) const { return t & (lanes - 1); }
  DEVICE_FN bool has(int64_t r) const { return r < axis; }
  DEVICE_FN int64_t first_of(int64_t pack) const {
    const bool there = pack < packs;
    int64_t in_inner;
    const int64_t outer = packs_in_inner(there ? pack : packs - 1, in_inner);
    const int64_t first = outer * axis * inner + in_inner * kPack;
    return there ? first : ~first;
  }
  // Every `rows`-th pack from row r on; where there is none, one of row r again.
  DEVICE_FN void ask(int64_t first, int64_t r, Pack<T, kPack> (&raw)[kBatch]) const {
    const T* const from = x + (first < 0 ? ~first : first);
    const int64_t instead = has(r) ? r : 0;
    UNROLL for (int k = 0; k < kBatch; ++k) {  // no branches, so that none waits for another
      raw[k] = device::load_pack<kPack>(from + (has(r + k * rows) ? r + k * rows : instead) * inner, true);
    }
  }
  // The same; -inf where there is none.
  DEVICE_FN void load(int64_t first, int64_t r, C (&values)[kBatch][kPack]) const {
    Pack<T, kPack> raw[kBatch];
    ask(first, r, raw);
    UNROLL for (int k = 0; k < kBatch; ++k) {
      const bool there = first >= 0 && has(r + k * rows);
      UNROLL for (int j = 0; j < kPack; ++j) values[k][j] = there ? C(raw[k].at[j]) : kLowest<C>;
    }
  }
  // Also changes the values.
  DEVICE_FN void store(int64_t first, int64_t r, C (&values)[kBatch][kPack], const C* scale) const {
    if (first < 0) return;
    UNROLL for (int k = 0; k < kBatch; ++k) {
      UNROLL for (int j = 0; j < kPack; ++j) { values[k][j] = log ? values[k][j] - scale[j] : values[k][j] * scale[j]; }
    }
    UNROLL for (int k = 0; k < kBatch; ++k) {
      if (!has(r + k * rows)) continue;
      Pack<T, kPack> out;
      UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(values[k][j]);
      device::store_pack(y + (first + (r + k * rows) * inner), out, true);
    }
  }
  // The greatest of the thread's values, and the sum of powers below it.
  DEVICE_FN void look(int row, Kept& seen) const {
    UNROLL for (int j = 0; j < kPack; ++j) {
      seen.top[j] = kLowest<C>;
      seen.sum[j] = 0;
    }
    for (int64_t r = row; r < axis; r += int64_t(rows) * kBatch) {
      Pack<T, kPack> raw[kBatch];
      ask(seen.first, r, raw);
      UNROLL for (int j = 0; j < kPack; ++j) {
        C most = seen.top[j];
        UNROLL for (int k = 0; k < kBatch; ++k) most = LargerNumber()(most, C(raw[k].at[j]));
        const C from = most == kLowest<C> ? C(0) : most;  // nothing but -inf adds nothing
        C sum = seen.sum[j] * power_of<T>(seen.top[j] - from);
        UNROLL for (int k = 0; k < kBatch; ++k) {
          if (has(r + k * rows)) sum += power_of<T>(C(raw[k].at[j]) - from);
        }
        seen.top[j] = most;
        seen.sum[j] = sum;
      }
    }
  }
  // Combines the parts of each column into to(s), finished.
  template <class Op, class Finish, class To>
  DEVICE_FN void combine(Block<Shared>& b, Op op, Finish finish, To to) const {
    const int columns = lanes * kPack;
    for (int left = rows, next; left > 0; left = next > 1 ? next : 0) {
      next = (left + 7) / 8;
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < next * columns; i += b.size()) {
          C all = s.part[i];
          for (int at = i + next * columns; at < left * columns; at += next * columns) all = op(all, s.part[at]);
          if (next > 1)
            s.part[i] = all;
          else
            to(s)[i] = finish(all);
        }
      });
    }
  }
};

// The same of halves, which are kept as they were read: so longer axes are, too. There are as many threads as keep the
// axis.
template <class T>
struct SoftmaxLongMiddle {
  static constexpr int kPack = device::pack_size<T>(), kKeep = 16, kThreads = 512, kMaxThreads = kThreads, kLanes = 2;
  static constexpr int kLongest = kThreads / kLanes * kKeep;
  using Raw = device::WordsOf<T, kPack>;
  struct Shared {
    float part[kThreads / 32 * kLanes * kPack], of[kLanes * kPack];  // of each warp and column; of each column
  };
  struct Kept {
    Raw at[kKeep];
  };

  const T* x;
  T* y;
  int64_t inner, packs;
  int axis;
  device::Divider packs_in_inner;
  bool log;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    PerThread<Kept, kThreads> kept;
    const int rows = b.size() / kLanes;
    b.threads([&](int t, Shared&) {
      const T* const from = x + first_of(b, t) + t / kLanes * inner;
      const int row = t / kLanes;
      const bool there = has_pack(b, t);
      UNROLL for (int k = 0; k < kKeep; ++k) {
        kept[t].at[k] = lowest();
        if (there && row + k * rows < axis) kept[t].at[k] = device::load_words<kPack>(from + k * rows * inner);
      }
    });
    combine(
        b, LargerNumber(), [](float top) { return top; },
        [&](int t, float(&own)[kPack]) {
          auto most = device::pack_of<T>(kept[t].at[0]);
          UNROLL for (int k = 1; k < kKeep; ++k) most = device::larger_or_nan(most, device::pack_of<T>(kept[t].at[k]));
          UNROLL for (int j = 0; j < kPack; ++j) own[j] = float(most.at[j]);
        });
    PerThread<Tops, kThreads> tops;
    b.threads(
        [&](int t, Shared& s) { UNROLL for (int j = 0; j < kPack; ++j) tops[t].at[j] = s.of[t % kLanes * kPack + j]; });
    combine(
        b, Plus(), [&](float sum) { return log ? std::log(sum) : 1.f / sum; },
        [&](int t, float(&own)[kPack]) {
          UNROLL for (int j = 0; j < kPack; ++j) own[j] = 0;
          UNROLL for (int k = 0; k < kKeep; ++k) {
            const auto values = device::pack_of<T>(kept[t].at[k]);
            UNROLL for (int j = 0; j < kPack; ++j) own[j] += power_of<T>(float(values.at[j]) - tops[t].at[j]);
          }
        });
    b.threads([&](int t, Shared& s) {
      if (!has_pack(b, t)) return;
      T* const to = y + first_of(b, t) + t / kLanes * inner;
      const int row = t / kLanes;
      float by[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) by[j] = s.of[t % kLanes * kPack + j];
      const auto write = [&](auto made) {
        UNROLL for (int k = 0; k < kKeep; ++k) {
          if (row + k * rows >= axis) break;
          const auto values = device::pack_of<T>(kept[t].at[k]);
          Pack<T, kPack> out;
          UNROLL for (int j = 0; j < kPack; ++j) out.at[j] = T(made(j, float(values.at[j]) - tops[t].at[j]));
          device::store_whole(to + k * rows * inner, out);
        }
      };
      if (log)
        write([&](int j, float below) { return below - by[j]; });
      else
        write([&](int j, float below) { return power_of<T>(below) * by[j]; });
    });
  }

 private:
  struct Tops {
    float at[kPack];
  };
  DEVICE_FN static Raw lowest() {
    Pack<T, kPack> all;
    UNROLL for (int j = 0; j < kPack; ++j) all.at[j] = T(kLowest<float>);
    return device::words_of(all);
  }
  DEVICE_FN int64_t pack_of(const Block<Shared>& b, int t) const { return b.index() * kLanes + t % kLanes; }
  DEVICE_FN bool has_pack(const Block<Shared>& b, int t) const { return pack_of(b, t) < packs; }
  DEVICE_FN int64_t first_of(const Block<Shared>& b, int t) const {
    int64_t in_inner;
    const int64_t outer = packs_in_inner(pack_of(b, t), in_inner);
    return outer * axis * inner + in_inner * kPack;
  }
  // Combines what the threads of each column have: first those of a warp.
  template <class Op, class Finish, class Own>
  DEVICE_FN void combine(Block<Shared>& b, Op op, Finish finish, Own own_of) const {
    device::for_each_warp(b, [&](const device::Warp& warp, Shared& s) {
      PerThread<Tops, 32> own;
      warp.lanes([&](int lane) { own_of(warp.index() * 32 + lane, own[lane].at); });
      UNROLL for (int j = 0; j < kPack; ++j) {
        const auto each = [&](int lane) -> float& { return own[lane].at[j]; };
        warp.template reduce_columns<kLanes>(each, op);
      }
      warp.lanes([&](int lane) {
        if (lane >= kLanes) return;
        UNROLL for (int j = 0; j < kPack; ++j) s.part[(warp.index() * kLanes + lane) * kPack + j] = own[lane].at[j];
      });
    });
    b.threads([&](int t, Shared& s) {
      constexpr int columns = kLanes * kPack;
      if (t >= columns) return;
      float all = s.part[t];
      for (int at = t + columns; at < b.size() / 32 * columns; at += columns) all = op(all, s.part[at]);
      s.of[t] = finish(all);
    });
  }
};

// False if the axis is too long or there are too few columns.
template <class T>
bool launch_columns(StreamRef stream, const T* x, T* y, const AxisRows& shape, bool log) {
  using Kernel = SoftmaxColumns<T>;
  constexpr int kPack = Kernel::kPack;
  const int64_t in_inner = shape.inner / kPack, packs = shape.outer * in_inner;
  if (shape.width > Kernel::kKeep || shape.inner % kPack != 0 || !device::is_pack_aligned<kPack>(x) ||
      !device::is_pack_aligned<kPack>(y) || packs < 2 * Kernel::kThreads * device::multiprocessors(stream.device()))
    return false;
  device::block_kernel<NoShared>(
      stream, {(packs + Kernel::kThreads - 1) / Kernel::kThreads, Kernel::kThreads},
      Kernel{x, y, int(shape.width), shape.inner, packs, device::Divider(in_inner, packs), log});
  return true;
}

// False if the axis is too long or there are too few columns.
template <class T>
bool launch_long(StreamRef stream, const T* x, T* y, const AxisRows& shape, bool log) {
  using Kernel = SoftmaxLongMiddle<T>;
  constexpr int kLanes = Kernel::kLanes;
  const int64_t in_inner = shape.inner / Kernel::kPack, packs = shape.outer * in_inner;
  if (shape.width > Kernel::kLongest || packs < kLanes * device::multiprocessors(stream.device())) return false;
  const int rows = int(shape.width + Kernel::kKeep - 1) / Kernel::kKeep, threads = (rows * kLanes + 31) / 32 * 32;
  device::block_kernel<typename Kernel::Shared>(
      stream, {(packs + kLanes - 1) / kLanes, threads},
      Kernel{x, y, shape.inner, packs, int(shape.width), device::Divider(in_inner, packs + kLanes), log});
  return true;
}

template <class T, int kPack>
void launch_of(StreamRef stream, const T* x, T* y, const AxisRows& shape, bool log) {
  constexpr int kKeep = kPack == 1 ? 16 : std::min(8, 32 / kPack);
  constexpr int kThreads = SoftmaxMiddle<T, kPack, kKeep>::kThreads, kMost = SoftmaxMiddle<T, kPack, 0>::kThreads;
  const int least = std::max(1, int(32 / (kPack * sizeof(T))));  // lanes that read 32 bytes side by side
  const int64_t axis = shape.width, in_inner = shape.inner / kPack, packs = shape.outer * in_inner;
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  const auto launch = [&]<int kKept>(int lanes, int rows) {
    using Kernel = SoftmaxMiddle<T, kPack, kKept>;
    device::block_kernel<typename Kernel::Shared>(
        stream, {(packs + lanes - 1) / lanes, rows * lanes},
        Kernel{x, y, axis, shape.inner, packs, device::Divider(in_inner, packs), rows, lanes,
               std::countr_zero(unsigned(lanes)), log});
  };
  // As few threads a column as can keep it, more where columns are few.
  int rows = 1;
  while (rows < kThreads && int64_t(rows) * kKeep < axis) rows *= 2;
  const bool keeps = int64_t(rows) * kKeep >= axis && kThreads / rows >= least;
  int lanes = kThreads / rows;
  if constexpr (device::kIsHalf<T> && kPack == device::pack_size<T>())
    if (!keeps && launch_long(stream, x, y, shape, log)) return;
  if (!keeps) {
    // Of what is read again, surely.
    const int64_t cached = std::min<int64_t>(device::cache_bytes(stream.device()) / 5 * 2, 20 << 20);
    lanes = std::max(4, least);
    while (lanes > least && multiprocessors * lanes * axis * int64_t(kPack * sizeof(T)) > cached) lanes /= 2;
    rows = kMost / lanes;
  }
  while (lanes > least && rows < axis && (packs < lanes || packs < multiprocessors * lanes)) lanes /= 2, rows *= 2;
  while (lanes / 2 >= packs && rows * lanes > 32) lanes /= 2;
  if (keeps)
    launch.template operator()<kKeep>(lanes, rows);
  else
    launch.template operator()<0>(lanes, rows);
}

}  // namespace

void softmax_middle(StreamRef stream, const Tensor& x, const AxisRows& rows, bool log, const Tensor& y) {
  if (softmax_long_middle(stream, x, rows, log, y)) return;
  dispatch(FloatList{}, x.type, [&]<class T> {
    constexpr int kPack = device::pack_size<T>();
    if (launch_columns<T>(stream, x.as<const T>(), y.as<T>(), rows, log)) return;
    const bool aligned = rows.inner % kPack == 0 && device::is_pack_aligned<kPack>(x.as<const T>()) &&
                         device::is_pack_aligned<kPack>(y.as<T>());
    with_packs<kPack>(aligned, [&]<int kWide> { launch_of<T, kWide>(stream, x.as<const T>(), y.as<T>(), rows, log); });
  });
}

}  // namespace encore::ops
