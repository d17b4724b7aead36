// Hardmax: 1 where a row has its greatest value, the first of them, and 0 elsewhere.
#include <algorithm>
#include <bit>
#include <limits>

#include "device/device.h"
#include "device/divide.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/norm/softmax.h"
#include "ops/reduce/reductions.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

// Element i lies at [outer, at, inner] where rows go along the middle.
template <class T>
struct MarkChosen {
  static constexpr int kPack = device::pack_size<T>();
  const int64_t* chosen;  // of each outer and inner
  T* y;
  int64_t count, width, inner;
  device::Divider by_inner, by_width;
  bool aligned;
  DEVICE_FN void operator()(int64_t pack) const {
    const int64_t first = pack * kPack;
    const int here = count - first < kPack ? int(count - first) : kPack;
    int64_t in_row, at;
    const int64_t outer = by_width(by_inner(first, in_row), at);
    const int64_t* of_outer = chosen + outer * inner;
    device::Pack<T, kPack> marks;
    UNROLL for (int j = 0; j < kPack; ++j) {
      marks.at[j] = T(float(j < here && of_outer[in_row] == at));
      if (++in_row < inner) continue;
      in_row = 0;
      if (++at < width) continue;
      at = 0;
      of_outer += inner;
    }
    device::store_pack(y + first, marks, aligned, here);
  }
};

// Rows along the middle: neighbouring threads take neighbouring packs, and `rows` threads of a block share each column.
// They read it once and remember only where its greatest value is.
template <class T, int kPack>
struct MarkMiddle {
  using C = device::Compute<T>;
  static constexpr int kThreads = 256, kMaxThreads = kThreads, kBatch = 8;
  struct Best {
    C value[kPack];
    int at[kPack];
  };
  struct Shared {
    C value[kThreads * kPack];
    int at[kThreads * kPack];
  };

  const T* x;
  T* y;
  int axis;
  int64_t inner, packs;  // packs side by side
  device::Divider packs_in_inner;
  int lanes, lane_bits;  // a power of two

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const int rows = b.size() >> lane_bits;
    b.threads([&](int t, Shared& s) {
      const Best best = look(first_of(b, t), t >> lane_bits, rows);
      UNROLL for (int j = 0; j < kPack; ++j) {
        s.value[t * kPack + j] = best.value[j];
        s.at[t * kPack + j] = best.at[j];
      }
    });
    for (int left = rows, next; left > 1; left = next) {
      next = (left + 7) / 8;
      const int columns = next * lanes * kPack;
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < columns; i += b.size()) {
          C value = s.value[i];
          int at = s.at[i];
          for (int other = i + columns; other < left * lanes * kPack; other += columns) {
            const C rival = s.value[other];
            const bool wins = beats(rival, value) | (!beats(value, rival) & (s.at[other] < at));
            value = wins ? rival : value;
            at = wins ? s.at[other] : at;
          }
          s.value[i] = value;
          s.at[i] = at;
        }
      });
    }
    b.threads([&](int t, Shared& s) {
      const int64_t first = first_of(b, t);
      if (first < 0) return;
      int at[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) at[j] = s.at[(t & (lanes - 1)) * kPack + j];
      for (int r = t >> lane_bits; r < axis; r += rows) {
        device::Pack<T, kPack> marks;
        UNROLL for (int j = 0; j < kPack; ++j) marks.at[j] = T(at[j] == r ? 1.f : 0.f);
        device::store_pack(y + first + r * inner, marks, true);
      }
    });
  }

 private:
  // NaN is greater than any number.
  DEVICE_FN static bool beats(C a, C b) { return (a > b) | ((a != a) & (b == b)); }
  // Where the thread's pack of row 0 is; -1: it has none.
  DEVICE_FN int64_t first_of(const device::Block<Shared>& b, int t) const {
    const int64_t pack = b.index() * lanes + (t & (lanes - 1));
    if (pack >= packs) return -1;
    int64_t in_inner;
    const int64_t outer = packs_in_inner(pack, in_inner);
    return outer * axis * inner + in_inner * kPack;
  }
  // A thread's rows ascend, so that the first of equal values stays.
  DEVICE_FN Best look(int64_t first, int row, int rows) const {
    Best best;
    UNROLL for (int j = 0; j < kPack; ++j) {
      best.value[j] = -std::numeric_limits<C>::infinity();
      best.at[j] = row;
    }
    if (first < 0) return best;
    for (int64_t r = row; r < axis; r += int64_t(rows) * kBatch) {
      device::Pack<T, kPack> raw[kBatch];
      UNROLL for (int k = 0; k < kBatch; ++k) {  // what is read again beats nothing
        const int64_t at = r + int64_t(k) * rows;
        raw[k] = device::load_pack<kPack>(x + first + (at < axis ? at : r) * inner, true);
      }
      UNROLL for (int k = 0; k < kBatch; ++k) {
        UNROLL for (int j = 0; j < kPack; ++j) {
          const C value = C(raw[k].at[j]);
          const bool wins = beats(value, best.value[j]);
          best.value[j] = wins ? value : best.value[j];
          best.at[j] = wins ? int(r) + k * rows : best.at[j];
        }
      }
    }
    return best;
  }
};

// Whether there are enough columns for it.
template <class T, int kPack>
bool mark_middle(StreamRef stream, const T* x, T* y, const AxisRows& shape) {
  using Kernel = MarkMiddle<T, kPack>;
  constexpr int kLeast = std::max(1, int(32 / (kPack * sizeof(T))));  // lanes that read 32 bytes side by side
  const int64_t multiprocessors = device::multiprocessors(stream.device());
  const int64_t in_inner = shape.inner / kPack, packs = shape.outer * in_inner;
  if (shape.inner == 1 || shape.width >= kIntCap) return false;
  int rows = 1, lanes = Kernel::kThreads;
  const auto halve = [&] { lanes /= 2, rows *= 2; };
  while (rows < 32 && rows * Kernel::kBatch < shape.width) halve();
  while (lanes > kLeast && rows < shape.width && packs < 2 * multiprocessors * lanes) halve();
  if (packs < multiprocessors * lanes && shape.width > 64 * rows) return false;
  device::block_kernel<typename Kernel::Shared>(
      stream, {(packs + lanes - 1) / lanes, Kernel::kThreads},
      Kernel{x, y, int(shape.width), shape.inner, packs, device::Divider(in_inner, packs), lanes,
             std::countr_zero(unsigned(lanes))});
  return true;
}

class Hardmax : public Op {
 public:
  explicit Hardmax(const NodeInfo& node) : axis_(node) {}

  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const AxisRows rows = axis_.rows_of(x.shape);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    bool done = false;
    dispatch(FloatList{}, x.type, [&]<class T> {
      constexpr int kPack = device::pack_size<T>();
      const T* const from = x.as<const T>();
      T* const to = y.as<T>();
      const bool aligned =
          rows.inner % kPack == 0 && device::is_pack_aligned<kPack>(from) && device::is_pack_aligned<kPack>(to);
      with_packs<kPack>(aligned, [&]<int kWide> { done = mark_middle<T, kWide>(context.stream(), from, to, rows); });
    });
    if (done) return;
    auto* chosen = static_cast<int64_t*>(context.scratch(size_t(rows.outer * rows.inner) * sizeof(int64_t)));
    first_greatest(context, Tensor{x.type, x.where, Shape{rows.outer, rows.width, rows.inner}, x.data},
                   {false, true, false}, chosen);
    const int64_t n = x.count();
    dispatch(FloatList{}, x.type, [&]<class T> {
      using Kernel = MarkChosen<T>;
      const bool aligned = device::is_pack_aligned<Kernel::kPack>(y.as<T>());
      device::for_each_index(context.stream(), (n + Kernel::kPack - 1) / Kernel::kPack,
                             Kernel{chosen, y.as<T>(), n, rows.width, rows.inner, device::Divider(rows.inner, n),
                                    device::Divider(rows.width, n), aligned});
    });
  }

 private:
  SoftmaxAxis axis_;
};

}  // namespace

std::vector<OpRow> hardmax_rows() {
  return {{.name = "Hardmax", .since = 1, .types = {in(0, kFloats)}, .make = make<Hardmax>}};
}

}  // namespace encore::ops
