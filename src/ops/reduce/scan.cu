// CumSum and CumProd. Where there are too few rows to keep the device busy, rows are cut: one launch folds the pieces,
// the next begins each of them with what comes before. So results do not depend on timing.
#include <algorithm>
#include <type_traits>

#include "device/device.h"
#include "device/divide.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Compute;
using device::Divider;
using device::NoShared;

// Integers wrap around.
template <class C>
struct Fold {
  bool product;
  DEVICE_FN C start() const { return C(product ? 1 : 0); }
  DEVICE_FN C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      using U = std::make_unsigned_t<C>;
      return C(product ? U(a) * U(b) : U(a) + U(b));
    } else {
      return product ? a * b : a + b;
    }
  }
};

template <class T>
struct Scan {
  using C = Compute<T>;
  const T* x;
  T* y;      // null: only the pieces' folds are wanted
  C* folds;  // [outer, pieces, inner]; null if there is one piece
  int64_t length, inner;
  int pieces;
  bool exclusive, reverse;
  Fold<C> fold;

  DEVICE_FN int64_t begin(int64_t piece) const { return length * piece / pieces; }
  // Of the row that begins at `row`, in the order of the scan.
  DEVICE_FN int64_t at(int64_t row, int64_t i) const { return row + (reverse ? length - 1 - i : i) * inner; }
  DEVICE_FN C before(int64_t outer, int piece, int64_t column) const {
    C all = fold.start();
    for (int p = 0; p < piece; ++p) all = fold(all, folds[(outer * pieces + p) * inner + column]);
    return all;
  }
};

// A thread for each piece of each column, of which neighbours lie side by side.
template <class T>
struct ScanColumns : Scan<T> {
  using C = Compute<T>;
  static constexpr int kBatch = 4;
  Divider by_inner, by_pieces;
  DEVICE_FN void operator()(int64_t i) const {
    int64_t column, piece;
    const int64_t outer = by_pieces(by_inner(i, column), piece);
    const int64_t row = outer * this->length * this->inner + column;
    C all = this->y ? this->before(outer, int(piece), column) : this->fold.start();
    const int64_t end = this->begin(piece + 1);
    for (int64_t first = this->begin(piece); first < end; first += kBatch) {
      C values[kBatch];  // read at once, so that nothing waits for each of them
      UNROLL for (int k = 0; k < kBatch; ++k) values[k] =
          first + k < end ? C(this->x[this->at(row, first + k)]) : this->fold.start();
      UNROLL for (int k = 0; k < kBatch; ++k) {
        const C next = this->fold(all, values[k]);
        if (this->y && first + k < end) this->y[this->at(row, first + k)] = T(this->exclusive ? all : next);
        all = next;
      }
    }
    if (!this->y) this->folds[i] = all;
  }
};

// A block for each piece of each row, with inner == 1. A thread has kEach neighbours, in packs of 16 bytes: those of a
// row lie where addresses of x are aligned, seen from the end that the scan begins at, so that the first of them may
// begin before the row.
template <class T>
struct ScanRows : Scan<T> {
  using C = Compute<T>;
  static constexpr int kMaxThreads = 256, kEach = 8, kPack = std::min(device::pack_size<T>(), kEach);
  static constexpr int kPacks = kEach / kPack;
  using Values = device::Pack<T, kPack>;
  struct Some {
    Values packs[kPacks];  // the packs in the order of the scan
    DEVICE_FN T& at(int k) { return packs[k / kPack].at[k % kPack]; }
    // The values in each of them too, or as in memory again.
    DEVICE_FN void turn(bool reverse) {
      if (!reverse) return;
      UNROLL for (int p = 0; p < kPacks; ++p) {
        const Values was = packs[p];
        UNROLL for (int j = 0; j < kPack; ++j) packs[p].at[j] = was.at[kPack - 1 - j];
      }
    }
  };
  int64_t piece_length;  // a multiple of kEach, counted from where the first pack begins

  static int64_t length_of_pieces(int64_t length, int pieces) {
    const int64_t most = length + kPack - 1, each = (most + pieces - 1) / pieces;
    return (each + kEach - 1) / kEach * kEach;
  }

  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    const int64_t outer = b.index() / this->pieces;
    const int piece = int(b.index() - outer * this->pieces);
    const Row row(this->x + outer * this->length, this->length, this->reverse);
    const int64_t begin = piece * piece_length - row.before, step = int64_t(b.size()) * kEach;
    const int64_t end = begin + piece_length < this->length ? begin + piece_length : this->length;
    const auto& fold = this->fold;
    C carry = this->y ? this->before(outer, piece, 0) : fold.start();
    device::PerThread<Some, kMaxThreads> values, following;
    b.threads([&](int t, NoShared&) { load(values[t], row, begin + t * kEach, end); });
    for (int64_t first = begin; first < end; first += step) {
      if (first + step < end)
        b.threads([&](int t, NoShared&) { load(following[t], row, first + step + t * kEach, end); });
      device::PerThread<C, kMaxThreads> before;
      const C all = b.scan(
          before, fold.start(),
          [&](int t) {
            values[t].turn(row.reverse);
            C sum = C(values[t].at(0));
            UNROLL for (int k = 1; k < kEach; ++k) sum = fold(sum, C(values[t].at(k)));
            return sum;
          },
          fold);
      b.threads([&](int t, NoShared&) {
        if (this->y) {
          C running = fold(carry, before[t]);
          Some out;
          UNROLL for (int k = 0; k < kEach; ++k) {
            const C next = fold(running, C(values[t].at(k)));
            out.at(k) = T(this->exclusive ? running : next);
            running = next;
          }
          out.turn(row.reverse);
          store(out, row, this->y + outer * this->length, first + t * kEach, end);
        }
        values[t] = following[t];
      });
      carry = fold(carry, all);
    }
    if (!this->y)
      b.threads([&](int t, NoShared&) {
        if (t == 0) this->folds[b.index()] = carry;
      });
  }

 private:
  struct Row {
    const T* x;
    int64_t length;
    bool reverse;
    int before;
    DEVICE_FN Row(const T* x, int64_t length, bool reverse) : x(x), length(length), reverse(reverse) {
      const int behind = int(reinterpret_cast<uintptr_t>(reverse ? x + length : x) / sizeof(T) % kPack);
      before = reverse ? (kPack - behind) % kPack : behind;
    }
    DEVICE_FN int64_t at(int64_t i) const { return reverse ? length - 1 - i : i; }
    // Where the pack lies that has the i-th of the scan as its first.
    DEVICE_FN int64_t pack_at(int64_t i) const { return reverse ? length - kPack - i : i; }
  };
  DEVICE_FN void load(Some& some, const Row& row, int64_t first, int64_t end) const {
    if (first >= 0 && first + kEach <= end) {
      UNROLL for (int p = 0; p < kPacks; ++p) some.packs[p] =
          device::load_pack<kPack>(row.x + row.pack_at(first + p * kPack), true);
    } else {
      UNROLL for (int k = 0; k < kEach; ++k) some.at(k) =
          first + k >= 0 && first + k < end ? row.x[row.at(first + k)] : T(this->fold.start());
      some.turn(row.reverse);
    }
  }
  DEVICE_FN void store(Some& some, const Row& row, T* y, int64_t first, int64_t end) const {
    if (first >= 0 && first + kEach <= end && device::is_pack_aligned<kPack>(y + row.pack_at(first))) {
      UNROLL for (int p = 0; p < kPacks; ++p)
          device::store_pack(y + row.pack_at(first + p * kPack), some.packs[p], true);
    } else {
      some.turn(row.reverse);
      UNROLL for (int k = 0; k < kEach; ++k) {
        if (first + k >= 0 && first + k < end) y[row.at(first + k)] = some.at(k);
      }
    }
  }
};

using List = TypeList<float, Half, BFloat16, double, int32_t, int64_t, uint32_t, uint64_t>;

template <bool kProduct>
class Cumulate : public Op {
 public:
  explicit Cumulate(const NodeInfo& node)
      : exclusive_(node.get_int("exclusive", 0) != 0), reverse_(node.get_int("reverse", 0) != 0) {
    for (const char* attribute : {"exclusive", "reverse"}) {
      const int64_t given = node.get_int(attribute, 0);
      require(given == 0 || given == 1, attribute, " is ", given, "; it must be 0 or 1");
    }
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &given = context.input(1);
    require(given.shape.is_scalar(), "axis has shape ", given.shape.str(), "; it must be a scalar");
    const int rank = x.shape.rank(), axis = checked_axis(host_ints(given, "axis")[0], rank);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    const int64_t outer = x.shape.count(0, axis), length = x.shape[axis], inner = x.shape.count(axis + 1, rank);
    const int64_t multiprocessors = device::multiprocessors(context.stream().device());
    dispatch(List{}, x.type, [&]<class T>() {
      using C = Compute<T>;
      Scan<T> scan{x.as<const T>(), y.as<T>(), nullptr, length, inner, 1, exclusive_, reverse_, {kProduct}};
      const int64_t rows = outer * inner, busy = multiprocessors * (inner == 1 ? 4 : 1024);
      scan.pieces =
          int(std::clamp<int64_t>(busy / rows, 1, std::clamp<int64_t>(length / (inner == 1 ? 4096 : 32), 1, 64)));
      const auto launch = [&](const Scan<T>& scan) {
        const int64_t count = rows * scan.pieces;
        if (inner == 1) {
          using Rows = ScanRows<T>;
          const int64_t each = Rows::length_of_pieces(length, scan.pieces);
          int threads = 32;
          while (threads < Rows::kMaxThreads && threads * Rows::kEach < each) threads *= 2;
          device::block_kernel<NoShared>(context.stream(), {count, threads}, Rows{scan, each});
        } else {
          device::for_each_index(context.stream(), count,
                                 ScanColumns<T>{scan, Divider(inner, count), Divider(scan.pieces, count)});
        }
      };
      if (scan.pieces > 1) {
        scan.folds = static_cast<C*>(context.scratch(size_t(rows * scan.pieces) * sizeof(C)));
        Scan<T> folding = scan;
        folding.y = nullptr;
        launch(folding);
      }
      launch(scan);
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
