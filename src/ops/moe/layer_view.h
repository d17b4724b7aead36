// A layer as its kernels see it.
#pragma once
#include <cmath>

#include "device/divide.h"
#include "device/launch.h"
#include "device/mma_fragments.h"
#include "ops/dispatch.h"
#include "ops/elementwise/gelu.h"
#include "ops/moe/experts.h"

namespace encore::ops {

using device::Block;
using device::FragmentC;
using device::Pack;
using device::PerThread;
using device::Warp;

// A tile's rows, which one expert has.
struct TileRows {
  int expert, place, count;
};

template <class T, int kBits, bool kWhole>
struct LayerView {
  using Matrix = Weights<T, kBits, kWhole>;
  using Loaded = typename Matrix::Loaded;
  using Row = typename Matrix::Row;

  Matrix weights, second;
  const T *bias, *second_bias, *x;
  T* y;
  const int *sorted, *offsets, *tile_expert, *tile_place, *tiles;
  device::Divider by_chosen, by_tiles;
  int depth, results, tile_rows;
  float alpha, beta, limit;
  bool limits_product;
  Factors factors;
  MoeActivation activation;
  bool x_of_tokens, y_of_rows;

  LayerView(const Layer& l, const Arrangement& a, int64_t blocks)
      : weights(l.weights, l.depth),
        second(l.factors == Factors::apart ? l.second : l.weights, l.depth),
        bias(static_cast<const T*>(l.bias)),
        second_bias(static_cast<const T*>(l.factors == Factors::apart ? l.second_bias : l.bias)),
        x(static_cast<const T*>(l.x)),
        y(static_cast<T*>(l.y)),
        sorted(a.sorted),
        offsets(a.offsets),
        tile_expert(a.tile_expert),
        tile_place(a.tile_place),
        tiles(a.tiles),
        by_chosen(l.chosen, a.rows),
        by_tiles(a.most_tiles, blocks),
        depth(int(l.depth)),
        results(int(l.results)),
        tile_rows(a.tile_rows),
        alpha(l.alpha),
        beta(l.beta),
        limit(l.limit),
        limits_product(l.limits_product),
        factors(l.factors),
        activation(l.activation),
        x_of_tokens(l.x_of_tokens),
        y_of_rows(l.y_of_rows) {}

  DEVICE_FN bool paired() const { return factors != Factors::single; }
  // The tile of a block, if there is one, and which results the block has. Blocks of the same results, and so with the
  // same weights, are neighbours.
  DEVICE_FN bool find_tile(int64_t block, TileRows& rows, int& group) const {
    int64_t tile;
    group = int(by_tiles(block, tile));
    if (tile >= *tiles) return false;
    rows.expert = tile_expert[tile];
    rows.place = tile_place[tile];
    const int left = offsets[rows.expert + 1] - rows.place;
    rows.count = left < tile_rows ? left : tile_rows;
    return true;
  }
  DEVICE_FN const T* row_of(int place) const {
    int64_t row = place, rest;
    if (x_of_tokens) row = by_chosen(sorted[place], rest);
    return x + row * depth;
  }
  // Eight values of a row of halves from `k` on, where all loads are whole; zeros after its last, and for null.
  DEVICE_FN static Pack<uint32_t, 4> eight_of(const T* row, int k, int depth) {
    if (!row || k >= depth) return {};
    return device::load_words<8>(row + k);
  }
  // Weights of the first or the second factor of a result.
  DEVICE_FN Row weights_of(int expert, int result, bool of_second) const {
    if (result >= results) result = results - 1;  // which nobody asks for
    return (of_second ? second : weights).row(expert, place_of(result, of_second));
  }
  DEVICE_FN void store(int place, int expert, int result, float first, float other) const {
    if (result >= results) return;
    const int64_t row = y_of_rows ? sorted[place] : place;
    if (bias) first += float(bias[int64_t(expert) * weights.rows + place_of(result, false)]);
    if (paired() && second_bias) other += float(second_bias[int64_t(expert) * second.rows + place_of(result, true)]);
    y[row * results + result] = T(activated(first, other));
  }

 private:
  static constexpr bool kRough = sizeof(T) == 2;  // what a half keeps is less
  DEVICE_FN static float sigmoid(float x) { return kRough ? rough_sigmoid(x) : 1.f / (1.f + std::exp(-x)); }
  DEVICE_FN int place_of(int result, bool of_second) const {
    if (factors == Factors::neighbours) return 2 * result + of_second;
    return factors == Factors::halves && of_second ? results + result : result;
  }
  DEVICE_FN float activated(float value, float other) const {
    float out = value;
    if (activation == MoeActivation::relu || activation == MoeActivation::relu2) {
      out = value < 0 ? 0.f : value;
      if (activation == MoeActivation::relu2) out *= out;
    } else if (activation == MoeActivation::gelu || activation == MoeActivation::geglu) {
      out = kRough ? GeluByTanh().rough(value) : GeluByTanh()(value);
    } else if (activation == MoeActivation::silu) {
      out = value * sigmoid(value);
    } else if (activation == MoeActivation::swiglu) {
      if (!limits_product) value = value > limit ? limit : value;
      other = other > limit ? limit : other < -limit ? -limit : other;
      float product = value * sigmoid(alpha * value);
      if (limits_product) product = product > limit ? limit : product;
      return product * (other + beta);
    }
    return paired() ? out * other : out;
  }
};

// Launches Kernel<T, kBits>, a block of which makes `slots` factors of a tile's rows.
template <template <class, int> class Kernel, class Types>
void launch_expert_tiles(Context& context, const Layer& layer, const Arrangement& a, Types types, int slots,
                         int threads) {
  const int64_t width = layer.factors == Factors::single ? slots : slots / 2;
  const int64_t blocks = checked_product((layer.results + width - 1) / width, a.most_tiles);
  dispatch(types, layer.type, [&]<class T> {
    dispatch_bits(layer.weights.bits, [&]<int kBits> {
      using Made = Kernel<T, kBits>;
      device::block_kernel<typename Made::Shared>(context.stream(), {blocks, threads},
                                                  Made{typename Made::View(layer, a, blocks)});
    });
  });
}

}  // namespace encore::ops
