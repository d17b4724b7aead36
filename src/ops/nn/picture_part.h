// Squeeze and excite, step by step, as blocks do it that have a part of a picture each. Of the weights, constants of a
// model, a block keeps its channels' in shared memory: these are on their way before it waits for earlier kernels. What
// is between the steps is in float.
#pragma once
#include "device/copy_async.h"
#include "device/divide_small.h"
#include "device/half.h"
#include "ops/nn/activation.h"
#include "ops/nn/squeeze_excite.h"

namespace encore::ops {

using device::Pack;
using device::SmallDivider;

template <class T>
struct GatedPictures {
  const T *x, *squeeze, *squeeze_bias, *excite, *gate_bias;  // biases may be null
  const float *factors, *summands;                           // as these
  T* y;
  Activation squeeze_activation, gate_activation, activation;
};

// How pictures are cut. A block has a slab of a picture's positions, and of these a chunk of channels. A thread has one
// pack of channels in every `rows`-th position, and the same in every `rows`-th row of weights. What there is of each
// channel lies in columns: first those of the packs' first channels, then those of the second ones, and so on, for
// neighbouring threads to use neighbouring banks.
struct PictureCut {
  // Few, for what each does beside its share of values is more than that.
  static constexpr int kThreads = 256, kMostWidth = kThreads;
  static constexpr int kSums = 4096;

  int64_t positions;
  int channels, squeezed, chunks, slabs;
  int packs, width, rows, slab;  // of a block: packs of channels, these, threads for each pack, and positions
  float share;                   // of a position in a mean
  SmallDivider by_packs, by_width, by_squeezed, by_slabs, by_parts;

  // Of packs of so many channels.
  PictureCut(int64_t positions, int64_t channels, int64_t squeezed, int pack, int64_t chunks, int64_t slabs)
      : positions(positions),
        channels(int(channels)),
        squeezed(int(squeezed)),
        chunks(int(chunks)),
        slabs(int(slabs)),
        packs(int(((channels + pack - 1) / pack + chunks - 1) / chunks)),
        width(packs * pack),
        rows(kThreads / packs),
        slab(int((positions + slabs - 1) / slabs)),
        share(1.f / float(positions)),
        by_packs(packs),
        by_width(width),
        by_squeezed(this->squeezed),
        by_slabs(this->slabs),
        by_parts(parts()) {}

  BOTH_FN int parts() const { return chunks * slabs; }
  // Of a thread's packs, those of another thread's lie beside them: so many packs are from one to the next.
  BOTH_FN int step() const { return rows * packs; }
  // Whether there is room for sums of each row of weights and so many packs of channels.
  static bool has_room(int64_t squeezed, int64_t packs) { return squeezed * apart(packs) <= kSums; }
  // Odd, for threads that add up packs to read from banks of their own.
  BOTH_FN static int64_t apart(int64_t packs) { return packs | 1; }
};

// What steps have in shared memory, beside dynamic one for packs of weights and of x, each of them for one thread.
template <class T>
struct PictureSums {
  float sums[PictureCut::kSums], groups[kMostSqueezed];
  float means[PictureCut::kMostWidth], squeezed[kMostSqueezed];
  float factors[PictureCut::kMostWidth], summands[PictureCut::kMostWidth];
  T squeeze_biases[kMostSqueezed], gate_biases[PictureCut::kMostWidth];
};

// The constants that a thread brings for the others, as they are: what is converted waits for them.
template <class T>
struct GateConstants {
  static constexpr int kRows = kMostSqueezed / PictureCut::kThreads;
  T squeeze_bias[kRows], gate_bias;
  float factor, summand;
};

template <class T, int kPack>
struct PicturePart {
  static constexpr int kThreads = PictureCut::kThreads;
  using Values = Pack<T, kPack>;
  static_assert(kPack * kThreads + PictureCut::kMostWidth <= PictureCut::kSums);
  const PictureCut& cut;
  int64_t image;
  int channel, width, positions;  // the first one, how many there are; not even one beyond a picture's end
  int64_t position;               // the first one

  DEVICE_FN PicturePart(const PictureCut& cut, int64_t block) : cut(cut) {
    int part, slab;
    image = cut.by_parts(int(block), part);
    channel = cut.by_slabs(part, slab) * cut.width;
    position = int64_t(slab) * cut.slab;
    width = cut.channels - channel < cut.width ? cut.channels - channel : cut.width;
    positions = int(cut.positions - position < cut.slab ? cut.positions - position : cut.slab);
  }
  // A thread's pack of the chunk, and its first row: one beyond all where it has none.
  struct Own {
    int row, pack;
  };
  DEVICE_FN Own own(int t) const {
    Own made;
    made.row = cut.by_packs(t, made.pack);
    if (made.row >= cut.rows || made.pack * kPack >= width) made.row = kNone;
    return made;
  }
  DEVICE_FN int64_t offset(int at, int pack) const {
    return (image * cut.positions + position + at) * cut.channels + channel + pack * kPack;
  }
  // Has the thread's packs of so many rows brought to shared memory, from where its first one is.
  DEVICE_FN void bring(Values* to, const T* from, int row, int count) const {
    const int64_t step = int64_t(cut.rows) * cut.channels;
    if constexpr (sizeof(Values) == 16) {
      NO_UNROLL for (; row < count; row += cut.rows, to += cut.step(), from += step)
          device::copy_async_or_zeros(to, from, true);
    } else {
      NO_UNROLL for (; row < count; row += kAtOnce * cut.rows) {
        Values batch[kAtOnce];
        UNROLL for (int k = 0; k < kAtOnce; ++k, from += step) {
          if (row + k * cut.rows < count) batch[k] = device::load_pack<kPack>(from, true);
        }
        UNROLL for (int k = 0; k < kAtOnce; ++k, to += cut.step()) {
          if (row + k * cut.rows < count) *to = batch[k];
        }
      }
    }
  }
  DEVICE_FN void bring_weights(Values* to, const T* weights, const Own& own, int t) const {
    bring(to + t, weights + int64_t(own.row) * cut.channels + channel + own.pack * kPack, own.row, cut.squeezed);
  }

  DEVICE_FN GateConstants<T> constants_of(const GatedPictures<T>& p, int t) const {
    GateConstants<T> made{{}, T(0.f), 1, 0};
    UNROLL for (int k = 0; k < GateConstants<T>::kRows; ++k) {
      const int row = t + k * kThreads;
      made.squeeze_bias[k] = p.squeeze_bias && row < cut.squeezed ? p.squeeze_bias[row] : T(0.f);
    }
    int pack;
    const int in_pack = cut.by_packs(t, pack), own = channel + pack * kPack + in_pack;
    if (in_pack >= kPack || pack * kPack >= width) return made;
    if (p.gate_bias) made.gate_bias = p.gate_bias[own];
    if (p.factors) made.factor = p.factors[own];
    if (p.summands) made.summand = p.summands[own];
    return made;
  }
  DEVICE_FN void keep(PictureSums<T>& s, const GateConstants<T>& constants, int t) const {
    UNROLL for (int k = 0; k < GateConstants<T>::kRows; ++k) {
      if (t + k * kThreads < cut.squeezed) s.squeeze_biases[t + k * kThreads] = constants.squeeze_bias[k];
    }
    if (t >= cut.width) return;
    s.gate_biases[t] = constants.gate_bias;
    s.factors[t] = constants.factor, s.summands[t] = constants.summand;
  }

  // Calls f(row, pack) with the thread's packs of so many rows.
  template <class F>
  DEVICE_FN void each(const Values* own, int row, int count, F f) const {
    constexpr int kAhead = 2;
    NO_UNROLL for (; row < count; row += kAhead * cut.rows, own += kAhead * cut.step()) {
      Values batch[kAhead];
      UNROLL for (int k = 0; k < kAhead; ++k) {
        if (row + k * cut.rows < count) batch[k] = own[k * cut.step()];
      }
      UNROLL for (int k = 0; k < kAhead; ++k) {
        if (row + k * cut.rows < count) f(row + k * cut.rows, batch[k]);
      }
    }
  }
  DEVICE_FN void add_up(float (&sums)[kPack], const Values* own, int row, int count) const {
    each(own, row, count,
         [&](int, const Values& values) { UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(values.at[j]); });
  }
  // A thread's sums of its channels; anything of a thread without.
  DEVICE_FN void put(PictureSums<T>& s, const float (&sums)[kPack], int t) const {
    UNROLL for (int j = 0; j < kPack; ++j) s.sums[j * (kThreads + cut.packs) + t] = sums[j];
  }
  // Makes means, of the slab's part in them, of what threads have put.
  DEVICE_FN void mean(auto& b) const {
    add_rows(b, positions, [&](PictureSums<T>& s, int column, float sum) { s.means[column] = sum * cut.share; });
  }
  // Calls done(shared, row, the part's share of what is squeezed) for each row of weights.
  template <class Done>
  DEVICE_FN void squeeze(auto& b, Done done) const {
    const int apart = int(PictureCut::apart(cut.packs));
    b.threads([&](int t, auto& s) {
      const Own at = own(t);
      float means[kPack];
      UNROLL for (int j = 0; j < kPack; ++j) means[j] = s.means[j * cut.packs + at.pack];
      device::wait_for_copies();
      each(b.template dynamic<Values>(s) + t, at.row, cut.squeezed, [&](int row, const Values& weights) {
        float sum = 0;
        UNROLL for (int j = 0; j < kPack; ++j) sum += float(weights.at[j]) * means[j];
        s.sums[row * apart + at.pack] = sum;
      });
    });
    const int packs = width > 0 ? width / kPack : 0;
    b.threads([&](int t, auto& s) {
      NO_UNROLL for (int row = t; row < cut.squeezed; row += kThreads)
          done(s, row, add_each(s.sums + row * apart, 0, 1, packs));
    });
  }
  // Makes factors of what is squeezed, by weights that are at a byte of dynamic shared memory.
  DEVICE_FN void excite(auto& b, const GatedPictures<T>& p, int64_t byte) const {
    b.threads([&](int t, auto& s) {
      float sums[kPack] = {};
      device::wait_for_copies();
      each(b.template dynamic<Values>(s, byte) + t, own(t).row, cut.squeezed, [&](int row, const Values& weights) {
        UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(weights.at[j]) * s.squeezed[row];
      });
      put(s, sums, t);
    });
    add_rows(b, cut.squeezed, [&](PictureSums<T>& s, int column, float sum) {
      s.factors[column] *= p.gate_activation.template whole<T>(sum + float(s.gate_biases[column]));
    });
  }
  // Calls f with what makes a pack of the thread's channels another, which it may ask again and again.
  template <class F>
  DEVICE_FN void gate(const PictureSums<T>& s, const Activation& activation, int pack, F f) const {
    float factors[kPack], summands[kPack];
    UNROLL for (int j = 0; j < kPack; ++j) {
      const int column = j * cut.packs + pack;
      factors[j] = s.factors[column], summands[j] = s.summands[column];
    }
    const auto with = [&](auto curve) {
      f([&](Values values) {
        UNROLL for (int j = 0; j < kPack; ++j) values.at[j] = T(curve(float(values.at[j]) * factors[j] + summands[j]));
        return values;
      });
    };
    if (activation.kind == Activation::Kind::none)  // mostly, and near
      with([](float x) { return x; });
    else
      activation.template choose_once<T>(with);
  }

  // Stores what is made of the thread's packs of so many rows; one of the first row would go there.
  DEVICE_FN void store(T* to, const Values* own, int row, int count, auto made_of) const {
    each(own, row, count, [&](int at, const Values& values) {
      device::store_pack(to + int64_t(at) * cut.channels, made_of(values), true);
    });
  }

  // Calls done(shared, column, sum) for each of so many columns, of all rows: from(shared, column) is where its first
  // value is, and others follow so far apart. A group of threads has every so-many-th row.
  template <class From, class Done>
  DEVICE_FN static void add_columns(auto& b, int columns, const SmallDivider& by_columns, int rows, int apart,
                                    From from, Done done) {
    int rest;
    const int whole = by_columns(kThreads, rest), groups = whole > 0 ? whole : 1;
    b.threads([&](int t, auto& s) {
      NO_UNROLL for (int i = t; i < groups * columns; i += kThreads) {
        int column;
        const int group = by_columns(i, column);
        s.groups[i] = add_each(from(s, column), group * apart, groups * apart, rows * apart);
      }
    });
    b.threads([&](int t, auto& s) {
      NO_UNROLL for (int column = t; column < columns; column += kThreads)
          done(s, column, add_each(s.groups, column, columns, groups * columns));
    });
  }

 private:
  static constexpr int kAtOnce = 8, kNone = 1 << 30;

  // Every step-th value from the first on; they are asked for so many at once.
  DEVICE_FN static float add_each(const float* values, int first, int step, int end) {
    float sum = 0;
    NO_UNROLL for (; first < end; first += kAtOnce * step) {
      float batch[kAtOnce];
      UNROLL for (int k = 0; k < kAtOnce; ++k) batch[k] = first + k * step < end ? values[first + k * step] : 0.f;
      UNROLL for (int k = 0; k < kAtOnce; ++k) sum += batch[k];
    }
    return sum;
  }
  // Of what threads that have some of `count` rows have put. Columns of channels that are not there hold anything.
  template <class Done>
  DEVICE_FN void add_rows(auto& b, int count, Done done) const {
    add_columns(
        b, cut.width, cut.by_width, count < cut.rows ? count : cut.rows, cut.packs,
        [&](const PictureSums<T>& s, int column) {
          int pack;
          return s.sums + (cut.by_packs(column, pack) * kThreads + column);
        },
        done);
  }
};

}  // namespace encore::ops
