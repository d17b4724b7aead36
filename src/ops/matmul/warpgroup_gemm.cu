#include "ops/matmul/warpgroup_gemm.h"

#include <algorithm>

#include "device/error.h"
#include "device/warpgroup.h"
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
  switch (activation.kind) {
    case Kind::none: return f([](float x) { return x; });
    case Kind::relu: return f([](float x) { return relu(x); });
    case Kind::gelu: return f([](float x) { return GeluByErf().rough(x); });
    default: f([&](float x) { return activated<T>(activation, x); });
  }
}

template <class T, int kColumns_, int kStages, bool kTransposed>
struct WarpgroupGemm {
  using Tile = device::WarpgroupTile<T, kColumns_, kStages, kTransposed>;
  static constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kThreads = Tile::kThreads;
  static constexpr int kMaxThreads = kThreads, kPitch = kColumns + 4;
  static constexpr int kPairs = Tile::kSums / 2, kWide = 8;  // neighbouring columns of a thread; of what is joined
  static constexpr int64_t kDynamicBytes = Tile::kDynamicBytes;
  static constexpr bool kBeginsEarly = true;
  struct Shared {
    alignas(16) float sums[kRows][kPitch];
    typename Tile::Arrivals arrivals;
  };
  // What is added to a thread's sums: it comes while these are made.
  struct Added {
    Pack<T, 2> bias[kPairs], addend[kPairs];
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
      UNROLL for (int i = 0; i < Tile::kSums; i += 2) {
        auto& two = *reinterpret_cast<Pack<float, 2>*>(&s.sums[Tile::row_of(t, i)][Tile::column_of(t, i)]);
        two = {sums[t].at[i], sums[t].at[i + 1]};
      }
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
        const auto addend = wide(p.beta != 0 ? p.addend + index(place, row, column) : nullptr);
        const auto bias = wide(p.bias ? p.bias + place.column + column : nullptr);
        float values[kWide] = {};
        UNROLL for (int part = 0; part < kMostTileParts; ++part) {
          if (part >= parts) continue;
          const auto& more = *reinterpret_cast<const Pack<float, kWide>*>(&cluster.shared(part).sums[row][column]);
          UNROLL for (int i = 0; i < kWide; ++i) values[i] += more.at[i];
        }
        UNROLL for (int i = 0; i < kWide; ++i) values[i] = finished(values[i], addend.at[i], bias.at[i]);
        Pack<T, kWide> out;
        choose<T>(p.activation,
                  [&](auto curve) { UNROLL for (int i = 0; i < kWide; ++i) out.at[i] = T(curve(values[i])); });
        device::store_aligned(p.c + index(place, row, column), out);
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
  DEVICE_FN static Pack<T, kWide> wide(const T* from) {
    return from ? device::load_aligned<kWide>(from) : Pack<T, kWide>{};
  }
  // Before there is an activation, the sum is rounded.
  DEVICE_FN float finished(float sum, T addend, T bias) const {
    return float(T(p.alpha * sum + p.beta * float(addend) + float(bias)));
  }
  DEVICE_FN void load(Added& added, const TilePlace& place, int t) const {
    UNROLL for (int i = 0; i < kPairs; ++i) {
      const int row = Tile::row_of(t, 2 * i), column = Tile::column_of(t, 2 * i);
      const bool there = is_there(place, row, column);
      added.addend[i] =
          there && p.beta != 0 ? device::load_aligned<2>(p.addend + index(place, row, column)) : Pack<T, 2>{};
      added.bias[i] = there && p.bias ? device::load_aligned<2>(p.bias + place.column + column) : Pack<T, 2>{};
    }
  }
  DEVICE_FN void store(const Added& added, const typename Tile::Sums& sums, const TilePlace& place, int t) const {
    choose<T>(p.activation, [&](auto curve) {
      UNROLL for (int i = 0; i < kPairs; ++i) {
        const int row = Tile::row_of(t, 2 * i), column = Tile::column_of(t, 2 * i);
        Pack<T, 2> out;
        UNROLL for (int n = 0; n < 2; ++n) out.at[n] =
            T(curve(finished(sums.at[2 * i + n], added.addend[i].at[n], added.bias[i].at[n])));
        if (is_there(place, row, column)) device::store_aligned(p.c + index(place, row, column), out);
      }
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
