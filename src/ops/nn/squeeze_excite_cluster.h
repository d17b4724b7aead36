// Squeeze and excite in one launch: a cluster has a picture, and each block keeps its part of x in shared memory. Of
// what the picture is squeezed to, blocks add up what all of them have.
#pragma once
#include "device/cluster.h"
#include "ops/nn/picture_part.h"

namespace encore::ops {

template <class T>
struct SqueezeExciteTogether {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kPack = device::pack_size<T>(), kThreads = PictureCut::kThreads, kMaxThreads = kThreads;
  using Part = PicturePart<T, kPack>;
  using Values = typename Part::Values;
  static constexpr int64_t kDynamicBytes = 176 * 1024;  // with Shared what a multiprocessor has, but not all of it
  struct Shared : PictureSums<T> {
    float partial[kMostSqueezed];  // which other blocks read
  };

  PictureCut cut;
  GatedPictures<T> p;

  // Of a block: two matrices of weights, and x.
  static int64_t dynamic_bytes(const PictureCut& cut) { return (2 * cut.squeezed + cut.slab) * pitch(cut); }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      const auto own = part.own(t);
      part.bring_weights(b.template dynamic<Values>(s), p.squeeze, own, t);
      part.bring_weights(b.template dynamic<Values>(s, weights_bytes()), p.excite, own, t);
      const auto constants = part.constants_of(p, t);
      Values* const x = b.template dynamic<Values>(s, 2 * weights_bytes()) + t;
      b.wait();
      part.bring(x, p.x + part.offset(own.row, own.pack), own.row, part.positions);
      part.keep(s, constants, t);
      device::wait_for_copies();
      float sums[kPack] = {};
      part.add_up(sums, x, own.row, part.positions);
      part.put(s, sums, t);
    });
    part.mean(b);
    part.squeeze(b, [](Shared& s, int row, float sum) { s.partial[row] = sum; });
  }

  DEVICE_FN void join(device::Block<Shared>& b, const Shared&, const device::Cluster<Shared>& cluster) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      NO_UNROLL for (int row = t; row < cut.squeezed; row += kThreads) {
        float partial[device::kMostInCluster];
        UNROLL for (int k = 0; k < device::kMostInCluster; ++k) partial[k] =
            k < cluster.size() ? cluster.shared(k).partial[row] : 0.f;
        float sum = float(s.squeeze_biases[row]);
        UNROLL for (int k = 0; k < device::kMostInCluster; ++k) sum += partial[k];
        s.squeezed[row] = p.squeeze_activation.template whole<T>(sum);
      }
    });
    part.excite(b, p, weights_bytes());
    b.threads([&](int t, Shared& s) {
      const auto own = part.own(t);
      part.gate(s, p.activation, own.pack, [&](auto gated) {
        const Values* const x = b.template dynamic<Values>(s, 2 * weights_bytes()) + t;
        part.store(p.y + part.offset(0, own.pack), x, own.row, part.positions, gated);
      });
    });
  }

 private:
  BOTH_FN static int64_t pitch(const PictureCut& cut) { return int64_t(cut.packs) * int64_t(sizeof(Values)); }
  DEVICE_FN int weights_bytes() const { return cut.squeezed * cut.packs * int(sizeof(Values)); }
};

}  // namespace encore::ops
