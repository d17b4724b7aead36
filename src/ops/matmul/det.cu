// Det: the product of the pivots of a factorisation by rows, the largest of a column first.
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/matmul/pivot.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

// A block for each matrix, which is in shared memory if it is of no more than kMost rows, else in `scratch`.
template <class T, int kMost>
struct Determinant {
  using C = Compute<T>;
  struct Shared {
    C matrix[kMost ? kMost * kMost : 1];
  };
  static constexpr int kMaxThreads = kMost ? 128 : 1024;
  const T* x;
  T* y;
  C* scratch;
  int n;

  DEVICE_FN void operator()(device::Block<Shared>& block, const Shared& seen) const {
    const int64_t size = int64_t(n) * n;
    C* const outside = kMost ? nullptr : scratch + block.index() * size;
    const auto in = [&](Shared& s) { return kMost ? s.matrix : outside; };
    const C* const matrix = kMost ? seen.matrix : outside;
    const T* const from = x + block.index() * size;
    const int warps = block.size() / 32;
    block.threads([&](int t, Shared& s) {
      for (int64_t i = t; i < size; i += block.size()) in(s)[i] = C(from[i]);
    });
    C product = 1;
    for (int k = 0; k < n; ++k) {
      const Pivot<C> pivot = Pivot<C>::of_column(block, matrix, n, k);
      const C value = pivot.value;
      product = pivot.row == k ? product * value : -product * value;
      if (value == C(0) || k + 1 == n) break;
      if (pivot.row != k) {
        block.threads([&](int t, Shared& s) {
          C *const here = in(s) + int64_t(k) * n, *const there = in(s) + int64_t(pivot.row) * n;
          for (int column = k + t; column < n; column += block.size()) {
            const C kept = here[column];
            here[column] = there[column];
            there[column] = kept;
          }
        });
      }
      block.threads([&](int t, Shared& s) {  // each row by a warp; what is below the pivots is not read again
        const C* const top = in(s) + int64_t(k) * n;
        for (int row = k + 1 + t / 32; row < n; row += warps) {
          C* const to = in(s) + int64_t(row) * n;
          const C factor = to[k] / value;
          for (int column = k + 1 + t % 32; column < n; column += 32) to[column] -= factor * top[column];
        }
      });
    }
    block.threads([&](int t, Shared&) {
      if (t == 0) y[block.index()] = T(product);
    });
  }
};

class Det : public Op {
 public:
  explicit Det(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    const int64_t n = rows_of_square(x.shape), count = x.shape.count(0, rank - 2);
    const Tensor y = context.output(0, Shape(x.shape.dims().first(size_t(rank - 2))));
    if (y.count() == 0) return;
    dispatch(FloatList{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kMost>() {
        using Kernel = Determinant<T, kMost>;
        using C = typename Kernel::C;
        C* scratch = nullptr;
        if (!kMost) scratch = static_cast<C*>(context.scratch(size_t(checked_product(x.count(), int64_t(sizeof(C))))));
        const int threads = kMost == 0 ? 512 : n <= 16 ? 32 : Kernel::kMaxThreads;
        device::block_kernel<typename Kernel::Shared>(context.stream(), {count, threads},
                                                      Kernel{x.as<const T>(), y.as<T>(), scratch, int(n)});
      };
      if (n <= 16)
        launch.template operator()<16>();
      else if (n <= 64)
        launch.template operator()<64>();
      else
        launch.template operator()<0>();
    });
  }
};

}  // namespace

std::vector<OpRow> det_rows() { return {{.name = "Det", .since = 11, .types = {in(0, kFloats)}, .make = make<Det>}}; }

}  // namespace encore::ops
