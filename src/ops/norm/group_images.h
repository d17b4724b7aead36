// Images whose channels are neighbours, cut for norms of groups of channels: what a block has, what it adds up of it,
// and how it normalises it.
#pragma once
#include <bit>
#include <cmath>
#include <type_traits>

#include "device/words.h"
#include "ops/nn/activation.h"
#include "ops/nn/batch_statistics.h"

namespace encore::ops {

// How images are cut. A block has a slab of an image's pixels, and of these a chunk of channels: some whole groups, or
// one of the parts of a group that is too wide for a block. A thread has one pack of channels in every `at_once`-th
// pixel.
struct GroupCut {
  static constexpr int kThreads = 512, kMostGroups = 64;  // of a block

  int64_t channels, pixels;
  int groups, group;  // how many, and channels in one
  int parts = 1, whole_groups = 1, chunk, chunks;
  int unit;  // channels whose sums a thread joins: those of a pack, if they are of one group, else each is alone
  int packs, at_once, threads;
  int64_t slab_pixels;
  int slabs;

  BOTH_FN int pieces() const { return slabs * parts; }           // of which a group consists
  BOTH_FN int sums() const { return at_once * (chunk / unit); }  // of a block
};

// What a block has.
struct GroupPiece {
  int64_t image, first_channel, first_pixel;
  int pixels, first_group, groups, part, width, slab;

  DEVICE_FN GroupPiece(const GroupCut& cut, int64_t index) {
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
  DEVICE_FN static int pixels_of(const GroupCut& cut, int slab) {
    const int64_t left = cut.pixels - slab * cut.slab_pixels;
    return int(left < cut.slab_pixels ? left : cut.slab_pixels);
  }
  DEVICE_FN static int width_of(const GroupCut& cut, int part) {
    const int left = cut.group - part * cut.chunk;
    return cut.parts == 1 ? cut.group : left < cut.chunk ? left : cut.chunk;
  }
  // Of an image's values.
  DEVICE_FN int64_t offset(const GroupCut& cut, int pixel, int channel) const {
    return (image * cut.pixels + first_pixel + pixel) * cut.channels + first_channel + channel;
  }
  // Calls f(first channel in the chunk, first of the thread's pixels) if the thread has any.
  template <int kPack, class F>
  DEVICE_FN void own(const GroupCut& cut, int t, F f) const {
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

// x, or x + skip + bias. Sums are of values less one of their group's, which is near the mean: squares of what is far
// from zero leave no digits.
template <class T, int kPack, bool kSkips>
struct GroupedImages {
  static constexpr int kAhead = kSkips ? 2 : 4;  // pixels that a thread asks for before it needs the first

  GroupCut cut;
  const T *x, *skip, *bias;
  bool skip_repeats;  // one pixel for a whole image

  // Puts a thread's sums to `sums`, and what it has read, rounded, to keep(pixel, first channel, values).
  template <class Keep>
  DEVICE_FN void add_up(const GroupPiece& piece, int t, Sums* sums, Keep keep) const {
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
          device::Pack<T, kPack> rounded;
          UNROLL for (int j = 0; j < kPack; ++j) rounded.at[j] = T(read[k].at[j]);
          keep(at, first, rounded);
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
  }

  // What that is of each group: put(shared, group in the chunk, spreading). The sums lie where dynamic memory begins.
  template <class Shared, class Put>
  DEVICE_FN void join_sums(device::Block<Shared>& b, const Shared& shared, const GroupPiece& piece, Put put) const {
    // Warps join a group's sums, more than one if there are more than groups.
    const int warps = b.size() / 32, of_group = warps > piece.groups ? warps / piece.groups : 1;
    const int teams = warps / of_group, width = cut.parts > 1 ? piece.width : cut.group;
    for (int base = 0; base < piece.groups; base += teams) {
      device::PerThread<Sums, GroupCut::kThreads> all;
      b.template reduce_groups<32>(
          all,
          [&](int t) {
            Sums own = {0, 0};
            const int team = t / 32 / of_group, group = base + team;
            if (team >= teams || group >= piece.groups) return own;
            const int units = width / cut.unit, row_units = piece.width / cut.unit;
            const Sums* sums = b.template dynamic<Sums>(shared) + group * units;
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
        put(s, group, Spreading{sample(piece, group * width) + mean, squares < 0 ? 0.f : squares});
      });
    }
  }

 private:
  DEVICE_FN float sample(const GroupPiece& piece, int channel) const { return float(load<1>(piece, 0, channel).at[0]); }
  // Sums are not rounded.
  template <int kCount>
  using Read = device::Pack<std::conditional_t<kSkips, float, T>, kCount>;
  template <int kCount>
  DEVICE_FN Read<kCount> load(const GroupPiece& piece, int pixel, int first) const {
    const int64_t at = piece.offset(cut, pixel, first), channel = piece.first_channel + first;
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

// y = activation((x - mean) / deviation * gamma + beta).
template <class T, int kPack>
struct GroupNormed {
  static constexpr int kAhead = 4;  // packs that a thread asks for before it needs the first
  using Raw = std::conditional_t<(kPack > 1), device::WordsOf<T, kPack>, device::Pack<T, kPack>>;

  T* y;
  PerChannel gamma, beta;
  float epsilon;
  Activation activation;

  DEVICE_FN void read_affine(int64_t channel, float (&factor)[kPack], float (&added)[kPack]) const {
    gamma.read(channel, factor);
    beta.read(channel, added);
  }
  // Mean, and what is one over the deviation.
  DEVICE_FN Sums scale_of(float mean, float variance) const { return {mean, 1.f / std::sqrt(variance + epsilon)}; }

  // load(pixel, first channel) is what a thread normalises, of a chunk whose groups have these scales; affine(first
  // channel, gamma, beta) reads these of a pack.
  template <class Affine, class Load>
  DEVICE_FN void store(const GroupCut& cut, const GroupPiece& piece, int t, const Sums* of_groups, Affine affine,
                       Load load) const {
    piece.own<kPack>(cut, t, [&](int first, int row) {
      float factor[kPack], added[kPack];
      affine(first, factor, added);
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
      activation.choose_once<T, false>([&](auto curve) {
        for (int pixel = row; pixel < piece.pixels; pixel += kAhead * cut.at_once) {
          Raw read[kAhead];
          const auto each = [&](auto f) {
            UNROLL for (int k = 0; k < kAhead; ++k) {
              if (pixel + k * cut.at_once < piece.pixels) f(read[k], pixel + k * cut.at_once);
            }
          };
          each([&](Raw& own, int at) { own = load(at, first); });
          each([&](const Raw& own, int at) {
            auto values = std::bit_cast<device::Pack<T, kPack>>(own);
            UNROLL for (int j = 0; j < kPack; ++j) {
              values.at[j] = T(curve(float(values.at[j]) * factor[j] + added[j]));
            }
            device::store_pack(y + piece.offset(cut, at, first), values, true);
          });
        }
      });
    });
  }
};

}  // namespace encore::ops
