// Squeeze and excite in two launches: what blocks of the first make of their parts of a picture those of the second add
// up, each for itself. Each makes the gates of its own channels and multiplies its part.
#pragma once
#include "ops/nn/picture_part.h"

namespace encore::ops {

// Threads bring some packs of x at once to shared memory, behind the weights.
template <class T, int kPack>
struct PictureBatches {
  static constexpr int kAtOnce = 8;
  using Part = PicturePart<T, kPack>;
  using Values = typename Part::Values;

  static int64_t dynamic_bytes(const PictureCut& cut) {
    return (int64_t(cut.squeezed) * cut.packs + kAtOnce * cut.step()) * int64_t(sizeof(Values));
  }

  const Part& part;
  Values* own;  // the thread's
  typename Part::Own at;

  DEVICE_FN PictureBatches(auto& b, auto& s, const Part& part, int t)
      : part(part),
        own(b.template dynamic<Values>(s, int64_t(part.cut.squeezed) * part.cut.packs * int64_t(sizeof(Values))) + t),
        at(part.own(t)) {}
  // Calls f with the first position of each batch.
  template <class F>
  DEVICE_FN void each(F f) const {
    NO_UNROLL for (int first = 0; first < part.positions; first += most()) f(first);
  }
  DEVICE_FN int count(int first) const { return part.positions - first < most() ? part.positions - first : most(); }
  DEVICE_FN void bring(const T* x, int first) const {
    part.bring(own, x + part.offset(first + at.row, at.pack), at.row, count(first));
  }

 private:
  DEVICE_FN int most() const { return kAtOnce * part.cut.rows; }
};

template <class T, int kPack>
struct Squeeze {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = PictureCut::kThreads;
  using Part = PicturePart<T, kPack>;
  using Shared = PictureSums<T>;

  PictureCut cut;
  GatedPictures<T> p;
  float* out;  // [image, part, squeezed]

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      const PictureBatches<T, kPack> batches(b, s, part, t);
      part.bring_weights(b.template dynamic<typename Part::Values>(s), p.squeeze, batches.at, t);
      b.wait();
      float sums[kPack] = {};
      batches.each([&](int first) {
        batches.bring(p.x, first);
        device::wait_for_copies();
        part.add_up(sums, batches.own, batches.at.row, batches.count(first));
      });
      part.put(s, sums, t);
    });
    part.mean(b);
    float* const to = out + b.index() * cut.squeezed;
    part.squeeze(b, [&](Shared&, int row, float sum) { to[row] = sum; });
  }
};

template <class T, int kPack>
struct Excite {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = PictureCut::kThreads;
  using Part = PicturePart<T, kPack>;
  using Batches = PictureBatches<T, kPack>;
  using Shared = PictureSums<T>;

  PictureCut cut;
  GatedPictures<T> p;
  const float* in;  // Squeeze's

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      const Batches batches(b, s, part, t);
      part.bring_weights(b.template dynamic<typename Part::Values>(s), p.excite, batches.at, t);
      const auto constants = part.constants_of(p, t);
      b.wait();
      batches.bring(p.x, 0);
      part.keep(s, constants, t);
    });
    const float* const from = in + part.image * cut.parts() * cut.squeezed;
    Part::add_columns(
        b, cut.squeezed, cut.by_squeezed, cut.parts(), cut.squeezed, [&](const Shared&, int row) { return from + row; },
        [&](Shared& s, int row, float sum) {
          s.squeezed[row] = p.squeeze_activation.template whole<T>(sum + float(s.squeeze_biases[row]));
        });
    part.excite(b, p, 0);
    b.threads([&](int t, Shared& s) {
      const Batches batches(b, s, part, t);
      part.gate(s, p.activation, batches.at.pack, [&](auto gated) {
        batches.each([&](int first) {
          if (first > 0) {
            batches.bring(p.x, first);
            device::wait_for_copies();
          }
          part.store(p.y + part.offset(first, batches.at.pack), batches.own, batches.at.row, batches.count(first),
                     gated);
        });
      });
    });
  }
};

}  // namespace encore::ops
