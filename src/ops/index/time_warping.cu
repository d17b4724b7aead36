// DynamicTimeWarping of com.microsoft: the cheapest way through a matrix of costs from its first corner to its last.
#include <algorithm>
#include <limits>

#include "device/launch.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

constexpr int kThreads = 1024;
constexpr int kDiagonals = 3;  // the one that is made, and the two before

// One block goes from diagonal to diagonal, whose sums are in shared memory if they fit, notes where each sum came
// from, and then one thread walks back.
struct Warp {
  struct Shared {
    int last;  // dynamic memory needs something
  };
  enum From : int8_t { kBoth, kRow, kColumn };

  const float* costs;
  int rows, columns;
  float* outside;  // diagonals, if they don't fit
  int8_t* from;    // [rows, columns]
  int32_t* path;   // pairs of row and column, the last one first
  int64_t* length;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    for (int d = 0; d < rows + columns - 1; ++d) {
      b.threads([&](int t, Shared& s) {
        float* const sums = outside ? outside : b.dynamic<float>(s);
        const auto line = [&](int back) { return sums + int64_t((d + kDiagonals - back) % kDiagonals) * rows; };
        const int first = d < columns ? 0 : d - columns + 1, last = d < rows ? d : rows - 1;
        for (int row = first + t; row <= last; row += b.size()) {
          const int column = d - row;
          constexpr float kNone = std::numeric_limits<float>::infinity();
          const float both = row && column ? line(2)[row - 1] : row || column ? kNone : 0.f;
          const float above = row ? line(1)[row - 1] : kNone, before = column ? line(1)[row] : kNone;
          const int64_t at = int64_t(row) * columns + column;
          From way = kColumn;
          float least = before;
          if (both < above && both < before)
            way = kBoth, least = both;
          else if (above < both && above < before)
            way = kRow, least = above;
          line(0)[row] = least + costs[at];
          from[at] = way;
        }
      });
    }
    b.threads([&](int t, Shared&) {
      if (t != 0) return;
      int64_t steps = 0;
      for (int row = rows - 1, column = columns - 1; row >= 0 && column >= 0; ++steps) {
        path[2 * steps] = row, path[2 * steps + 1] = column;
        const int8_t way = from[int64_t(row) * columns + column];
        row -= way != kColumn;
        column -= way != kRow;
      }
      *length = steps;
    });
  }
};

struct TurnRound {
  const int32_t* path;
  int32_t* y;  // [2, length]
  int64_t length;
  DEVICE_FN void operator()(int64_t i) const {
    y[i] = path[2 * (length - 1 - i)];
    y[length + i] = path[2 * (length - 1 - i) + 1];
  }
};

class DynamicTimeWarping : public Op {
 public:
  explicit DynamicTimeWarping(const NodeInfo&) {}
  void run(Context& context) const override {
    const Tensor& x = context.input(0);
    const int rank = x.shape.rank();
    require(rank == 2 || (rank == 3 && x.shape[0] == 1), "the input has shape ", x.shape.str(),
            "; [rows, columns] is wanted, or that behind a dimension of 1");
    const int64_t rows = x.shape[rank - 2], columns = x.shape[rank - 1];
    constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;
    require(rows <= kMost && columns <= kMost, "the input has shape ", x.shape.str(), ", which is too large");
    if (x.count() == 0) {
      context.output(0, Shape{2, 0});
      return;
    }
    const int64_t bytes = kDiagonals * rows * int64_t(sizeof(float));
    constexpr int64_t kMostShared = 96 * 1024;
    const bool fits = bytes <= kMostShared;
    auto* const outside = fits ? nullptr : static_cast<float*>(context.scratch(size_t(bytes)));
    auto* const from = static_cast<int8_t*>(context.scratch(size_t(x.count())));
    auto* const path = static_cast<int32_t*>(context.scratch(size_t(rows + columns) * 2 * sizeof(int32_t)));
    auto* const length = static_cast<int64_t*>(context.scratch(sizeof(int64_t)));
    const int64_t most = std::min(rows, columns);  // of a diagonal
    const int threads = int(std::min<int64_t>((most + 31) / 32 * 32, kThreads));
    device::block_kernel<Warp::Shared>(context.stream(), {1, threads, fits ? bytes : 0},
                                       Warp{x.as<const float>(), int(rows), int(columns), outside, from, path, length});
    int64_t steps = 0;
    context.read_back(&steps, length, sizeof steps);
    const Tensor y = context.output(0, Shape{2, steps});
    device::for_each_index(context.stream(), steps, TurnRound{path, y.as<int32_t>(), steps});
  }
};

}  // namespace

std::vector<OpRow> time_warping_rows() {
  return {{.domain = kMicrosoft,
           .name = "DynamicTimeWarping",
           .since = 1,
           .types = {in(0, Types{Type::f32})},
           .make = make<DynamicTimeWarping>,
           .reads_back = true}};
}

}  // namespace encore::ops
