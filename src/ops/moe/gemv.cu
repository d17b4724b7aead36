// GEMV with experts' weights: they are read once and straight into the registers of the lanes that need them, for up to
// eight rows, which cost mma nothing more than one.
//
// A block has sixteen rows of weights. Its warps take turns along the depth and are added up at the end. A lane reads
// 16 bytes of weight rows g and g + 8, g = lane / 4, and the same part of row g of x; where along the depth is free, as
// long as both factors agree. Where results have two factors, rows g are the first and rows g + 8 the second ones.
#include <bit>

#include "ops/moe/layer_view.h"

namespace encore::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kSlots = 16;

template <class T, int kBits>
struct ExpertsGemv {
  using View = LayerView<T, kBits, true>;
  using Loaded = typename View::Loaded;
  using Row = typename View::Row;
  using Words = Pack<uint32_t, 4>;
  static constexpr int kCount = View::Matrix::kCount, kEights = kCount / 8;
  static constexpr int kStep = 4 * kCount;           // of a warp
  static constexpr int kAhead = kBits == 0 ? 4 : 2;  // steps on their way at once
  static constexpr int kMaxThreads = kThreads;
  struct Shared {
    float sums[kWarps][kSlots][kGemvRows + 1];
  };
  struct Step {
    Loaded low, high;
    Words x[kEights];
  };
  struct Steps {
    Step at[kAhead];
  };
  struct Own {
    Row low, high;
    const T* x;
  };
  struct Operands {
    Words low, high, x;
  };

  View view;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared&) const {
    TileRows rows;
    int group;
    if (!view.find_tile(b.index(), rows, group)) return;
    const bool paired = view.paired();
    const int first = group * (paired ? kSlots / 2 : kSlots);
    device::for_each_warp(b, [&](const Warp& warp, Shared& s) {
      PerThread<FragmentC, 32> sums;
      PerThread<Own, 32> own;
      warp.lanes([&](int lane) {
        sums[lane] = FragmentC{};
        const int g = lane / 4;
        own[lane] = {view.weights_of(rows.expert, first + g, false),
                     view.weights_of(rows.expert, first + (paired ? g : g + 8), paired),
                     g < rows.count ? view.row_of(rows.place + g) : nullptr};
      });
      for (int k = warp.index() * kStep; k < view.depth; k += kWarps * kStep * kAhead) {
        PerThread<Steps, 32> steps;
        warp.lanes([&](int lane) {
          UNROLL for (int i = 0; i < kAhead; ++i)
              load(steps[lane].at[i], own[lane], k + i * kWarps * kStep + lane % 4 * kCount);
        });
        UNROLL for (int i = 0; i < kAhead; ++i) {
          UNROLL for (int j = 0; j < kEights; ++j) {
            PerThread<Operands, 32> operands;
            warp.lanes([&](int lane) {
              operands[lane] = {std::bit_cast<Words>(View::Matrix::eight(steps[lane].at[i].low, j)),
                                std::bit_cast<Words>(View::Matrix::eight(steps[lane].at[i].high, j)),
                                View::Matrix::matched(steps[lane].at[i].x[j])};
            });
            UNROLL for (int half = 0; half < 2; ++half) {
              warp.template mma<T>(
                  [&](int lane) -> FragmentC& { return sums[lane]; },
                  [&](int lane) { return device::fragment_a(operands[lane].low, operands[lane].high, half); },
                  [&](int lane) { return device::fragment_b(operands[lane].x, half); });
            }
          }
        }
      }
      warp.lanes([&](int lane) {
        UNROLL for (int i = 0; i < 4; ++i) s.sums[warp.index()][device::c_row(lane, i)][device::c_column(lane, i)] =
            sums[lane].at[i];
      });
    });
    b.threads([&](int t, Shared& s) {
      const int width = paired ? kSlots / 2 : kSlots, slot = t % width, row = t / width;
      if (row >= rows.count) return;
      float one = 0, other = 0;
      UNROLL for (int w = 0; w < kWarps; ++w) {
        one += s.sums[w][slot][row];
        if (paired) other += s.sums[w][slot + 8][row];
      }
      view.store(rows.place + row, rows.expert, first + slot, one, other);
    });
  }

 private:
  DEVICE_FN void load(Step& to, const Own& own, int k) const {
    to.low = view.weights.load(own.low, k);
    to.high = view.weights.load(own.high, k);
    UNROLL for (int j = 0; j < kEights; ++j) to.x[j] = View::eight_of(own.x, k + 8 * j, view.depth);
  }
};

}  // namespace

void experts_gemv(Context& context, const Layer& layer, const Arrangement& a) {
  launch_expert_tiles<ExpertsGemv>(context, layer, a, TypeList<Half, BFloat16>{}, kSlots, kThreads);
}

}  // namespace encore::ops
