// Products of rows of floats, and of what does not lie as mma wants it, by plain tiles: 32 rows meet 64 of
// weights, both in shared memory, where a column is what neighbours of a thread need. A thread has four of each; where
// results have two factors, rows of weights take turns.
#include "ops/moe/layer_view.h"

namespace encore::ops {
namespace {

constexpr int kThreads = 128, kSlots = 64, kDepth = 32, kPer = 4;

template <class T, int kBits>
struct ExpertsPlainGemm {
  using View = LayerView<T, kBits, false>;
  using Four = Pack<float, kPer>;
  static constexpr int kCount = View::Matrix::kCount, kAcross = kDepth / kCount;
  static constexpr int kMaxThreads = kThreads;
  struct Shared {
    Four weights[kDepth][kSlots / kPer + 1], x[kDepth][kPlainGemmRows / kPer + 1];
  };
  struct Sums {
    float at[kPer][kPer];
  };

  View view;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    TileRows rows;
    int group;
    if (!view.find_tile(b.index(), rows, group)) return;
    const bool paired = view.paired();
    const int first = group * (paired ? kSlots / 2 : kSlots);
    PerThread<Sums, kThreads> sums;
    b.threads([&](int t, Shared&) { sums[t] = Sums{}; });
    for (int k = 0; k < view.depth; k += kDepth) {
      b.threads([&](int t, Shared& s) {
        for (int i = t; i < kSlots * kAcross; i += kThreads) {
          const int slot = i / kAcross, column = i % kAcross * kCount;
          const auto row = view.weights_of(rows.expert, first + (paired ? slot / 2 : slot), paired && slot % 2);
          const auto loaded = view.weights.load(row, k + column);
          UNROLL for (int j = 0; j < kCount / 8; ++j) {
            const Eight<T> eight = View::Matrix::eight(loaded, j);
            UNROLL for (int c = 0; c < 8; ++c) s.weights[column + 8 * j + c][slot / kPer].at[slot % kPer] = eight.at(c);
          }
        }
        for (int i = t; i < kPlainGemmRows * kDepth; i += kThreads) {
          const int row = i / kDepth, column = i % kDepth;
          const bool there = row < rows.count && k + column < view.depth;
          s.x[column][row / kPer].at[row % kPer] = there ? float(view.row_of(rows.place + row)[k + column]) : 0.f;
        }
      });
      b.threads([&](int t, Shared& s) {
        Sums all = sums[t];
        for (int c = 0; c < kDepth; ++c) {
          const Four weight = s.weights[c][t % (kSlots / kPer)], value = s.x[c][t / (kSlots / kPer)];
          UNROLL for (int i = 0; i < kPer; ++i) {
            UNROLL for (int j = 0; j < kPer; ++j) all.at[i][j] += value.at[i] * weight.at[j];
          }
        }
        sums[t] = all;
      });
    }
    b.threads([&](int t, Shared&) {
      UNROLL for (int i = 0; i < kPer; ++i) {
        const int row = t / (kSlots / kPer) * kPer + i, slot = t % (kSlots / kPer) * kPer;
        if (row >= rows.count) continue;
        UNROLL for (int j = 0; j < kPer; ++j) {
          if (!paired)
            view.store(rows.place + row, rows.expert, first + slot + j, sums[t].at[i][j], 0);
          else if (j % 2 == 0)
            view.store(rows.place + row, rows.expert, first + (slot + j) / 2, sums[t].at[i][j], sums[t].at[i][j + 1]);
        }
      }
    });
  }
};

}  // namespace

void experts_plain_gemm(Context& context, const Layer& layer, const Arrangement& a) {
  launch_expert_tiles<ExpertsPlainGemm>(context, layer, a, TypeList<float, Half, BFloat16>{}, kSlots, kThreads);
}

}  // namespace encore::ops
