// The kernel of products by tiles. Who launches it says where the left factor's rows are: in a matrix, or under the
// windows of a convolution.
//
// A block has a tile of c and takes steps along the depth, several of which are on their way to shared memory. A warp
// has 32 columns and all rows of the tile, and of each step its own 64 bytes of the depth: what is small is done soon
// if many warps wait at the same time. At the end the warps' sums are added up. As for GEMV, what meets in an
// instruction's tile along the depth is free, as long as both factors agree: of each 64 bytes a lane has a granule, 16
// bytes of a row, as its parts of two products. A lane's four neighbouring columns are rows g and g + 8 of two tiles,
// so that it can write them at once.
//
// In shared memory granules lie where the lanes that read at the same time meet all banks.
#pragma once
#include "device/copy_async.h"
#include "device/mma_fragments.h"
#include "device/prefetch.h"
#include "ops/matmul/tile_product.h"

namespace encore::ops {

using device::FragmentC;
using device::Granule;
using device::PerThread;
using device::Warp;

// Rows of a matrix.
template <class T>
struct MatrixRows {
  // The granules that a thread brings to a stage: of rows that lie kApart apart. Those beyond the last row, or where a
  // row has no values left, are zeros.
  template <int kCount, int kApart>
  struct Source {
    const T* at;
    int rows, values;
  };

  const T* a;
  int64_t lda;

  template <class Source>
  DEVICE_FN Source from(int row, int rows, int k, int end) const {
    return {a + row * lda + k, rows - row, end - k};
  }
  template <int kCount, int kApart>
  DEVICE_FN void copy(Granule* to, const Source<kCount, kApart>& from, int i) const {
    device::copy_async_or_zeros(to, from.at + i * kApart * lda, from.values > 0 && from.rows > i * kApart);
  }
  template <class Source>
  DEVICE_FN void step(Source& from, int values) const {
    from.at += values, from.values -= values;
  }
};

// How a block makes its tile: with as many tiles of eight rows in each warp, warps across the columns and the depth,
// and steps on their way.
template <TileShape kShape, int kStages_>
struct TileWarps {
  static constexpr TileSize kSize = kTileSizes[int(kShape)];
  static constexpr int kWarpColumns = 32, kWarpGranules = 4, kWarpBytes = kWarpGranules * int(sizeof(Granule));
  static constexpr int kRowTiles = kSize.rows / 8, kStages = kStages_;
  static constexpr int kColumnWarps = kSize.columns / kWarpColumns, kDepthWarps = kSize.depth_bytes / kWarpBytes;
};

// Calls f.template operator()<Warps>().
template <class F>
void for_shape(TileShape shape, F f) {
  using enum TileShape;
  switch (shape) {
    case m32n64k64: return f.template operator()<TileWarps<m32n64k64, 5>>();
    case m16n64k64: return f.template operator()<TileWarps<m16n64k64, 6>>();
    case m16n64k128: return f.template operator()<TileWarps<m16n64k128, 4>>();
    case m16n32k128: return f.template operator()<TileWarps<m16n32k128, 5>>();
    case m64n64k64:
    case m64n128k64: fail(Code::internal, "tiles for warpgroups have a kernel of their own");
  }
}

// kTransposed: rows of b are columns of the product, as they always are of floats.
template <class T, bool kTransposed, class Rows, class Warps>
struct TileGemm {
  static constexpr int kRowTiles = Warps::kRowTiles, kColumnWarps = Warps::kColumnWarps;
  static constexpr int kDepthWarps = Warps::kDepthWarps, kStages = Warps::kStages;
  static constexpr int kWarpColumns = Warps::kWarpColumns, kWarpGranules = Warps::kWarpGranules;
  static constexpr int kQuad = TileProduct<T>::kQuad;
  static constexpr int kThreads = 32 * kColumnWarps * kDepthWarps, kMaxThreads = kThreads;
  static constexpr int kRows = 8 * kRowTiles, kColumns = kWarpColumns * kColumnWarps;
  static constexpr int kGranule = int(sizeof(Granule) / sizeof(T));  // values
  static constexpr int kChunks = kWarpGranules * kDepthWarps;        // granules along the depth, of a step
  static constexpr int kStep = kGranule * kChunks;                   // values
  static constexpr int kAcross = kColumns / kGranule;                // granules of a row of b
  static constexpr int kGranulesOfA = kRows * kChunks, kGranulesOfB = kColumns * kChunks;
  static constexpr int kGranules = kGranulesOfA + kGranulesOfB;  // of a stage
  static constexpr int64_t kDynamicBytes = int64_t(kStages) * kGranules * int64_t(sizeof(Granule));
  static constexpr bool kBeginsEarly = true;
  static constexpr int kPitch = kColumns + 4;  // floats; so that lanes write to banks of their own
  static_assert(kTransposed || kGranule == 8);
  static_assert(kColumns <= kThreads && kGranulesOfA % kThreads == 0 && kGranulesOfB % kThreads == 0);
  struct Shared {
    alignas(16) T bias[kColumns];
    alignas(16) float sums[kRows][kPitch];
  };
  struct Sums {
    FragmentC at[2][kRowTiles];
  };
  static constexpr int kInRowOfB = kTransposed ? kChunks : kAcross;  // granules of a stage
  static constexpr int kRowsAtOnceOfA = kThreads / kChunks, kRowsAtOnceOfB = kThreads / kInRowOfB;
  using SourceOfA = typename Rows::template Source<kGranulesOfA / kThreads, kRowsAtOnceOfA>;
  struct SourceOfB {  // as MatrixRows'
    const T* at;
    int rows, values;
  };
  struct Sources {
    SourceOfA a;
    SourceOfB b;
  };

  TileProduct<T> p;
  Rows rows;

  DEVICE_FN void operator()(Block<Shared>& block, const Shared&) const {
    const TilePlace place = place_of(block);
    const int steps = place.end > place.first ? (place.end - place.first + kStep - 1) / kStep : 0;
    PerThread<Sums, kThreads> sums;
    PerThread<Sources, kThreads> sources;
    block.threads([&](int t, Shared& s) {
      Granule* const stages = block.template dynamic<Granule>(s);
      sums[t] = Sums{};
      Sources from = sources_of(place, t);
      if (p.constant_b) {
        UNROLL for (int i = 0; i < kStages - 1; ++i) if (i < steps) load_b(stages + i * kGranules, from.b, t);
        prefetch_rest(place, t);
      }
      block.wait();
      UNROLL for (int i = 0; i < kStages - 1; ++i) {
        if (i < steps && !p.constant_b) load_b(stages + i * kGranules, from.b, t);
        if (i < steps) load_a(stages + i * kGranules, from.a, t);
        device::end_group_of_copies();
      }
      if (p.bias && t < kColumns && place.column + t < p.columns) s.bias[t] = p.bias[place.column + t];
      sources[t] = from;
      device::wait_for_copies_before<kStages - 2>();
    });
    int now = 0, next = kStages - 1;  // stages
    NO_UNROLL for (int step = 0; step < steps; ++step) {
      device::for_each_warp(block, [&](const Warp& warp, Shared& s) {
        Granule* const stages = block.template dynamic<Granule>(s);
        warp.apart([&](int lane) {
          const int t = 32 * warp.index() + lane;
          if (step + kStages - 1 < steps) {
            load_b(stages + next * kGranules, sources[t].b, t);
            load_a(stages + next * kGranules, sources[t].a, t);
          }
          device::end_group_of_copies();
        });
        multiply(warp, stages + now * kGranules, sums);
        warp.apart([&](int) { device::wait_for_copies_before<kStages - 2>(); });
      });
      next = now, now = now + 1 < kStages ? now + 1 : 0;
    }
    UNROLL for (int turn = 0; turn < kDepthWarps; ++turn) {
      block.threads([&](int t, Shared& s) {
        if (t / 32 / kColumnWarps == turn) add_up(s, sums[t], t, turn > 0);
      });
    }
  }

  // Each block finishes its part of the rows.
  DEVICE_FN void join(Block<Shared>& block, const Shared&, const Cluster<Shared>& cluster) const {
    const TilePlace place = place_of(block);
    const int parts = 1 << p.parts_log2, rows = kRows >> p.parts_log2;
    const int first = (int(block.index()) & (parts - 1)) * rows;
    block.threads([&](int t, Shared& s) {
      NO_UNROLL for (int at = t; at < rows * (kColumns / kQuad); at += kThreads) {
        const int row = first + at / (kColumns / kQuad), column = at % (kColumns / kQuad) * kQuad;
        if (place.row + row >= p.rows || place.column + column >= p.columns) continue;
        float sums[kQuad] = {};
        NO_UNROLL for (int part = 0; part < parts; ++part) {
          const float* const from = &cluster.shared(part).sums[0][0];
          const auto more = *reinterpret_cast<const Pack<float, kQuad>*>(from + row * kPitch + column);
          UNROLL for (int i = 0; i < kQuad; ++i) sums[i] += more.at[i];
        }
        p.store(place.row + row, place.column + column, sums, s.bias + column);
      }
    });
  }

 private:
  DEVICE_FN TilePlace place_of(const Block<Shared>& block) const {
    return p.place_of(block.index(), kRows, kColumns, kStep);
  }

  // Where granules lie in a stage: of row and chunk along the depth, of which a lane has row lane / 4 and chunk lane %
  // 4; of b, the first of its four columns or, as it lies, the first of its eight rows.
  DEVICE_FN static int at_a(int row, int chunk) { return row * kChunks + (chunk ^ (row & 1) * 4); }
  DEVICE_FN static int at_b(int row, int granule) {
    if constexpr (kTransposed)
      return kGranulesOfA + row * kChunks + (granule ^ (row >> 2 & 1) * 4);
    else
      return kGranulesOfA + (row * kAcross & ~7) + (((row * kAcross & 7) + granule) ^ (row >> 3 & 3) * 2);
  }

  DEVICE_FN Sources sources_of(const TilePlace& place, int t) const {
    const int row = place.row + t / kChunks, k = place.first + t % kChunks * kGranule;
    const int row_of_b = (kTransposed ? place.column : place.first) + t / kInRowOfB;
    const int value_of_b = (kTransposed ? place.first : place.column) + t % kInRowOfB * kGranule;
    return {rows.template from<SourceOfA>(row, p.rows, k, place.end),
            {p.b + row_of_b * p.ldb + value_of_b, (kTransposed ? p.columns : place.end) - row_of_b,
             (kTransposed ? place.end : p.columns) - value_of_b}};
  }
  // Both go on to the next stage.
  DEVICE_FN void load_a(Granule* stage, SourceOfA& from, int t) const {
    UNROLL for (int i = 0; i < kGranulesOfA / kThreads; ++i)
        rows.copy(stage + at_a(t / kChunks + i * kRowsAtOnceOfA, t % kChunks), from, i);
    rows.step(from, kStep);
  }
  DEVICE_FN void load_b(Granule* stage, SourceOfB& from, int t) const {
    UNROLL for (int i = 0; i < kGranulesOfB / kThreads; ++i) device::copy_async_or_zeros(
        stage + at_b(t / kInRowOfB + i * kRowsAtOnceOfB, t % kInRowOfB), from.at + i * kRowsAtOnceOfB * p.ldb,
        from.values > 0 && from.rows > i * kRowsAtOnceOfB);
    if constexpr (kTransposed)
      from.at += kStep, from.values -= kStep;
    else
      from.at += kStep * p.ldb, from.rows -= kStep;
  }
  // What of b the stages have no room for.
  DEVICE_FN void prefetch_rest(const TilePlace& place, int t) const {
    const int first = place.first + (kStages - 1) * kStep;
    if constexpr (kTransposed) {
      constexpr int kLine = 128 / int(sizeof(T));  // values
      for (int at = t; first + at / kColumns * kLine < place.end; at += kThreads) {
        const int column = place.column + at % kColumns;
        if (column < p.columns) device::prefetch(p.b + column * p.ldb + first + at / kColumns * kLine);
      }
    } else {
      for (int k = first + t; k < place.end; k += kThreads) device::prefetch(p.b + k * p.ldb + place.column);
    }
  }

  // What the warps before have is there, if there are any.
  DEVICE_FN static void add_up(Shared& s, const Sums& own, int t, bool more) {
    const int lane = t % 32, column = t / 32 % kColumnWarps * kWarpColumns + lane / 4 * kQuad;
    UNROLL for (int j = 0; j < kRowTiles; ++j) {
      UNROLL for (int i = 0; i < 2; ++i) {
        const FragmentC &left = own.at[0][j], &right = own.at[1][j];
        auto& to = *reinterpret_cast<Pack<float, kQuad>*>(&s.sums[j * 8 + lane % 4 * 2 + i][column]);
        Pack<float, kQuad> sum = {left.at[i], left.at[i + 2], right.at[i], right.at[i + 2]};
        UNROLL for (int n = 0; n < kQuad; ++n) sum.at[n] += more ? to.at[n] : 0;
        to = sum;
      }
    }
  }

  struct Weights {
    Granule at[kTransposed ? kQuad : 4];  // of four columns; or of eight rows two words each
  };
  struct Inputs {
    Granule at[kRowTiles];
  };
  DEVICE_FN static device::FragmentA fragment_a(const Weights& b, int pair, int half) {
    if constexpr (kTransposed) {
      return device::fragment_a(b.at[2 * pair], b.at[2 * pair + 1], half);
    } else {
      const Granule &low = b.at[2 * half], &high = b.at[2 * half + 1];
      return device::fragment_a(low.at[pair], low.at[2 + pair], high.at[pair], high.at[2 + pair]);
    }
  }
  DEVICE_FN static void multiply(const Warp& warp, const Granule* stage, PerThread<Sums, kThreads>& sums) {
    const int thread = 32 * warp.index(), column0 = warp.index() % kColumnWarps * kWarpColumns;
    const int chunk0 = warp.index() / kColumnWarps * kWarpGranules;
    PerThread<Weights, 32> b;
    PerThread<Inputs, 32> a;
    warp.apart([&](int lane) {
      const int g = lane / 4, chunk = chunk0 + lane % 4;
      UNROLL for (int j = 0; j < kRowTiles; ++j) a[lane].at[j] = stage[at_a(j * 8 + g, chunk)];
      if constexpr (kTransposed) {
        UNROLL for (int i = 0; i < kQuad; ++i) b[lane].at[i] = stage[at_b(column0 + g * kQuad + i, chunk)];
      } else {
        const int column = column0 + g * kQuad;
        UNROLL for (int i = 0; i < 8; ++i) {
          const auto& two =
              reinterpret_cast<const Pack<uint32_t, 2>*>(stage + at_b(chunk * 8 + i, column / 8))[column / kQuad % 2];
          b[lane].at[i / 2].at[i % 2 * 2] = two.at[0], b[lane].at[i / 2].at[i % 2 * 2 + 1] = two.at[1];
        }
      }
    });
    UNROLL for (int half = 0; half < 2; ++half) {
      UNROLL for (int pair = 0; pair < 2; ++pair) {
        UNROLL for (int j = 0; j < kRowTiles; ++j)
            warp.template mma<T>([&](int lane) -> FragmentC& { return sums[thread + lane].at[pair][j]; },
                                 [&](int lane) { return fragment_a(b[lane], pair, half); },
                                 [&](int lane) { return device::fragment_b(a[lane].at[j], half); });
      }
    }
  }
};

template <class T, bool kTransposed, class Rows>
void launch_tile_gemm(StreamRef stream, const TileProduct<T>& product, const Rows& rows, TileGemmWay way) {
  for_shape(way.shape, [&]<class Warps> {
    using Kernel = TileGemm<T, kTransposed, Rows, Warps>;
    const auto [p, grid] = shared_out<Kernel>(product, way.parts, stream.device());
    device::cluster_kernel<typename Kernel::Shared>(stream, grid, Kernel{p, rows});
  });
}

}  // namespace encore::ops
