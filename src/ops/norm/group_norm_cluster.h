// GroupNorm in one launch: a cluster has an image's chunk of channels, and each block keeps its slab of the pixels in
// shared memory, gamma and beta beside it, until all have told one another what they added up.
#pragma once
#include "device/cluster.h"
#include "ops/norm/group_images.h"

namespace encore::ops {

template <class T, int kPack, bool kSkips>
struct GroupNormTogether {
  static constexpr bool kBeginsEarly = true;
  static constexpr int kMaxThreads = GroupCut::kThreads;
  static constexpr int64_t kDynamicBytes = 80 * 1024;
  using Images = GroupedImages<T, kPack, kSkips>;
  using Normed = GroupNormed<T, kPack>;
  using Values = device::Pack<T, kPack>;
  struct Shared {
    Spreading pieces[GroupCut::kMostGroups];  // which other blocks read
    Sums scales[GroupCut::kMostGroups];
  };

  Images images;
  T* sum;  // x + skip + bias, if it is wanted
  Normed normed;

  // Of a block: sums, gamma and beta, x.
  static int64_t dynamic_bytes(const GroupCut& cut) {
    return values_at(cut) + cut.slab_pixels * cut.packs * int64_t(sizeof(Values));
  }

  DEVICE_FN void operator()(device::Block<Shared>& b, const Shared& shared) const {
    const GroupCut& cut = images.cut;
    const GroupPiece piece(cut, b.index());
    b.threads([&](int t, Shared& s) {
      b.wait();
      Affine affine;
      const auto first_row = [&](auto f) {
        piece.template own<kPack>(cut, t, [&](int first, int row) {
          if (row == 0) f(first);
        });
      };
      first_row([&](int first) { normed.read_affine(piece.first_channel + first, affine.gamma, affine.beta); });
      images.add_up(piece, t, b.template dynamic<Sums>(s), [&](int pixel, int first, const Values& values) {
        *place_of(b, s, pixel, first) = values;
        if (kSkips && sum) device::store_pack(sum + piece.offset(cut, pixel, first), values, true);
      });
      first_row([&](int first) { *affine_of(b, s, first) = affine; });
    });
    images.join_sums(b, shared, piece, [](Shared& s, int group, Spreading of) { s.pieces[group] = of; });
  }

  DEVICE_FN void join(device::Block<Shared>& b, const Shared&, const device::Cluster<Shared>& cluster) const {
    const GroupCut& cut = images.cut;
    const GroupPiece piece(cut, b.index());
    b.threads([&](int t, Shared& s) {
      for (int group = t; group < piece.groups; group += b.size()) s.scales[group] = scale_of(group, cluster);
    });
    b.threads([&](int t, Shared& s) {
      normed.store(
          cut, piece, t, s.scales,
          [&](int first, float(&gamma)[kPack], float(&beta)[kPack]) {
            const Affine affine = *affine_of(b, s, first);
            UNROLL for (int j = 0; j < kPack; ++j) gamma[j] = affine.gamma[j], beta[j] = affine.beta[j];
          },
          [&](int pixel, int first) { return std::bit_cast<typename Normed::Raw>(*place_of(b, s, pixel, first)); });
    });
  }

 private:
  struct alignas(16) Affine {
    float gamma[kPack], beta[kPack];
  };
  BOTH_FN static int64_t affine_at(const GroupCut& cut) { return (cut.sums() * int64_t(sizeof(Sums)) + 15) / 16 * 16; }
  BOTH_FN static int64_t values_at(const GroupCut& cut) { return affine_at(cut) + cut.packs * int64_t(sizeof(Affine)); }
  DEVICE_FN Affine* affine_of(const device::Block<Shared>& b, Shared& s, int first) const {
    return b.template dynamic<Affine>(s, affine_at(images.cut)) + first / kPack;
  }
  DEVICE_FN Values* place_of(const device::Block<Shared>& b, Shared& s, int pixel, int first) const {
    return b.template dynamic<Values>(s, values_at(images.cut)) + pixel * images.cut.packs + first / kPack;
  }
  // Of all blocks' slabs.
  DEVICE_FN Sums scale_of(int group, const device::Cluster<Shared>& cluster) const {
    const GroupCut& cut = images.cut;
    Spreading pieces[device::kMostInCluster];
    float pixels[device::kMostInCluster], mean = 0, squares = 0;
    UNROLL for (int k = 0; k < device::kMostInCluster; ++k) {
      const bool there = k < cluster.size();
      pieces[k] = there ? cluster.shared(k).pieces[group] : Spreading{0, 0};
      pixels[k] = there ? float(GroupPiece::pixels_of(cut, k)) : 0.f;
    }
    UNROLL for (int k = 0; k < device::kMostInCluster; ++k) mean += pieces[k].mean * pixels[k];
    mean /= float(cut.pixels);
    UNROLL for (int k = 0; k < device::kMostInCluster; ++k) {
      const float apart = pieces[k].mean - mean;
      squares += pieces[k].squares + pixels[k] * float(cut.group) * apart * apart;
    }
    return normed.scale_of(mean, squares / (float(cut.pixels) * float(cut.group)));
  }
};

}  // namespace encore::ops
