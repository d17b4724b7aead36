// CumSum and CumProd. Where there are too few rows to keep the device busy, rows are cut: one launch folds the pieces,
// the next begins each of them with what comes before. So results do not depend on timing.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "device/unaligned_pack.h"
#include "device/warp.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::Granule;
using device::Pack;
using device::PerThread;
using device::Warp;

// Integers wrap around.
template <class C, bool kProduct>
struct Fold {
  static constexpr C kStart = kProduct ? 1 : 0;
  DEVICE_FN C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      using U = std::make_unsigned_t<C>;
      return kProduct ? C(U(a) * U(b)) : C(U(a) + U(b));
    } else {
      return kProduct ? a * b : a + b;
    }
  }
};

template <class T>
struct Scan {
  using C = Compute<T>;
  const T* x;
  T* y;      // null: only the pieces' folds are wanted
  C* folds;  // [outer, pieces, inner]; null if there is one piece
  int64_t outer, length, inner;
  int64_t pieces, piece_length;
  bool exclusive, reverse;
};

// A thread for each piece of each pack of columns.
template <class T, bool kProduct, int kPack>
struct ScanColumns : Scan<T> {
  using C = Compute<T>;
  using Values = Pack<T, kPack>;
  using Folds = Pack<C, kPack>;
  static constexpr int kBatch = 8;
  Divider by_inner, by_pieces;  // in packs
  DEVICE_FN void operator()(int64_t i) const {
    const Fold<C, kProduct> fold;
    int64_t column, piece;
    const int64_t row = by_pieces(by_inner(i, column), piece);
    const int64_t begin = piece * this->piece_length, length = this->length - begin;
    const int64_t end = length < this->piece_length ? length : this->piece_length;
    const int64_t first =
        (row * this->length + (this->reverse ? this->length - 1 - begin : begin)) * this->inner + column * kPack;
    const int64_t step = this->reverse ? -this->inner : this->inner;
    C* const own_folds = this->folds + i * kPack;
    Folds all;
    UNROLL for (int j = 0; j < kPack; ++j) all.at[j] = fold.kStart;
    if (this->y && this->folds) all = *reinterpret_cast<const Folds*>(own_folds);
    const T* from = this->x + first;
    T* to = this->y ? this->y + first : nullptr;
    for (int64_t left = end; left > 0; left -= kBatch) {
      Values values[kBatch];  // read at once, without branches, so that nothing waits for each of them
      UNROLL for (int k = 0; k < kBatch; ++k) values[k] =
          device::load_pack<kPack>(from + (k < left ? k : 0) * step, true);
      UNROLL for (int k = 0; k < kBatch; ++k) {
        Values out;
        UNROLL for (int j = 0; j < kPack; ++j) {
          const C next = fold(all.at[j], k < left ? C(values[k].at[j]) : fold.kStart);
          out.at[j] = T(this->exclusive ? all.at[j] : next);
          all.at[j] = next;
        }
        if (k < left && to) device::store_pack(to + k * step, out, true);
      }
      from += kBatch * step;
      if (to) to += kBatch * step;
    }
    if (!this->y) *reinterpret_cast<Folds*>(own_folds) = all;
  }
};

// Rows whose values are neighbours. A row has so many lanes of a warp, or with kBlock each of its pieces a block. All
// move packs of 16 bytes, of which neighbouring lanes have neighbours: they lie where addresses of x are aligned, seen
// from the end that the scan begins at, so that the first of a row may begin before it.
template <class T, bool kProduct, bool kBlock>
struct ScanRows : Scan<T> {
  using C = Compute<T>;
  using Index = std::conditional_t<kBlock, int64_t, int>;  // in a row
  static constexpr int kMaxThreads = 256, kPack = device::pack_size<T>();
  static constexpr int kPacks = 2;  // of a thread at a time, and so many more on their way
  using Values = Pack<T, kPack>;
  struct Shared {
    C of_warps[kMaxThreads / 32];
  };
  struct Row {
    const T* x;  // where the pack would lie that has the first of the scan as its first
    T* y;
    Index first, end;  // in the order of the scan: where the thread's first pack is, and where the piece ends
    bool there;
  };
  struct Kept {
    Granule packs[kPacks];
  };
  struct Folds {
    C of[kPacks];
  };
  int lanes, lane_bits;  // of a row; with kBlock those of a warp
  bool alike;            // x and y are aligned alike

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    const Fold<C, kProduct> fold;
    const int64_t step = int64_t(kBlock ? b.size() : lanes) * kPacks * kPack;
    PerThread<Row, kMaxThreads> rows;
    PerThread<Kept, kMaxThreads> kept, following;
    PerThread<C, kMaxThreads> carry;
    C start = fold.kStart;
    if (kBlock && this->y && this->folds) start = before(b);
    b.threads([&](int t, Shared&) {
      rows[t] = row_of(b, t);
      carry[t] = start;
      load(kept[t], rows[t], 0);
    });
    for (int64_t done = 0; done < this->piece_length; done += step) {
      const bool more = done + step < this->piece_length;
      PerThread<Folds, kMaxThreads> folds, totals;
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        const int base = warp.index() * 32;
        warp.lanes([&](int lane) {
          const int t = base + lane;
          if (more) load(following[t], rows[t], Index(done + step));
          UNROLL for (int p = 0; p < kPacks; ++p) {
            const Values values = prepared(kept[t].packs[p], rows[t], place(rows[t], Index(done), p));
            C all = C(values.at[0]);
            UNROLL for (int k = 1; k < kPack; ++k) all = fold(all, C(values.at[k]));
            kept[t].packs[p] = std::bit_cast<Granule>(values);
            folds[t].of[p] = all;
          }
        });
        warp.template scan<kPacks>(
            lanes, fold.kStart, [&](int lane) { return folds[base + lane].of; },
            [&](int lane) { return totals[base + lane].of; }, fold);
        if constexpr (kBlock)
          warp.lanes([&](int lane) {
            C all = totals[base + lane].of[0];
            UNROLL for (int p = 1; p < kPacks; ++p) all = fold(all, totals[base + lane].of[p]);
            if (lane == 0) s.of_warps[warp.index()] = all;
          });
      });
      b.threads([&](int t, Shared& s) {
        C running = carry[t];
        if constexpr (kBlock) {
          C all = running;
          for (int w = 0; w < b.size() / 32; ++w) {
            if (w == t / 32) running = all;
            all = fold(all, s.of_warps[w]);
          }
          carry[t] = all;
        }
        UNROLL for (int p = 0; p < kPacks; ++p) {
          if (this->y) store(kept[t].packs[p], rows[t], place(rows[t], Index(done), p), fold(running, folds[t].of[p]));
          running = fold(running, totals[t].of[p]);
        }
        if constexpr (!kBlock) carry[t] = running;
        kept[t] = following[t];
      });
    }
    if (kBlock && !this->y)
      b.threads([&](int t, Shared&) {
        if (t == 0) this->folds[b.index()] = carry[t];
      });
  }

 private:
  // Of the row's pieces before the block's.
  DEVICE_FN C before(Block<Shared>& b) const {
    const Fold<C, kProduct> fold;
    const int64_t piece = b.index() % this->pieces, each = (piece + b.size() - 1) / b.size();
    const C* const of_row = this->folds + (b.index() - piece);
    return b.reduce(
        fold.kStart,
        [&](int t) {
          C all = fold.kStart;
          for (int64_t i = t * each; i < piece && i < (t + 1) * each; ++i) all = fold(all, of_row[i]);
          return all;
        },
        fold);
  }
  DEVICE_FN Row row_of(const Block<Shared>& b, int t) const {
    int64_t index, begin = 0;
    int pack;
    if constexpr (kBlock) {
      index = b.index() / this->pieces;
      begin = (b.index() - index * this->pieces) * this->piece_length;
      pack = t / 32 * 32 * kPacks + t % 32;
    } else {
      index = (b.index() * b.size() + t) >> lane_bits;
      pack = t & (lanes - 1);
    }
    Row row;
    row.there = index < this->outer;
    if (!row.there) index = 0;
    const int64_t start = index * this->length + (this->reverse ? this->length - kPack : 0);
    row.x = this->x + start;
    row.y = this->y ? this->y + start : nullptr;
    const int behind = int(reinterpret_cast<uintptr_t>(row.x) / sizeof(T) % kPack);
    begin -= this->reverse ? (kPack - behind) % kPack : behind;
    const int64_t end = begin + this->piece_length;
    row.first = Index(begin + pack * kPack);
    row.end = Index(end < this->length ? end : this->length);
    if (!row.there) row.end = row.first;
    return row;
  }
  DEVICE_FN Index place(const Row& row, Index done, int p) const { return row.first + done + p * lanes * kPack; }
  // Where the pack lies that has the i-th of the scan as its first.
  DEVICE_FN Index pack_at(Index i) const { return this->reverse ? -i : i; }
  DEVICE_FN void load(Kept& to, const Row& row, Index done) const {
    const T* const begin = this->reverse ? row.x + kPack - this->length : row.x;
    UNROLL for (int p = 0; p < kPacks; ++p) {
      const Index i = place(row, done, p);
      to.packs[p] = {};
      if (i < row.end)
        to.packs[p] = device::load_granule(reinterpret_cast<const char*>(row.x + pack_at(i)),
                                           reinterpret_cast<const char*>(begin),
                                           reinterpret_cast<const char*>(begin + this->length));
    }
  }
  DEVICE_FN static bool is_inside(const Row& row, Index i) { return i >= 0 && i + kPack <= row.end; }
  // In the order of the scan, and back.
  DEVICE_FN Values turned(const Values& values) const {
    if constexpr (sizeof(T) == 2) {
      const auto pairs = std::bit_cast<Granule>(values);
      Granule out;
      UNROLL for (int i = 0; i < 4; ++i) {
        const uint32_t mirrored = pairs.at[3 - i] << 16 | pairs.at[3 - i] >> 16;
        out.at[i] = this->reverse ? mirrored : pairs.at[i];
      }
      return std::bit_cast<Values>(out);
    } else {
      Values out;
      UNROLL for (int k = 0; k < kPack; ++k) out.at[k] = this->reverse ? values.at[kPack - 1 - k] : values.at[k];
      return out;
    }
  }
  // In the order of the scan; what is not of the row changes nothing.
  DEVICE_FN Values prepared(const Granule& pack, const Row& row, Index i) const {
    Values values = turned(std::bit_cast<Values>(pack));
    if (!is_inside(row, i)) {
      UNROLL for (int k = 0; k < kPack; ++k) {
        if (i + k < 0 || i + k >= row.end) values.at[k] = T(Fold<C, kProduct>::kStart);
      }
    }
    return values;
  }
  DEVICE_FN void store(const Granule& pack, const Row& row, Index i, C running) const {
    if (i >= row.end) return;
    const Fold<C, kProduct> fold;
    const auto values = std::bit_cast<Values>(pack);
    Values out;
    UNROLL for (int k = 0; k < kPack; ++k) {
      const C next = fold(running, C(values.at[k]));
      out.at[k] = T(this->exclusive ? running : next);
      running = next;
    }
    out = turned(out);
    T* const to = row.y + pack_at(i);
    if (alike && is_inside(row, i)) return device::store_pack(to, out, true);
    UNROLL for (int k = 0; k < kPack; ++k) {
      const Index at = this->reverse ? i + (kPack - 1 - k) : i + k;
      if (at >= 0 && at < row.end) to[k] = out.at[k];
    }
  }
};

template <bool kProduct, class T, int kPack>
void scan_columns(Context& context, Scan<T> scan) {
  using C = Compute<T>;
  using Kernel = ScanColumns<T, kProduct, kPack>;
  const int64_t columns = scan.outer * (scan.inner / kPack);
  const int64_t busy = 512 * int64_t(device::multiprocessors(context.stream().device()));
  const int64_t pieces = std::clamp<int64_t>(busy / columns, 1, std::clamp<int64_t>(scan.length / 32, 1, 128));
  scan.piece_length = (scan.length + pieces - 1) / pieces;
  scan.pieces = (scan.length + scan.piece_length - 1) / scan.piece_length;
  const auto launch = [&](const Scan<T>& scan) {
    const int64_t count = columns * scan.pieces;
    device::for_each_index(context.stream(), count,
                           Kernel{scan, Divider(scan.inner / kPack, count), Divider(scan.pieces, count)});
  };
  if (scan.pieces > 1) {
    scan.folds = static_cast<C*>(context.scratch(size_t(columns * scan.pieces * kPack) * sizeof(C)));
    Scan<T> folding = scan;
    folding.y = nullptr;
    launch(folding);
    // What comes before each piece.
    constexpr int kFolds = std::min(kPack, device::pack_size<C>());
    const int64_t of_columns = columns * kPack / kFolds;
    device::for_each_index(context.stream(), of_columns,
                           ScanColumns<C, kProduct, kFolds>{{scan.folds, scan.folds, nullptr, scan.outer, scan.pieces,
                                                             scan.inner, 1, scan.pieces, true, false},
                                                            Divider(scan.inner / kFolds, of_columns),
                                                            Divider(1, of_columns)});
  }
  launch(scan);
}

template <bool kProduct, class T>
void scan_rows_of(Context& context, Scan<T> scan) {
  using C = Compute<T>;
  using Teams = ScanRows<T, kProduct, false>;
  using Blocks = ScanRows<T, kProduct, true>;
  constexpr int kPack = Teams::kPack, kPacks = Teams::kPacks, kWarp = 32;
  const int64_t multiprocessors = device::multiprocessors(context.stream().device());
  const bool whole = device::is_pack_aligned<kPack>(scan.x) && (scan.outer == 1 || scan.length % kPack == 0) &&
                     (!scan.reverse || scan.length % kPack == 0);
  const bool alike = (reinterpret_cast<uintptr_t>(scan.x) ^ reinterpret_cast<uintptr_t>(scan.y)) % 16 == 0;
  // From where the first pack may begin to where the last may end.
  const int64_t packs = (scan.length + (whole ? 0 : kPack - 1) + kPack - 1) / kPack;
  scan.piece_length = packs * kPack;
  if (packs <= kWarp * kPacks || (scan.outer >= multiprocessors * 16 && packs < (1 << 24))) {
    int lane_bits = 0;
    while (lane_bits < 5 && (packs >> lane_bits) > kPacks) ++lane_bits;
    const int64_t threads = scan.outer << lane_bits;
    int of_block = 128;
    while (of_block > 32 && threads / of_block < 2 * multiprocessors) of_block /= 2;
    return device::block_kernel<typename Teams::Shared>(context.stream(),
                                                        {(threads + of_block - 1) / of_block, of_block},
                                                        Teams{scan, 1 << lane_bits, lane_bits, alike});
  }
  const int64_t step = Blocks::kMaxThreads * kPacks * kPack;
  const int64_t steps = (scan.piece_length + step - 1) / step;
  const int64_t of_piece = std::max<int64_t>(scan.outer * steps / (4 * multiprocessors), 1);
  scan.pieces = (steps + of_piece - 1) / of_piece;
  if (scan.pieces > 1) scan.piece_length = of_piece * step;
  int threads = 64;
  while (threads < Blocks::kMaxThreads && threads * kPacks * kPack < scan.piece_length) threads *= 2;
  const auto launch = [&](const Scan<T>& scan) {
    device::block_kernel<typename Blocks::Shared>(context.stream(), {scan.outer * scan.pieces, threads},
                                                  Blocks{scan, kWarp, 5, alike});
  };
  if (scan.pieces > 1) {
    scan.folds = static_cast<C*>(context.scratch(size_t(scan.outer * scan.pieces) * sizeof(C)));
    Scan<T> folding = scan;
    folding.y = nullptr;
    launch(folding);
  }
  launch(scan);
}

// Integers are alike with a sign and without.
template <class F>
void dispatch_scanned(Type type, F f) {
  if (type == Type::u32) type = Type::i32;
  if (type == Type::u64) type = Type::i64;
  dispatch(TypeList<float, Half, BFloat16, double, int32_t, int64_t>{}, type, f);
}

template <bool kProduct>
class Cumulate : public Op {
 public:
  explicit Cumulate(const NodeInfo& node)
      : exclusive_(read_flag(node, "exclusive", false)), reverse_(read_flag(node, "reverse", false)) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &given = context.input(1);
    require(given.shape.is_scalar(), "axis has shape ", given.shape.str(), "; it must be a scalar");
    const int rank = x.shape.rank(), axis = checked_axis(host_ints(given, "axis")[0], rank);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    dispatch_scanned(x.type, [&]<class T>() {
      const T* const from = static_cast<const T*>(x.data);
      T* const to = static_cast<T*>(y.data);
      const Scan<T> scan{
          from,          to,         nullptr, x.shape.count(0, axis), x.shape[axis], x.shape.count(axis + 1, rank), 1,
          x.shape[axis], exclusive_, reverse_};
      if (scan.inner == 1) return scan_rows_of<kProduct>(context, scan);
      constexpr int kPack = device::pack_size<T>();
      if (scan.inner % kPack == 0 && device::is_pack_aligned<kPack>(from) && device::is_pack_aligned<kPack>(to))
        scan_columns<kProduct, T, kPack>(context, scan);
      else
        scan_columns<kProduct, T, 1>(context, scan);
    });
  }

 private:
  bool exclusive_, reverse_;
};

}  // namespace

std::vector<OpRow> scan_rows() {
  const std::vector<TypeRule> types{in(0, kFloats | Types{Type::i32, Type::i64, Type::u32, Type::u64})};
  return {
      {.name = "CumSum", .since = 11, .types = types, .make = make<Cumulate<false>>, .host_inputs = {1}},
      {.name = "CumProd", .since = 26, .types = types, .make = make<Cumulate<true>>, .host_inputs = {1}},
  };
}

}  // namespace encore::ops
