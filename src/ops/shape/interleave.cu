#include "ops/shape/interleave.h"

#include "device/divide_small.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;
using device::Pack;

// A thread has neighbours of each plane, up to 16 bytes, and asks for all of them at once. Blocks are small: one
// picture is little work, which all multiprocessors share.
template <class T, int kPlanes, int kPack>
struct InterleavePlanes {
  static constexpr int kMaxThreads = 64;
  const T* in;
  T* out;
  int count;                      // of packs
  device::SmallDivider by_packs;  // of a plane
  int64_t image_stride, plane_stride;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      const int i = int(b.index()) * kMaxThreads + t;
      if (i >= count) return;
      int pack;
      const int image = by_packs(i, pack);
      const T* const from = in + image * image_stride + int64_t(pack) * kPack;
      Pack<T, kPack> planes[kPlanes], made[kPlanes];
      UNROLL for (int p = 0; p < kPlanes; ++p) planes[p] = device::load_aligned<kPack>(from + p * plane_stride);
      UNROLL for (int j = 0; j < kPlanes * kPack; ++j) made[j / kPack].at[j % kPack] =
          planes[j % kPlanes].at[j / kPlanes];
      T* const to = out + int64_t(i) * kPlanes * kPack;
      UNROLL for (int p = 0; p < kPlanes; ++p) device::store_aligned(to + p * kPack, made[p]);
    });
  }
};

}  // namespace

bool interleave(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out, size_t bytes) {
  const auto& [images, planes, size, image_stride, plane_stride] = pictures;
  if (planes < 2 || planes > 4 || bytes > 8 || images * size >= int64_t(1) << 30) return false;
  const auto launch = [&]<class T, int kPlanes, int kPack>() {
    using Kernel = InterleavePlanes<T, kPlanes, kPack>;
    const int64_t packs = size / kPack, count = images * packs;
    device::block_kernel<NoShared>(stream, {(count - 1) / Kernel::kMaxThreads + 1, Kernel::kMaxThreads},
                                   Kernel{static_cast<const T*>(in), static_cast<T*>(out), int(count),
                                          device::SmallDivider(int(packs)), image_stride, plane_stride});
  };
  dispatch_size(bytes, [&]<class T>() {
    if constexpr (sizeof(T) <= 8) {
      constexpr int kPack = device::pack_size<T>();
      const bool in_packs = size % kPack == 0 && image_stride % kPack == 0 && plane_stride % kPack == 0 &&
                            device::is_pack_aligned<kPack>(static_cast<const T*>(in)) &&
                            device::is_pack_aligned<kPack>(static_cast<const T*>(out));
      const auto launch_planes = [&]<int kPlanes>() {
        if (in_packs)
          launch.template operator()<T, kPlanes, kPack>();
        else
          launch.template operator()<T, kPlanes, 1>();
      };
      if (planes == 2)
        launch_planes.template operator()<2>();
      else if (planes == 3)
        launch_planes.template operator()<3>();
      else
        launch_planes.template operator()<4>();
    }
  });
  return true;
}

}  // namespace encore::ops
