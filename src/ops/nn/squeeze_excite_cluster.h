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
  struct Shared : PictureSums {
    float partial[kMostSqueezed];  // which other blocks read
  };

  PictureCut cut;
  GatedPictures<T> p;

  // Of a block: two matrices of weights, and x.
  static int64_t dynamic_bytes(const PictureCut& cut) { return (2 * cut.squeezed + cut.slab) * pitch(cut); }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared&) const {
    const Part part(cut, b.index());
    b.threads([&](int t, Shared& s) {
      Values* const squeeze = b.template dynamic<Values>(s);
      part.bring_weights(squeeze, p.squeeze, t);
      part.bring_weights(b.template dynamic<Values>(s, weights_bytes()), p.excite, t);
      const auto constants = part.constants_of(p, t);
      b.wait();
      Values* const x = b.template dynamic<Values>(s, 2 * weights_bytes());
      part.bring(x, p.x + part.offset(0, 0), t, part.positions);
      part.keep(s, constants, t);
      device::wait_for_copies();
      part.own(t, [&](int row, int) {
        float sums[kPack] = {};
        for (const Values* own = x + t; row < part.positions; row += cut.rows, own += cut.step()) {
          UNROLL for (int j = 0; j < kPack; ++j) sums[j] += float(own->at[j]);
        }
        part.put(s, sums, t);
      });
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
        float sum = s.squeezed[row];
        UNROLL for (int k = 0; k < device::kMostInCluster; ++k) sum += partial[k];
        s.squeezed[row] = p.squeeze_activation.template whole<T>(sum);
      }
    });
    part.excite(b, p, weights_bytes());
    b.threads([&](int t, Shared& s) {
      part.own(t, [&](int row, int pack) {
        part.gate(s, p.activation, pack, [&](auto gated) {
          const Values* own = b.template dynamic<Values>(s, 2 * weights_bytes()) + t;
          T* to = p.y + part.offset(row, pack);
          NO_UNROLL for (int at = row; at < part.positions; at += cut.rows) {
            device::store_pack(to, gated(*own), true);
            own += cut.step(), to += cut.rows * cut.channels;
          }
        });
      });
    });
  }

 private:
  BOTH_FN static int64_t pitch(const PictureCut& cut) { return int64_t(cut.packs) * int64_t(sizeof(Values)); }
  DEVICE_FN int weights_bytes() const { return cut.squeezed * cut.packs * int(sizeof(Values)); }
};

}  // namespace encore::ops
