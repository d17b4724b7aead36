// Squeeze and excite in two launches: what blocks of the first make of their parts of a picture those of the second add
// up, each for itself. Each makes the gates of its own channels and multiplies its part.
#pragma once
#include "ops/nn/picture_part.h"

namespace encore::ops {

template <class T, int kPack>
struct PicturePacks {
  static constexpr int kMost = 4;  // positions that a thread asks for before it needs the first
  using Part = PicturePart<T, kPack>;
  typename Part::Values at[kMost];

  // Calls f(k, position) for those of the next ones that are there.
  template <class F>
  DEVICE_FN static void each(const Part& part, int at, F f) {
    UNROLL for (int k = 0; k < kMost; ++k) {
      if (at + k * part.cut.rows < part.positions) f(k, at + k * part.cut.rows);
    }
  }
  DEVICE_FN void read(const Part& part, const T* x, int first, int pack) {
    each(part, first, [&](int k, int from) {
      at[k] = device::load_pack<kPack>(x + part.offset(from, pack), true);
    });
  }
};

template <class T, int kPack>
struct Squeeze {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = PictureCut::kThreads;
  using Part = PicturePart<T, kPack>;
  using Packs = PicturePacks<T, kPack>;
  using Shared = PictureSums;

  PictureCut cut;
  GatedPictures<T> p;
  float* out;  // [image, part, squeezed]

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      part.bring_weights(b.template dynamic<typename Part::Values>(s), p.squeeze, t);
      b.wait();
      part.own(t, [&](int row, int pack) {
        float sums[kPack] = {};
        NO_UNROLL for (int at = row; at < part.positions; at += Packs::kMost * cut.rows) {
          Packs packs;
          packs.read(part, p.x, at, pack);
          Packs::each(part, at, [&](int k, int) {
            UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(packs.at[k].at[j]);
          });
        }
        part.put(s, sums, t);
      });
    });
    part.mean(b);
    float* const to = out + b.index() * cut.squeezed;
    part.squeeze(b, [&](Shared&, int row, float sum) { to[row] = sum; });
  }
};

template <class T, int kPack>
struct Excite {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kThreads = PictureCut::kThreads, kMaxThreads = kThreads;
  using Part = PicturePart<T, kPack>;
  using Packs = PicturePacks<T, kPack>;
  using Shared = PictureSums;

  PictureCut cut;
  GatedPictures<T> p;
  const float* in;  // Squeeze's

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    PerThread<Packs, kThreads> packs;
    b.threads([&](int t, Shared& s) {
      part.bring_weights(b.template dynamic<typename Part::Values>(s), p.excite, t);
      const auto constants = part.constants_of(p, t);
      b.wait();
      part.own(t, [&](int row, int pack) { packs[t].read(part, p.x, row, pack); });
      part.keep(s, constants, t);
    });
    const float* const from = in + part.image * cut.parts() * cut.squeezed;
    Part::add_columns(
        b, cut.squeezed, cut.by_squeezed, cut.parts(),
        [&](const Shared&, int other, int row) { return from[int64_t(other) * cut.squeezed + row]; },
        [&](Shared& s, int row, float sum) {
          s.squeezed[row] = p.squeeze_activation.template whole<T>(sum + s.squeezed[row]);
        });
    part.excite(b, p, 0);
    b.threads([&](int t, Shared& s) {
      part.own(t, [&](int row, int pack) {
        part.gate(s, p.activation, pack, [&](auto gated) {
          NO_UNROLL for (int at = row; at < part.positions; at += Packs::kMost * cut.rows) {
            if (at != row) packs[t].read(part, p.x, at, pack);
            Packs::each(part, at, [&](int k, int to) {
              device::store_pack(p.y + part.offset(to, pack), gated(packs[t].at[k]), true);
            });
          }
        });
      });
    });
  }
};

}  // namespace encore::ops
