// GEMV of two to eight rows on tensor cores, for which rows of b are read as they lie. Of the 32 lanes of a warp, four
// stand along the depth and eight side by side; each reads so many neighbouring values from eight rows below each
// other. Which of them meet in an instruction's tile is free as long as both factors agree: neighbouring rows in one
// lane are one word's halves, and two columns make rows g and g + 8 of a tile.
#include "device/gemv_product.h"
#include "device/mma_fragments.h"
#include "device/transform.h"
#include "device/unaligned_pack.h"

namespace encore::device {
namespace {

template <class T, int kColumns>
struct GemvTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kMaxThreads = 2 * kThreads;  // so many registers that two blocks run side by side
  static constexpr int kPairs = kColumns / 2, kWidth = 8 * kColumns;
  static constexpr int kSteps = 8 / kColumns;  // 128 bytes of each lane on their way at once
  static constexpr int kStep = 32;             // rows of b that a warp has at a time
  static constexpr int kRows = kMostGemvRows;
  using Columns = Pack<uint32_t, kPairs>;
  // Of a lane's columns, first the first ones of all lanes, then the second ones: so all banks are written at once.
  struct Shared {
    float sums[kWarps][kRows][kWidth + 4];
  };
  struct Step {
    Columns b[8];
    Granule a;
  };
  struct Steps {
    Step at[kSteps];
  };
  struct Sums {
    FragmentC at[kPairs];
  };

  GemvProduct<T> p;

  DEVICE_FN void operator()(Block<Shared>& block, const Shared&) const {
    const int first = int(block.index()) * kWidth;
    for_each_warp(block, [&](const Warp& warp, Shared& s) {
      PerThread<Sums, 32> sums;
      warp.lanes([&](int lane) { sums[lane] = Sums{}; });
      NO_UNROLL for (int k = warp.index() * kStep * kSteps; k < p.depth; k += kWarps * kStep * kSteps) {
        PerThread<Steps, 32> steps;
        warp.lanes([&](int lane) {
          const int column = p.fitting(first + lane / 4 * kColumns, kColumns);
          UNROLL for (int i = 0; i < kSteps; ++i)
              load(steps[lane].at[i], lane / 4, column, k + i * kStep + lane % 4 * 8);
        });
        UNROLL for (int i = 0; i < kSteps; ++i) {
          UNROLL for (int pair = 0; pair < kPairs; ++pair) {
            UNROLL for (int half = 0; half < 2; ++half) {
              warp.template mma<T>([&](int lane) -> FragmentC& { return sums[lane].at[pair]; },
                                   [&](int lane) {
                                     const Columns* const rows = steps[lane].at[i].b + 4 * half;
                                     return fragment_a(rows[0].at[pair], rows[1].at[pair], rows[2].at[pair],
                                                       rows[3].at[pair]);
                                   },
                                   [&](int lane) { return fragment_b(steps[lane].at[i].a, half); });
            }
          }
        }
      }
      warp.lanes([&](int lane) {
        UNROLL for (int pair = 0; pair < kPairs; ++pair) {
          UNROLL for (int i = 0; i < 4; ++i)
              s.sums[warp.index()][c_column(lane, i)][place(lane / 4, 2 * pair + i / 2)] = sums[lane].at[pair].at[i];
        }
      });
    });
    block.threads([&](int t, Shared& s) {
      NO_UNROLL for (int output = t; output < p.rows * kWidth; output += kThreads) {
        const int row = output / kWidth, at = output % kWidth, own = first + at / kColumns * kColumns;
        const int column = p.fitting(own, kColumns) + at % kColumns;
        if (column < own) continue;  // another lane's
        if (p.more.gated) {
          if (p.is_of_x(column)) p.store_gated(row, column, sum_of(s, row, at), sum_of(s, row, at + kGateColumns));
          continue;
        }
        const auto late = p.late(row, column);
        p.store(row, column, sum_of(s, row, at), late);
      }
    });
  }

 private:
  DEVICE_FN static int place(int lane, int column) { return column * 8 + lane; }
  DEVICE_FN static float sum_of(const Shared& s, int row, int at) {
    float sum = 0;
    UNROLL for (int w = 0; w < kWarps; ++w) sum += s.sums[w][row][place(at / kColumns, at % kColumns)];
    return sum;
  }
  DEVICE_FN void load(Step& to, int row, int column, int k) const {
    to = Step{};
    if (k >= p.depth) return;
    UNROLL for (int i = 0; i < 8; ++i) to.b[i] = *reinterpret_cast<const Columns*>(p.b + (k + i) * p.ldb + column);
    if (row < p.rows) to.a = *reinterpret_cast<const Granule*>(p.a + row * p.lda + k);
  }
};

}  // namespace

template <class T>
void gemv_by_tiles(StreamRef stream, const GemvProduct<T>& p, int columns) {
  const auto with_columns = [&]<int kColumns> {
    using Kernel = GemvTiles<T, kColumns>;
    const Blocks grid{
        .blocks = (p.columns + Kernel::kWidth - 1) / Kernel::kWidth, .threads = Kernel::kThreads, .late = true};
    block_kernel<typename Kernel::Shared>(stream, grid, Kernel{p});
  };
  if (columns == 2)
    with_columns.template operator()<2>();
  else if (columns == 4)
    with_columns.template operator()<4>();
  else
    with_columns.template operator()<8>();
}

template void gemv_by_tiles(StreamRef, const GemvProduct<Half>&, int);
template void gemv_by_tiles(StreamRef, const GemvProduct<BFloat16>&, int);

}  // namespace encore::device
