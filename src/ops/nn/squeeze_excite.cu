#include "ops/nn/squeeze_excite.h"

#include <algorithm>
#include <optional>

#include "device/device.h"
#include "ops/dispatch.h"
#include "ops/nn/squeeze_excite_cluster.h"
#include "ops/nn/squeeze_then_excite.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// For two launches. Chunks are a line of the cache wide, or less where many rows of weights are, and slabs as many as
// give each multiprocessor a block and all its threads a position.
PictureCut cut_for_all(int64_t images, int64_t positions, int64_t channels, int64_t squeezed, int pack, int size,
                       int64_t multiprocessors) {
  constexpr int64_t kLine = 128, kMostWeights = 32 * 1024;  // with the rest what any multiprocessor has room for
  int64_t most_packs = std::max<int64_t>(std::min(kLine, kMostWeights / squeezed) / (size * pack), 1);
  while (!PictureCut::has_room(squeezed, most_packs)) --most_packs;
  const int64_t all = ceil(channels, pack), packs = ceil(all, ceil(all, most_packs));
  const int64_t chunks = ceil(all, packs), others = checked_product(images, chunks);
  // Every part that a slab makes is read by all blocks of the picture.
  const int64_t most_slabs = ceil(positions, PictureCut::kThreads / packs);
  const int64_t wanted =
      std::max(std::clamp<int64_t>(multiprocessors / others, 1, most_slabs), ceil(positions, int64_t(1) << 30));
  const int64_t slabs = ceil(positions, ceil(positions, wanted));  // none of them empty
  require(std::max(others, checked_product(chunks, squeezed)) <= ((int64_t(1) << 31) - 1) / slabs, images,
          " pictures of ", channels, " channels are too many");
  return {positions, channels, squeezed, pack, chunks, slabs};
}

// For a cluster of so many blocks, if these have room for a picture. The less they move the better.
template <class Kernel>
std::optional<PictureCut> cut_for_cluster(int64_t positions, int64_t channels, int64_t squeezed, int64_t blocks) {
  constexpr int64_t kMostPacks = PictureCut::kMostWidth / Kernel::kPack;
  std::optional<PictureCut> best;
  for (int64_t chunks = 1; chunks <= blocks; chunks *= 2) {
    const int64_t packs = ceil(channels / Kernel::kPack, chunks), slab = ceil(positions, blocks / chunks);
    if (packs > kMostPacks || slab > Kernel::kDynamicBytes || !PictureCut::has_room(squeezed, packs)) continue;
    const PictureCut cut(positions, channels, squeezed, Kernel::kPack, chunks, blocks / chunks);
    const int64_t bytes = Kernel::dynamic_bytes(cut);
    if (bytes <= Kernel::kDynamicBytes && (!best || bytes < Kernel::dynamic_bytes(*best))) best = cut;
  }
  return best;
}

// Of many pictures each has fewer blocks, for all to run at once, if these have room for it.
template <class T>
bool in_one_launch(StreamRef stream, const GatedPictures<T>& pictures, int64_t images, int64_t positions,
                   int64_t channels, int64_t squeezed) {
  using Kernel = SqueezeExciteTogether<T>;
  using Shared = typename Kernel::Shared;
  const int most = device::most_in_cluster<Shared, Kernel>(stream.device());
  const int64_t at_once = 2 * int64_t(device::multiprocessors(stream.device()));
  int blocks = most;
  while (blocks > 2 && images > at_once / blocks) blocks /= 2;
  for (; blocks > 1 && blocks <= most; blocks *= 2) {
    const auto cut = cut_for_cluster<Kernel>(positions, channels, squeezed, blocks);
    if (!cut) continue;
    device::cluster_kernel<Shared>(stream, {images, blocks, Kernel::kThreads, Kernel::dynamic_bytes(*cut)},
                                   Kernel{*cut, pictures});
    return true;
  }
  return false;
}

template <int kPack, class T>
void in_two_launches(Context& context, const GatedPictures<T>& pictures, int64_t images, int64_t positions,
                     int64_t channels, int64_t squeezed) {
  const PictureCut cut = cut_for_all(images, positions, channels, squeezed, kPack, sizeof(T),
                                     device::multiprocessors(context.stream().device()));
  const int64_t blocks = images * cut.parts();
  auto* const parts = static_cast<float*>(context.scratch(size_t(blocks * squeezed) * sizeof(float)));
  const device::Blocks grid{blocks, PictureCut::kThreads, PictureBatches<T, kPack>::dynamic_bytes(cut)};
  device::block_kernel<PictureSums<T>>(context.stream(), grid, Squeeze<T, kPack>{cut, pictures, parts});
  device::block_kernel<PictureSums<T>>(context.stream(), grid, Excite<T, kPack>{cut, pictures, parts});
}

class SqueezeExcite : public Op {
 public:
  explicit SqueezeExcite(const NodeInfo& node)
      : squeeze_activation_(Activation::of(node, "squeeze_activation")),
        gate_activation_(Activation::of(node, "gate_activation")),
        activation_(Activation::of(node)) {}

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &squeeze = context.input(1), &excite = context.input(3);
    require(x.shape.rank() >= 3 && squeeze.shape.rank() >= 2, "X ", x.shape.str(), " is no picture, or the weights ",
            squeeze.shape.str(), " no matrix");
    const int last = x.shape.rank() - 1;
    const int64_t images = x.shape[0], channels = x.shape[last], positions = x.shape.count(1, last),
                  squeezed = squeeze.shape[0];
    require(squeezed >= 1 && squeezed <= kMostSqueezed && channels <= int64_t(1) << 30, channels,
            " channels are squeezed to ", squeezed, "; ", kMostSqueezed, " are most");
    const auto check = [&](const Tensor* given, int64_t count, Type type) {
      require(!given || (given->count() == count && given->type == type), "X ", x.shape.str(), " does not fit ",
              device::name(given ? given->type : type), " ", given ? given->shape.str() : "");
      return given ? given->data : nullptr;
    };
    check(&squeeze, checked_product(squeezed, channels), x.type);
    check(&excite, checked_product(squeezed, channels), x.type);
    const void *const squeeze_bias = check(context.find_input(2), squeezed, x.type),
                      *const gate_bias = check(context.find_input(4), channels, x.type),
                      *const factors = check(context.find_input(5), channels, Type::f32),
                      *const summands = check(context.find_input(6), channels, Type::f32);
    const Tensor y = context.output(0, x.shape);
    if (x.count() == 0) return;
    dispatch(TypeList<float, Half, BFloat16>{}, x.type, [&]<class T> {
      const GatedPictures<T> pictures{x.as<const T>(),
                                      squeeze.as<const T>(),
                                      static_cast<const T*>(squeeze_bias),
                                      excite.as<const T>(),
                                      static_cast<const T*>(gate_bias),
                                      static_cast<const float*>(factors),
                                      static_cast<const float*>(summands),
                                      y.as<T>(),
                                      squeeze_activation_,
                                      gate_activation_,
                                      activation_};
      constexpr int kWide = device::pack_size<T>();
      bool in_packs = channels % kWide == 0;
      for (const Tensor* each : {&x, &squeeze, &excite, &y})
        in_packs &= device::is_pack_aligned<kWide>(each->as<const T>());
      if (!in_packs)
        in_two_launches<1>(context, pictures, images, positions, channels, squeezed);
      else if (!in_one_launch(context.stream(), pictures, images, positions, channels, squeezed))
        in_two_launches<kWide>(context, pictures, images, positions, channels, squeezed);
    });
  }

 private:
  Activation squeeze_activation_, gate_activation_, activation_;
};

}  // namespace

std::unique_ptr<Op> make_squeeze_excite(const NodeInfo& node) { return make<SqueezeExcite>(node); }

}  // namespace encore::ops
