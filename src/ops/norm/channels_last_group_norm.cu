// GroupNorm and SkipGroupNorm: images whose channels are neighbours, normalised by groups of channels. Where a cluster
// of blocks can keep what it has of an image, one launch does all of it; else one takes sums of slabs of pixels, and
// another joins them and normalises.
#include "device/device.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/norm/group_norm_cluster.h"
#include "ops/norm/rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::PerThread;

// As pieces of each group.
template <class T, int kPack, bool kSkips>
struct TakeGroupSums {
  static constexpr int kMaxThreads = GroupCut::kThreads;
  using Shared = Staged;

  GroupedImages<T, kPack, kSkips> images;
  T* sum;  // x + skip + bias
  Spreading* out;

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& shared) const {
    const GroupCut& cut = images.cut;
    const GroupPiece piece(cut, b.index());
    b.threads([&](int t, Shared& s) {
      images.add_up(piece, t, b.template dynamic<Sums>(s), [&](int pixel, int first, const auto& values) {
        if constexpr (kSkips) device::store_pack(sum + piece.offset(cut, pixel, first), values, true);
      });
    });
    Spreading* const own = out + (piece.image * cut.groups + piece.first_group) * cut.pieces() + piece.slab * cut.parts;
    images.join_sums(b, shared, piece,
                     [&](Shared&, int group, Spreading of) { own[group * cut.pieces() + piece.part] = of; });
  }
};

template <class T, int kPack>
struct NormalizeByGroup {
  static constexpr int kMaxThreads = GroupCut::kThreads;
  using Shared = Staged;
  using Block = device::Block<Shared>;

  GroupCut cut;
  const T* x;
  const Spreading* in;
  GroupNormed<T, kPack> normed;

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const GroupPiece piece(cut, b.index());
    if (piece.groups * 32 <= b.size())
      join_pieces<32>(b, piece);
    else
      join_pieces<8>(b, piece);
    b.threads([&](int t, Shared& s) {
      normed.store(
          cut, piece, t, b.template dynamic<Sums>(s),
          [&](int first, float(&gamma)[kPack], float(&beta)[kPack]) {
            normed.read_affine(piece.first_channel + first, gamma, beta);
          },
          [&](int pixel, int first) {
            const T* const from = x + piece.offset(cut, pixel, first);
            if constexpr (kPack > 1)
              return device::load_words<kPack>(from);
            else
              return device::load_pack<1>(from, true);
          });
    });
  }

 private:
  // So many threads join a group's pieces.
  template <int kLanes>
  DEVICE_FN void join_pieces(Block& b, const GroupPiece& piece) const {
    const int teams = b.size() / kLanes;
    for (int base = 0; base < piece.groups; base += teams) {
      const float count = float(cut.pixels) * float(cut.group);
      PerThread<float, kMaxThreads> total, squares;
      const auto each = [&](int t, auto f) {
        const int group = base + t / kLanes;
        float all = 0;
        if (group >= piece.groups) return all;
        const Spreading* own = in + (piece.image * cut.groups + piece.first_group + group) * cut.pieces();
        for (int i = t % kLanes; i < cut.pieces(); i += kLanes) {
          const int slab = cut.parts == 1 ? i : i / cut.parts;
          const float size =
              float(GroupPiece::pixels_of(cut, slab)) * float(GroupPiece::width_of(cut, i - slab * cut.parts));
          all += f(own[i], size);
        }
        return all;
      };
      b.template reduce_groups<kLanes>(
          total, [&](int t) { return each(t, [](Spreading own, float size) { return own.mean * size; }); }, Plus());
      b.template reduce_groups<kLanes>(
          squares,
          [&](int t) {
            const float mean = total[t] / count;
            return each(t, [&](Spreading own, float size) {
              return own.squares + size * (own.mean - mean) * (own.mean - mean);
            });
          },
          Plus());
      b.threads([&](int t, Shared& s) {
        const int group = base + t / kLanes;
        if (t % kLanes == 0 && group < piece.groups)
          b.template dynamic<Sums>(s)[group] = normed.scale_of(total[t] / count, squares[t] / count);
      });
    }
  }
};

// Threads of a block that has `pixels` of an image.
void spread_threads(GroupCut& cut, int pack, int64_t pixels) {
  cut.unit = cut.parts > 1 || cut.group % pack == 0 ? pack : 1;
  cut.packs = (cut.chunk + pack - 1) / pack;
  cut.at_once = int(std::min<int64_t>(std::max(1, GroupCut::kThreads / cut.packs), pixels));
  cut.threads = (cut.packs * cut.at_once + 31) / 32 * 32;
}

void cut_pixels(GroupCut& cut, int64_t slabs) {
  cut.slab_pixels = (cut.pixels + slabs - 1) / slabs;
  cut.slabs = int((cut.pixels + cut.slab_pixels - 1) / cut.slab_pixels);
}

// How to cut so for packs of `pack` channels; no chunks where such packs would belong to two blocks.
GroupCut cut_images(int64_t images, int64_t pixels, int64_t channels, int64_t groups, int pack,
                    int64_t multiprocessors) {
  const int64_t group = channels / groups, most = int64_t(GroupCut::kThreads) * pack;
  GroupCut cut{channels, pixels, int(groups), int(group)};
  if (group <= most) {
    int64_t own = std::min({most / group, groups, int64_t(GroupCut::kMostGroups)});
    if (own < groups)
      while (own * group % pack != 0) --own;
    if (own == 0) return cut;
    cut.whole_groups = int(own);
    cut.chunk = int(own * group);
    cut.chunks = int((groups + own - 1) / own);
  } else {
    if (group % pack != 0) return cut;
    cut.parts = int((group + most - 1) / most);
    cut.chunk = int(most);
    cut.chunks = int(groups * cut.parts);
  }
  spread_threads(cut, pack, pixels);
  // As many slabs as fill the GPU, but of few pixels not so many that joining them takes longer.
  const int64_t others = images * cut.chunks, wanted = (2 * multiprocessors + others - 1) / others;
  const int64_t rounds = (pixels + cut.at_once - 1) / cut.at_once;
  const int64_t slabs = std::min({wanted, rounds, std::max<int64_t>(128, rounds / 16)});
  cut_pixels(cut, std::max(slabs, (pixels + (1 << 30)) >> 30));
  require(others <= ((int64_t(1) << 31) - 1) / cut.slabs, images, " images of ", channels, " channels are too many");
  return cut;
}

// Of whole groups, as few as still are neighbours for so long that memory is read well. No chunks where threads would
// have more than a pack or two, or multiprocessors more than a block: two launches are over sooner then.
GroupCut cut_for_clusters(int64_t images, int64_t pixels, int64_t channels, int64_t groups, int pack,
                          int64_t most_blocks, int64_t multiprocessors) {
  constexpr int64_t kMostPacks = 2 * GroupCut::kThreads;  // of a block
  const int64_t group = channels / groups, neighbours = 2 * pack;
  GroupCut cut{channels, pixels, int(groups), int(group)};
  int64_t own = std::min(groups, (neighbours + group - 1) / group);
  while (own < groups && own * group % pack != 0) ++own;
  const int64_t packs = (own * group + pack - 1) / pack, chunks = (groups + own - 1) / own;
  if (own > GroupCut::kMostGroups || packs > GroupCut::kThreads || pixels > most_blocks * kMostPacks / packs)
    return cut;
  if (images > multiprocessors / chunks) return cut;
  int64_t blocks = 1;
  while (blocks < most_blocks && pixels * packs > blocks * GroupCut::kThreads) blocks *= 2;
  while ((blocks - 1) * ((pixels + blocks - 1) / blocks) >= pixels) blocks /= 2;  // each has some
  cut.whole_groups = int(own);
  cut.chunk = int(own * group);
  cut_pixels(cut, blocks);
  if (images * chunks * blocks > multiprocessors || cut.slab_pixels * packs > kMostPacks) return cut;
  cut.chunks = int(chunks);
  spread_threads(cut, pack, cut.slab_pixels);
  return cut;
}

template <bool kSkips>
class GroupNorm : public Op {
 public:
  explicit GroupNorm(const NodeInfo& node)
      : groups_(node.get_int("groups", 0)), epsilon_(node.get_float("epsilon", 1e-5f)) {
    if (read_flag(node, "activation", false)) activation_.kind = Activation::Kind::silu;
    if (node.find_string("ending")) activation_ = Activation::of(node, "ending");  // which only fusion gives
    require(groups_ >= 1 && groups_ < (int64_t(1) << 31), "groups is ", groups_, "; it must be at least 1");
    require(epsilon_ >= 0, "epsilon is ", epsilon_, "; it must not be negative");
    if (node.get_int("channels_last", 1) == 0)
      fail(Code::not_supported, "channels_last is 0; only channels that are neighbours are supported");
  }

  void run(Context& context) const override {
    const Tensor &x = context.input(0), &gamma = context.input(1), &beta = context.input(2);
    const int rank = x.shape.rank();
    require(rank >= 3, "X ", x.shape.str(), " must have three dimensions or more");
    const int64_t images = x.shape[0], channels = x.shape[rank - 1], pixels = x.shape.count(1, rank - 1);
    require(channels % groups_ == 0, "the ", channels, " channels of X cannot be divided by groups ", groups_);
    const auto check = [&](const Tensor& given, const char* what) {
      require(given.shape == Shape{channels}, what, " has shape ", given.shape.str(), "; X ", x.shape.str(), " wants [",
              channels, "]");
    };
    check(gamma, "gamma");
    check(beta, "beta");
    const Tensor *skip = nullptr, *bias = nullptr;
    if constexpr (kSkips) {
      skip = &context.input(3);
      bias = context.find_input(4);
      if (bias) check(*bias, "bias");
      require(skip->shape == x.shape || skip->shape == Shape{images, channels} ||
                  skip->shape == Shape{images, 1, 1, channels},
              "skip ", skip->shape.str(), " does not fit X ", x.shape.str());
    }
    const Tensor y = context.output(0, x.shape);
    // Where nobody wants the sum, it is where the result will be.
    Tensor sum = y;
    if (kSkips && context.wants_output(1)) sum = context.output(1, x.shape);
    if (x.count() == 0) return;
    require(channels < (int64_t(1) << 31), "an image of ", channels, " channels is too wide");
    const int device = context.stream().device();
    const int64_t multiprocessors = device::multiprocessors(device);
    dispatch(TypeList<float, Half>{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kPack>() {
        const auto images_of = [&](const GroupCut& cut) {
          return GroupedImages<T, kPack, kSkips>{cut, x.as<const T>(), skip ? skip->as<const T>() : nullptr,
                                                 bias ? bias->as<const T>() : nullptr, skip && skip->shape != x.shape};
        };
        const GroupNormed<T, kPack> normed{
            y.as<T>(), {gamma.data, gamma.type}, {beta.data, beta.type}, epsilon_, activation_};
        if constexpr (kPack > 1) {
          using Together = GroupNormTogether<T, kPack, kSkips>;
          const int most = device::most_in_cluster<typename Together::Shared, Together>(device);
          const GroupCut cut = cut_for_clusters(images, pixels, channels, groups_, kPack, most, multiprocessors);
          if (cut.chunks > 0 && Together::dynamic_bytes(cut) <= Together::kDynamicBytes) {
            device::cluster_kernel<typename Together::Shared>(
                context.stream(), {images * cut.chunks, cut.slabs, cut.threads, Together::dynamic_bytes(cut)},
                Together{images_of(cut), sum.data == y.data ? nullptr : sum.as<T>(), normed});
            return true;
          }
        }
        const GroupCut cut = cut_images(images, pixels, channels, groups_, kPack, multiprocessors);
        if (kPack > 1 && cut.chunks == 0) return false;
        auto* pieces = static_cast<Spreading*>(
            context.scratch(size_t(images) * size_t(groups_) * size_t(cut.pieces()) * sizeof(Spreading)));
        device::Blocks grid{images * cut.chunks * cut.slabs, cut.threads};
        grid.dynamic_bytes = cut.sums() * int64_t(sizeof(Sums));
        device::block_kernel<Staged>(context.stream(), grid,
                                     TakeGroupSums<T, kPack, kSkips>{images_of(cut), sum.as<T>(), pieces});
        grid.dynamic_bytes = cut.whole_groups * int64_t(sizeof(Sums));
        device::block_kernel<Staged>(
            context.stream(), grid,
            NormalizeByGroup<T, kPack>{cut, kSkips ? sum.as<const T>() : x.as<const T>(), pieces, normed});
        return true;
      };
      constexpr int kWide = device::pack_size<T>();
      bool whole = channels % kWide == 0;
      for (const void* data :
           {static_cast<const void*>(x.data), static_cast<const void*>(y.data), static_cast<const void*>(sum.data),
            static_cast<const void*>(skip ? skip->data : nullptr),
            static_cast<const void*>(bias ? bias->data : nullptr)})
        whole &= device::is_pack_aligned<kWide>(static_cast<const T*>(data));
      if (!whole || !launch.template operator()<kWide>()) launch.template operator()<1>();
    });
  }

 private:
  int64_t groups_;
  float epsilon_;
  Activation activation_;
};

template <bool kSkips>
OpRow group_norm_row(const char* name) {
  const Types values{Type::f32, Type::f16};
  std::vector<TypeRule> types = {in(0, values), in(1, values), in(2, values)};
  if (kSkips) types.insert(types.end(), {in(3, values), in(4, values)});
  return {.domain = kMicrosoft, .name = name, .since = 1, .types = types, .make = make<GroupNorm<kSkips>>};
}

}  // namespace

std::vector<OpRow> channels_last_group_norm_rows() {
  return {group_norm_row<false>("GroupNorm"), group_norm_row<true>("SkipGroupNorm")};
}

}  // namespace encore::ops
