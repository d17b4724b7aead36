// Inverse of com.microsoft: elimination by Gauss and Jordan in place, the largest of a column first.
#include "device/launch.h"
#include "ops/dispatch.h"
#include "ops/matmul/pivot.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Compute;

// A block for each matrix, which is in the block's dynamic shared memory if it fits, else in `scratch`. Step k makes
// row k from the row of the pivot, which row k takes the place of, and clears the pivot's column elsewhere; that column
// then holds what belongs to the inverse. So the columns of what is left at the end are in the order of the pivots.
template <class T>
struct Invert {
  using C = Compute<T>;
  struct Shared {
    C pivot_row[1];  // dynamic memory needs one
  };
  static constexpr int kMaxThreads = 1024;
  const T* x;
  T* y;
  C* scratch;  // null: all is in shared memory
  int n;

  // Beside the matrix: the pivot's row and the one that it changes places with, the pivot's column, where columns go.
  // In numbers.
  BOTH_FN static int64_t room(int64_t n) { return n * n + n * (3 + 2 * int64_t(sizeof(int32_t)) / int64_t(sizeof(C))); }

  DEVICE_FN void operator()(device::Block<Shared>& block, const Shared& shared) const {
    const int64_t size = int64_t(n) * n;
    const T* const from = x + block.index() * size;
    T* const to = y + block.index() * size;
    const C* const matrix = scratch ? scratch + block.index() * room(n) : block.template dynamic<C>(shared);
    const int warps = block.size() / 32;
    block.threads([&](int t, Shared& s) {
      const Memory m = memory(block, s);
      for (int64_t i = t; i < size; i += block.size()) m.matrix[i] = C(from[i]);
    });
    for (int k = 0; k < n; ++k) {
      const Pivot<C> pivot = Pivot<C>::of_column(block, matrix, n, k);
      block.threads([&](int t, Shared& s) {
        const Memory m = memory(block, s);
        const C factor = C(1) / pivot.value;
        const C *const chosen = m.matrix + int64_t(pivot.row) * n, *const here = m.matrix + int64_t(k) * n;
        for (int i = t; i < n; i += block.size()) {
          m.pivot_row[i] = i == k ? factor : chosen[i] * factor;
          m.moved_row[i] = i == k ? C(0) : here[i];
          m.column[i] = m.matrix[int64_t(i == pivot.row ? k : i) * n + k];
        }
        if (t == 0) m.pivots[k] = pivot.row;
      });
      block.threads([&](int t, Shared& s) {  // each row by a warp
        const Memory m = memory(block, s);
        for (int row = t / 32; row < n; row += warps) {
          C* const to = m.matrix + int64_t(row) * n;
          const C factor = m.column[row];
          for (int column = t % 32; column < n; column += 32) {
            if (row == k) {
              to[column] = m.pivot_row[column];
              continue;
            }
            const C kept = row == pivot.row ? m.moved_row[column] : column == k ? C(0) : to[column];
            to[column] = kept - factor * m.pivot_row[column];
          }
        }
      });
    }
    block.threads([&](int t, Shared& s) {
      if (t != 0) return;
      const Memory m = memory(block, s);
      for (int i = 0; i < n; ++i) m.places[i] = i;  // which column lies in each place of the result
      for (int k = n - 1; k >= 0; --k) {
        const int32_t other = m.places[m.pivots[k]];
        m.places[m.pivots[k]] = m.places[k];
        m.places[k] = other;
      }
    });
    block.threads([&](int t, Shared& s) {
      const Memory m = memory(block, s);
      for (int row = t / 32; row < n; row += warps)
        for (int column = t % 32; column < n; column += 32)
          to[int64_t(row) * n + column] = T(m.matrix[int64_t(row) * n + m.places[column]]);
    });
  }

 private:
  struct Memory {
    C *matrix, *pivot_row, *moved_row, *column;
    int32_t *pivots, *places;
  };
  DEVICE_FN Memory memory(const device::Block<Shared>& block, Shared& s) const {
    C* at = scratch ? scratch + block.index() * room(n) : block.template dynamic<C>(s);
    Memory m;
    m.matrix = at;
    at += int64_t(n) * n;
    m.pivot_row = at, m.moved_row = at + n, m.column = at + 2 * n;
    m.pivots = reinterpret_cast<int32_t*>(at + 3 * n);
    m.places = m.pivots + n;
    return m;
  }
};

class Inverse : public Op {
 public:
  explicit Inverse(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    const int64_t n = rows_of_square(x.shape), count = x.shape.count(0, rank - 2);
    const Tensor y = context.output(0, x.shape);
    if (y.count() == 0) return;
    dispatch(TypeList<float, double, Half>{}, x.type, [&]<class T>() {
      using Kernel = Invert<T>;
      using C = typename Kernel::C;
      const int64_t bytes = Kernel::room(n) * int64_t(sizeof(C));
      // What any GPU has; more of it leaves a multiprocessor to one block.
      constexpr int64_t kMostShared = 96 * 1024;
      const bool fits = bytes <= kMostShared;
      C* const scratch = fits ? nullptr : static_cast<C*>(context.scratch(size_t(checked_product(count, bytes))));
      const int threads = n <= 8 ? 32 : n <= 16 ? 128 : n <= 64 ? 256 : 1024;
      device::block_kernel<typename Kernel::Shared>(context.stream(), {count, threads, fits ? bytes : 0},
                                                    Kernel{x.as<const T>(), y.as<T>(), scratch, int(n)});
    });
  }
};

}  // namespace

std::vector<OpRow> inverse_rows() {
  return {{.domain = kMicrosoft,
           .name = "Inverse",
           .since = 1,
           .types = {in(0, Types{Type::f16, Type::f32, Type::f64})},
           .make = make<Inverse>}};
}

}  // namespace encore::ops
