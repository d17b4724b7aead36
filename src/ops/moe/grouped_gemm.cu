// Grouped GEMM, products of many rows with experts' weights: a block has 64 rows of x and 128 of weights, which it
// brings to the products' type and keeps in shared memory, 32 along the depth at a time, with the next 32 on their way.
//
// In shared memory a row is 64 bytes, four lanes' 16, so that a warp's reads are of neighbouring bytes. As with few
// rows, a lane has 16 bytes of a row as its parts of two products. Where results have two factors, a warp's tiles have
// eight rows of first and eight of second ones, which meet in the same lane.
#include <bit>

#include "ops/moe/layer_view.h"

namespace encore::ops {
namespace {

// Two by two warps have four tiles of weights and four of x each.
constexpr int kWarps = 4, kThreads = 32 * kWarps, kSlots = 128, kDepth = 32, kTiles = 4;
using Words = Pack<uint32_t, 4>;

template <class T, int kBits>
struct ExpertsGroupedGemm {
  using View = LayerView<T, kBits, true>;
  using Loaded = typename View::Loaded;
  using Row = typename View::Row;
  static constexpr int kCount = View::Matrix::kCount, kAcross = kDepth / kCount,
                       kLoads = kSlots * kDepth / kCount / kThreads;
  static constexpr int kRowLoads = kGroupedGemmRows * kDepth / 8 / kThreads;
  static constexpr int kMaxThreads = 3 * kThreads;  // so that three blocks have registers
  struct Tiles {
    Words weights[kSlots][4], x[kGroupedGemmRows][4];
  };
  struct Shared {
    union {
      Tiles tiles[2];                            // this step's and the next one's
      float sums[kGroupedGemmRows][kSlots + 1];  // when all is done
    };
    const T* rows[kGroupedGemmRows];
  };
  struct Next {
    Loaded weights[kLoads];
    Words x[kRowLoads];
  };
  struct Own {
    Row weights[kLoads];
  };
  struct Sums {
    FragmentC at[kTiles][kTiles];
  };

  View view;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    TileRows rows;
    int group;
    if (!view.find_tile(b.index(), rows, group)) return;
    const bool paired = view.paired();
    const int first = group * (paired ? kSlots / 2 : kSlots);
    b.threads([&](int t, Shared& s) {
      if (t < kGroupedGemmRows) s.rows[t] = t < rows.count ? view.row_of(rows.place + t) : nullptr;
    });
    PerThread<Own, kThreads> own;
    PerThread<Next, kThreads> next;
    PerThread<Sums, kThreads> sums;
    b.threads([&](int t, Shared& s) {
      sums[t] = Sums{};
      UNROLL for (int i = 0; i < kLoads; ++i) {
        const int slot = (t + i * kThreads) / kAcross;
        own[t].weights[i] =
            view.weights_of(rows.expert, first + (paired ? slot / 16 * 8 + slot % 8 : slot), paired && slot / 8 % 2);
      }
      load(next[t], own[t], s, 0, t);
      keep(next[t], s, 0, t);
    });
    const int steps = (view.depth + kDepth - 1) / kDepth;
    for (int step = 0; step < steps; ++step) {
      device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
        const int thread = 32 * warp.index(), now = step % 2;
        if (step + 1 < steps)
          warp.lanes(
              [&](int lane) { load(next[thread + lane], own[thread + lane], s, (step + 1) * kDepth, thread + lane); });
        multiply(warp, s, now, sums);
        if (step + 1 < steps) warp.lanes([&](int lane) { keep(next[thread + lane], s, 1 - now, thread + lane); });
      });
    }
    b.threads([&](int t, Shared& s) {
      const int lane = t % 32, warp = t / 32;
      UNROLL for (int i = 0; i < kTiles; ++i) {
        UNROLL for (int j = 0; j < kTiles; ++j) {
          UNROLL for (int n = 0; n < 4; ++n) {
            const int slot = (warp % 2 * kTiles + i) * 16 + device::c_row(lane, n);
            const int row = (warp / 2 * kTiles + j) * 8 + device::c_column(lane, n);
            s.sums[row][slot] = sums[t].at[i][j].at[n];
          }
        }
      }
    });
    b.threads([&](int t, Shared& s) {
      const int width = paired ? kSlots / 2 : kSlots, result = t % width;
      const int slot = paired ? result / 8 * 16 + result % 8 : result;
      NO_UNROLL for (int row = t / width; row < rows.count; row += kThreads / width) view.store(
          rows.place + row, rows.expert, first + result, s.sums[row][slot], paired ? s.sums[row][slot + 8] : 0);
    });
  }

 private:
  // Thread t's part of what comes `k` along the depth.
  DEVICE_FN void load(Next& to, const Own& own, const Shared& s, int k, int t) const {
    UNROLL for (int i = 0; i < kLoads; ++i) to.weights[i] =
        view.weights.load(own.weights[i], k + (t + i * kThreads) % kAcross * kCount);
    UNROLL for (int i = 0; i < kRowLoads; ++i) {
      const int at = t + i * kThreads;
      to.x[i] = View::eight_of(s.rows[at / 4], k + at % 4 * 8, view.depth);
    }
  }
  DEVICE_FN static void keep(const Next& from, Shared& s, int buffer, int t) {
    constexpr int kEights = kCount / 8;
    UNROLL for (int i = 0; i < kLoads; ++i) {
      const int at = t + i * kThreads, slot = at / kAcross;
      UNROLL for (int j = 0; j < kEights; ++j) s.tiles[buffer].weights[slot][at % kAcross * kEights + j] =
          std::bit_cast<Words>(View::Matrix::eight(from.weights[i], j));
    }
    UNROLL for (int i = 0; i < kRowLoads; ++i) {
      const int at = t + i * kThreads;
      s.tiles[buffer].x[at / 4][at % 4] = View::Matrix::matched(from.x[i]);
    }
  }
  struct Right {
    Words at[kTiles];
  };
  struct Left {
    Words low, high;
  };
  DEVICE_FN static void multiply(const Warp& warp, const Shared& s, int now, PerThread<Sums, kThreads>& sums) {
    const int thread = 32 * warp.index();
    PerThread<Right, 32> right;
    warp.lanes([&](int lane) {
      UNROLL for (int j = 0; j < kTiles; ++j) right[lane].at[j] =
          s.tiles[now].x[(warp.index() / 2 * kTiles + j) * 8 + lane / 4][lane % 4];
    });
    UNROLL for (int i = 0; i < kTiles; ++i) {
      PerThread<Left, 32> left;
      warp.lanes([&](int lane) {
        const int slot = (warp.index() % 2 * kTiles + i) * 16 + lane / 4;
        left[lane] = {s.tiles[now].weights[slot][lane % 4], s.tiles[now].weights[slot + 8][lane % 4]};
      });
      UNROLL for (int half = 0; half < 2; ++half) {
        UNROLL for (int j = 0; j < kTiles; ++j) {
          warp.template mma<T>([&](int lane) -> FragmentC& { return sums[thread + lane].at[i][j]; },
                               [&](int lane) {
                                 const Left& of = left[lane];
                                 return device::fragment_a(of.low, of.high, half);
                               },
                               [&](int lane) { return device::fragment_b(right[lane].at[j], half); });
        }
      }
    }
  }
};

}  // namespace

void experts_grouped_gemm(Context& context, const Layer& layer, const Arrangement& a) {
  launch_expert_tiles<ExpertsGroupedGemm>(context, layer, a, TypeList<Half, BFloat16>{}, kSlots, kThreads);
}

}  // namespace encore::ops
