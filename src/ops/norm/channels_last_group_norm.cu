// GroupNorm and SkipGroupNorm: images whose channels are neighbours, normalised by groups of channels. One launch takes
// sums of slabs of pixels, another joins them and normalises.
#include <bit>
#include <cmath>

#include "device/words.h"
#include "ops/choice.h"
#include "ops/dispatch.h"
#include "ops/nn/activation.h"
#include "ops/nn/batch_statistics.h"
#include "ops/norm/rows.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Pack;
using device::PerThread;

constexpr int kThreads = 512;

// How images are cut. A block has a slab of an image's pixels, and of these a chunk of channels: some whole groups, or
// one of the parts of a group that is too wide for a block. A thread has one pack of channels in every `at_once`-th
// pixel.
struct Cut {
  int64_t channels, pixels;
  int groups, group;  // how many, and channels in one
  int parts = 1, whole_groups = 1, chunk, chunks;
  int unit;  // channels whose sums a thread joins: those of a pack, if they are of one group, else each is alone
  int packs, at_once, threads;
  int64_t slab_pixels;
  int slabs;

  DEVICE_FN int pieces() const { return slabs * parts; }  // of which a group consists
};
// What a block has.
struct Piece {
  int64_t image, first_channel, first_pixel;
  int pixels, first_group, groups, part, width, slab;

  DEVICE_FN Piece(const Cut& cut, int64_t index) {
    const auto i = uint32_t(index);
    slab = int(i % uint32_t(cut.slabs));
    const int chunk = int(i / uint32_t(cut.slabs) % uint32_t(cut.chunks));
    image = i / uint32_t(cut.slabs) / uint32_t(cut.chunks);
    first_pixel = slab * cut.slab_pixels;
    pixels = pixels_of(cut, slab);
    part = chunk % cut.parts;
    first_group = chunk / cut.parts * cut.whole_groups;
    groups = cut.groups - first_group < cut.whole_groups ? cut.groups - first_group : cut.whole_groups;
    first_channel = int64_t(first_group) * cut.group + part * cut.chunk;
    width = cut.parts > 1 ? width_of(cut, part) : groups * cut.group;
  }
  DEVICE_FN static int pixels_of(const Cut& cut, int slab) {
    const int64_t left = cut.pixels - slab * cut.slab_pixels;
    return int(left < cut.slab_pixels ? left : cut.slab_pixels);
  }
  DEVICE_FN static int width_of(const Cut& cut, int part) {
    const int left = cut.group - part * cut.chunk;
    return cut.parts == 1 ? cut.group : left < cut.chunk ? left : cut.chunk;
  }
  // Calls f(first channel in the chunk, first of the thread's pixels) if the thread has any.
  template <int kPack, class F>
  DEVICE_FN void own(const Cut& cut, int t, F f) const {
    const int row = t / cut.packs, first = (t - row * cut.packs) * kPack;
    if (row < cut.at_once && first < width) f(first, row);
  }
};

// Mean and sum of squared differences from it.
struct Spreading {
  float mean, squares;
};
struct Sums {
  float values, squares;
};
struct AddSums {
  DEVICE_FN Sums operator()(Sums a, Sums b) const { return {a.values + b.values, a.squares + b.squares}; }
};

// Sums of values less one of their group's, which is near the mean: squares of what is far from zero leave no digits.
template <class T, int kPack, bool kSkips>
struct TakeGroupSums {
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kAhead = kSkips ? 2 : 4;  // pixels that a thread asks for before it needs the first
  using Shared = Staged;
  using Block = device::Block<Shared>;

  Cut cut;
  const T *x, *skip, *bias;
  bool skip_repeats;  // one pixel for a whole image
  T* sum;             // x + skip + bias
  Spreading* out;     // of each group its pieces

  DEVICE_FN void operator()(Block& b, const Shared& s) const {
    const Piece piece(cut, b.index());
    b.threads([&](int t, Shared& s) {
      Sums* sums = b.template dynamic<Sums>(s);
      piece.own<kPack>(cut, t, [&](int first, int row) {
        float values[kPack] = {}, squares[kPack] = {};
        Read<1> middle[kPack];
        int rest = cut.parts > 1 ? first : first % cut.group;
        UNROLL for (int j = 0; j < kPack; ++j) {
          middle[j] = load<1>(piece, 0, first + j - rest);
          if (++rest == cut.group && cut.parts == 1) rest = 0;
        }
        for (int pixel = row; pixel < piece.pixels; pixel += kAhead * cut.at_once) {
          const auto each = [&](auto f) {
            UNROLL for (int k = 0; k < kAhead; ++k) {
              if (pixel + k * cut.at_once < piece.pixels) f(k, pixel + k * cut.at_once);
            }
          };
          Read<kPack> read[kAhead];
          each([&](int k, int at) { read[k] = load<kPack>(piece, at, first); });
          each([&](int k, int at) {
            if constexpr (kSkips) {
              Pack<T, kPack> rounded;
              UNROLL for (int j = 0; j < kPack; ++j) rounded.at[j] = T(read[k].at[j]);
              device::store_pack(sum + offset(piece, at, first), rounded, true);
            }
            UNROLL for (int j = 0; j < kPack; ++j) {
              const float v = float(read[k].at[j]) - float(middle[j].at[0]);
              values[j] += v;
              squares[j] += v * v;
            }
          });
        }
        if (cut.unit == kPack) {
          Sums own = {0, 0};
          UNROLL for (int j = 0; j < kPack; ++j) own = AddSums()(own, {values[j], squares[j]});
          sums[(row * piece.width + first) / kPack] = own;
        } else {
          UNROLL for (int j = 0; j < kPack; ++j) sums[row * piece.width + first + j] = {values[j], squares[j]};
        }
      });
    });
    // Warps join a group's sums, more than one if there are more than groups.
    const int warps = b.size() / 32, of_group = warps > piece.groups ? warps / piece.groups : 1;
    const int teams = warps / of_group, width = cut.parts > 1 ? piece.width : cut.group;
    for (int base = 0; base < piece.groups; base += teams) {
      PerThread<Sums, kMaxThreads> all;
      b.template reduce_groups<32>(
          all,
          [&](int t) {
            Sums own = {0, 0};
            const int team = t / 32 / of_group, group = base + team;
            if (team >= teams || group >= piece.groups) return own;
            const int units = width / cut.unit, row_units = piece.width / cut.unit;
            const Sums* sums = b.template dynamic<Sums>(s) + group * units;
            for (int i = t - team * of_group * 32; i < cut.at_once * units; i += of_group * 32) {
              const int row = i / units;
              own = AddSums()(own, sums[row * row_units + i - row * units]);
            }
            return own;
          },
          AddSums());
      if (of_group > 1)
        b.threads([&](int t, Shared& s) {
          if (t % 32 == 0) b.template dynamic<Sums>(s)[t / 32] = all[t];
        });
      b.threads([&](int t, Shared& s) {
        const int team = t / 32 / of_group, group = base + team;
        if (t != team * of_group * 32 || team >= teams || group >= piece.groups) return;
        Sums own = all[t];
        for (int k = 1; k < of_group; ++k) own = AddSums()(own, b.template dynamic<Sums>(s)[t / 32 + k]);
        const float count = float(piece.pixels) * float(width), mean = own.values / count;
        const float squares = own.squares - own.values * mean;
        out[(piece.image * cut.groups + piece.first_group + group) * cut.pieces() + piece.slab * cut.parts +
            piece.part] = {sample(piece, group * width) + mean, squares < 0 ? 0.f : squares};
      });
    }
  }

 private:
  DEVICE_FN int64_t offset(const Piece& piece, int pixel, int first) const {
    return (piece.image * cut.pixels + piece.first_pixel + pixel) * cut.channels + piece.first_channel + first;
  }
  DEVICE_FN float sample(const Piece& piece, int channel) const { return float(load<1>(piece, 0, channel).at[0]); }
  // Sums are not rounded.
  template <int kCount>
  using Read = Pack<std::conditional_t<kSkips, float, T>, kCount>;
  template <int kCount>
  DEVICE_FN Read<kCount> load(const Piece& piece, int pixel, int first) const {
    const int64_t at = offset(piece, pixel, first), channel = piece.first_channel + first;
    const auto read = device::load_pack<kCount>(x + at, true);
    if constexpr (!kSkips) {
      return read;
    } else {
      Read<kCount> values;
      UNROLL for (int j = 0; j < kCount; ++j) values.at[j] = float(read.at[j]);
      const auto add = [&](const T* from) {
        const auto more = device::load_pack<kCount>(from, true);
        UNROLL for (int j = 0; j < kCount; ++j) values.at[j] += float(more.at[j]);
      };
      add(skip + (skip_repeats ? piece.image * cut.channels + channel : at));
      if (bias) add(bias + channel);
      return values;
    }
  }
};

template <class T, int kPack>
struct NormalizeByGroup {
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kAhead = 4;
  using Shared = Staged;
  using Block = device::Block<Shared>;
  using Kept = std::conditional_t<(kPack > 1), device::WordsOf<T, kPack>, Pack<T, kPack>>;

  Cut cut;
  const T* x;
  T* y;
  const Spreading* in;
  PerChannel gamma, beta;
  float epsilon;
  Activation activation;

  DEVICE_FN void operator()(Block& b, const Shared&) const {
    const Piece piece(cut, b.index());
    if (piece.groups * 32 <= b.size())
      join_pieces<32>(b, piece);
    else
      join_pieces<8>(b, piece);
    b.threads([&](int t, Shared& s) {
      const Sums* of_groups = b.template dynamic<Sums>(s);  // mean, and what is one over the deviation
      piece.own<kPack>(cut, t, [&](int first, int row) {
        float factor[kPack], added[kPack];
        gamma.read(piece.first_channel + first, factor);
        beta.read(piece.first_channel + first, added);
        int group = cut.parts > 1 ? 0 : first / cut.group, rest = first - group * cut.group;
        UNROLL for (int j = 0; j < kPack; ++j) {
          if (cut.parts == 1 && rest == cut.group) {
            rest = 0;
            ++group;
          }
          ++rest;
          factor[j] *= of_groups[group].squares;
          added[j] -= of_groups[group].values * factor[j];
        }
        const int64_t begin =
            (piece.image * cut.pixels + piece.first_pixel) * cut.channels + piece.first_channel + first;
        activation.choose<T, false>([&](auto curve) {
          for (int pixel = row; pixel < piece.pixels; pixel += kAhead * cut.at_once) {
            Kept kept[kAhead];
            const auto each = [&](auto f) {
              UNROLL for (int k = 0; k < kAhead; ++k) {
                const int at = pixel + k * cut.at_once;
                if (at < piece.pixels) f(kept[k], begin + at * cut.channels);
              }
            };
            each([&](Kept& own, int64_t at) {
              if constexpr (kPack > 1)
                own = device::load_words<kPack>(x + at);
              else
                own = device::load_pack<1>(x + at, true);
            });
            each([&](const Kept& own, int64_t at) {
              auto values = std::bit_cast<Pack<T, kPack>>(own);
              UNROLL for (int j = 0; j < kPack; ++j) {
                values.at[j] = T(curve(float(values.at[j]) * factor[j] + added[j]));
              }
              device::store_pack(y + at, values, true);
            });
          }
        });
      });
    });
  }

 private:
  // So many threads join a group's pieces.
  template <int kLanes>
  DEVICE_FN void join_pieces(Block& b, const Piece& piece) const {
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
          const float size = float(Piece::pixels_of(cut, slab)) * float(Piece::width_of(cut, i - slab * cut.parts));
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
          b.template dynamic<Sums>(s)[group] = {total[t] / count, 1.f / std::sqrt(squares[t] / count + epsilon)};
      });
    }
  }
};

// How to cut so for packs of `pack` channels, or a Cut of no chunks where such packs would belong to two blocks.
Cut cut_images(int64_t images, int64_t pixels, int64_t channels, int64_t groups, int pack, int64_t multiprocessors) {
  constexpr int64_t kMostGroups = 64;  // of a block, which joins the sums of all their pieces
  const int64_t group = channels / groups, most = int64_t(kThreads) * pack;
  require(channels < (int64_t(1) << 31), "an image of ", channels, " channels is too wide");
  Cut cut{channels, pixels, int(groups), int(group)};
  if (group <= most) {
    int64_t own = std::min({most / group, groups, kMostGroups});
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
  cut.unit = cut.parts > 1 || group % pack == 0 ? pack : 1;
  cut.packs = (cut.chunk + pack - 1) / pack;
  cut.at_once = int(std::min<int64_t>(std::max(1, kThreads / cut.packs), pixels));
  cut.threads = (cut.packs * cut.at_once + 31) / 32 * 32;
  // As many slabs as fill the GPU, but of few pixels not so many that joining them takes longer.
  const int64_t others = images * cut.chunks, wanted = (2 * multiprocessors + others - 1) / others;
  const int64_t rounds = (pixels + cut.at_once - 1) / cut.at_once;
  int64_t slabs = std::min({wanted, rounds, std::max<int64_t>(128, rounds / 16)});
  slabs = std::max(slabs, (pixels + (1 << 30)) >> 30);
  cut.slab_pixels = (pixels + slabs - 1) / slabs;
  cut.slabs = int((pixels + cut.slab_pixels - 1) / cut.slab_pixels);
  require(others <= ((int64_t(1) << 31) - 1) / cut.slabs, images, " images of ", channels, " channels are too many");
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
    dispatch(TypeList<float, Half>{}, x.type, [&]<class T>() {
      const auto launch = [&]<int kPack>() {
        const Cut cut =
            cut_images(images, pixels, channels, groups_, kPack, device::multiprocessors(context.stream().device()));
        if (kPack > 1 && cut.chunks == 0) return false;
        auto* pieces = static_cast<Spreading*>(
            context.scratch(size_t(images) * size_t(groups_) * size_t(cut.slabs * cut.parts) * sizeof(Spreading)));
        device::Blocks grid{images * cut.chunks * cut.slabs, cut.threads};
        grid.dynamic_bytes = int64_t(cut.at_once) * (cut.chunk / cut.unit) * int64_t(sizeof(Sums));
        device::block_kernel<Staged>(
            context.stream(), grid,
            TakeGroupSums<T, kPack, kSkips>{cut, x.as<const T>(), skip ? skip->as<const T>() : nullptr,
                                            bias ? bias->as<const T>() : nullptr, skip && skip->shape != x.shape,
                                            sum.as<T>(), pieces});
        grid.dynamic_bytes = cut.whole_groups * int64_t(sizeof(Sums));
        device::block_kernel<Staged>(context.stream(), grid,
                                     NormalizeByGroup<T, kPack>{cut,
                                                                kSkips ? sum.as<const T>() : x.as<const T>(),
                                                                y.as<T>(),
                                                                pieces,
                                                                {gamma.data, gamma.type},
                                                                {beta.data, beta.type},
                                                                epsilon_,
                                                                activation_});
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
