#include "ops/matmul/warpgroup_gemm.h"

#include <algorithm>

#include "device/error.h"
#include "device/warpgroup.h"
#include "device/words.h"
#include "ops/dispatch.h"
#include "ops/matmul/tile_product.h"

namespace encore::ops {
namespace {

using device::BFloat16;
using device::Half;
using device::PerThread;
using device::TensorMap;

// Of values that T keeps. What is rare is called, so that there is less code to bring.
template <class T>
CALLED_FN float activated(const Activation& activation, float x) {
  return activation.whole<T>(x);
}
template <class T, class F>
DEVICE_FN void choose(const Activation& activation, F f) {
  using Kind = Activation::Kind;
  const float slope = activation.kind == Kind::quick_gelu ? activation.alpha : 1;
  switch (activation.kind) {
    case Kind::none: return f([](float x) { return x; });
    case Kind::relu: return f([](float x) { return relu(x); });
    case Kind::hard_swish: return f([](float x) { return hard_swish(x); });
    case Kind::silu:
    case Kind::quick_gelu: return f([slope](float x) { return rough_silu(x, slope); });
    case Kind::gelu: return f([](float x) { return GeluByErf().rough(x); });
    case Kind::fast_gelu: return f([](float x) { return GeluByTanh().rough(x); });
    default: f([&](float x) { return activated<T>(activation, x); });
  }
}

template <class T, int kColumns_, int kStages, bool kTransposed>
struct WarpgroupGemm {
  using Tile = device::WarpgroupTile<T, kColumns_, kStages, kTransposed>;
  static constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kThreads = Tile::kThreads;
  static constexpr int kMaxThreads = kThreads, kPitch = kColumns + 4;
  static constexpr int kPairs = Tile::kSums / 2, kWide = 8;  // neighbouring columns of a thread; of what is joined
  template <int kCount>
  using Words = device::WordsOf<T, kCount>;
  static constexpr int64_t kDynamicBytes = Tile::kDynamicBytes;
  static constexpr bool kBeginsEarly = true;
  struct Shared {
    alignas(16) float sums[kRows][kPitch];
    typename Tile::Arrivals arrivals;
  };
  // What is added to a thread's sums: it comes while these are made. Of pairs of columns, rows are neighbours here.
  struct Added {
    Words<2> bias[kPairs / 2], addend[kPairs];
  };

  TileProduct<T> p;
  TensorMap a, b;

  DEVICE_FN void operator()(Block<Shared>& block, const Shared&) const {
    const TilePlace place = place_of(block);
    const int depth = place.end - place.first;
    const int steps = depth > 0 ? (depth + Tile::kDepth - 1) / Tile::kDepth : 0;
    const device::TileFactors factors{&a, &b, place.row, place.column, place.first, steps, p.constant_b};
    PerThread<Added, kThreads> added;
    device::begin<Tile>(block, factors, [&](int t, Shared&) {
      if (t < Tile::kMultiplying && p.parts_log2 == 0) load(added[t], place, t);
    });
    PerThread<typename Tile::Sums, kThreads> sums;
    device::multiply<Tile>(block, factors, sums);
    block.threads([&](int t, Shared& s) {
      if (t >= Tile::kMultiplying) return;
      if (p.parts_log2 == 0) return store(added[t], sums[t], place, t);
      float* const first = &s.sums[Tile::row_of(t)][Tile::column_of(t)];
      each_pair([&](int i, int row, int column) {
        auto& two = *reinterpret_cast<Pack<float, 2>*>(first + row * kPitch + column);
        two = {sums[t].at[2 * i], sums[t].at[2 * i + 1]};
      });
    });
  }

  // Each block of a cluster finishes its part of the rows.
  DEVICE_FN void join(Block<Shared>& block, const Shared&, const Cluster<Shared>& cluster) const {
    if (p.parts_log2 == 0) return;
    const TilePlace place = place_of(block);
    const int parts = 1 << p.parts_log2, rows = kRows >> p.parts_log2;
    const int first = (int(block.index()) & (parts - 1)) * rows;
    block.threads([&](int t, Shared&) {
      constexpr int kAcross = kColumns / kWide;
      NO_UNROLL for (int at = t; at < rows * kAcross; at += kThreads) {
        const int row = first + at / kAcross, column = at % kAcross * kWide;
        if (!is_there(place, row, column)) continue;
        const auto addend = words<kWide>(p.beta != 0, p.addend + index(place, row, column));
        const auto bias = words<kWide>(p.bias != nullptr, p.bias + place.column + column);
        float values[kWide] = {};
        NO_UNROLL for (int part = 0; part < parts; ++part) {
          const float* const theirs = &cluster.shared(part).sums[row][column];
          UNROLL for (int i = 0; i < kWide; i += 4) {  // nvcc takes wider ones apart
            const auto more = *reinterpret_cast<const Pack<float, 4>*>(theirs + i);
            UNROLL for (int n = 0; n < 4; ++n) values[i + n] += more.at[n];
          }
        }
        finish(values, addend, bias);
        Pack<T, kWide> out;
        choose<T>(p.activation,
                  [&](auto curve) { UNROLL for (int i = 0; i < kWide; ++i) out.at[i] = T(curve(values[i])); });
        device::store_whole(p.c + index(place, row, column), out);
      }
    });
  }

 private:
  DEVICE_FN TilePlace place_of(const Block<Shared>& block) const {
    return p.place_of(block.index(), kRows, kColumns, Tile::kDepth);
  }
  DEVICE_FN bool is_there(const TilePlace& place, int row, int column) const {
    return place.row + row < p.rows && place.column + column < p.columns;
  }
  DEVICE_FN int64_t index(const TilePlace& place, int row, int column) const {
    return (place.row + row) * p.ldc + place.column + column;
  }
  template <int kCount>
  DEVICE_FN static Words<kCount> words(bool there, const T* from) {
    return there ? device::load_words<kCount>(from) : Words<kCount>{};
  }
  // Before there is an activation, the sum is rounded.
  template <int kCount>
  DEVICE_FN void finish(float (&sums)[kCount], const Words<kCount>& addend, const Words<kCount>& bias) const {
    const auto more = device::pack_of<T>(addend), constant = device::pack_of<T>(bias);
    UNROLL for (int i = 0; i < kCount; ++i) sums[i] =
        float(T(p.alpha * sums[i] + p.beta * float(more.at[i]) + float(constant.at[i])));
  }
  // f(i, row, column) for the pairs of a thread's sums, counted from the first of them.
  template <class F>
  DEVICE_FN static void each_pair(F f) {
    UNROLL for (int i = 0; i < kPairs; ++i) f(i, i % 2 * Tile::kApart, i / 2 * Tile::kApart);
  }
  DEVICE_FN void load(Added& added, const TilePlace& place, int t) const {
    const int row0 = Tile::row_of(t), column0 = Tile::column_of(t);
    const T* const first[2] = {p.addend + index(place, row0, column0),
                               p.addend + index(place, row0 + Tile::kApart, column0)};
    const T* const bias = p.bias + place.column + column0;
    each_pair([&](int i, int row, int column) {
      added.addend[i] = words<2>(p.beta != 0 && is_there(place, row0 + row, column0 + column), first[i % 2] + column);
      if (row == 0) added.bias[i / 2] = words<2>(p.bias && is_there(place, 0, column0 + column), bias + column);
    });
  }
  DEVICE_FN void store(const Added& added, const typename Tile::Sums& sums, const TilePlace& place, int t) const {
    const int row0 = Tile::row_of(t), column0 = Tile::column_of(t);
    T* const first[2] = {p.c + index(place, row0, column0), p.c + index(place, row0 + Tile::kApart, column0)};
    choose<T>(p.activation, [&](auto curve) {
      each_pair([&](int i, int row, int column) {
        float two[2] = {sums.at[2 * i], sums.at[2 * i + 1]};
        finish(two, added.addend[i], added.bias[i / 2]);
        if (is_there(place, row0 + row, column0 + column))
          device::store_aligned(first[i % 2] + column, Pack<T, 2>{T(curve(two[0])), T(curve(two[1]))});
      });
    });
  }
};

// Calls f.template operator()<columns, stages>().
template <class F>
void for_shape(TileShape shape, F f) {
  if (shape == TileShape::m64n64k64) return f.template operator()<64, 8>();
  f.template operator()<128, 7>();
}

}  // namespace

int most_warpgroup_parts(int device) {
  int most = kMostTileParts;
  for (int shape = int(kFirstOfWarpgroups); shape < kTileShapes; ++shape)
    for_shape(TileShape(shape), [&]<int kColumns, int kStages> {
      using Kernel = WarpgroupGemm<Half, kColumns, kStages, true>;
      most = std::min(most, device::most_in_cluster<typename Kernel::Shared, Kernel>(device));
    });
  return most;
}

void warpgroup_gemm(StreamRef stream, const device::Gemm& g, const ProductData& data, const Activation& activation,
                    TileGemmWay way) {
  if (!device::has_warpgroups(stream.device()))
    fail(Code::internal, "device ", stream.device(), " has no warpgroups for tiles of 64 rows");
  dispatch(TypeList<Half, BFloat16>{}, g.type, [&]<class T>() {
    for_shape(way.shape, [&]<int kColumns, int kStages> {
      const auto launch = [&]<bool kTransposed> {
        using Kernel = WarpgroupGemm<T, kColumns, kStages, kTransposed>;
        const auto [p, grid] = shared_out<Kernel>(tile_product<T>(g, data, activation), way.parts, stream.device());
        const int64_t b_rows = kTransposed ? g.n : g.k, b_columns = kTransposed ? g.k : g.n;
        const TensorMap a = device::tensor_map(g.type, data.a, g.m, g.k, g.lda, Kernel::kRows);
        const TensorMap b = device::tensor_map(g.type, data.b, b_rows, b_columns, g.ldb, Kernel::Tile::kRowsOfBoxOfB);
        device::cluster_kernel<typename Kernel::Shared>(stream, grid, Kernel{p, a, b});
      };
      g.transpose_b ? launch.template operator()<true>() : launch.template operator()<false>();
    });
  });
}

}  // namespace encore::ops
