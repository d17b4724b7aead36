// Two launches. Blocks of the first sum up the channels of their part of a picture, and multiply the sums by the
// weights of these channels. Those of the second add up what the first have made of a picture: each makes the gates of
// its own channels and multiplies its part. What is between is in float.
#include "ops/nn/squeeze_excite.h"

#include <algorithm>

#include "device/device.h"
#include "device/transform.h"
#include "ops/dispatch.h"
#include "ops/nn/activation.h"
#include "ops/reduce/team.h"
#include "ops/registry.h"

namespace encore::ops {
namespace {

using device::Block;
using device::Pack;
using device::PerThread;

constexpr int kThreads = 512;
constexpr int kLanes = 8;  // that add up a channel
constexpr int kMostWidth = kThreads / kLanes;
constexpr int kApart = 4;  // more than rows need, for lanes to read from banks of their own
constexpr int kAhead = 4;  // positions that a thread asks for before it needs the first
// Rows of weights likewise, where there are many. All else is short then, for code comes from far, too.
constexpr int kEarlyOfMany = 4, kFewRows = 32;

// How pictures are cut. A block has a slab of a picture's positions, and of these a chunk of channels. A thread has one
// pack of channels in every `rows`-th position, and the same in every `rows`-th row of weights.
struct Cut {
  int64_t positions, channels;
  int squeezed;
  int width, packs, rows;  // of a block: channels, packs of them, and threads for each pack
  int chunks, slabs;
  int64_t slab;

  BOTH_FN int parts() const { return chunks * slabs; }
};

template <class T, int kPack, int kEarly>
struct Part {
  using Values = Pack<T, kPack>;
  static constexpr int kSums = kThreads * (kPack + kApart);
  const Cut& cut;
  int64_t image, channel, position;  // the first ones
  int index, width, positions;

  DEVICE_FN Part(const Cut& cut, int64_t block) : cut(cut) {
    const auto i = uint32_t(block);
    image = i / uint32_t(cut.parts());
    index = int(i % uint32_t(cut.parts()));
    channel = int64_t(index / cut.slabs) * cut.width;
    position = int64_t(index % cut.slabs) * cut.slab;
    width = int(cut.channels - channel < cut.width ? cut.channels - channel : cut.width);
    positions = int(cut.positions - position < cut.slab ? cut.positions - position : cut.slab);
  }
  // Calls f(row, first channel in the chunk) if the thread has any.
  template <class F>
  DEVICE_FN void own(int t, F f) const {
    const int row = t / cut.packs, first = (t - row * cut.packs) * kPack;
    if (row < cut.rows && first < width) f(row, first);
  }
  DEVICE_FN int64_t offset(int at, int first) const {
    return (image * cut.positions + position + at) * cut.channels + channel + first;
  }
  DEVICE_FN Values weights(const T* from, int row, int first) const {
    return device::load_pack<kPack>(from + row * cut.channels + channel + first, true);
  }
  // The first rows that a thread will want.
  struct Rows {
    Values at[kEarly];
  };
  DEVICE_FN void early_weights(const T* from, int row, int first, Rows& rows) const {
    UNROLL for (int k = 0; k < kEarly; ++k) {
      if (row + k * cut.rows < cut.squeezed) rows.at[k] = weights(from, row + k * cut.rows, first);
    }
  }
  // Calls f(r, weights) for each of the thread's rows from `begin` to `end`. Those that were asked for early are there.
  template <class F>
  DEVICE_FN void each_row(const T* from, const Rows& rows, int row, int first, int begin, int end, F f) const {
    if constexpr (kEarly == 1) {
      for (int r = begin + row; r < end; r += cut.rows) f(r, r == row ? rows.at[0] : weights(from, r, first));
    } else {
      UNROLL for (int k = 0; k < kEarly; ++k) {
        const int r = row + k * cut.rows;
        if (r >= begin && r < end) f(r, rows.at[k]);
      }
      for (int r = row + kEarly * cut.rows; r < end; r += cut.rows) {
        if (r >= begin) f(r, weights(from, r, first));
      }
    }
  }
  // Calls f(k, position) for those of kAhead that are there.
  template <class F>
  DEVICE_FN void ahead(int at, F f) const {
    UNROLL for (int k = 0; k < kAhead; ++k) {
      if (at + k * cut.rows < positions) f(k, at + k * cut.rows);
    }
  }
  DEVICE_FN int place(int row, int first) const { return row * (width + kApart) + first; }
  // Sums over the rows, each for the lanes of its channel.
  DEVICE_FN void add_rows(auto& b, const float* rows, int count, PerThread<float, kThreads>& sums) const {
    b.template reduce_groups<kLanes>(
        sums,
        [&](int t) {
          float sum = 0;
          if (t / kLanes < width)
            for (int row = t % kLanes; row < count; row += kLanes) sum += rows[place(row, t / kLanes)];
          return sum;
        },
        Plus());
  }
};

template <class T, int kPack, int kEarly>
struct Squeeze {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = kThreads;
  using Own = Part<T, kPack, kEarly>;
  struct Shared {
    float sums[Own::kSums], means[kMostWidth];
  };

  Cut cut;
  const T *x, *weights;
  float* out;  // [image, squeezed, part]

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const Own part(cut, b.index());
    PerThread<typename Own::Rows, kThreads> early;
    b.threads([&](int t, Shared& s) {
      part.own(t, [&](int row, int first) { part.early_weights(weights, row, first, early[t]); });
      b.wait();
      part.own(t, [&](int row, int first) {
        float sums[kPack] = {};
        for (int at = row; at < part.positions; at += kAhead * cut.rows) {
          typename Own::Values values[kAhead];
          part.ahead(at,
                     [&](int k, int to) { values[k] = device::load_pack<kPack>(x + part.offset(to, first), true); });
          part.ahead(at, [&](int k, int) { UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(values[k].at[j]); });
        }
        UNROLL for (int j = 0; j < kPack; ++j) s.sums[part.place(row, first) + j] = sums[j];
      });
    });
    PerThread<float, kThreads> sums;
    part.add_rows(b, s.sums, cut.rows < part.positions ? cut.rows : part.positions, sums);
    b.threads([&](int t, Shared& s) {
      if (t % kLanes == 0 && t / kLanes < part.width) s.means[t / kLanes] = sums[t] / float(cut.positions);
    });
    // As many rows of weights at once as there is room for the sums of their packs.
    const int apart = cut.packs | 1, most = Own::kSums / apart;
    for (int base = 0; base < cut.squeezed; base += most) {
      const int end = cut.squeezed - base < most ? cut.squeezed : base + most;
      b.threads([&](int t, Shared& s) {
        part.own(t, [&](int row, int first) {
          part.each_row(weights, early[t], row, first, base, end, [&](int r, const auto& own) {
            float sum = 0;
            UNROLL for (int j = 0; j < kPack; ++j) sum += float(own.at[j]) * s.means[first + j];
            s.sums[(r - base) * apart + first / kPack] = sum;
          });
        });
      });
      b.threads([&](int t, Shared& s) {
        for (int r = base + t; r < end; r += kThreads) {
          float sum = 0;
          for (int i = 0; i * kPack < part.width; ++i) sum += s.sums[(r - base) * apart + i];
          out[(part.image * cut.squeezed + r) * cut.parts() + part.index] = sum;
        }
      });
    }
  }
};

template <class T, int kPack, int kEarly>
struct Excite {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kTeam = 16, kTeams = kThreads / kTeam;  // of threads that add up the parts of a row
  static constexpr int kAtOnce = 8;                            // that a thread asks for before it needs the first
  using Own = Part<T, kPack, kEarly>;
  struct Shared {
    float sums[Own::kSums], squeezed[kMostSqueezed], factors[kMostWidth], summands[kMostWidth];
  };
  struct Values {
    typename Own::Values at[kAhead];
  };
  template <int kRows>
  struct Sums {
    float at[kRows];
    DEVICE_FN friend Sums operator+(Sums a, const Sums& b) {
      UNROLL for (int k = 0; k < kRows; ++k) a.at[k] += b.at[k];
      return a;
    }
  };
  // Of a channel.
  struct Constants {
    float bias = 0, factor = 1, summand = 0;
  };

  Cut cut;
  const T *x, *weights;
  const T *squeeze_bias, *gate_bias;  // null where there is none, as the next two
  const float *factors, *summands;
  const float* in;  // Squeeze's
  T* y;
  Activation squeeze_activation, gate_activation, activation;

  DEVICE_FN void operator()(Block<Shared>& b, const Shared& s) const {
    const Own part(cut, b.index());
    PerThread<typename Own::Rows, kThreads> early;
    PerThread<Constants, kThreads> constants;
    PerThread<Values, kThreads> values;
    b.threads([&](int t, Shared&) {
      constants[t] = constants_of(part, t);
      part.own(t, [&](int row, int first) { part.early_weights(weights, row, first, early[t]); });
      b.wait();
      part.own(t, [&](int row, int first) { read(part, row, first, values[t]); });
    });
    add_squeezed(b, part);
    PerThread<float, kThreads> sums;
    b.threads([&](int t, Shared& s) {
      part.own(t, [&](int row, int first) {
        float sums[kPack] = {};
        part.each_row(weights, early[t], row, first, 0, cut.squeezed, [&](int r, const auto& own) {
          UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(own.at[j]) * s.squeezed[r];
        });
        UNROLL for (int j = 0; j < kPack; ++j) s.sums[part.place(row, first) + j] = sums[j];
      });
    });
    part.add_rows(b, s.sums, cut.rows < cut.squeezed ? cut.rows : cut.squeezed, sums);
    b.threads([&](int t, Shared& s) {
      const int channel = t / kLanes;
      if (t % kLanes != 0 || channel >= part.width) return;
      s.factors[channel] = gate_activation.template whole<T>(sums[t] + constants[t].bias) * constants[t].factor;
      s.summands[channel] = constants[t].summand;
    });
    b.threads([&](int t, Shared& s) {
      part.own(t, [&](int row, int first) {
        for (int at = row; at < part.positions; at += kAhead * cut.rows) {
          if (at != row) read(part, at, first, values[t]);
          part.ahead(at, [&](int k, int to) {
            auto& own = values[t].at[k];
            float made[kPack];
            UNROLL for (int j = 0; j < kPack; ++j) made[j] =
                float(own.at[j]) * s.factors[first + j] + s.summands[first + j];
            if (activation.kind != Activation::Kind::none)
              UNROLL for (int j = 0; j < kPack; ++j) made[j] = activation.template whole<T>(made[j]);
            UNROLL for (int j = 0; j < kPack; ++j) own.at[j] = T(made[j]);
            device::store_pack(y + part.offset(to, first), own, true);
          });
        }
      });
    });
  }

 private:
  // Of the channel that the thread makes a gate of.
  DEVICE_FN Constants constants_of(const Own& part, int t) const {
    Constants made;
    if (t % kLanes != 0 || t / kLanes >= part.width) return made;
    const int64_t channel = part.channel + t / kLanes;
    if (gate_bias) made.bias = float(gate_bias[channel]);
    if (factors) made.factor = factors[channel];
    if (summands) made.summand = summands[channel];
    return made;
  }
  DEVICE_FN void read(const Own& part, int at, int first, Values& values) const {
    part.ahead(at,
               [&](int k, int from) { values.at[k] = device::load_pack<kPack>(x + part.offset(from, first), true); });
  }
  // What the squeeze makes, of all parts. A team has a row or, where there are more than teams, several at once.
  DEVICE_FN void add_squeezed(auto& b, const Own& part) const {
    if constexpr (kEarly == 1)
      add_rows<1, kAtOnce>(b, part);
    else
      add_rows<kAtOnce, 1>(b, part);
  }
  template <int kRows, int kParts>
  DEVICE_FN void add_rows(auto& b, const Own& part) const {
    PerThread<Sums<kRows>, kThreads> sums;
    for (int base = 0; base < cut.squeezed; base += kTeams * kRows) {
      b.template reduce_groups<kTeam>(
          sums, [&](int t) { return add_parts<kRows, kParts>(part.image, base + t / kTeam, t % kTeam); }, Plus());
      b.threads([&](int t, Shared& s) {
        if (t % kTeam != 0) return;
        UNROLL for (int k = 0; k < kRows; ++k) {
          const int row = base + t / kTeam + k * kTeams;
          if (row < cut.squeezed) s.squeezed[row] = squeeze_activation.template whole<T>(sums[t].at[k]);
        }
      });
    }
  }
  // A lane's share, of so many rows and of each so many parts at once.
  template <int kRows, int kParts>
  DEVICE_FN Sums<kRows> add_parts(int64_t image, int first, int lane) const {
    const int parts = cut.parts();
    const float* const from = in + image * cut.squeezed * parts;
    Sums<kRows> sums;
    UNROLL for (int k = 0; k < kRows; ++k) {
      const int row = first + k * kTeams;
      sums.at[k] = squeeze_bias && lane == 0 && row < cut.squeezed ? float(squeeze_bias[row]) : 0.f;
    }
    for (int i = lane; i < parts; i += kParts * kTeam) {
      float batch[kRows][kParts];
      UNROLL for (int k = 0; k < kRows; ++k) {
        const int row = first + k * kTeams;
        UNROLL for (int m = 0; m < kParts; ++m) {
          const bool is_there = row < cut.squeezed && i + m * kTeam < parts;
          batch[k][m] = is_there ? from[int64_t(row) * parts + i + m * kTeam] : 0.f;
        }
      }
      UNROLL for (int k = 0; k < kRows; ++k) { UNROLL for (int m = 0; m < kParts; ++m) sums.at[k] += batch[k][m]; }
    }
    return sums;
  }
};

// Chunks are a line of the cache wide, and slabs as many as give each multiprocessor a block and all its threads a
// position.
Cut cut_pictures(int64_t images, int64_t positions, int64_t channels, int64_t squeezed, int pack, int size,
                 int64_t multiprocessors) {
  constexpr int64_t kLine = 128;
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t all = ceil(channels, pack), packs = ceil(all, ceil(all, kLine / (size * pack)));
  const int64_t chunks = ceil(all, packs), others = checked_product(images, chunks);
  // Every part that a slab makes is read by all blocks of the picture.
  const int64_t most_slabs = ceil(positions, kThreads / packs);
  const int64_t slabs =
      std::max(std::clamp<int64_t>(multiprocessors / others, 1, most_slabs), ceil(positions, int64_t(1) << 30));
  const int64_t slab = ceil(positions, slabs);
  require(others <= ((int64_t(1) << 31) - 1) / ceil(positions, slab), images, " pictures of ", channels,
          " channels are too many");
  return {positions,     channels,
          int(squeezed), int(packs * pack),
          int(packs),    int(kThreads / packs),
          int(chunks),   int(ceil(positions, slab)),
          slab};
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
    require(squeezed <= kMostSqueezed, "channels are squeezed to ", squeezed, "; ", kMostSqueezed, " are most");
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
      const auto launch = [&]<int kPack, int kEarly> {
        const Cut cut = cut_pictures(images, positions, channels, squeezed, kPack, sizeof(T),
                                     device::multiprocessors(context.stream().device()));
        const int64_t blocks = images * cut.parts();
        auto* const parts = static_cast<float*>(context.scratch(size_t(blocks * squeezed) * sizeof(float)));
        const Squeeze<T, kPack, kEarly> first{cut, x.as<const T>(), squeeze.as<const T>(), parts};
        const Excite<T, kPack, kEarly> second{cut,
                                              x.as<const T>(),
                                              excite.as<const T>(),
                                              static_cast<const T*>(squeeze_bias),
                                              static_cast<const T*>(gate_bias),
                                              static_cast<const float*>(factors),
                                              static_cast<const float*>(summands),
                                              parts,
                                              y.as<T>(),
                                              squeeze_activation_,
                                              gate_activation_,
                                              activation_};
        device::block_kernel<typename Squeeze<T, kPack, kEarly>::Shared>(context.stream(), {blocks, kThreads}, first);
        device::block_kernel<typename Excite<T, kPack, kEarly>::Shared>(context.stream(), {blocks, kThreads}, second);
      };
      constexpr int kWide = device::pack_size<T>();
      bool in_packs = channels % kWide == 0;
      for (const Tensor* each : {&x, &squeeze, &excite, &y})
        in_packs &= device::is_pack_aligned<kWide>(each->as<const T>());
      if (!in_packs)
        launch.template operator()<1, 1>();
      else if (squeezed <= kFewRows)
        launch.template operator()<kWide, 1>();
      else
        launch.template operator()<kWide, kEarlyOfMany>();
    });
  }

 private:
  Activation squeeze_activation_, gate_activation_, activation_;
};

}  // namespace

std::unique_ptr<Op> make_squeeze_excite(const NodeInfo& node) { return make<SqueezeExcite>(node); }

}  // namespace encore::ops
